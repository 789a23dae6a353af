"""The store: runs, their requests and their ends, appended by several processes and read by any.

One `Store` is one connection. It may be used from several threads, one call at a time; each append is one short
transaction, so what a call returned from is kept even if the process is killed. Knows no clock: times are arguments.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from skep.errors import StoreError, UserError
from skep.store.calibrations import (
    CALIBRATIONS,
    INSERT_CALIBRATION,
    NEWEST_FIRST,
    CalibrationRecord,
    calibration_of,
    calibration_row,
)
from skep.store.connection import connect, copy_database, translated
from skep.store.records import GatewayRequest, Request, RunState, StoredRun
from skep.store.rows import (
    GATEWAY_COLUMNS,
    GATEWAY_ROWS_AT_ONCE,
    REQUEST_COLUMNS,
    ClientSample,
    LevelFact,
    client_sample_of,
    gateway_request_of,
    gateway_values,
    insert,
    insert_gateway_rows,
    json_text,
    level_fact_of,
    request_of,
    request_row,
    run_of,
    storable,
)
from skep.store.verdicts import INSERT_ITEM, INSERT_VERDICT, Verdict, item_row, verdict_of, verdict_row
from skep.store.writer_process import free_id, new_suffix, this_process
from skep.workload.items import Item, item_from_json

_RUNS = """
SELECT runs.*, run_ends.ended_at, run_ends.outcome, run_ends.error,
    (SELECT count(*) FROM requests WHERE run_id = runs.id) AS requests
