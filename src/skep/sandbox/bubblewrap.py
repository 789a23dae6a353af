"""Orders to a sandbox and results of it, the limits of a script, and the start of bubblewrap."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import re
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from skep.sandbox import seccomp
from skep.sandbox.view import BOX, FOLDER, UID, ScriptView


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one run, for all its processes together where not said otherwise."""

    seconds: float = 10.0  # wall time; CPU time is bounded by it too
    memory_bytes: int = 512 << 20
    processes: int = 24
    output_bytes: int = 256 << 10  # of stdout and of stderr, each; more ends the run
    disk_bytes: int = 32 << 20
    open_files: int = 128


@dataclass(frozen=True, slots=True)
class SandboxScript:
    """A script to run: `argv` for the Python interpreter, in a folder that holds `files` (relative
    names) and nothing else.
    """

    argv: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""


class ScriptEnding(Enum):
    EXITED = "exited"
    KILLED = "killed"  # by a signal of its own making, or the kernel's
    OUT_OF_TIME = "out of time"
    OUT_OF_MEMORY = "out of memory"
    TOO_MUCH_OUTPUT = "too much output"


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """How a script ended. `stdout` and `stderr` are cut at the limit."""

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
    order = _unpack(line)
    fields = order["script"]
    script = SandboxScript(
        argv=tuple(fields["argv"]),
        files={name: _bytes(text) for name, text in fields["files"].items()},
        stdin=_bytes(fields["stdin"]),
    )
    return script, SandboxLimits(**order["limits"])


def pack_result(result: ScriptResult | str) -> bytes:
    """Write a result; a text instead of it says why the script was never started."""
    if isinstance(result, str):
        return _pack({"failure": result})
    return _pack(asdict(result))


def unpack_result(line: bytes) -> ScriptResult | str:
    answer = _unpack(line)
    if "failure" in answer:
        return str(answer["failure"])
    return ScriptResult(
        ending=ScriptEnding(answer["ending"]),
        exit_code=answer["exit_code"],
        signal=answer["signal"],
        stdout=_bytes(answer["stdout"]),
        stderr=_bytes(answer["stderr"]),
        seconds=answer["seconds"],
    )


def _pack(document: dict[str, Any]) -> bytes:
    """Write a JSON document as one line; a byte of a value is a character of its text."""
    text = json.dumps(
        document,
        default=lambda value: value.value if isinstance(value, Enum) else value.decode("latin-1"),
    )
    return text.encode() + b"\n"


def _unpack(line: bytes) -> dict[str, Any]:
    """Read such a line. Raises EOFError where it is cut short."""
    if not line.endswith(b"\n"):
        raise EOFError
    return dict(json.loads(line))


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


