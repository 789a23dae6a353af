"""What is to run, as one frozen value. Knows no process."""

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
    socket_path: Path | None  # where it is controlled; None: only by who runs it
    log_dir: Path
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    drain_s: float = 30.0
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)  # that it was built from; empty: not known
    wishes: Message = field(default_factory=dict)  # what the command line asked for; told to those who want to reload
    left_out: tuple[str, ...] = ()  # settings that only a new start would bring about
    warnings: tuple[str, ...] = ()  # for who asked for it
    room: tuple[tuple[str, int], ...] = ()  # what the machine has of "ram", "gpu0", ...
    max_loaded: int | None = None  # models at once, where some are loaded on demand
    turn_s: float = 30.0  # a busy model that others wait for stays loaded at least so long
    monitor_argv: tuple[str, ...] = ()  # the monitor's loop; empty: none beside this hive
    monitor_setup: Mapping[str, Any] = field(default_factory=dict)  # what it reads by itself; another: a new start
    monitor_due: bool = False  # there is something to watch from the start
    engine_key: str = field(default="", repr=False)  # that the engines of this machine want to see; empty: none
    avoid: frozenset[str] = frozenset()  # nodes of a cluster on which nothing new is to stand: they are drained

    @property
    def memory_budget(self) -> MemoryBudget:
        return MemoryBudget(dict(self.room), self.max_loaded, self.turn_s)


Rebuild = Callable[[Message, Hive, Sequence[Launch]], Hive]  # of settings, of the hive as it is, and of what runs
