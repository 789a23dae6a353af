"""The interface of a replica, wherever it runs and whoever started it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from skep.engines.base import EngineApi, Launch
from skep.supervisor.lifecycle import ReplicaState
from skep.wire.json_pipe import Message


class Life(Protocol):
    """The state of a replica, read-only."""

    @property
    def state(self) -> ReplicaState: ...
    @property
    def url(self) -> str | None: ...
    @property
    def why(self) -> str | None: ...
    @property
    def restarts(self) -> int: ...
    @property
    def serving(self) -> bool: ...


class ReplicaMember(Protocol):
    """What `Replica`, `UpstreamReplica` and replicas on other machines have in common."""

    launch: Launch
    pid: int | None

    @property
    def node(self) -> str | None:
        """The node it runs on, as far as known; None: this machine."""

    @property
    def started(self) -> Launch:
        """The launch it is started with: `launch`, or the one it has fallen back to."""

    @property
    def kind(self) -> str: ...
    @property
    def engine(self) -> EngineApi: ...
    @property
    def life(self) -> Life: ...
    @property
    def model(self) -> str: ...
    @property
    def settled(self) -> bool:
        """Whether the start need not wait for it: it is ready, or skep does not start it."""

    async def run(self) -> None: ...
    def stop(self) -> None: ...
    def restart(self) -> None:
        """Raise EngineError where its machine cannot be reached."""


RemoteReplicaFactory = Callable[[Launch, Callable[[], None]], ReplicaMember]  # for launches that have a `place`


@runtime_checkable
class RemoteLog(Protocol):
    """A replica whose log is on another machine."""

    async def log_since(self, offset: int | None, lines: int) -> Message:
        """Return `text` (the last lines, or what came since `offset`), its end as `offset`, and the log's `size`."""
