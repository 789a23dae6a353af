"""The tables of the batch API, as the seventh and the ninth migration make them. Runs no statement.

What is written is final. A file's row goes with the file, and a batch's requests and results go after it has ended: its
output files have them from then on. `owner` is the name of the key that made it, empty where the endpoint wants none.
"""

from __future__ import annotations

from skep.store.triggers import NO_UPDATE

_FILES = """
CREATE TABLE files (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    expires_at REAL
)"""

# No reference to the file: it may be deleted when the batch has ended.
_BATCHES = """
CREATE TABLE batches (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    expires_at REAL NOT NULL,
    metadata TEXT,
    output_expires_s INTEGER
)"""

# A batch begins as `validating`; its newest event says what it is now.
_BATCH_EVENTS = """
CREATE TABLE batch_events (
    number INTEGER PRIMARY KEY,
    batch_id TEXT NOT NULL REFERENCES batches (id),
    status TEXT NOT NULL CHECK (
        status IN ('in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelling', 'cancelled')
    ),
    at REAL NOT NULL,
    detail TEXT NOT NULL,
    UNIQUE (batch_id, status)
)"""

# Where each request stands in the input file: its line's first byte and its length.
_BATCH_REQUESTS = """
CREATE TABLE batch_requests (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    idx INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (batch_id, idx),
    UNIQUE (batch_id, custom_id)
) WITHOUT ROWID"""

# `line` is the line of the output file, or, where not `ok`, of the file of errors.
_BATCH_RESULTS = """
CREATE TABLE batch_results (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    idx INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    ok INTEGER NOT NULL CHECK (ok IN (0, 1)),
    status INTEGER,
    prompt_tokens INTEGER,
    cached_tokens INTEGER,
    output_tokens INTEGER,
    reasoning_tokens INTEGER,
    line BLOB NOT NULL,
    UNIQUE (batch_id, idx)
)"""

_NOT_AFTER_END = """
CREATE TRIGGER {table}_not_after_end BEFORE INSERT ON {table}
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END"""

_FINAL = ("files", "batches", "batch_events", "batch_requests", "batch_results")
_OF_A_BATCH = ("batch_events", "batch_requests", "batch_results")

BATCH_TABLES = (
    _FILES, _BATCHES, _BATCH_EVENTS, _BATCH_REQUESTS, _BATCH_RESULTS,
    "CREATE INDEX files_by_owner ON files (owner, number)",
    "CREATE INDEX batches_by_owner ON batches (owner, number)",
    *(NO_UPDATE.format(table=table) for table in _FINAL),
    *(_NOT_AFTER_END.format(table=table) for table in _OF_A_BATCH),
)  # fmt: skip

# A replica got the request and it has no result yet. An attempt that ended without one takes its row along: what is
# there when a gateway begins was under way when an earlier one died.
_BATCH_BEGINNINGS = """
CREATE TABLE batch_beginnings (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    idx INTEGER NOT NULL,
    begun_at REAL NOT NULL,
    PRIMARY KEY (batch_id, idx, begun_at)
) WITHOUT ROWID"""

BATCH_BEGINNINGS = (
    _BATCH_BEGINNINGS,
    NO_UPDATE.format(table="batch_beginnings"),
    _NOT_AFTER_END.format(table="batch_beginnings"),
)
