"""What the files of the batch API hold, on disk: one file each, named by its id, in a folder of the owner's alone.

A file is there whole or not at all: it is written under another name, flushed, and renamed. Who knows an id of which no
content is here has one that was deleted by hand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from skep.units import MIB, format_bytes

KEPT_FREE_BYTES = 512 * MIB  # of the disk, for results, the store and everything else that is on it
UNFINISHED = ".part"
UNFINISHED_S = 3600.0  # after so long nobody writes to it any more
ORPHANED_S = 30 * 86_400.0  # a name without a row: an upload that was killed, or a store that may be brought back
FILE_ID = re.compile(r"file-[0-9a-f]{24}")


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(12)}"


class FileRoom:
    """Every call blocks: for threads."""

    def __init__(self, folder: Path, *, kept_free_bytes: int = KEPT_FREE_BYTES) -> None:
        self.folder = folder
        self._kept_free_bytes = kept_free_bytes

    def __repr__(self) -> str:
        return f"<FileRoom {self.folder}>"

    def is_there(self) -> bool:
        """Whether there ever was a file."""
        with contextlib.suppress(OSError):
            return self.folder.exists()
        return False

    def path(self, file_id: str) -> Path:
        assert FILE_ID.fullmatch(file_id), file_id
        return self.folder / file_id

    def require_space(self, more_bytes: int) -> None:
        """Raise OSError unless the disk has room for so much and what is kept free for others."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(self.folder).free
        if free_bytes - more_bytes < self._kept_free_bytes:
            has, keeps = format_bytes(free_bytes), format_bytes(self._kept_free_bytes)
            message = f"the disk has {has} free, and uploads leave {keeps}; delete files (`DELETE /v1/files/ID`)"
            raise OSError(errno.ENOSPC, message)

    def write(self, file_id: str, pieces: Iterable[bytes | memoryview]) -> int:
        """How many bytes. Raises OSError with nothing left behind."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path(file_id)
        part = path.with_name(path.name + UNFINISHED)
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                size = file.tell()
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self._flush_names()
        return size

    def read(self, file_id: str, start: int, length: int) -> bytes:
        with self.path(file_id).open("rb") as file:
            return os.pread(file.fileno(), length, start)

    def delete(self, file_id: str) -> None:
        with contextlib.suppress(OSError):
            self.path(file_id).unlink()

    def sweep(self, known: Iterable[str], now: float | None = None) -> None:
        """Remove what was left by processes that were killed: unfinished files, and very old ones that no row knows."""
        ids, now = set(known), time.time() if now is None else now
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                name = path.name.removesuffix(UNFINISHED)
                if not FILE_ID.fullmatch(name) or path.name in ids:
                    continue
                kept_s = ORPHANED_S if name == path.name else UNFINISHED_S
                with contextlib.suppress(OSError):
                    if now - path.stat().st_mtime > kept_s:
                        path.unlink()

    def _flush_names(self) -> None:
        """A rename is on disk only when its folder is."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