DEVICES = ("null", "zero", "full", "random", "urandom")
ETC = {  # files that Python reads, made up
    "/etc/passwd": f"box:x:{UID}:{UID}::{FOLDER}:/nonexistent\n",
    "/etc/group": f"box:x:{UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
UNSHARED = [f"--unshare-{name}" for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try")]
FILTER = seccomp.program(platform.machine())
OUR_PROCESSES = 1  # bubblewrap's own first process inside
# From this kernel on, a user namespace counts its own processes only.
COUNTS_BY_NAMESPACE = (5, 14)
MANY_PROCESSES = 4096
SLACK_BYTES = 512 << 20  # address space that is reserved and never used: arenas, stacks of threads

libc = ctypes.CDLL(None, use_errno=True)
Streams = tuple[int, int, int]


class Bubblewrap:
    """One bubblewrap with a script. `init_pid`, once known, is the first process inside.

    The script is held back until its limits are set from outside, on the first process of the new
    namespace, which waits for its filter. If whoever has to bring that is killed, it gets an empty
    one, and refuses to go on."""

    def __init__(
        self,
        program: str,
        script: SandboxScript,
        limits: SandboxLimits,
        view: ScriptView,
        streams: Streams,
        uid: int,
    ) -> None:
        """Start it as that user; `streams` become its stdin, stdout and stderr."""
        files = {f"{FOLDER}/{name}": _readable(data) for name, data in script.files.items()}
        made_up = {**ETC, **view.files}
        etc = {path: _readable(text.encode()) for path, text in made_up.items()}
        self.status_fd, status_write = os.pipe()
        gate_read, self._gate_fd = os.pipe()
        options = [*_options(view, limits, files, etc), "--json-status-fd", str(status_write)]
        options += ["--seccomp", str(gate_read)]
        arguments = _readable(b"".join(os.fsencode(option) + b"\0" for option in options))
        passed = [*files.values(), *etc.values(), status_write, gate_read, arguments]
        argv = [program, "--args", str(arguments), "--", view.program, *script.argv]
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = {"user": uid, "group": uid, "extra_groups": []}
        stdin, stdout, stderr = streams
        try:
            self.process = subprocess.Popen(
                argv, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=passed, env={}, **user
            )
        finally:
            for fd in passed:
                os.close(fd)
        os.set_blocking(self.status_fd, False)
        self.init_pid: int | None = None
        self.released_s: float | None = None  # when the script was let go, by the monotonic clock
        self._uid = uid
        self._limits = rlimits(limits, files=len(passed))
        self._unread = b""  # the beginning of a line of its status
        self._exit_code: int | None = None
        self._failure: str | None = None

    def read_status(self) -> bool:
        """Read what is ready on `status_fd`; return False at its end."""
        try:
            data = os.read(self.status_fd, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in filter(None, lines):
            document = json.loads(line)
            self._exit_code = document.get("exit-code", self._exit_code)
            if "child-pid" in document:
                self.init_pid = document["child-pid"]
                self._release(document["child-pid"])
        return bool(data)

    def _release(self, init_pid: int) -> None:
        """Set the limits of the first process inside, and let the script begin."""
        with contextlib.suppress(OSError):
            # The first to go when memory runs out.
            Path(f"/proc/{init_pid}/oom_score_adj").write_text("1000")
        try:
            apply_as(self._uid, self._limits, init_pid)
        except (OSError, ValueError) as error:
            self._failure = f"its limits cannot be set: {error}"
            with contextlib.suppress(ProcessLookupError):
                os.kill(init_pid, signal.SIGKILL)
        else:
            with contextlib.suppress(BrokenPipeError):  # it has died meanwhile
                os.write(self._gate_fd, FILTER)
        os.close(self._gate_fd)
        self.released_s = time.monotonic()

    def close(self) -> None:
        """Close the pipes. A script that still waits for its filter gets none, and ends."""
        os.close(self.status_fd)
        if self.released_s is None:
            os.close(self._gate_fd)

    def ending(self, stderr: bytes) -> tuple[ScriptEnding, int | None, int | None] | str:
        """Return the ending, exit code and signal (bubblewrap's 128 + n) of the script, or why it
        was never started.
        """
        code = self._exit_code
        if self._failure is not None:
            return self._failure
        if code is None:
            if stderr.startswith(b"bwrap: ") or self.init_pid is None:
                message = stderr.decode(errors="replace").strip()
                return message or f"bubblewrap ended with {self.process.returncode}"
            return (ScriptEnding.KILLED, None, int(signal.SIGKILL))
        if 128 < code <= 128 + 64:
            return (ScriptEnding.KILLED, None, code - 128)
        return (ScriptEnding.EXITED, code, None)


def prctl(option: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    result = libc.prctl(ctypes.c_int(option), ctypes.c_ulong(argument), zero, zero, zero)
    checked(result, f"prctl {option}")


def checked(result: int, call: str) -> None:
    """Raise the OSError that a call of the C library ended with, if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _options(
    view: ScriptView, limits: SandboxLimits, files: dict[str, int], etc: dict[str, int]
) -> list[str]:
    """Return bubblewrap's options.

    Everything is put together on a small tmpfs, which is read-only in the end; only the box stays
    writable.
    """
    options = [*UNSHARED, "--new-session", "--die-with-parent"]
    options += ["--uid", str(UID), "--gid", str(UID)]
    options += ["--hostname", "box", "--clearenv"]
    for name, value in view.env.items():
        options += ["--setenv", name, value]
    for dest, source in view.binds.items():
        options += ["--ro-bind", source, dest]
    options += ["--perms", "0755", "--dir", "/dev"]
    for name in DEVICES:
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for link, target in view.links.items():
        options += ["--symlink", target, link]
    options += ["--proc", "/proc", "--remount-ro", "/proc"]
    options += ["--perms", "0700", "--size", str(limits.disk_bytes), "--tmpfs", BOX]
    for name in ("work", "tmp", "shm"):
        options += ["--perms", "0700", "--dir", f"{BOX}/{name}"]
    folders = {
        parent
        for path in files
        for parent in PurePosixPath(path).parents
        if parent.is_relative_to(FOLDER)
    }
    for folder in sorted(map(str, folders)):
        options += ["--perms", "0700", "--dir", folder]
    for path, fd in files.items():
        options += ["--perms", "0600", "--file", str(fd), path]
    for path, fd in etc.items():
        options += ["--perms", "0444", "--file", str(fd), path]
    return [*options, "--remount-ro", "/", "--chdir", FOLDER]


def _readable(data: bytes) -> int:
    """Return the descriptor of a nameless file with `data`, to be read from its beginning."""
    fd = os.memfd_create("skep", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def rlimits(limits: SandboxLimits, *, files: int) -> dict[int, int]:
    """Return the kernel's limits by their number. `files`: how many are open already."""
    return {
        resource.RLIMIT_NPROC: limits.processes + OUR_PROCESSES + _other_processes(),
        resource.RLIMIT_AS: 2 * limits.memory_bytes + SLACK_BYTES,  # against one sudden allocation
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_NOFILE: max(limits.open_files, files + 32),
        resource.RLIMIT_CPU: int(limits.seconds) + 2,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 64 << 10,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }


def apply_as(uid: int, limits: dict[int, int], pid: int) -> None:
    """Set the limits of another process, never above the limits that it has already.

    Root may lack the right to do so for a process of `uid`, so it forks and becomes that user.
    """

    def apply() -> None:
        for number, value in limits.items():
            _, hard = resource.prlimit(pid, number)
            bound = value
            if hard != resource.RLIM_INFINITY:
                bound = min(value, hard)
            resource.prlimit(pid, number, (bound, bound))

    if os.geteuid() != 0:
        apply()
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            apply()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise OSError(errno.EPERM, f"limits of process {pid}")


def _other_processes() -> int:
    """Return the room for this user's other processes, which an older kernel counts too."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if release is not None and (int(release[1]), int(release[2])) >= COUNTS_BY_NAMESPACE:
        return 0
    return MANY_PROCESSES
