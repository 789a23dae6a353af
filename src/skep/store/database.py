"""The store: runs, their requests and their ends, appended by several processes and read by any.

One `Store` is one connection. It may be used from several threads, one call at a time; each append
is one short transaction, all of it or nothing: once a call has returned, its rows are kept even if
the process is killed. Knows no clock.

Several processes may open a fresh file at once. Switching to WAL needs the file alone and does not
wait for the busy timeout, so the whole preparation is repeated while the file is busy; a step that
another process did already changes nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib.resources import files
from itertools import chain
from operator import attrgetter
from pathlib import Path
from sqlite3 import Connection, complete_statement
from typing import Any, Literal, Self, TypeVar

from msgspec.structs import replace

from skep.errors import StoreError, UserError
from skep.store.records import (
    CalibrationRecord,
    ClientSample,
    GatewayRequest,
    LevelFact,
    Request,
    RunState,
    StoredRun,
)
from skep.store.rows import (
    NamedRows,
    columns,
    free_id,
    insert,
    insert_all,
    new_suffix,
    queries,
    read,
    storable,
    this_process,
    writes_on,
)
from skep.store.verdicts import Verdict
from skep.workload.items import Item, item_from_json, item_json

_DAMAGED = (
    "is damaged or not a database",
    "move `{path}` away, or put a backup in its place, and run again",
)
_BUSY = (
    "is locked by another process",
    "wait for the other skep process to finish, then run again",
)
_DENIED = ("cannot be opened or written", "check that you may write to the folder `{folder}`")
_FULL = (
    "cannot grow: no space left on its disk",
    "free some space; `skep store gc` deletes old runs",
)
_DISK = (
    "cannot be read or written: the disk reports an error",
    "check the disk that holds `{folder}`",
)

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

_FAULTS_OF_A_ROW = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
)


def primary_code(error: sqlite3.Error) -> int | None:
    """Return SQLite's result code without its extension; None where Python itself raised the
    error.
    """
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def store_error(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    if isinstance(error, OSError):
        hint = f"check that `{path.parent}` is a folder you may write to"
        return StoreError(f"`{path}` cannot be opened: {error.strerror or error}", hint=hint)
    if (fault := _FAULTS.get(primary_code(error) or 0)) is None:
        return StoreError(f"`{path}` refused the operation: {error}")
    description, hint = fault
    return StoreError(
        f"`{path}` {description} ({error})", hint=hint.format(path=path, folder=path.parent)
    )


def is_busy(error: Exception) -> bool:
    """Return whether another connection holds the write lock; nothing is wrong with the file."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and primary_code(cause) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def is_about_a_row(error: Exception) -> bool:
    """Return whether a value has no place in its column; other rows may be stored all the same."""
    return isinstance(error.__cause__, _FAULTS_OF_A_ROW) or isinstance(error, OverflowError)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and of the file system as StoreError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, path) from error


APPLICATION_ID = 0x534B4550  # "SKEP": tells our files from other programs' databases
MIGRATIONS = sorted(
    path.name
    for path in files("skep.store").joinpath("schema").iterdir()
    if path.name.endswith(".sql")
)


