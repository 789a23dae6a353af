"""One closed room, however it is closed: what the warden needs to know of it, and what both ways have in common."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skep.sandbox.interpreter import View
from skep.sandbox.kernel import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from skep.sandbox.messages import Order

FIRST_UID = 65100  # root runs scripts as one of these: no login, no files; low enough for a container's own mapping
UIDS = 300


@dataclass(frozen=True, slots=True)
class Streams:
    stdin: int
    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True)
class Exit:
    """How the script itself ended. `failure`: it was never started, and why."""

    code: int | None = None
    signal: int | None = None
    failure: str | None = None


class Cell(Protocol):
    """A running room. `pid` is the warden's child; `init_pid`, once known, the first process inside."""

    pid: int
    init_pid: int | None
    status_fd: int

    def hear(self, news: bytes) -> None:
        """What came from `status_fd`."""
        ...

    def exit(self, wait_status: int | None, stderr: bytes) -> Exit: ...


class Way(Protocol):
    """How rooms are made: `start` forks, and returns in the parent only."""

    def start(self, order: Order, view: View, streams: Streams, uid: int) -> Cell: ...


def uid_for(slot: int) -> int:
    """The uid outside of the `slot`-th script at the same time: root gives each its own, others have but theirs."""
    return FIRST_UID + slot % UIDS if os.geteuid() == 0 else os.getuid()


def become(uid: int, parent: int) -> None:
    """In the child: no longer root, signals as they come, and the first to go when memory runs out."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        prctl(PR_SET_DUMPABLE, 1)  # lost with the uid; without it /proc/self is still root's
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # died before that
        os._exit(1)


def give_streams(streams: Streams) -> None:
    for number, fd in enumerate((streams.stdin, streams.stdout, streams.stderr)):
        os.dup2(fd, number)


def give_only(passed: list[int]) -> None:
    """Of everything that is open: the three streams and these."""
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with contextlib.suppress(OSError):  # the listing itself
            os.set_inheritable(fd, fd in passed or fd <= 2)
