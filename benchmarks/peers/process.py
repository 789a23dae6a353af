"""Processes as the kernel sees them: cores, CPU time, memory and open files of a whole tree."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

GATEWAY_CORE = 1
LOAD_CORE = 0


def cores() -> int:
    return len(os.sched_getaffinity(0))


PINNED = cores() >= 2


@contextlib.contextmanager
def on_core(core: int, count: int = 1) -> Iterator[None]:
    """What is started inside stays on that core, or on `count` from there on; one that has too few
    pins nothing.
    """
    before = os.sched_getaffinity(0)
    if PINNED and len(before) >= core + count:
        os.sched_setaffinity(0, set(sorted(before)[core : core + count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def go_ahead() -> str:
    """All that is started from now on runs before other users' work, where the kernel allows it;
    says how.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return "SCHED_RR"
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    return f"nice {os.getpriority(os.PRIO_PROCESS, 0)}"


def tree(root: int) -> list[int]:
    """`root` and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_ns(root: int) -> dict[str, int]:
    """Nanoseconds on a core (user and system) of each thread of the tree."""
    used = {}
    for pid in tree(root):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                used[f"{pid}/{task.name}"] = int((task / "schedstat").read_text().split()[0])
    return used


def cpu_between(before: dict[str, int], after: dict[str, int]) -> float:
    """Seconds; a thread that ended in between counts for nothing."""
    return sum(ns - before.get(task, 0) for task, ns in after.items()) / 1e9


def memory_mib(root: int) -> float:
    """Proportional set size of the tree."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(next(iter(re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)), "0"))
    return total / 1024


def open_files(root: int) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in tree(root))


def end(process: subprocess.Popen[bytes]) -> None:
    """A process started as the leader of its own group, with all of the group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
    process.wait()
