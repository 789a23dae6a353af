"""Files and batches of the batch API: their rows, one short transaction for each change.

What a file holds is on disk, elsewhere. A batch is its row and its events, the newest of which
says what it is now; each of its requests gets one result, and the first stays. Knows no clock:
times are arguments."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from skep.store.database import Store
from skep.store.records import Index
from skep.store.rows import insert, insert_all, queries, read

# results that are in memory at once
MOST_READ = 200
MOST_READ_BYTES = 16_777_216
DELETED_AT_ONCE = 2000
BATCH_FILE_S = 30 * 86_400  # a file goes after so long


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATUSES


FINAL_STATUSES = frozenset(
    (BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)
)
_ENDED = (
    "SELECT batch_id FROM batch_events WHERE status IN "  # noqa: S608
    f"({', '.join(repr(status.value) for status in sorted(FINAL_STATUSES))})"
)
_FIRST_STAYS = "ON CONFLICT DO NOTHING"
_SQL = queries("skep.gateway.batch")


class StoredFile(msgspec.Struct, frozen=True):
    id: str
    owner: str  # the name of a key; empty where the endpoint wants none
    created_at: float
    filename: str
    purpose: str
    bytes: int
    expires_at: float | None = None  # None: never


class BatchOrder(msgspec.Struct, frozen=True):
    """A batch as it was asked for."""

    id: str
    owner: str
    created_at: float
    endpoint: str
    input_file_id: str
    completion_window: str
    expires_at: float
    metadata: Mapping[str, str] | None = None


class StoredBatch(msgspec.Struct, frozen=True):
    """`times`: when it got which status. `detail`: the details of all its events together: model,
    total, errors, ids of files; and its `tally`: results of its requests so far. Tokens are None
    where no answer reported them."""

    order: BatchOrder
    status: BatchStatus
    times: Mapping[BatchStatus, float]
    detail: Mapping[str, Any]


class UnfinishedBatch(msgspec.Struct, frozen=True):
    id: str
    owner: str
    model: str | None  # None: its file was not read yet, or names none
    cancelling: bool = False
    # It needs no room: it is cancelled or expired, and nothing of it is sent any more.
    ending: bool = False


class BatchRequest(msgspec.Struct, frozen=True):
    """Where one request stands in the input file."""

    index: Index
    custom_id: str
    start: int
    length: int


class BatchResult(msgspec.Struct, frozen=True):
    """`line` goes into the output file, or, where not `ok`, into the file of errors."""

    index: Index
    ended_at: float
    ok: bool
    line: bytes
    status: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


class BatchStore:
    """Over an open store.

    Several processes may use the file at once; one of them at a time works on batches.
    """

    def __init__(self, store: Store) -> None:
        self.database = store

    # Files

    def add_file(self, file: StoredFile) -> None:
        with self.database.transaction() as connection:
            insert(connection, "files", file)

    def file(self, file_id: str) -> StoredFile | None:
        files = read(self.database.read("SELECT * FROM files WHERE id = ?", file_id), StoredFile)
        return files[0] if files else None

    def files(
        self,
        owner: str | None = None,
        purpose: str | None = None,
        after: str | None = None,
        *,
        limit: int = -1,
    ) -> list[StoredFile]:
        """Return files, the newest first; `owner` None: of all owners."""
        return read(self.database.read(_SQL["files"], owner, purpose, after, limit), StoredFile)

    def delete_file(self, file_id: str) -> str | None:
        """Delete a file, unless an unfinished batch reads it: return the id of that, else None."""
        # In one transaction: no batch can begin to read it between the look and the deletion.
        with self.database.transaction() as connection:
            user = connection.execute(_SQL["user"], (file_id,)).fetchone()
            if user is None:
                connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
        if user is None:
            return None
        return str(user["id"])

    def expired_files(self, now: float) -> list[str]:
        return [
            row["id"]
            for row in self.database.read("SELECT id FROM files WHERE expires_at <= ?", now)
        ]

    # Batches

    def add_batch(self, order: BatchOrder) -> bool:
        """Add a batch, and return whether that was possible: its input file may not be there any
        more.
        """
        with self.database.transaction() as connection:
            input_file = connection.execute(
                "SELECT 1 FROM files WHERE id = ?", (order.input_file_id,)
            ).fetchone()
            if input_file is not None:
                insert(connection, "batches", order)
        return input_file is not None

    def batch(self, batch_id: str) -> StoredBatch | None:
        rows = self.database.read("SELECT * FROM batches WHERE id = ?", batch_id)
        if rows:
            return self._batch_of(rows[0])
        return None

    def batches(
        self, owner: str | None = None, after: str | None = None, *, limit: int = -1
    ) -> list[StoredBatch]:
        """Return batches, the newest first; `owner` None: of all owners."""
        return [
            self._batch_of(row) for row in self.database.read(_SQL["batches"], owner, after, limit)
        ]

    def unfinished(self, now: float) -> list[UnfinishedBatch]:
        """Return the batches that have not ended, the oldest first."""
        return read(self.database.read(_SQL["unfinished"], now), UnfinishedBatch)

    def become(
        self,
        batch_id: str,
        status: BatchStatus,
        at: float,
        files: Sequence[StoredFile] = (),
        **detail: Any,
    ) -> bool:
        """Give a batch its next status, with its output files where it ends: all or none.

        Return whether it got it: not if it has had it before, or has ended.
        """
        with self.database.transaction() as connection:
            became = _event(connection, batch_id, status, at, detail)
            if became:
                insert_all(connection, "files", files)
        return became

    def validated(
        self, batch_id: str, at: float, model: str | None, requests: Iterable[BatchRequest]
    ) -> None:
        """Store the list of its requests, and with it the beginning of the work: all or none."""
        rows = list(requests)
        with self.database.transaction() as connection:
            if _event(
                connection,
                batch_id,
                BatchStatus.IN_PROGRESS,
                at,
                {"model": model, "total": len(rows)},
            ):
                insert_all(connection, "batch_requests", rows, batch_id=batch_id)

    def pending(self, batch_id: str) -> list[BatchRequest]:
        """Return those without a result, in the file's order."""
        return read(self.database.read(_SQL["pending"], batch_id), BatchRequest)

    def lost(self, batch_id: str) -> dict[int, int]:
        """Return how often the process that worked on a request died meanwhile, by index: of
        requests without a result.
        """
        sql = "SELECT idx, count(*) FROM batch_beginnings WHERE batch_id = ? GROUP BY idx"
        return dict(map(tuple, self.database.read(sql, batch_id)))

    def record(
        self,
        batch_id: str,
        results: Sequence[BatchResult] = (),
        under_way: Collection[int] = (),
        since: float = 0.0,
    ) -> None:
        """Store results in one transaction. A request that has its result keeps it. `under_way`:
        what replicas have now, by index, of the process that works on the batch `since` then; it
        replaces what that process stored before."""
        with self.database.transaction() as connection:
            connection.execute(
                "DELETE FROM batch_beginnings WHERE batch_id = ? AND begun_at = ?",
                (batch_id, since),
            )
            begun = [(batch_id, index, since) for index in under_way]
            connection.executemany(
                "INSERT INTO batch_beginnings (batch_id, idx, begun_at) VALUES (?, ?, ?)", begun
            )
            insert_all(connection, "batch_results", results, _FIRST_STAYS, batch_id=batch_id)
            sql = "DELETE FROM batch_beginnings WHERE batch_id = ? AND idx = ?"
            connection.executemany(sql, [(batch_id, result.index) for result in results])

    def lines(self, batch_id: str, *, ok: bool) -> Iterator[bytes]:
        """Yield the lines of results in the file's order. A few are read at a time, as all
        together may be larger than memory.
        """
        (longest,) = self.database.read(
            "SELECT max(length(line)) FROM batch_results WHERE batch_id = ?", batch_id
        )[0]
        limit = min(MOST_READ, max(1, MOST_READ_BYTES // (longest or 1)))
        sql = (
            "SELECT idx, ok, line FROM batch_results WHERE batch_id = ? AND idx > ? ORDER BY "
            "idx LIMIT ?"
        )
        last = -1
        while rows := self.database.read(sql, batch_id, last, limit):
            yield from (row["line"] for row in rows if row["ok"] == ok)
            last = rows[-1]["idx"]

    def tally(self, batch_id: str) -> dict[str, int | None]:
        return dict(self.database.read(_SQL["counts"], batch_id)[0])

    def forget_ended(self) -> None:
        """Delete what the output files of ended batches hold, in short transactions: a gateway is
        serving.
        """
        for table in ("batch_results", "batch_requests", "batch_beginnings"):
            some_rows = (
                f"SELECT batch_id, idx FROM {table} "  # noqa: S608
                f"WHERE batch_id IN ({_ENDED}) LIMIT {DELETED_AT_ONCE}"
            )
            deleted = DELETED_AT_ONCE
            while deleted >= DELETED_AT_ONCE:
                with self.database.transaction() as connection:
                    deleted = connection.execute(
                        f"DELETE FROM {table} WHERE (batch_id, idx) IN ({some_rows})"  # noqa: S608
                    ).rowcount

    def _batch_of(self, row: sqlite3.Row) -> StoredBatch:
        (order,) = read([row], BatchOrder)
        status = BatchStatus.VALIDATING
        times: dict[BatchStatus, float] = {}
        detail: dict[str, Any] = {}
        for event in self.database.read(
            "SELECT * FROM batch_events WHERE batch_id = ? ORDER BY number", order.id
        ):
            status = BatchStatus(event["status"])
            times[status] = event["at"]
            detail |= json.loads(event["detail"])
        if BatchStatus.CANCELLING in times and not status.is_final:
            # It may have come while the file was being checked.
            status = BatchStatus.CANCELLING
        tally = detail.get("tally") or self.tally(order.id)
        return StoredBatch(order, status, times, {"tally": tally} | detail)


def _event(
    connection: sqlite3.Connection,
    batch_id: str,
    status: BatchStatus,
    at: float,
    detail: Mapping[str, Any],
) -> bool:
    """Add an event, and return whether it is new. Checked inside the transaction: another process
    may have ended the batch a moment ago.
    """
    if connection.execute(f"{_ENDED} AND batch_id = ?", (batch_id,)).fetchone():
        return False
    values = {"batch_id": batch_id, "status": status, "at": at, "detail": detail}
    return insert(connection, "batch_events", None, _FIRST_STAYS, **values).rowcount > 0
