"""How much memory a sandbox holds: all its processes together, and the files in its folder, which are memory too.

Read through the sandbox's own /proc, which lists its processes and no others. A script cannot hide there: it can leave
neither its process namespace nor the processes' list.
"""

from __future__ import annotations

import contextlib
import os

from skep.sandbox.interpreter import BOX

CHEAP = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
EXACT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
MOST_FILES = 8192  # of the folder; an empty file takes no room but memory all the same
FILE_BYTES = 1024  # what the kernel keeps for each, about


class Watch:
    """Opened once for a sandbox whose first process is `init_pid`, as soon as it has its own root."""

    def __init__(self, init_pid: int) -> None:
        self._init_pid = init_pid
        self._proc: int | None = None
        self._box: int | None = None

    @property
    def opened(self) -> bool:
        return self._box is not None

    def close(self) -> None:
        for fd in (self._proc, self._box):
            if fd is not None:
                os.close(fd)
        self._proc = self._box = None

    def over(self, limit_bytes: int) -> bool:
        """Cheaply at first: forked processes share pages, and only where the plain sum is too much is it divided."""
        if not self._open():
            return False
        folder, files = self._folder()
        if files > MOST_FILES:
            return True
        kept = folder + files * FILE_BYTES
        return kept + self._sum("status", CHEAP) > limit_bytes and kept + self._exact() > limit_bytes

    def _open(self) -> bool:
        if self._box is not None:
            return True
        root = f"/proc/{self._init_pid}/root"
        try:
            theirs, ours = os.stat(root), os.stat("/")  # noqa: PTH116
            if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino):
                return False
            self._proc = os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._box = os.open(f"{root}{BOX}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self.close()
            return False
        return True

    def _folder(self) -> tuple[int, int]:
        assert self._box is not None
        facts = os.fstatvfs(self._box)
        return (facts.f_blocks - facts.f_bfree) * facts.f_frsize, facts.f_files - facts.f_ffree

    def _exact(self) -> int:
        return self._sum("smaps_rollup", EXACT) or self._sum("status", CHEAP)

    def _sum(self, name: str, fields: tuple[bytes, ...]) -> int:
        assert self._proc is not None
        total = 0
        for pid in os.listdir(self._proc):  # noqa: PTH208
            if pid.isdigit() and pid != "1":
                total += self._read(f"{pid}/{name}", fields)
        return total

    def _read(self, path: str, fields: tuple[bytes, ...]) -> int:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                text = os.read(fd, 8192)
            finally:
                os.close(fd)
            lines = [line for line in text.splitlines() if line.startswith(fields)]
            return sum(int(line.split()[1]) for line in lines) * 1024
        return 0