def version_of(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: Connection) -> None:
    """Bring the schema to the newest version; the caller holds the write transaction."""
    schema = files("skep.store").joinpath("schema")
    version = version_of(connection)
    for number, name in enumerate(MIGRATIONS[version:], start=version + 1):
        statement = ""
        for line in schema.joinpath(name).read_text("utf-8").splitlines(keepends=True):
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
        # Readable by its owner alone, for it holds prompts; SQLite's side files get the same mode.
        if not read_only:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not path.exists():
            raise StoreError(
                f"there is no database at `{path}`",
                hint="`skep bench` makes one with its first run",
            )
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
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
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
                    # A second process finds the version already raised.
                    connection.execute("BEGIN IMMEDIATE")
                    with connection:  # commits, or rolls back
                        migrate(connection)
            return
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def _check_origin(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a file of another program or of a newer skep.

    The order of the reads matters: another process may commit its first migration between two of
    them.
    """
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = version_of(connection)
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if (tables or version) and application_id != APPLICATION_ID:
        raise StoreError(
            f"`{path}` is a database of another program", hint="name another file for skep's data"
        )
    if version > len(MIGRATIONS):
        raise StoreError(
            f"`{path}` was written by a newer skep "
            f"(schema {version}, this one knows {len(MIGRATIONS)})",
            hint="upgrade skep, or name another file",
        )


def _upgrade_to_read(connection: sqlite3.Connection, path: Path) -> None:
    """Upgrade a file that is opened for reading, if its user may write to it.

    A command that only reads is often the first after an upgrade of skep.
    """
    if version_of(connection) > 0:
        with suppress(StoreError):
            connect(path, read_only=False).close()
    if version_of(connection) < len(MIGRATIONS):
        hint = "run `skep runs` once as a user who may write to it"
        raise StoreError(
            f"`{path}` was written by an older skep and must be upgraded before it can be read",
            hint=hint,
        )


def copy_database(
    source: sqlite3.Connection, source_path: Path, to: Path, *, overwrite: bool
) -> None:
    """Copy the database to a file that is readable by its owner alone.

    It is written beside `to` and moved into place, so that `to` is whole or untouched.
    """
    with translated(to):
        if to.exists() and to.samefile(source_path):
            raise UserError(f"`{to}` is the database itself", hint="name another file")
        if to.exists() and not overwrite:
            raise UserError(f"`{to}` already exists", hint="name another file, or add --overwrite")
        if Path(f"{to}-wal").exists():  # SQLite would replay it over the copy
            raise StoreError(
                f"`{to}` is in use, or was not closed: `{to}-wal` is there",
                hint="name another file",
            )
        handle, name = tempfile.mkstemp(prefix=f".{to.name}.", dir=to.parent)
        draft = Path(name)
        try:
            # The state of this moment in one file, while others go on writing.
            source.execute("VACUUM INTO ?", (name,))
            os.fsync(handle)
            draft.replace(to)
        except sqlite3.DatabaseError as error:
            is_damaged = primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
            raise store_error(error, source_path if is_damaged else to) from error
        finally:
            os.close(handle)
            draft.unlink(missing_ok=True)


_SQL = queries("skep.store")
_RUNS = NamedRows(
    "runs",
    _SQL["runs"],
    "run",
    lists="`skep runs` lists them all",
    makes="`skep bench` makes one",
    parts=("requests", "client_samples", "level_facts", "verdicts", "run_items", "run_ends"),
)
_CALIBRATIONS = NamedRows("calibrations", "SELECT calibrations.* FROM calibrations", "calibration")
GATEWAY_COLUMNS = columns(GatewayRequest)
GATEWAY_ROWS_AT_ONCE = 50  # 1,400 values: far below SQLite's limit of 32,766 in one statement
gateway_values = attrgetter(*GATEWAY_COLUMNS)
_DELETED_AT_ONCE = 5000
_LET_OTHERS_WRITE_S = 0.01
T = TypeVar("T")


def open_store(path: Path, *, read_only: bool = False) -> Store:
    """Make or upgrade the file as needed; `with open_store(path) as store: ...` closes it."""
    return Store(connect(path, read_only=read_only), path, read_only=read_only)


def read_store(path: Path) -> Store:
    """Open for reading. Where there is no file yet none is made, and the store is empty."""
    if path.exists():
        return open_store(path, read_only=True)
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.deserialize(_empty_database())
    return Store(connection, path, read_only=True)


@cache
def _empty_database() -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        return connection.serialize()


class Store:
    """Rows are appended and never changed; an ended run takes no more.

    Only whole runs and old gateway rows are deleted.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: Path, *, read_only: bool = False
    ) -> None:
        self.path = path
        self._connection = connection
        self._read_only = read_only
        self._file = _identity(path)
        self._lock = threading.RLock()  # at most one transaction is open on the connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.path}{', read-only' if self._read_only else ''}>"

    @property
    def moved(self) -> bool:
        """Return whether the file was deleted or replaced since it was opened: rows written from
        then on are lost.
        """
        return _identity(self.path) != self._file

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def begin_run(
        self, *, created_at: float, suffix: Callable[[], str] = new_suffix, **columns: Any
    ) -> str:
        """Store a new run and return its id, which sorts by time: `20261115-142233-a1b2c3`.

        `columns`: other fields of a `StoredRun`.
        """
        with self.transaction():
            run_id = free_id(self._connection, created_at, suffix)
            insert(
                self._connection,
                "runs",
                this_process(),
                id=run_id,
                created_at=created_at,
                **columns,
            )
        return run_id

    def append_requests(self, run_id: str, rows: Iterable[Request]) -> None:
        self._append("requests", run_id, rows)

    def append_client_sample(self, run_id: str, sample: ClientSample) -> None:
        self._append("client_samples", run_id, [sample])

    def append_level_facts(self, run_id: str, facts: Iterable[LevelFact]) -> None:
        self._append("level_facts", run_id, facts)

    def append_items(self, run_id: str, items: Iterable[Item]) -> None:
        """Store the items with their checkers, so that answers can be judged again."""
        with self.transaction(run_id):
            for item in items:
                insert(
                    self._connection,
                    "run_items",
                    run_id=run_id,
                    item=item.id,
                    document=item_json(item),
                )

    def append_verdicts(self, run_id: str, verdicts: Iterable[Verdict]) -> None:
        # Columns of earlier versions.
        self._append("verdicts", run_id, verdicts, checks="[]", keywords_missing="[]")

    def append_gateway_requests(self, rows: Iterable[GatewayRequest]) -> None:
        self.append_gateway_values(map(gateway_values, rows))

    def append_gateway_values(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Store requests given as tuples in the order of `GatewayRequest`: making the records
        takes longer than storing them.
        """
        rows = list(rows)
        if not rows:
            return
        with self.transaction():
            for start in range(0, len(rows), GATEWAY_ROWS_AT_ONCE):
                part = rows[start : start + GATEWAY_ROWS_AT_ONCE]
                sql = _insert_gateway_rows(len(part))
                values = tuple(chain.from_iterable(part))
                try:
                    self._connection.execute(sql, values)
                except UnicodeEncodeError:  # rare, and a check beforehand would cost time
                    cleaned = [
                        storable(value) if isinstance(value, str) else value for value in values
                    ]
                    self._connection.execute(sql, cleaned)

    def append_calibration(self, calibration: CalibrationRecord) -> None:
        with self.transaction():
            insert(self._connection, "calibrations", calibration)

    def end_run(
        self,
        run_id: str,
        ended_at: float,
        outcome: Literal["done", "failed"],
        error: str | None = None,
    ) -> None:
        with self.transaction(run_id):
            insert(
                self._connection,
                "run_ends",
                run_id=run_id,
                ended_at=ended_at,
                outcome=outcome,
                error=error,
            )

    def runs(self, limit: int | None = None) -> list[StoredRun]:
        """Return the runs, newest first."""
        return _runs(_RUNS.newest(self, limit))

    def run(self, name: str) -> StoredRun:
        """Return a run by its id, by the beginning of it, as "last", or as "last~1" for the run
        before the last.
        """
        return _runs([_RUNS.find(self, name)])[0]

    def requests(self, run_id: str) -> list[Request]:
        return self._of_run(run_id, "requests", Request, "idx")

    def client_samples(self, run_id: str) -> list[ClientSample]:
        return self._of_run(run_id, "client_samples", ClientSample)

    def level_facts(self, run_id: str) -> list[LevelFact]:
        return self._of_run(run_id, "level_facts", LevelFact)

    def items(self, run_id: str) -> list[Item]:
        rows = self.read("SELECT document FROM run_items WHERE run_id = ? ORDER BY rowid", run_id)
        return [item_from_json(json.loads(row["document"])) for row in rows]

    def verdicts(self, run_id: str) -> list[Verdict]:
        return self._of_run(run_id, "verdicts", Verdict, "idx")

    def gateway_requests(
        self, since: float | None = None, limit: int | None = None
    ) -> list[GatewayRequest]:
        """Return requests, newest first. `since`: the unix time of the earliest arrival."""
        values = (float("-inf") if since is None else since, -1 if limit is None else limit)
        return read(self.read(_SQL["gateway_requests"], *values), GatewayRequest)

    def last_turns(self, since: float, limit: int) -> dict[tuple[str, str], int]:
        """Return the number of the last turn of each conversation that sent a request since then,
        by its model and its id; at most `limit`, those heard of last.
        """
        turns = {}
        for model, conversation, turn in self.read(_SQL["last_turns"], since, limit):
            turns[model, conversation] = turn
        return turns

    def calibrations(self, host: str | None = None) -> list[CalibrationRecord]:
        """Return the calibrations of a host, or all, newest first."""
        sql = (
            "SELECT * FROM calibrations WHERE ?1 IS NULL OR host = ?1 ORDER BY created_at DESC, "
            "rowid DESC"
        )
        return read(self.read(sql, host), CalibrationRecord, "calibration")

    def count_gateway_requests(self, before: float | None = None) -> int:
        limit = float("inf") if before is None else before
        return int(
            self.read("SELECT count(*) FROM gateway_requests WHERE arrived_at < ?", limit)[0][0]
        )

    def delete_gateway_requests(self, before: float) -> int:
        """Delete older requests; return how many were deleted."""
        return self.delete_in_parts(
            "deleting_before", before, _SQL["delete_some_gateway_requests"]
        )

    def delete_in_parts(self, mark: str, before: float, sql: str, *values: object) -> int:
        """Delete rows older than `before`, which stands in the table `mark` meanwhile; return how
        many were deleted.

        In short transactions with pauses: others may be appending. `sql` takes `values`, the time,
        and how many at most.
        """
        total = 0
        while True:
            with self.transaction() as connection:
                connection.execute(f"INSERT INTO {mark} VALUES (?)", (before,))  # noqa: S608
                deleted = connection.execute(sql, (*values, before, _DELETED_AT_ONCE)).rowcount
                connection.execute(f"DELETE FROM {mark}")  # noqa: S608
            if not deleted:
                return total
            total += deleted
            time.sleep(_LET_OTHERS_WRITE_S)

    def delete_runs(self, ids: Iterable[str]) -> int:
        """Delete runs; return how many there were.

        If one of them is still being written, none is deleted.
        """
        return _RUNS.delete(self, ids, _check_ended)

    def delete_calibrations(self, ids: Iterable[str]) -> int:
        """Delete calibrations; return how many there were."""
        return _CALIBRATIONS.delete(self, ids, lambda _: None)

    def read(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """Return the rows of a query. For other stores, and for queries by hand."""
        with self._lock, translated(self.path):
            return self._connection.execute(sql, values).fetchall()

    def add_function(self, name: str, function: Callable[[str | None], str | int | None]) -> None:
        """Add an SQL function to this connection. It must depend on nothing but its argument."""
        with self._lock, translated(self.path):
            self._connection.create_function(name, 1, function, deterministic=True)

    @contextmanager
    def transaction(self, run_id: str | None = None) -> Iterator[sqlite3.Connection]:
        """Commit everything that is done inside it, or nothing. It begins when no other process
        writes.
        """
        with self._lock, translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.IntegrityError as error:
                target = f"run `{run_id}`" if run_id else f"`{self.path}`"
                raise StoreError(f"{target} does not take this row: {error}") from error
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def size_bytes(self) -> int:
        """Return the size on disk, side files included."""
        files = (Path(f"{self.path}{end}") for end in ("", "-wal", "-shm"))
        with translated(self.path):
            return sum(file.stat().st_size for file in files if file.exists())

    def backup(self, to: Path, *, overwrite: bool = False) -> None:
        """Copy the store as it is at this moment into one file; writers go on meanwhile."""
        with self._lock:
            copy_database(self._connection, self.path, to, overwrite=overwrite)

    def vacuum(self) -> None:
        """Give the space of deleted runs back to the disk."""
        with self._lock, translated(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _of_run(self, run_id: str, table: str, kind: type[T], then: str = "rowid") -> list[T]:
        """Return the records of a run by level and repeat, and `then` by another column."""
        order = f"level, repeat, {then}"
        sql = f"SELECT * FROM {table} WHERE run_id = ? ORDER BY {order}"  # noqa: S608
        return read(self.read(sql, run_id), kind, "run")

    def _append(
        self, table: str, run_id: str, records: Iterable[object], **extra_columns: str
    ) -> None:
        if rows := list(records):
            with self.transaction(run_id):
                insert_all(self._connection, table, rows, run_id=run_id, **extra_columns)


def _runs(rows: list[sqlite3.Row]) -> list[StoredRun]:
    runs = read(rows, StoredRun, "run", state=_state)
    return [replace(run, error=None) if run.state is RunState.INTERRUPTED else run for run in runs]


def _state(row: sqlite3.Row) -> RunState:
    if row["outcome"] == "failed" and row["error"] == RunState.INTERRUPTED.value:
        return RunState.INTERRUPTED
    if row["outcome"] is not None:
        return RunState(row["outcome"])
    if writes_on(row):
        return RunState.RUNNING
    return RunState.INCOMPLETE


def _check_ended(row: sqlite3.Row) -> None:
    if _state(row) is RunState.RUNNING:
        raise UserError(
            f"run `{row['id']}` is still being written", hint="stop it first, or leave it out"
        )


@cache
def _insert_gateway_rows(count: int) -> str:
    """Return the statement that inserts so many rows.

    That is 40 % quicker than row by row, and the GIL is taken once for all of them.
    """
    row = f"({', '.join('?' * len(GATEWAY_COLUMNS))})"
    return (
        f"INSERT INTO gateway_requests ({', '.join(GATEWAY_COLUMNS)}) VALUES "  # noqa: S608
        f"{', '.join([row] * count)}"
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
