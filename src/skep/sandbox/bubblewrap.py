"""What a sandbox is asked and answers; what a script may use up; how bubblewrap is started."""

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
    """Of one run, all its processes together where not said otherwise."""

    seconds: float = 10.0  # wall time; CPU time is bounded by it too
    memory_bytes: int = 512 << 20
    processes: int = 24
    output_bytes: int = 256 << 10  # of stdout and of stderr, each; more ends the run
    disk_bytes: int = 32 << 20
    open_files: int = 128


@dataclass(frozen=True, slots=True)
class SandboxScript:
    """`argv` for the Python interpreter, in a folder that holds `files` (relative names) and
    nothing else.
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
    order = _unpack(line)
    argv, files, stdin = order["script"].values()
    contents = {name: _bytes(data) for name, data in files.items()}
    return SandboxScript(tuple(argv), contents, _bytes(stdin)), SandboxLimits(**order["limits"])


def pack_result(result: ScriptResult | str) -> bytes:
    """A text instead of a result says why the script was never started."""
    return _pack({"failure": result} if isinstance(result, str) else asdict(result))


def unpack_result(line: bytes) -> ScriptResult | str:
    answer = _unpack(line)
    if "failure" in answer:
        return str(answer["failure"])
    stdout = _bytes(answer["stdout"])
    stderr = _bytes(answer["stderr"])
    return ScriptResult(
        **{**answer, "ending": ScriptEnding(answer["ending"]), "stdout": stdout, "stderr": stderr}
    )


def _pack(document: dict[str, Any]) -> bytes:
    """Write a JSON document as one line; a byte of a value is a character of its text."""
    text = json.dumps(
        document,
        default=lambda value: value.value if isinstance(value, Enum) else value.decode("latin-1"),
    )
    return text.encode() + b"\n"


def _unpack(line: bytes) -> dict[str, Any]:
    """EOFError where the line is cut short."""
    if not line.endswith(b"\n"):
        raise EOFError
    return dict(json.loads(line))


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


DEVICES = ("null", "zero", "full", "random", "urandom")
ETC = {  # what Python asks for, made up
    "/etc/passwd": f"box:x:{UID}:{UID}::{FOLDER}:/nonexistent\n",
    "/etc/group": f"box:x:{UID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
UNSHARED = [f"--unshare-{name}" for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try")]
FILTER = seccomp.program(platform.machine())
OUR_PROCESSES = 1  # bubblewrap's own first process inside
COUNTS_BY_NAMESPACE = (
    5,
    14,
)  # from this kernel on, a user namespace counts its own processes only
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
        passed = [*files.values(), *etc.values(), status_write, gate_read]
        passed.append(_readable(b"".join(os.fsencode(option) + b"\0" for option in options)))
        argv = [program, "--args", str(passed[-1]), "--", view.program, *script.argv]
        user: dict[str, Any] = (
            {"user": uid, "group": uid, "extra_groups": []} if os.geteuid() == 0 else {}
        )
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
        self._news = b""
        self._exit_code: int | None = None
        self._failure: str | None = None

    def hear(self) -> bool:
        """Take in what comes from `status_fd`; False at its end."""
        try:
            news = os.read(self.status_fd, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._news = (self._news + news).split(b"\n")
        for line in filter(None, lines):
            document = json.loads(line)
            self._exit_code = document.get("exit-code", self._exit_code)
            if "child-pid" in document:
                self.init_pid = document["child-pid"]
                self._release(document["child-pid"])
        return bool(news)

    def _release(self, init_pid: int) -> None:
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
        """What waits for its filter gets none, and ends."""
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
                return (
                    stderr.decode(errors="replace").strip()
                    or f"bubblewrap ended with {self.process.returncode}"
                )
            return ScriptEnding.KILLED, None, int(signal.SIGKILL)
        if 128 < code <= 128 + 64:
            return (ScriptEnding.KILLED, None, code - 128)
        return (ScriptEnding.EXITED, code, None)


def prctl(option: int, argument: int) -> None:
    checked(
        libc.prctl(ctypes.c_int(option), *map(ctypes.c_ulong, (argument, 0, 0, 0))),
        f"prctl {option}",
    )


def checked(result: int, call: str) -> None:
    """Raise the OSError that a call of the C library ended with."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _options(
    view: ScriptView, limits: SandboxLimits, files: dict[str, int], etc: dict[str, int]
) -> list[str]:
    """Everything is put together on a small tmpfs, which is read-only in the end; only the box
    stays writable.
    """
    options = [
        *UNSHARED,
        "--new-session",
        "--die-with-parent",
        "--uid",
        str(UID),
        "--gid",
        str(UID),
    ]
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
    """Return a file without a name that holds `data`, to be read from its beginning."""
    fd = os.memfd_create("skep", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def rlimits(limits: SandboxLimits, *, files: int) -> dict[int, int]:
    """Return the kernel's limits by their number. `files`: how many are open already."""
    return {
        resource.RLIMIT_NPROC: limits.processes + OUR_PROCESSES + _others(),
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
    """Set the limits of another process, never above what is allowed already.

    Root may lack the right: it forks.
    """

    def apply() -> None:
        for number, value in limits.items():
            hard = resource.prlimit(pid, number)[1]
            if hard == resource.RLIM_INFINITY:
                bound = value
            else:
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
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(errno.EPERM, f"limits of process {pid}")


def _others() -> int:
    """Room for this user's other processes, which an older kernel counts too."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    counts_own = release is not None and (int(release[1]), int(release[2])) >= COUNTS_BY_NAMESPACE
    return 0 if counts_own else MANY_PROCESSES
