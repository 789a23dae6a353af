"""Processes of this machine by their parents, and those that skep started by a mark in their
environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MARK = "SKEP_REPLICA"  # in the environment of an engine and of all it starts
ENGINE_KEY = "SKEP_ENGINE_KEY"
# What a guard replaces in an argv:
REPORT_FD = "{report_fd}"  # by the number of the pipe on which the engine tells its address
KEY_HERE = "{engine_key}"  # by the key, for engines that take it in no other way
KEY_FILE_HERE = "{engine_key_file}"  # by the name of a YAML file with the key
_BEGAN = 17  # place of the start time in /proc/PID/stat, behind state and parent


class ProcessorWait:
    """For how long the main thread of a process has been ready to run, and had no processor."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/task/{pid}/stat")
        self._used_s = 0.0
        self._looked_at: float | None = None

    def since_last(self, now: float) -> float:
        """Return the seconds of waiting since the last call; 0.0 where /proc does not tell."""
        try:
            fields = stat_fields(self._stat)
        except OSError:
            return 0.0
        used_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        pause_s = 0.0 if self._looked_at is None else now - self._looked_at
        running_s = used_s - self._used_s
        self._used_s = used_s
        self._looked_at = now
        if fields[0] == "R":
            return max(0.0, pause_s - running_s)
        return 0.0


def process_stat(pid: int) -> list[str]:
    """Return the fields that the kernel has of a process, from its state on.

    Raise OSError where there is no such process, or no /proc.
    """
    return stat_fields(Path(f"/proc/{pid}/stat"))


def stat_fields(path: Path) -> list[str]:
    """Return the fields behind the program's name, which is in parentheses and may hold spaces."""
    return path.read_text().rpartition(")")[2].split()


def kill_marked(mark: str) -> int:
    """SIGKILL all processes of this user whose environment has this mark: what a killed guard
    leaves behind. Return how many there were.
    """
    entry_of_mark = f"\0{MARK}={mark}".encode()
    killed = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_marked = entry_of_mark in b"\0" + (entry / "environ").read_bytes()
            if is_marked and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
    return killed


def signal_descendants(root: int, number: signal.Signals) -> int:
    """Signal every living process below this one, and return how many there were."""
    pids = descendants(root)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return len(pids)


KILL_ROUNDS = 50
KILL_POLL_S = 0.02


def kill_descendants(root: int) -> None:
    """SIGKILL every process below this one until none is left: one may fork while it is being
    killed.
    """
    for _ in range(KILL_ROUNDS):
        if not signal_descendants(root, signal.SIGKILL):
            return
        time.sleep(KILL_POLL_S)


def living() -> dict[int, tuple[int, str]]:
    """Return the parent of every process and when it began, without zombies; empty where there is
    no /proc.
    """
    processes = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(entry.name)
            state, parent, *fields = process_stat(pid)
            if state not in ("Z", "X"):
                processes[pid] = int(parent), fields[_BEGAN]
    return processes


def descendants(*roots: int) -> dict[int, str]:
    """Return every living process below these and when it began, children before grandchildren."""
    alive = living()
    below = dict[int, str]()
    parents = set(roots)
    while parents:
        children = {pid: begun for pid, (parent, begun) in alive.items() if parent in parents}
        below |= children
        parents = set(children)
    return below
