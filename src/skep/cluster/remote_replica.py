"""A replica on some node of the cluster, as the supervisor sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from skep.cluster.messages import LogPart, ReplicaReport
from skep.engines.base import Launch, engine_named
from skep.errors import EngineError
from skep.supervisor.lifecycle import Life, ReplicaState
from skep.supervisor.remote_replica import UpstreamInfo

# A silent node ("away") gets no requests: Ray moves its replicas. Others, such as "fetching", are not ready yet.
_STATES = {"away": ReplicaState.BACKOFF, **{state.value: state for state in ReplicaState}}


class ReplicaHost(Protocol):
    """What a remote replica needs of the cluster client."""

    def came(self, member: RemoteReplica) -> None: ...
    def went(self, member: RemoteReplica) -> Awaitable[None]: ...
    def restart(self, member: RemoteReplica) -> bool: ...
    async def log_since(self, name: str, offset: int | None, lines: int) -> LogPart: ...


class RemoteReplica:
    kind = "replica"

    def __init__(self, launch: Launch, host: ReplicaHost, changed: Callable[[], None]) -> None:
        self.launch = launch
        self.life = Life(None, ReplicaState.STARTING)
        self.pid: int | None = None
        self.node: str | None = None
        adapter = engine_named(launch.engine, launch.binary)
        self.engine = UpstreamInfo(
            name="",
            confirms=adapter.confirms,
            release_bound_s=adapter.release_bound_s,
            health_path=adapter.health_path,
            simulated=adapter.simulated,
        )
        self._host = host
        self._changed = changed
        self._as_started = launch
        self._incarnation: str | None = None
        self._moves = 0  # restarts by Ray, on the same or another node
        self._note: str | None = None  # a remark while it serves
        self._said: str | None = None
        self._stopping = asyncio.Event()

    def __repr__(self) -> str:
        return f"<RemoteReplica {self.launch.name} {self.life.state.value} on {self.node} url={self.life.url}>"

    @property
    def model(self) -> str:
        return self.launch.model

    @property
    def started(self) -> Launch:
        """The launch that its actor reports, with the settings that need no restart."""
        return replace(self._as_started, reserve=self.launch.reserve, soft_slots=self.launch.soft_slots)

    @property
    def settled(self) -> bool:
        return self.life.state is ReplicaState.READY

    def stop(self) -> None:
        self._stopping.set()

    def restart(self) -> None:
        """Restart it. Raise EngineError if there is no link to the cluster."""
        if not self._host.restart(self):
            hint = "`skep ps` shows the state of the cluster; try again when it is ready"
            raise EngineError(f"`{self.launch.name}` cannot be restarted: the cluster is away", hint=hint)

    async def run(self) -> None:
        """Wait until stopped, then end it on its node."""
        self._become(ReplicaState.STARTING, None)
        self._host.came(self)
        await self._stopping.wait()
        self.life.state = ReplicaState.STOPPING
        self._changed()
        await self._host.went(self)
        self.life.url = self.pid = None
        self._become(ReplicaState.STOPPED, self.life.why)

    async def log_since(self, offset: int | None, lines: int) -> LogPart:
        return await self._host.log_since(self.launch.name, offset, lines)

    # Called by the cluster client

    def hear(self, report: ReplicaReport) -> None:
        """Take the report of its actor, or of the driver while there is no actor."""
        if self._stopping.is_set():
            return
        before = self._shown()
        if report.incarnation is not None and report.incarnation != self._incarnation:
            self._moves += self._incarnation is not None
            self._incarnation = report.incarnation
        self.life.state, self._said = _STATES.get(report.state, ReplicaState.STARTING), report.why
        self._explain()
        self.life.url, self.pid, self.node = report.url, report.pid, report.node
        self.life.restarts = report.restarts + self._moves
        self.engine = replace(self.engine, name=report.engine or "")  # the version on its node
        self._as_started = report.launch or self._as_started
        if self._shown() != before:
            self._changed()

    def remark(self, note: str | None) -> None:
        """Set the remark that is shown while it serves."""
        if self._note != note:
            self._note = note
            self._explain()
            self._changed()

    def _shown(self) -> tuple[object, ...]:
        return (self.life.state, self.life.url, self.life.why, self.pid, self.node, self._as_started, self._moves)

    def _explain(self) -> None:
        self.life.why = (self._note if self.life.serving else None) or self._said

    def _become(self, state: ReplicaState, why: str | None) -> None:
        self.life.state, self.life.why = state, why
        self._changed()
