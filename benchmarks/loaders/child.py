"""One run of a command: its output in files, and the CPU time of all its processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.process import tree

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Ran:
    status: int | None  # None: ended because it took too long
    cpu_s: float  # user and system, of the process and of everything it started
    wall_s: float


def adopt_orphans() -> None:
    """Processes whose parent ended become this one's children,
    so that their CPU time is not lost.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, output: Path, *, limit_s: float
) -> Ran:
    """stdout goes to `output`, stderr to a file beside it.

    Nothing of it is left when this returns or raises.
    """
    before = _used_s()
    began = time.monotonic()
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
            env={**os.environ, **env},
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends what it started
        )
    status = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(limit_s)
        wall_s = time.monotonic() - began
    finally:
        _end(process)
    return Ran(status, _used_s() - before, wall_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process, its session and the orphans it left; all are waited for."""
    for pid in tree(process.pid) if process.poll() is None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 5
    while (left := _of_session(process.pid)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _of_session(session: int) -> list[int]:
    """Orphans of the session are this process's children, alive or to be waited for."""
    found = []
    for pid in tree(os.getpid())[1:]:
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