FROM runs LEFT JOIN run_ends ON run_ends.run_id = runs.id
"""
_NEWEST_FIRST = " ORDER BY runs.created_at DESC, runs.rowid DESC LIMIT ?"
_INSERT_REQUEST = insert("requests", REQUEST_COLUMNS)
_TABLES_OF_A_RUN = (
    ("requests", "run_id"),
    ("client_samples", "run_id"),
    ("level_facts", "run_id"),
    ("verdicts", "run_id"),
    ("run_items", "run_id"),
    ("run_ends", "run_id"),
    ("runs", "id"),
)
_GATEWAY_REQUESTS = f"""
SELECT {", ".join(GATEWAY_COLUMNS)} FROM gateway_requests WHERE arrived_at >= ?
ORDER BY arrived_at DESC, rowid DESC LIMIT ?
"""  # noqa: S608
_DELETE_SOME_GATEWAY_REQUESTS = """
DELETE FROM gateway_requests
WHERE rowid IN (SELECT rowid FROM gateway_requests WHERE arrived_at < ? ORDER BY arrived_at LIMIT ?)
"""
_DELETED_AT_ONCE = 5000
_LET_OTHERS_WRITE_S = 0.01


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def begin_run(
        self,
        *,
        kind: str,
        created_at: float,
        model: str,
        url: str,
        fingerprint: str,
        config: Mapping[str, Any],
        host: Mapping[str, Any],
        engine: Mapping[str, Any],
        simulated: bool,
        skep_version: str,
        suffix: Callable[[], str] = new_suffix,
    ) -> str:
        """The id sorts by time (UTC, to the second): `20261115-142233-a1b2c3`. This process is the run's writer."""
        documents = map(json_text, (config, host, engine))
        told = (kind, created_at, model, url, fingerprint, *documents, simulated, skep_version)
        with self.transaction():
            run_id = free_id(self._connection, created_at, suffix)
            self._connection.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (run_id, *told, *astuple(this_process())),
            )
        return run_id

    def append_requests(self, run_id: str, rows: Iterable[Request]) -> None:
        """All of them or none."""
        values = [request_row(run_id, row) for row in rows]
        if values:
            with self.transaction(run_id):
                self._connection.executemany(_INSERT_REQUEST, values)

    def append_client_sample(self, run_id: str, sample: ClientSample) -> None:
        with self.transaction(run_id):
            values = (run_id, *astuple(sample))
            self._connection.execute("INSERT INTO client_samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def append_level_facts(self, run_id: str, facts: Iterable[LevelFact]) -> None:
        values = [(run_id, fact.level, fact.repeat, fact.name, json_text(fact.fact)) for fact in facts]
        if values:
            with self.transaction(run_id):
                self._connection.executemany("INSERT INTO level_facts VALUES (?, ?, ?, ?, ?)", values)

    def append_items(self, run_id: str, items: Iterable[Item]) -> None:
        """What was asked, with its checkers: verdicts can be had again from the store alone."""
        with self.transaction(run_id):
            self._connection.executemany(INSERT_ITEM, [item_row(run_id, item) for item in items])

    def append_verdicts(self, run_id: str, verdicts: Iterable[Verdict]) -> None:
        """All of them or none."""
        with self.transaction(run_id):
            self._connection.executemany(INSERT_VERDICT, [verdict_row(run_id, one) for one in verdicts])

    def append_gateway_requests(self, rows: Iterable[GatewayRequest]) -> None:
        """All of them or none."""
        self.append_gateway_values(map(gateway_values, rows))

    def append_gateway_values(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """The same for tuples in the order of `GatewayRequest`: making the records takes longer than storing them."""
        values = list(rows)
        if values:
            with self.transaction():
                for start in range(0, len(values), GATEWAY_ROWS_AT_ONCE):
                    self._insert_gateway_rows(values[start : start + GATEWAY_ROWS_AT_ONCE])

    def append_calibration(self, found: CalibrationRecord) -> None:
        with self.transaction():
            self._connection.execute(INSERT_CALIBRATION, calibration_row(found))

    def end_run(
        self, run_id: str, ended_at: float, outcome: Literal["done", "failed"], error: str | None = None
    ) -> None:
        with self.transaction(run_id):
            self._connection.execute(
                "INSERT INTO run_ends VALUES (?, ?, ?, ?)", (run_id, ended_at, outcome, storable(error))
            )

    def runs(self, limit: int | None = None) -> list[StoredRun]:
        """Newest first."""
        return [run_of(row) for row in self.read(_RUNS + _NEWEST_FIRST, -1 if limit is None else limit)]

    def run(self, name: str) -> StoredRun:
        """By its id, by the beginning of it, "last", or "last~1" for the one before it."""
        back = re.fullmatch(r"last(?:~(\d{1,6}))?", name)
        if back is not None:
            return self._last(name, int(back[1] or 0))
        matches = self.read(_RUNS + "WHERE substr(runs.id, 1, length(?1)) = ?1 ORDER BY runs.id LIMIT 6", name)
        found = [row for row in matches if row["id"] == name] or matches
        if len(found) == 1 and name:
            return run_of(found[0])
        candidates = [row["id"] for row in found] if name else []
        raise _unclear(name, candidates, [run.id for run in self.runs(3)])

    def requests(self, run_id: str) -> list[Request]:
        """By level, repeat and index."""
        rows = self.read("SELECT * FROM requests WHERE run_id = ? ORDER BY level, repeat, idx", run_id)
        return [request_of(row) for row in rows]

    def client_samples(self, run_id: str) -> list[ClientSample]:
        rows = self.read("SELECT * FROM client_samples WHERE run_id = ? ORDER BY level, repeat, rowid", run_id)
        return [client_sample_of(row) for row in rows]

    def level_facts(self, run_id: str) -> list[LevelFact]:
        rows = self.read("SELECT * FROM level_facts WHERE run_id = ? ORDER BY level, repeat, rowid", run_id)
        return [level_fact_of(row) for row in rows]

    def items(self, run_id: str) -> list[Item]:
        rows = self.read("SELECT document FROM run_items WHERE run_id = ? ORDER BY rowid", run_id)
        return [item_from_json(json.loads(row["document"])) for row in rows]

    def verdicts(self, run_id: str) -> list[Verdict]:
        rows = self.read("SELECT * FROM verdicts WHERE run_id = ? ORDER BY level, repeat, idx", run_id)
        return [verdict_of(row) for row in rows]

    def gateway_requests(self, since: float | None = None, limit: int | None = None) -> list[GatewayRequest]:
        """Newest first. `since` is the unix time of the earliest arrival wanted."""
        values = (float("-inf") if since is None else since, -1 if limit is None else limit)
        return [gateway_request_of(row) for row in self.read(_GATEWAY_REQUESTS, *values)]

    def calibrations(self, host: str | None = None) -> list[CalibrationRecord]:
        """Newest first; of one host, or all."""
        where, values = (" WHERE host = ?", (host,)) if host is not None else ("", ())
        return [calibration_of(row) for row in self.read(CALIBRATIONS + where + NEWEST_FIRST, *values)]

    def count_gateway_requests(self, before: float | None = None) -> int:
        limit = float("inf") if before is None else before
        return int(self.read("SELECT count(*) FROM gateway_requests WHERE arrived_at < ?", limit)[0][0])

    def delete_gateway_requests(self, before: float) -> int:
        """How many went. In short transactions, with a pause between them: a gateway may be appending meanwhile."""
        total = 0
        while deleted := self._delete_some_gateway_requests(before):
            total += deleted
            time.sleep(_LET_OTHERS_WRITE_S)
        return total

    def delete_runs(self, ids: Iterable[str]) -> int:
        """How many there were to delete. A run that is being written stays, and the others with it."""
        wanted = sorted(set(ids))
        with self.transaction():
            self._connection.executemany("INSERT INTO deleting VALUES (?)", [(run_id,) for run_id in wanted])
            doomed = self._connection.execute(_RUNS + "JOIN deleting ON deleting.run_id = runs.id").fetchall()
            for run in map(run_of, doomed):
                if run.state is RunState.RUNNING:
                    raise UserError(f"run `{run.id}` is still being written", hint="stop it first, or leave it out")
            for table, key in _TABLES_OF_A_RUN:
                self._connection.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT run_id FROM deleting)")  # noqa: S608
            self._connection.execute("DELETE FROM deleting")
        return len(doomed)

    def delete_calibrations(self, ids: Iterable[str]) -> int:
        """How many there were to delete."""
        with self.transaction():
            self._connection.executemany("INSERT INTO deleting VALUES (?)", [(name,) for name in sorted(set(ids))])
            doomed = "DELETE FROM calibrations WHERE id IN (SELECT run_id FROM deleting)"
            deleted = self._connection.execute(doomed).rowcount
            self._connection.execute("DELETE FROM deleting")
        return deleted

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

    def _insert_gateway_rows(self, rows: list[tuple[Any, ...]]) -> None:
        sql, values = insert_gateway_rows(len(rows)), tuple(chain.from_iterable(rows))
        try:
            self._connection.execute(sql, values)
        except UnicodeEncodeError:  # rare, and only SQLite's own reading of each text finds it without a cost
            self._connection.execute(sql, [storable(v) if isinstance(v, str) else v for v in values])

    def _delete_some_gateway_requests(self, before: float) -> int:
        with self.transaction():
            self._connection.execute("INSERT INTO deleting_before VALUES (?)", (before,))
            deleted = self._connection.execute(_DELETE_SOME_GATEWAY_REQUESTS, (before, _DELETED_AT_ONCE)).rowcount
            self._connection.execute("DELETE FROM deleting_before")
        return deleted

    def _last(self, name: str, back: int) -> StoredRun:
        newest = self.runs(back + 1)
        if not newest:
            raise UserError("there are no runs yet", hint="`skep bench` makes one")
        if len(newest) <= back:
            raise UserError(
                f"there is no run `{name}`", hint=f"the oldest is `last~{len(newest) - 1}`: {newest[-1].id}"
            )
        return newest[back]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _unclear(name: str, candidates: list[str], newest: list[str]) -> UserError:
    hint = "`skep runs` lists them all"
    if candidates:
        return UserError(f"run `{name}` could be {' or '.join(f'`{c}`' for c in candidates)}", hint=hint)
    known = f"; the newest are {', '.join(f'`{n}`' for n in newest)}" if newest else "; there are no runs yet"
    return UserError(f"there is no run `{name}`{known}", hint=hint)
