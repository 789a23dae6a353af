"""What a sandbox is asked and what it answers. Knows nothing of how it is kept closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one run, all its processes together where not said otherwise."""

    seconds: float = 10.0  # wall time; CPU time is bounded by it too
    memory_bytes: int = 512 << 20
    processes: int = 24
    output_bytes: int = 256 << 10  # of stdout and of stderr, each; more ends the run
    disk_bytes: int = 32 << 20
    open_files: int = 128


@dataclass(frozen=True, slots=True)
class Script:
    """`argv` for the Python interpreter, in a folder that holds `files` (relative names) and nothing else."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    packages: bool = True  # whether the packages installed beside skep may be imported


class Ending(Enum):
    EXITED = "exited"
    KILLED = "killed"  # by a signal of its own making, or the kernel's
    OUT_OF_TIME = "out of time"
    OUT_OF_MEMORY = "out of memory"
    TOO_MUCH_OUTPUT = "too much output"


@dataclass(frozen=True, slots=True)
class Result:
    """`stdout` and `stderr` are cut at the limit."""

    ending: Ending
    exit_code: int | None  # None unless it exited
    signal: int | None
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def ok(self) -> bool:
        return self.ending is Ending.EXITED and self.exit_code == 0


class Sandbox(Protocol):
    name: str  # "bubblewrap" | "namespaces"

    async def run(self, script: Script, limits: Limits = ...) -> Result:
        """Never raises for what the script does. Cancelled: everything it started is gone."""
        ...

    async def close(self) -> None: ...
