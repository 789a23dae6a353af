"""The hive to run, as one frozen value. Knows no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skep.engines.base import Launch
from skep.supervisor.eviction import MemoryBudget
from skep.supervisor.lifecycle import RestartPolicy
from skep.wire.json_pipe import Message


@dataclass(frozen=True, slots=True)
class Hive:
    """Replicas behind one gateway."""

    replicas: tuple[Launch, ...]
    gateway_argv: tuple[str, ...]
    gateway_setup: Message
    url: str
    socket_path: Path | None  # the control socket; None: there is none
    log_dir: Path
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    drain_s: float = 30.0
    settings: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # the settings it was built from; empty: not known
    wishes: Message = field(default_factory=dict)  # what the command line asked for; `skep reload` reads it
    left_out: tuple[str, ...] = ()  # settings that only a restart would apply
    warnings: tuple[str, ...] = ()  # shown to the user who asked for the reload
    room: tuple[tuple[str, int], ...] = ()  # bytes that the machine has of "ram", "gpu0", ...
    max_loaded: int | None = None  # models loaded at once, where some are on demand
    turn_s: float = 30.0  # a busy model that others wait for stays loaded for at least this long
    monitor_argv: tuple[str, ...] = ()  # the command of the monitor; empty: none
    monitor_setup: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings that the monitor reads itself; a change restarts it
    monitor_due: bool = False  # the store has targets: start the monitor at once
    engine_key: str = field(default="", repr=False)  # the key of the engines on this machine; empty: none
    avoid: frozenset[str] = frozenset()  # drained nodes of a cluster: nothing new is placed there

    @property
    def memory_budget(self) -> MemoryBudget:
        return MemoryBudget(dict(self.room), self.max_loaded, self.turn_s)


Rebuild = Callable[[Message, Hive, Sequence[Launch]], Hive]  # from settings, the present hive, and what runs
