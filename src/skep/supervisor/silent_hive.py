"""A hive that holds the lock and answers nobody: it is starting, or stuck. Recognises it by its
lock, and ends it by signals.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from skep.errors import EngineError
from skep.files import lock_holder
from skep.host.processes import descendants, kill_marked, living
from skep.paths import Paths

POLL_S = 0.02
GUARDS_S = 3.0  # guards that lose their hive end its engines meanwhile


class SilentHive(EngineError):
    """A process holds the lock, and there is no answer on the control socket."""

    def __init__(self, pid: int) -> None:
        hint = "it may still be starting: `skep logs skep` shows more, `skep down` ends it"
        super().__init__(f"skep holds its lock (pid {pid}) but does not answer", hint=hint)


def silent_holder(paths: Paths) -> SilentHive | None:
    """Return the error for a process that holds the lock; None where nobody does."""
    pid = lock_holder(paths.lock)
    if pid is None:
        return None
    return SilentHive(pid)


def end_silent_hive(paths: Paths, limit_s: float, tell: Callable[[str], object]) -> bool:
    """End the process that holds the lock: SIGTERM, after `limit_s` SIGKILL. Return whether there
    was one.
    """
    pid = lock_holder(paths.lock)
    if pid is None:
        return False
    tell(f"skep (pid {pid}) does not answer: sending SIGTERM, then SIGKILL after {limit_s:g} s")
    family = process_family(pid)
    _signal(pid, signal.SIGTERM)
    _signal(pid, signal.SIGCONT)  # a stopped process gets no signal before it goes on
    obeyed = _have_ended({pid: family.get(pid, "")}, limit_s)
    kill_family(family)
    kill_marked(f"{paths.logs}:")
    if obeyed:
        tell(f"skep (pid {pid}) ended by SIGTERM")
    else:
        tell(f"skep (pid {pid}) was killed with all it had started")
    return True


def process_family(pid: int) -> dict[int, str]:
    """Return a process and all below it, each with when it began: a number may be another
    process's later.
    """
    alive = living()
    first = {pid: alive[pid][1]} if pid in alive else {}
    return first | descendants(pid)


def kill_family(family: Mapping[int, str]) -> None:
    """SIGKILL the first of a family, whose guards then end its engines; after GUARDS_S, SIGKILL
    also those that are still alive.
    """
    for killed in (list(family)[:1], list(family)):
        for pid in _alive_of(family):
            if pid in killed:
                _signal(pid, signal.SIGKILL)
        if _have_ended(family, GUARDS_S):
            return


def _alive_of(family: Mapping[int, str]) -> list[int]:
    alive = living()
    return [pid for pid, begun in family.items() if pid in alive and alive[pid][1] == begun]


def _have_ended(family: Mapping[int, str], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while _alive_of(family):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
