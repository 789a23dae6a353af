"""The interface of a replica, wherever it runs and whoever started it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from skep.config.gateway_messages import GatewaySetup
from skep.config.settings import Settings
from skep.engines.base import EngineApi, Launch
from skep.supervisor.eviction import MemoryBudget
from skep.supervisor.lifecycle import ReplicaState, RestartPolicy


class Life(Protocol):
    """The state of a replica."""

    state: ReplicaState
    url: str | None
    why: str | None
    restarts: int

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

    async def log_since(self, offset: int | None, lines: int) -> object:
        """Return `text` (the last lines, or what came since `offset`), its end as `offset`, and the log's `size`."""


@dataclass(frozen=True, slots=True)
class Hive:
    """Replicas behind one gateway."""

    replicas: tuple[Launch, ...]
    gateway_argv: tuple[str, ...]
    gateway_setup: GatewaySetup
    url: str
    socket_path: Path | None  # the control socket; None: there is none
    log_dir: Path
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    drain_s: float = 30.0
    settings: Settings = field(default_factory=lambda: Settings(serve=()), repr=False)  # that it was built from
    left_out: tuple[str, ...] = ()  # settings that only a restart would apply
    warnings: tuple[str, ...] = ()  # shown to the user who asked for the reload
    room: tuple[tuple[str, int], ...] = ()  # bytes that the machine has of "ram", "gpu0", ...
    turn_s: float = 30.0  # a busy model that others wait for stays loaded for at least this long
    monitor_argv: tuple[str, ...] = ()  # the command of the monitor; empty: none
    monitor_due: bool = False  # the store has targets: start the monitor at once
    engine_key: str = field(default="", repr=False)  # the key of the engines on this machine; empty: none
    avoid: frozenset[str] = frozenset()  # drained nodes of a cluster: nothing new is placed there

    @property
    def memory_budget(self) -> MemoryBudget:
        return MemoryBudget(dict(self.room), self.settings.max_loaded, self.turn_s)


Rebuild = Callable[[Settings, Hive, Sequence[Launch]], Hive]  # from settings, the present hive, and what runs
