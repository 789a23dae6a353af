"""What the parts of a hive know of a replica, wherever it stands and whoever started it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from skep.engines.base import EngineApi, Launch
from skep.supervisor.lifecycle import ReplicaState
from skep.wire.json_pipe import Message


class Life(Protocol):
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
    """What `Replica`, `Upstream` and those that stand elsewhere have in common."""

    launch: Launch
    pid: int | None

    @property
    def node(self) -> str | None:
        """Where it stands, as far as that is known; None: here."""

    @property
    def started(self) -> Launch:
        """What it is started with: `launch`, or what it has fallen back to."""

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
        """Nothing is to be waited for at the start: ready, or not skep's to start."""

    async def run(self) -> None: ...
    def stop(self) -> None: ...
    def restart(self) -> None:
        """Raises EngineError where who keeps it cannot be told."""


RemoteReplicaFactory = Callable[[Launch, Callable[[], None]], ReplicaMember]  # what a launch that has a place becomes


@runtime_checkable
class RemoteLog(Protocol):
    """A member whose log is no file here."""

    async def log_since(self, offset: int | None, lines: int) -> Message:
        """`text`: of the last lines, or of what came since `offset`, as much as one answer holds; the `offset` where
        that ends, and the `size` of it all at that moment.
        """
