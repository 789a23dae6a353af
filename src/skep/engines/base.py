"""What an engine is to skep: a launch turned into a command line, and how to talk to what it starts.

All methods of the port are free of I/O except `check`; the supervisor starts, probes and stops once for all engines.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from skep.errors import UserError

REPORT_FD = "{report_fd}"  # in an argv: the number of the pipe on which the engine tells its address
EXIT_FINAL = 78  # an engine of ours that ends so would end so again: no restart helps


@dataclass(frozen=True, slots=True)
class Launch:
    """One replica to be started."""

    name: str
    engine: str
    model: str  # the id that clients use
    weights: Path | None
    slots: int
    context_tokens: int  # per slot
    threads: int
    port: int = 0  # 0: the engine takes a free one and tells which
    extra: tuple[str, ...] = field(default=())


class Engine(Protocol):
    health_path: str
    confirms_slots: bool  # `/slots` tells how many are busy
    simulated: bool  # its speed is made up

    def check(self, launch: Launch) -> None:
        """Raise what can be known before the start: not installed, impossible options."""

    def argv(self, launch: Launch) -> list[str]: ...

    def version(self) -> str | None: ...

    def explain(self, code: int, tail: Sequence[str]) -> str:
        """Why the process ended, in one line, from its exit code and its last words."""


_REGISTRY = {
    "embedded": "skep.engines.embedded:Embedded",
    "fake": "skep.engines.fake:Fake",
}


def engine_named(name: str) -> Engine:
    path = _REGISTRY.get(name)
    if path is None:
        raise UserError(f"there is no engine `{name}`", hint=f"known: {', '.join(sorted(_REGISTRY))}")
    module, _, attribute = path.partition(":")
    return cast("Engine", getattr(import_module(module), attribute)())


def explain_exit(code: int, tail: Sequence[str]) -> str:
    """The last line that looks like a cause; else how the process ended."""
    if code < 0:
        return f"killed by {_signal_name(-code)}" + (": out of memory?" if code == -signal.SIGKILL else "")
    causes = [
        line for line in tail if any(word in line.lower() for word in ("error", "failed", "out of memory", "cannot"))
    ]
    last = next((line for line in reversed(causes or list(tail)) if line.strip()), None)
    return f"{last.strip()} (exit code {code})" if last else f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
