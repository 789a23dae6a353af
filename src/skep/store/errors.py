"""What SQLite and the file system complain of, as StoreError: which file, what is wrong, what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skep.errors import StoreError

_DAMAGED = ("is damaged or not a database", "move `{path}` away, or put a backup in its place, and run again")
_BUSY = ("is locked by another process", "wait for the other skep process to finish, then run again")
_DENIED = ("cannot be opened or written", "check that you may write to the folder `{folder}`")
_FULL = ("cannot grow: no space left on its disk", "free some space; `skep gc` deletes old runs")
_DISK = ("cannot be read or written: the disk reports an error", "check the disk that holds `{folder}`")

_FAULTS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_CANTOPEN: _DENIED,
    sqlite3.SQLITE_READONLY: _DENIED,
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: _DISK,
}

_FAULTS_OF_A_ROW = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's result code without its extension, None where Python itself raised the error."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def store_error(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    if isinstance(error, OSError):
        hint = f"check that `{path.parent}` is a folder you may write to"
        return StoreError(f"`{path}` cannot be opened: {error.strerror or error}", hint=hint)
    fault = _FAULTS.get(primary_code(error) or 0)
    if fault is None:
        return StoreError(f"`{path}` refused: {error}")
    what, hint = fault
    return StoreError(f"`{path}` {what} ({error})", hint=hint.format(path=path, folder=path.parent))


def is_busy(error: Exception) -> bool:
    """Somebody else holds the write lock; nothing is wrong with the file."""
    return _code_behind(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_about_a_row(error: Exception) -> bool:
    """A value has no place in its column; other rows may be stored all the same."""
    return isinstance(error.__cause__, _FAULTS_OF_A_ROW) or isinstance(error, OverflowError)


def _code_behind(error: Exception) -> int | None:
    return primary_code(error.__cause__) if isinstance(error.__cause__, sqlite3.Error) else None


@contextmanager
def translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, path) from error
