"""How much memory a sandbox holds: all its processes together, and the files in its folder, which are memory too.

Read through the sandbox's own /proc, which lists its processes and no others. A script cannot hide there: it can leave
neither its process namespace nor the processes' list.
"""

from __future__ import annotations

import contextlib
import os

from skep.sandbox.bubblewrap import BOX

CHEAP = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
EXACT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
MOST_FILES = 8192  # of the folder; an empty file takes no room but memory all the same
FILE_BYTES = 1024  # what the kernel keeps for each, about
SOCKET_BYTES = 256 << 10  # what a unix socket may hold; how much it does hold is told nowhere
QUEUES = ("tcp", "tcp6", "udp", "udp6")  # tables that tell what is queued
LONGEST_TABLE = 4 << 20


class MemoryWatch:
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
        kept = folder + files * FILE_BYTES + self._sockets()
        plain = kept + sum(self._plain(pid) for pid in self._pids())
        return plain > limit_bytes and kept + self._exact() > limit_bytes

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

    def _sockets(self) -> int:
        """What sockets hold is the kernel's memory, not a process's: a script could keep gigabytes there."""
        unix = self._text("1/net/unix", LONGEST_TABLE).count(b"\n")
        tables = (self._text(f"1/net/{name}", LONGEST_TABLE) for name in QUEUES)
        return unix * SOCKET_BYTES + sum(map(_queued, tables))

    def _exact(self) -> int:
        """Each page divided by the processes that share it; as in `_plain` where the kernel does not tell."""
        return sum(self._divided(pid) for pid in self._pids())

    def _divided(self, pid: str) -> int:
        text = self._text(f"{pid}/smaps_rollup")
        told = _bytes_of(text, EXACT) if EXACT[0] in text else None  # a kernel before 5.4 has but a part of them
        return self._plain(pid) if told is None else told

    def _plain(self, pid: str) -> int:
        """A process whose first thread has ended keeps its memory, but shows it in the other threads only."""
        told = _bytes_of(self._text(f"{pid}/status"), CHEAP)
        if told is None:
            texts = [self._text(f"{pid}/task/{thread}/status") for thread in self._list(f"{pid}/task")]
            others = [_bytes_of(text, CHEAP) for text in texts]
            told = max((other for other in others if other is not None), default=0)
        return told

    def _pids(self) -> list[str]:
        return [pid for pid in self._list(".") if pid.isdigit() and pid != "1"]

    def _list(self, path: str) -> list[str]:
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                return os.listdir(fd)  # noqa: PTH208
            finally:
                os.close(fd)
        return []

    def _text(self, path: str, longest: int = 8192) -> bytes:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                return b"".join(iter(lambda: os.read(fd, 65536), b"")) if longest > 8192 else os.read(fd, longest)
            finally:
                os.close(fd)
        return b""


def _queued(table: bytes) -> int:
    """The sum of what waits to be sent and to be read, in a table of the kernel's sockets."""
    lines = [line.split() for line in table.splitlines()[1:]]
    return sum(int(size, 16) for line in lines if len(line) > 4 for size in line[4].split(b":"))


def _bytes_of(text: bytes, fields: tuple[bytes, ...]) -> int | None:
    """The sum of these fields in bytes. None: it has none of them."""
    found = [int(line.split()[1]) for line in text.splitlines() if line.startswith(fields)]
    return sum(found) * 1024 if found else None
