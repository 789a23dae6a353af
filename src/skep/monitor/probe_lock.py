"""One probe at a time on a machine, whoever asks for it: the loop, or somebody by hand in another process.

Two at once would pass for each other's company, and both would be busy. The kernel keeps the turn and gives it back
when its holder dies, so it cannot go stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

LONGEST_S = 900.0  # nobody is waited for longer: who has stopped with Ctrl-Z never ends
LOOK_S = 0.1  # between two looks whether it is one's turn; a wait inside the kernel could not be broken off


class ProbeLock:
    """`folder` has one empty file for each machine."""

    def __init__(self, folder: Path | None, *, longest_s: float = LONGEST_S) -> None:
        """None: nobody else probes."""
        self._folder = folder
        self._longest_s = longest_s

    @contextlib.asynccontextmanager
    async def at(self, machine: str, waits: Callable[[], None]) -> AsyncIterator[None]:
        """`waits` hears of it once, where somebody else is there. Without a place for the file nobody waits."""
        descriptor = self._opened(machine)
        if descriptor is None:
            yield
            return
        try:
            if not _taken(descriptor):
                waits()
                deadline = time.monotonic() + self._longest_s
                while not _taken(descriptor) and time.monotonic() < deadline:
                    await asyncio.sleep(LOOK_S)
            yield
        finally:
            os.close(descriptor)

    def _opened(self, machine: str) -> int | None:
        if self._folder is None:
            return None
        name = hashlib.sha256(machine.encode("utf-8", "replace")).hexdigest()[:16]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
