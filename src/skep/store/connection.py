"""Opening the database file: folder, permissions, WAL, and the schema brought up to date.

Several processes may open a fresh file at once. Switching to WAL needs the file alone and does not wait for the
busy timeout, so the whole preparation is repeated while the file is busy; each step finds what others did already.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from sqlite3 import Connection, complete_statement

from skep.errors import StoreError, UserError

_DAMAGED = ("is damaged or not a database", "move `{path}` away, or put a backup in its place, and run again")
_BUSY = ("is locked by another process", "wait for the other skep process to finish, then run again")
_DENIED = ("cannot be opened or written", "check that you may write to the folder `{folder}`")
_FULL = ("cannot grow: no space left on its disk", "free some space; `skep store gc` deletes old runs")
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
    if (fault := _FAULTS.get(primary_code(error) or 0)) is None:
        return StoreError(f"`{path}` refused the operation: {error}")
    what, hint = fault
    return StoreError(f"`{path}` {what} ({error})", hint=hint.format(path=path, folder=path.parent))


def is_busy(error: Exception) -> bool:
    """Somebody else holds the write lock; nothing is wrong with the file."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and primary_code(cause) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_about_a_row(error: Exception) -> bool:
    """A value has no place in its column; other rows may be stored all the same."""
    return isinstance(error.__cause__, _FAULTS_OF_A_ROW) or isinstance(error, OverflowError)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, path) from error


APPLICATION_ID = 0x534B4550  # "SKEP": tells our files from other programs' databases
MIGRATIONS = sorted(one.name for one in files("skep.store").joinpath("schema").iterdir() if one.name.endswith(".sql"))


def version_of(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: Connection) -> None:
    """Bring the schema to the newest version; the caller holds the write transaction."""
    for number, name in enumerate(MIGRATIONS[version_of(connection) :], start=version_of(connection) + 1):
        statement = ""
        for line in files("skep.store").joinpath("schema", name).read_text("utf-8").splitlines(keepends=True):
            statement += line
            if complete_statement(statement):  # a trigger has semicolons inside
                connection.execute(statement)
                statement = ""
        connection.execute(f"PRAGMA user_version = {number}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


BUSY_TIMEOUT_S = 10.0
_RETRY_S = 0.02


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    with translated(path):
        if not read_only:  # readable by its owner alone, for it holds prompts; SQLite's side files get the same mode
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not path.exists():
            raise StoreError(f"there is no database at `{path}`", hint="`skep bench` makes one with its first run")
        connection = _open(path, read_only=read_only)
        try:
            _prepare_when_free(connection, path, read_only=read_only)
            if read_only and version_of(connection) < len(MIGRATIONS):
                _upgrade_to_read(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _open(path: Path, *, read_only: bool) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    if read_only and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        uri += "&immutable=1"  # WAL side files cannot be made there, so nobody can be writing
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def _prepare_when_free(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            _check_origin(connection, path)
            connection.execute("PRAGMA foreign_keys = ON")
            if not read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                if version_of(connection) < len(MIGRATIONS):
                    connection.execute("BEGIN IMMEDIATE")  # whoever comes second finds the version already raised
                    with connection:  # commits, or rolls back
                        migrate(connection)
            return
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def _check_origin(connection: sqlite3.Connection, path: Path) -> None:
    """The order of the reads matters: another process may commit its first migration between two of them."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = version_of(connection)
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if (tables or version) and application_id != APPLICATION_ID:
        raise StoreError(f"`{path}` is a database of another program", hint="name another file for skep's data")
    if version > len(MIGRATIONS):
        newer = f"`{path}` was written by a newer skep (schema {version}, this one knows {len(MIGRATIONS)})"
        raise StoreError(newer, hint="upgrade skep, or name another file")


def _upgrade_to_read(connection: sqlite3.Connection, path: Path) -> None:
    """A command that only reads is often the first after an upgrade of skep; who may write brings the file along."""
    if version_of(connection) > 0:
        with suppress(StoreError):
            connect(path, read_only=False).close()
    if version_of(connection) < len(MIGRATIONS):
        hint = "run `skep runs` once as a user who may write to it"
        raise StoreError(f"`{path}` was written by an older skep and must be upgraded before it can be read", hint=hint)


_FAULTS_OF_THE_SOURCE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY)


def copy_database(source: sqlite3.Connection, source_path: Path, to: Path, *, overwrite: bool) -> None:
    """Written beside `to` and moved into place, so that `to` is whole or untouched; readable by its owner alone."""
    with translated(to):
        if to.exists() and to.samefile(source_path):
            raise UserError(f"`{to}` is the database itself", hint="name another file")
        if to.exists() and not overwrite:
            raise UserError(f"`{to}` already exists", hint="name another file, or add --overwrite")
        if Path(f"{to}-wal").exists():  # SQLite would replay it over the copy
            raise StoreError(f"`{to}` is in use, or was not closed: `{to}-wal` is there", hint="name another file")
        handle, name = tempfile.mkstemp(prefix=f".{to.name}.", dir=to.parent)
        os.close(handle)
        draft = Path(name)
        try:
            with closing(sqlite3.connect(draft)) as target:
                try:
                    source.backup(target)
                except sqlite3.DatabaseError as error:
                    if primary_code(error) in _FAULTS_OF_THE_SOURCE:
                        raise store_error(error, source_path) from error
                    raise
                target.execute("PRAGMA journal_mode = DELETE")  # one file, without WAL beside it
            _sync(draft)
            draft.replace(to)
        finally:
            draft.unlink(missing_ok=True)
        _sync(to.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
