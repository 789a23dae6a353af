"""Rooms made by bubblewrap: the arguments it is given, and what it reports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import dataclass
from pathlib import PurePosixPath

from skep.sandbox import seccomp
from skep.sandbox.base import Limits
from skep.sandbox.cell import Cell, Exit, Streams, become, give_only, give_streams
from skep.sandbox.interpreter import BOX, DEVICES, ETC, FOLDER, UID, View
from skep.sandbox.messages import Order
from skep.sandbox.rlimits import apply_as, rlimits

OUR_PROCESSES = 1  # bubblewrap's own first process inside
UNSHARED = [f"--unshare-{name}" for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try")]


@dataclass(frozen=True, slots=True)
class Gate:
    """What has to be written where for the script to be started."""

    fd: int
    password: bytes


class BubblewrapCell:
    """Held back until its limits are set: they are set from outside, on the first process of the new namespace.

    It waits for its filter. If whoever has to bring that is killed, it gets an empty one, and refuses to go on.
    """

    def __init__(self, pid: int, status_fd: int, gate: Gate, limits: dict[int, int], uid: int) -> None:
        self._uid = uid
        self.pid = pid
        self.init_pid: int | None = None
        self.status_fd = status_fd
        self._gate = gate
        self._limits = limits
        self._news = b""
        self._exit_code: int | None = None
        self._failure: str | None = None

    def hear(self, news: bytes) -> None:
        *lines, self._news = (self._news + news).split(b"\n")
        for line in filter(None, lines):
            told = json.loads(line)
            self._exit_code = told.get("exit-code", self._exit_code)
            if "child-pid" in told:
                self.init_pid = told["child-pid"]
                self._release()

    def _release(self) -> None:
        assert self.init_pid is not None
        try:
            apply_as(self._uid, self._limits, self.init_pid)
        except (OSError, ValueError) as error:
            self._failure = f"its limits cannot be set: {error}"
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init_pid, signal.SIGKILL)
        else:
            with contextlib.suppress(BrokenPipeError):  # it has died meanwhile
                os.write(self._gate.fd, self._gate.password)
        os.close(self._gate.fd)

    def exit(self, wait_status: int | None, stderr: bytes) -> Exit:
        """bubblewrap says 128 + n for a signal n, and nothing at all where the script was never started."""
        code = self._exit_code
        if self._failure is not None:
            return Exit(failure=self._failure)
        if code is None:
            if stderr.startswith(b"bwrap: ") or self.init_pid is None:
                said = stderr.decode(errors="replace").strip()
                return Exit(failure=said or f"bubblewrap ended with wait status {wait_status}")
            return Exit(signal=int(signal.SIGKILL))
        return Exit(signal=code - 128) if 128 < code <= 128 + 64 else Exit(code=code)


class Bubblewrap:
    def __init__(self, program: str) -> None:
        self._program = program
        self._filter = seccomp.program()

    def start(self, order: Order, view: View, streams: Streams, uid: int) -> Cell:
        files = {f"{FOLDER}/{name}": _readable(data) for name, data in order.script.files.items()}
        etc = {path: _readable(text.encode()) for path, text in ETC.items()}
        status_read, status_write = os.pipe()
        gate_read, gate_write = os.pipe()
        options = _options(view, order.limits) + _contents(files, etc) + ["--json-status-fd", str(status_write)]
        if self._filter is not None:
            options += ["--seccomp", str(gate_read)]
        else:
            options += ["--block-fd", str(gate_read), "--disable-userns"]  # which the filter would refuse
        passed = [*files.values(), *etc.values(), status_write, gate_read]
        passed.append(_readable(b"".join(os.fsencode(option) + b"\0" for option in options)))
        argv = [self._program, "--args", str(passed[-1]), "--", view.program, *order.script.argv]
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_bubblewrap(argv, passed, streams, uid, parent)
        for fd in passed:
            os.close(fd)
        os.set_blocking(status_read, False)
        limits = rlimits(order.limits, of_the_sandbox=OUR_PROCESSES, uid=uid, files=len(passed))
        return BubblewrapCell(pid, status_read, Gate(gate_write, self._filter or b"1"), limits, uid)

    @staticmethod
    def _become_bubblewrap(argv: list[str], passed: list[int], streams: Streams, uid: int, parent: int) -> None:
        try:
            give_streams(streams)
            give_only(passed)
            become(uid, parent)
            os.execve(argv[0], argv, {})  # noqa: S606
        except BaseException as error:
            os.write(2, f"bwrap: cannot be started: {error}".encode())
        finally:
            os._exit(127)


def _options(view: View, limits: Limits) -> list[str]:
    """Everything is put together on a small tmpfs, which is read-only in the end; only the box stays writable."""
    options = [*UNSHARED, "--new-session", "--die-with-parent", "--uid", str(UID), "--gid", str(UID)]
    options += ["--hostname", "box", "--clearenv"]
    for name, value in view.env.items():
        options += ["--setenv", name, value]
    for dest, source in view.binds.items():
        options += ["--ro-bind", source, dest]
    for dest in view.emptied:
        options += ["--size", "4096", "--tmpfs", dest, "--remount-ro", dest]
    options += ["--perms", "0755", "--dir", "/dev"]
    for name in DEVICES:
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for link, target in view.links.items():
        options += ["--symlink", target, link]
    options += [
        "--proc",
        "/proc",
        "--remount-ro",
        "/proc",
        "--perms",
        "0700",
        "--size",
        str(limits.disk_bytes),
        "--tmpfs",
        BOX,
    ]
    for name in ("work", "tmp", "shm"):
        options += ["--perms", "0700", "--dir", f"{BOX}/{name}"]
    return options


def _contents(files: dict[str, int], etc: dict[str, int]) -> list[str]:
    options: list[str] = []
    folders = sorted(
        {str(parent) for path in files for parent in PurePosixPath(path).parents if parent.is_relative_to(FOLDER)}
    )
    for folder in folders:
        options += ["--perms", "0700", "--dir", folder]
    for path, fd in files.items():
        options += ["--perms", "0600", "--file", str(fd), path]
    for path, fd in etc.items():
        options += ["--perms", "0444", "--file", str(fd), path]
    return [*options, "--remount-ro", "/", "--chdir", FOLDER]


def _readable(data: bytes) -> int:
    """A file without a name that holds `data`, to be read from its beginning."""
    fd = os.memfd_create("skep", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
