"""What a sandbox is asked and what it answers, and how both travel between skep and the process that runs a script."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

LENGTH = struct.Struct("!I")
Read = Callable[[int], bytes]  # exactly so many bytes


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
    head = {
        "argv": script.argv,
        "names": list(script.files),
        "packages": script.packages,
        "limits": asdict(limits),
    }
    return _pack(head, [script.stdin, *script.files.values()])


def unpack_order(read: Read) -> tuple[SandboxScript, SandboxLimits]:
    head, (stdin, *contents) = _unpack(read)
    files = dict(zip(head["names"], contents, strict=True))
    return SandboxScript(tuple(head["argv"]), files, stdin, packages=head["packages"]), SandboxLimits(**head["limits"])


def pack_result(result: ScriptResult | str) -> bytes:
    """A text instead of a result says why the script was never started."""
    if isinstance(result, str):
        return _pack({"failure": result}, [])
    head = {
        "ending": result.ending.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "seconds": result.seconds,
    }
    return _pack(head, [result.stdout, result.stderr])


def unpack_result(read: Read) -> ScriptResult | str:
    head, blobs = _unpack(read)
    if "ending" not in head:
        return str(head["failure"])
    stdout, stderr = blobs
    return ScriptResult(
        ScriptEnding(head["ending"]), head["exit_code"], head["signal"], stdout, stderr, head["seconds"]
    )


def _pack(head: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Write the length of a JSON head, the head, and the blobs whose lengths the head tells."""
    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((LENGTH.pack(len(text)), text, *blobs))


def _unpack(read: Read) -> tuple[dict[str, Any], list[bytes]]:
    head = json.loads(read(LENGTH.unpack(read(LENGTH.size))[0]))
    return head, [read(length) for length in head["blobs"]]


def exactly(receive: Read) -> Read:
    """Read until there is as much as was asked for. EOFError where the data end before."""

    def read(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = receive(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    return read
