"""The folder of one pulled model: which file there may be trusted, who may write, how a file gets
in.

A file under its final name is always complete when it was put there: it is written beside, synced
and renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skep.errors import WeightsError
from skep.units import format_bytes

_LOCK_POLL_S = 0.2


def is_verified(path: Path, sha256: str) -> bool:
    """Return whether `path` holds these bytes."""
    try:
        return file_sha256(path) == sha256
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def put_in_place(temporary: Path, path: Path) -> None:
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the folder while the block runs: one process at a time does.

    The lock file stays: removing it would let two in.
    """
    with (folder / ".lock").open("ab") as lock:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            waiting()
            time.sleep(_LOCK_POLL_S)
        yield


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Yield an empty folder on the same file system, and remove it at the end.

    The caller holds the lock: staging folders that are already there belong to dead processes.
    """
    for leftover in folder.glob(".staging-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=".staging-", dir=folder, ignore_cleanup_errors=True
    ) as path:
        yield Path(path)


def largest_file_bytes(folder: Path) -> int:
    """Return the size of the largest file below `folder`: how far a download has come.

    Files may vanish meanwhile.
    """
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                largest = max(largest, (Path(parent) / name).stat().st_size)
    return largest


def need_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise no_space(folder, f"needs {format_bytes(needed_bytes)}, has {format_bytes(free)}")


def no_space(folder: Path, detail: str) -> WeightsError:
    hint = "free some space, or set XDG_CACHE_HOME to a folder on another disk"
    return WeightsError(f"no space left for `{folder}`: {detail}", hint=hint)


@contextmanager
def write_errors(cache_dir: Path, needed_bytes: int) -> Iterator[None]:
    """Raise WeightsError for an OSError about the cache folder."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(cache_dir, f"needs {format_bytes(needed_bytes)}") from error
        hint = "make it writable, or set XDG_CACHE_HOME to a folder that is"
        message = f"cannot use the cache folder `{cache_dir}`: {error.strerror or error}"
        raise WeightsError(message, hint=hint) from error
