"""What an engine is to skep: a launch turned into a command line, and how to talk to what it starts.

All methods of the port are free of I/O except `check`; the supervisor starts, probes and stops once for all engines.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from skep.errors import UserError

REPORT_FD = "{report_fd}"  # in an argv: the number of the pipe on which the engine tells its address
EXIT_FINAL = 78  # an engine of ours that ends so would end so again: no restart helps


@dataclass(frozen=True, slots=True)
class Launch:
    """One replica to be started, or one that runs already and is only fronted."""

    name: str
    engine: str
    model: str  # the id that clients use
    weights: Path | None
    slots: int
    context_tokens: int  # per slot
    threads: int
    port: int = 0  # 0: the engine takes a free one and tells which
    extra: tuple[str, ...] = field(default=())
    reserve: int = 0  # of its slots, for interactive requests only
    soft_slots: int | None = None  # requests at once while anything but batch is there; None: all slots
    url: str | None = None  # it runs there already: nothing is started
    health_path: str | None = None  # None: as the engine has it
    key_env: str | None = None  # the environment variable with the key that a server of others wants
    about: str = ""  # what it is, where the engine's version does not say it: which rig is simulated

    @property
    def authorization(self) -> str:
        key = os.environ.get(self.key_env, "") if self.key_env else ""
        return f"Bearer {key}" if key else ""

    def same_process(self, other: Launch) -> bool:
        """Whether what serves the one can serve the other: they differ only in what the gateway is told."""
        told: dict[str, Any] = {"reserve": 0, "soft_slots": None, "health_path": None}
        if self.url is not None:
            told["slots"] = 0
        return replace(self, **told) == replace(other, **told)


class Spoken(Protocol):
    """How to talk to an engine that runs."""

    @property
    def health_path(self) -> str: ...

    @property
    def confirms(self) -> str:
        """How it tells how many slots are busy: "slots" (llama.cpp), "metrics" (vLLM, SGLang), "" not at all."""

    @property
    def release_bound_s(self) -> float:
        """A slot whose client left is free after so long, whatever the engine says."""

    @property
    def simulated(self) -> bool:
        """Its speed is made up."""

    def version(self) -> str | None: ...


class Engine(Spoken, Protocol):
    def check(self, launch: Launch) -> None:
        """Raise what can be known before the start: not installed, impossible options."""

    def argv(self, launch: Launch) -> list[str]: ...

    def explain(self, code: int, tail: Sequence[str]) -> str:
        """Why the process ended, in one line, from its exit code and its last words."""


_REGISTRY = {
    "embedded": "skep.engines.embedded:Embedded",
    "fake": "skep.engines.fake:Fake",
    "simulated": "skep.engines.simulated:Simulated",
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
