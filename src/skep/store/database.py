"""The store: runs, their requests and their ends, appended by several processes and read by any.

One `Store` is one connection. It may be used from several threads, one call at a time; each append is one short
transaction, all of it or nothing: what a call returned from is kept even if the process is killed. Knows no clock.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from msgspec.structs import replace

from skep.errors import StoreError, UserError
from skep.store.connection import connect, copy_database, translated
from skep.store.named_rows import NamedRows, free_id, new_suffix, this_process, writes_on
from skep.store.records import CalibrationRecord, ClientSample, GatewayRequest, LevelFact, Request, RunState, StoredRun
from skep.store.rows import columns, insert, insert_all, queries, read, storable
from skep.store.verdicts import Verdict
from skep.workload.items import Item, item_from_json, item_json

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
GATEWAY_ROWS_AT_ONCE = 50  # 1,000 values: far below SQLite's limit of 32,766 in one statement
gateway_values = attrgetter(*GATEWAY_COLUMNS)
_DELETED_AT_ONCE = 5000
_LET_OTHERS_WRITE_S = 0.01
T = TypeVar("T")


def open_store(path: Path, *, read_only: bool = False) -> Store:
    """Make or upgrade the file as needed; `with open_store(path) as store: ...` closes it."""
    return Store(connect(path, read_only=read_only), path, read_only=read_only)


class Store:
    """Rows are appended and never changed; an ended run takes no more. Only whole runs and old gateway rows go."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, read_only: bool = False) -> None:
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
        """Whether the file was deleted or replaced since it was opened: what is written from then on is lost."""
        return _identity(self.path) != self._file

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def begin_run(self, *, created_at: float, suffix: Callable[[], str] = new_suffix, **columns: Any) -> str:
        """Return the id, which sorts by time: `20261115-142233-a1b2c3`. `columns`: other fields of a `StoredRun`."""
        with self.transaction():
            run_id = free_id(self._connection, created_at, suffix)
            insert(self._connection, "runs", this_process(), id=run_id, created_at=created_at, **columns)
        return run_id

    def append_requests(self, run_id: str, rows: Iterable[Request]) -> None:
        self._append("requests", run_id, rows)

    def append_client_sample(self, run_id: str, sample: ClientSample) -> None:
        self._append("client_samples", run_id, [sample])

    def append_level_facts(self, run_id: str, facts: Iterable[LevelFact]) -> None:
        self._append("level_facts", run_id, facts)

    def append_items(self, run_id: str, items: Iterable[Item]) -> None:
        """What was asked, with its checkers: verdicts can be had again from the store alone."""
        with self.transaction(run_id):
            for item in items:
                insert(self._connection, "run_items", run_id=run_id, item=item.id, document=item_json(item))

    def append_verdicts(self, run_id: str, verdicts: Iterable[Verdict]) -> None:
        self._append("verdicts", run_id, verdicts)

    def append_gateway_requests(self, rows: Iterable[GatewayRequest]) -> None:
        self.append_gateway_values(map(gateway_values, rows))

    def append_gateway_values(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """The same for tuples in the order of `GatewayRequest`: making the records takes longer than storing them."""
        values = list(rows)
        if values:
            with self.transaction():
                for start in range(0, len(values), GATEWAY_ROWS_AT_ONCE):
                    part = values[start : start + GATEWAY_ROWS_AT_ONCE]
                    sql, flat = _insert_gateway_rows(len(part)), tuple(chain.from_iterable(part))
                    try:
                        self._connection.execute(sql, flat)
                    except UnicodeEncodeError:  # rare, and only SQLite's own reading finds it without a cost
                        self._connection.execute(sql, [storable(v) if isinstance(v, str) else v for v in flat])

    def append_calibration(self, found: CalibrationRecord) -> None:
        with self.transaction():
            insert(self._connection, "calibrations", found)

    def end_run(
        self, run_id: str, ended_at: float, outcome: Literal["done", "failed"], error: str | None = None
    ) -> None:
        with self.transaction(run_id):
            insert(self._connection, "run_ends", run_id=run_id, ended_at=ended_at, outcome=outcome, error=error)

    def runs(self, limit: int | None = None) -> list[StoredRun]:
        """Newest first."""
        return _runs(_RUNS.newest(self, limit))

    def run(self, name: str) -> StoredRun:
        """By its id, by the beginning of it, "last", or "last~1" for the one before it."""
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

    def gateway_requests(self, since: float | None = None, limit: int | None = None) -> list[GatewayRequest]:
        """Newest first. `since` is the unix time of the earliest arrival wanted."""
        values = (float("-inf") if since is None else since, -1 if limit is None else limit)
        return read(self.read(_SQL["gateway_requests"], *values), GatewayRequest)

    def calibrations(self, host: str | None = None) -> list[CalibrationRecord]:
        """Newest first; of one host, or all."""
        sql = "SELECT * FROM calibrations WHERE ?1 IS NULL OR host = ?1 ORDER BY created_at DESC, rowid DESC"
        return read(self.read(sql, host), CalibrationRecord, "calibration")

    def count_gateway_requests(self, before: float | None = None) -> int:
        limit = float("inf") if before is None else before
        return int(self.read("SELECT count(*) FROM gateway_requests WHERE arrived_at < ?", limit)[0][0])

    def delete_gateway_requests(self, before: float) -> int:
        """Return how many went."""
        return self.delete_in_parts("deleting_before", before, _SQL["delete_some_gateway_requests"])

    def delete_in_parts(self, mark: str, before: float, sql: str, *values: object) -> int:
        """Delete rows older than `before`, which stands in the table `mark` meanwhile; return how many went. In short
        transactions with pauses: others may be appending. `sql` takes `values`, the time, and how many at most."""
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
        """Return how many there were to delete. A run that is being written stays, and the others with it."""
        return _RUNS.delete(self, ids, _check_ended)

    def delete_calibrations(self, ids: Iterable[str]) -> int:
        """Return how many there were to delete."""
        return _CALIBRATIONS.delete(self, ids, lambda _: None)

    def read(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """For the other modules of this package, and for queries by hand."""
        with self._lock, translated(self.path):
            return self._connection.execute(sql, values).fetchall()

    def add_function(self, name: str, function: Callable[[str | None], str | int | None]) -> None:
        """For queries on this connection. Its answer depends on nothing but its argument."""
        with self._lock, translated(self.path):
            self._connection.create_function(name, 1, function, deterministic=True)

    @contextmanager
    def transaction(self, run_id: str | None = None) -> Iterator[sqlite3.Connection]:
        """All of what is done inside it, or none; it begins when no other process writes."""
        with self._lock, translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.IntegrityError as error:
                taker = f"run `{run_id}`" if run_id else f"`{self.path}`"
                raise StoreError(f"{taker} does not take this row: {error}") from error
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def size_bytes(self) -> int:
        """On disk, side files included."""
        files = (Path(f"{self.path}{end}") for end in ("", "-wal", "-shm"))
        with translated(self.path):
            return sum(file.stat().st_size for file in files if file.exists())

    def backup(self, to: Path, *, overwrite: bool = False) -> None:
        """A copy as of now, in one file; writers go on meanwhile."""
        with self._lock:
            copy_database(self._connection, self.path, to, overwrite=overwrite)

    def vacuum(self) -> None:
        """Give the space of deleted runs back to the disk."""
        with self._lock, translated(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _of_run(self, run_id: str, table: str, kind: type[T], then: str = "rowid") -> list[T]:
        """By level and repeat."""
        sql = f"SELECT * FROM {table} WHERE run_id = ? ORDER BY level, repeat, {then}"  # noqa: S608
        return read(self.read(sql, run_id), kind, "run")

    def _append(self, table: str, run_id: str, records: Iterable[object]) -> None:
        if rows := list(records):
            with self.transaction(run_id):
                insert_all(self._connection, table, rows, run_id=run_id)


def _runs(rows: list[sqlite3.Row]) -> list[StoredRun]:
    runs = read(rows, StoredRun, "run", state=_state)
    return [run if run.state is not RunState.INTERRUPTED else replace(run, error=None) for run in runs]


def _state(row: sqlite3.Row) -> RunState:
    if row["outcome"] == "failed" and row["error"] == RunState.INTERRUPTED.value:
        return RunState.INTERRUPTED
    if row["outcome"] is not None:
        return RunState(row["outcome"])
    return RunState.RUNNING if writes_on(row) else RunState.INCOMPLETE


def _check_ended(row: sqlite3.Row) -> None:
    if _state(row) is RunState.RUNNING:
        raise UserError(f"run `{row['id']}` is still being written", hint="stop it first, or leave it out")


@cache
def _insert_gateway_rows(count: int) -> str:
    """Several rows in one statement: 40 % quicker than one by one, and the GIL is taken once for all of them."""
    row = f"({', '.join('?' * len(GATEWAY_COLUMNS))})"
    return f"INSERT INTO gateway_requests ({', '.join(GATEWAY_COLUMNS)}) VALUES {', '.join([row] * count)}"  # noqa: S608


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
