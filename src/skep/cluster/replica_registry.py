"""The registry of a hive: its replicas, and the gateway that owns it. One actor in the cluster.

Its state can be lost: replica actors report every few seconds and the gateway polls the table, so a restarted registry
knows everything within seconds; until then its table says `settling`. Clocks of different nodes are never compared.
Reaches Ray only through `end_post` and `holder`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

ANNOUNCE_EVERY_S = 2.0
AWAY_AFTER_S = 3.5 * ANNOUNCE_EVERY_S  # a replica that is silent for so long is away
ABANDONED_AFTER_S = 120.0  # without a gateway the hive ends
OWNED_S = 8.0  # a gateway that is silent for so long can lose the hive to another one
LOOK_EVERY_S = 0.5
PAUSE_S = 2.0  # a check later than this was held up, and so were the messages
OVER = 1000  # ended incarnations that are remembered

Row = dict[str, Any]


async def _not_known(_name: str) -> None:
    return None


def _incarnation(row: Row) -> str:
    """Return the incarnation of a report. Raise KeyError if a field is missing."""
    _ = row["state"], row["node"]
    incarnation: str = row["incarnation"]
    return incarnation


class ReplicaRegistry:
    """The table of a hive. `end_post` ends a replica actor by name and handle and returns success.

    `end_self` ends the registry when no gateway is left. `holder` returns the id of the actor that Ray has under a
    replica's name; "" for none, None if the head does not answer.
    """

    def __init__(
        self,
        hive: str,
        *,
        end_post: Callable[[str, Any], Awaitable[bool]],
        end_self: Callable[[], Awaitable[None]],
        holder: Callable[[str], Awaitable[str | None]] = _not_known,
        abandoned_after_s: float = ABANDONED_AFTER_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hive = hive
        self._end_post = end_post
        self._end_self = end_self
        self._holder = holder
        self._abandoned_after_s = abandoned_after_s
        self._now = now
        self._rows: dict[str, Row] = {}
        self._handles: dict[str, Any] = {}
        self._heard_at: dict[str, float] = {}
        self._over: dict[str, None] = {}  # incarnations that were ended or replaced
        self._owner: str | None = None
        self._policy: Row | None = None  # the owner's restart policy; None: not received
        self._began_at = self._owner_seen_at = self._looked_at = now()
        self._settling = True
        self._version = time.time_ns()  # no two registries of a hive count alike
        self._moved = asyncio.Event()

    # Called by replica actors

    async def announce(self, name: str, row: Row, handle: Any = None) -> dict[str, Any]:
        """Take a report. The answer says whether the actor must end, because it was ended or replaced.

        `handle`: its own, costly to send, so left out once an answer said that it is `held`.
        """
        known, incarnation = self._rows.get(name), _incarnation(row)
        if known is not None and known["incarnation"] != incarnation and incarnation not in self._over:
            succeeds = await self._succeeds(name, row, known)
            if succeeds is None or self._rows.get(name, row)["incarnation"] != known["incarnation"]:
                return {"end": False, "policy": self._policy, "held": False}  # decided at its next report
            self._end_of((known if succeeds else row)["incarnation"])
            if succeeds:
                self._handles.pop(name, None)
        if incarnation in self._over:
            return {"end": True}
        self._heard_at[name], self._handles[name] = self._now(), handle or self._handles.get(name)
        if known != row:
            self._rows[name] = row
            self._changed()
        return {"end": False, "policy": self._policy, "held": self._handles[name] is not None}

    async def forget(self, name: str) -> None:
        """Remove a replica that was ended."""
        row = self._rows.pop(name, None)
        self._heard_at.pop(name, None)
        self._handles.pop(name, None)
        if row is not None:
            self._end_of(row["incarnation"])
            self._changed()

    # Called by the gateway

    async def claim(self, gateway: str, policy: Row) -> str:
        """Claim the hive and return its owner: this gateway, unless another was heard recently.

        `policy`: the restart policy that actors receive with the answer to their next report.
        """
        now = self._now()
        if self._owner in (None, gateway) or now - self._owner_seen_at > OWNED_S:
            self._owner, self._owner_seen_at, self._policy = gateway, now, policy
        assert self._owner is not None
        return self._owner

    async def table(self, gateway: str, since: int, timeout_s: float) -> dict[str, Any]:
        """Wait for a version other than `since` and return all replicas; always return the owner of the hive."""
        deadline = self._now() + timeout_s
        if gateway == self._owner:
            self._owner_seen_at = self._now()
        while self._version == since and (left := deadline - self._now()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                break
        told = {"version": self._version, "owner": self._owner}
        return told if self._version == since else {**told, "rows": self._rows, "settling": self._settling}

    async def state(self) -> dict[str, Any]:
        return {"hive": self.hive, "owner": self._owner, "rows": self._rows}

    # Checks

    async def watch(self) -> None:
        """Mark silent replicas as away and end a hive without a gateway; never returns."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()
            if self._abandoned:
                with contextlib.suppress(Exception):  # the head is away: tried again at the next check
                    await self._end_all()

    def look(self) -> None:
        now = self._now()
        self._forgive(now)
        if self._settling and now - self._began_at > AWAY_AFTER_S:
            self._settling = False
            self._changed()
        for name, row in self._rows.items():
            if row["state"] != "away" and now - self._heard_at[name] > AWAY_AFTER_S:
                self._rows[name] = {**row, "state": "away", "why": f"no report from node {row['node']}"}
                self._changed()

    # Inside

    async def _succeeds(self, name: str, row: Row, known: Row) -> bool | None:
        """Return whether the reporting actor replaces the known one; None if that cannot be found out now.

        A node that was away comes back with actors that do not know that Ray has restarted them elsewhere, and a
        restarted registry knows neither. Of one actor the later life counts; of two, the one that has the name.
        """
        if None in (row.get("actor"), known.get("actor")):
            return True  # an actor of another version does not say: the later one counts
        if row["actor"] == known["actor"]:
            return bool(row["life"] >= known["life"])
        holder = await self._holder(name)
        return None if holder is None else holder == row["actor"]

    def _end_of(self, incarnation: str) -> None:
        self._over[incarnation] = None
        while len(self._over) > OVER:
            del self._over[next(iter(self._over))]

    @property
    def _abandoned(self) -> bool:
        return self._now() - self._owner_seen_at > self._abandoned_after_s

    def _forgive(self, now: float) -> None:
        """After a pause of this process, allow for the reports that are still to be read."""
        late, self._looked_at = now - self._looked_at - LOOK_EVERY_S, now
        if late > PAUSE_S:
            self._heard_at = {name: at + late for name, at in self._heard_at.items()}
            self._owner_seen_at += late

    async def _end_all(self) -> None:
        """End the replicas one after the other: a gateway that comes back meanwhile keeps the rest."""
        for name, handle in list(self._handles.items()):
            if not self._abandoned:
                return
            if await self._end_post(name, handle):
                await self.forget(name)
        if self._abandoned and not self._handles:
            await self._end_self()

    def _changed(self) -> None:
        self._version += 1
        self._moved.set()
        self._moved = asyncio.Event()
