"""What a sandbox is asked and what it answers, and how both travel between skep and the process that runs a script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Of one run, all its processes together where not said otherwise."""

    seconds: float = 10.0  # wall time; CPU time is bounded by it too
    memory_bytes: int = 512 << 20
    processes: int = 24
    output_bytes: int = 256 << 10  # of stdout and of stderr, each; more ends the run
    disk_bytes: int = 32 << 20
    open_files: int = 128


@dataclass(frozen=True, slots=True)
class SandboxScript:
    """`argv` for the Python interpreter, in a folder that holds `files` (relative names) and nothing else."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    packages: bool = True  # whether the packages installed beside skep may be imported


class ScriptEnding(Enum):
    EXITED = "exited"
    KILLED = "killed"  # by a signal of its own making, or the kernel's
    OUT_OF_TIME = "out of time"
    OUT_OF_MEMORY = "out of memory"
    TOO_MUCH_OUTPUT = "too much output"


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """`stdout` and `stderr` are cut at the limit."""

    ending: ScriptEnding
    exit_code: int | None  # None unless it exited
    signal: int | None
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def ok(self) -> bool:
        return self.ending is ScriptEnding.EXITED and self.exit_code == 0


def pack_order(script: SandboxScript, limits: SandboxLimits) -> bytes:
    return _pack({"script": asdict(script), "limits": asdict(limits)})


def unpack_order(line: bytes) -> tuple[SandboxScript, SandboxLimits]:
    told = _unpack(line)
    argv, files, stdin, packages = told["script"].values()
    contents = {name: _bytes(data) for name, data in files.items()}
    return SandboxScript(tuple(argv), contents, _bytes(stdin), packages), SandboxLimits(**told["limits"])


def pack_result(result: ScriptResult | str) -> bytes:
    """A text instead of a result says why the script was never started."""
    return _pack({"failure": result} if isinstance(result, str) else asdict(result))


def unpack_result(line: bytes) -> ScriptResult | str:
    told = _unpack(line)
    if "failure" in told:
        return str(told["failure"])
    stdout, stderr = _bytes(told["stdout"]), _bytes(told["stderr"])
    return ScriptResult(**{**told, "ending": ScriptEnding(told["ending"]), "stdout": stdout, "stderr": stderr})


def _pack(document: dict[str, Any]) -> bytes:
    """Write a JSON document as one line; a byte of a value is a character of its text."""
    text = json.dumps(document, default=lambda one: one.value if isinstance(one, Enum) else one.decode("latin-1"))
    return text.encode() + b"\n"


def _unpack(line: bytes) -> dict[str, Any]:
    """EOFError where the line is cut short."""
    if not line.endswith(b"\n"):
        raise EOFError
    return dict(json.loads(line))


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
