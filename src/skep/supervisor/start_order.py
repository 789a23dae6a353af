"""The order in which replicas of one machine start, their ports and their environment.

Replicas that share a card start one after the other: an engine measures the free memory of its cards while it starts.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from itertools import chain

from skep.engines.base import ENGINE_KEY, GATEWAY_KEY, Launch
from skep.errors import EngineError
from skep.wire.listen import HOST, claim_port, free_port

MANY_PORTS = 5000  # of the 28000 that the kernel gives out; then the earliest may be used again


class StartOrder:
    """`ports`: the range that engines may use, shared with other programs on this machine; None: any port."""

    def __init__(self, ports: range | None = None) -> None:
        self._ports = ports
        self._held: dict[str, tuple[int, socket.socket]] = {}  # by replica: its port, and the socket that claims it
        self._line: dict[str, frozenset[int]] = {}  # replicas that start or wait to, in order, with their cards
        self._moved = asyncio.Event()
        self._secrets = {GATEWAY_KEY, ENGINE_KEY}
        self._given: set[int] = set()

    def __repr__(self) -> str:
        return f"<StartOrder {', '.join(self._line) or 'nobody'} starting>"

    # The queue of starts

    def may_start(self, launch: Launch) -> bool:
        """Return whether no replica earlier in the queue uses its cards. It stays in the queue until it is `done`."""
        cards = self._line.setdefault(launch.name, frozenset(launch.gpus))
        for name, others in self._line.items():
            if name == launch.name:
                return True
            if not cards.isdisjoint(others):
                return False
        return True

    async def await_turn(self, launch: Launch) -> None:
        while not self.may_start(launch):
            self._moved.clear()
            await self._moved.wait()

    def is_waiting(self, name: str) -> bool:
        return name in self._line

    def done(self, names: Iterable[str]) -> None:
        """Remove replicas from the queue: they are ready, dead or given up."""
        for name in names:
            if self._line.pop(name, None) is not None:
                self._moved.set()

    # Environment and ports

    def hide(self, launches: Iterable[Launch]) -> None:
        """Keep the keys of upstream servers from the engines: an engine may run a checkpoint's own code."""
        self._secrets |= {launch.key_env for launch in launches if launch.key_env}

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name not in self._secrets}

    def port_for(self, launch: Launch, *, finds_one: bool) -> int:
        """Return a port; 0 where the engine finds one itself (`finds_one`). Raise EngineError where all are taken."""
        if launch.port:
            return launch.port
        if self._ports is not None:
            return self._claimed(launch.name, launch.host, self._ports)
        return 0 if finds_one else self.free_port(launch.host)

    def close(self) -> None:
        """Give up all claimed ports."""
        for _, claim in self._held.values():
            claim.close()
        self._held.clear()

    def _claimed(self, name: str, host: str, ports: range) -> int:
        """Claim the first free port after the replica's last one, which may still be in use."""
        begin = 0
        if name in self._held:
            before, claimed = self._held.pop(name)
            claimed.close()
            begin = ports.index(before) + 1
        for port in chain(ports[begin:], ports[:begin]):
            if (claim := claim_port(host, port)) is not None:
                self._held[name] = port, claim
                return port
        hint = "end what listens there, or start the node with another --port"
        raise EngineError(f"all ports for engines are taken on {host}, {ports[0]} to {ports[-1]}", hint=hint)

    def free_port(self, host: str = HOST) -> int:
        """Return a port that was not returned before: an engine may bind its port minutes after it was chosen."""
        if len(self._given) > MANY_PORTS:
            self._given.clear()
        while (port := free_port(host)) in self._given:
            pass
        self._given.add(port)
        return port
