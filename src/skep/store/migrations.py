"""The schema, as numbered steps. `PRAGMA user_version` holds the number of steps a file has seen.

A step that was released is never edited: a change is a new function at the end of `MIGRATIONS`. Steps run inside
the caller's transaction, so they use single statements only. SQLite 3.34 is enough (no STRICT, no RETURNING).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sqlite3 import Connection

from skep.store.batch_tables import BATCH_BEGINNINGS, BATCH_TABLES
from skep.store.series_tables import SERIES_TABLES
from skep.store.swarm_tables import SWARM_TABLES
from skep.store.triggers import NO_DELETE, NO_UPDATE
from skep.store.tunings_tables import TUNING_TABLES
from skep.store.verdicts import VERDICTS_AND_ITEMS

APPLICATION_ID = 0x534B4550  # "SKEP": tells our files from other programs' databases

_RUNS = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    created_at REAL NOT NULL,
    model TEXT NOT NULL,
    url TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    config TEXT NOT NULL,
    host TEXT NOT NULL,
    engine TEXT NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    skep_version TEXT NOT NULL,
    writer_pid INTEGER NOT NULL,
    writer_start_ticks INTEGER,
    boot_id TEXT
)"""

_RUN_ENDS = """
CREATE TABLE run_ends (
    run_id TEXT NOT NULL UNIQUE REFERENCES runs (id),
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'failed')),
    error TEXT
)"""

_REQUESTS = """
CREATE TABLE requests (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    kind TEXT NOT NULL,
    started_s REAL NOT NULL,
    ended_s REAL NOT NULL,
    first_byte_s REAL,
    first_token_s REAL,
    last_token_s REAL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    status INTEGER,
    error_kind TEXT,
    error TEXT,
    finish_reason TEXT,
    replica TEXT,
    queued_ms REAL,
    engine_prompt_tokens INTEGER,
    engine_cached_tokens INTEGER,
    engine_prompt_ms REAL,
    engine_output_tokens INTEGER,
    engine_decode_ms REAL,
    engine_decode_tok_s REAL,
    arrivals BLOB NOT NULL,
    prompt TEXT,
    answer TEXT,
    UNIQUE (run_id, level, repeat, idx)
)"""

_CLIENT_SAMPLES = """
CREATE TABLE client_samples (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    loop_lag_p99_ms REAL,
    loop_lag_max_ms REAL,
    cpu_share REAL,
    client_limited INTEGER NOT NULL CHECK (client_limited IN (0, 1))
)"""

_V_RUNS = """
CREATE VIEW v_runs AS
SELECT
    runs.id AS run_id,
    runs.kind AS kind,
    datetime(runs.created_at, 'unixepoch') AS started_utc,
    datetime(run_ends.ended_at, 'unixepoch') AS ended_utc,
    run_ends.ended_at - runs.created_at AS duration_s,
    coalesce(run_ends.outcome, 'no end recorded') AS outcome,
    run_ends.error AS error,
    runs.model AS model,
    runs.url AS url,
    runs.simulated AS simulated,
    runs.fingerprint AS fingerprint,
    runs.skep_version AS skep_version,
    (SELECT count(*) FROM requests WHERE run_id = runs.id) AS requests,
    (SELECT count(*) FROM requests WHERE run_id = runs.id AND error_kind IS NOT NULL) AS failed_requests,
    (SELECT sum(output_tokens) FROM requests WHERE run_id = runs.id) AS output_tokens
FROM runs LEFT JOIN run_ends ON run_ends.run_id = runs.id"""

_V_REQUESTS = """
CREATE VIEW v_requests AS
SELECT
    run_id,
    level AS concurrency,
    repeat,
    idx AS task,
    kind,
    error_kind IS NULL AS ok,
    status,
    error_kind,
    error,
    finish_reason,
    replica,
    started_s,
    ended_s - started_s AS total_s,
    (first_token_s - started_s) * 1000 AS ttft_ms,
    prompt_tokens,
    output_tokens,
    output_tokens / nullif(last_token_s - first_token_s, 0) AS task_tok_s,
    queued_ms,
    engine_cached_tokens,
    engine_prompt_ms,
    engine_decode_tok_s,
    length(arrivals) / 8 AS chunks
FROM requests"""

# Rows are final. Deleting whole runs is the one exception: their ids stand in `deleting` while it goes on.
_DELETING = "CREATE TABLE deleting (run_id TEXT PRIMARY KEY)"


_NOT_AFTER_END = """
CREATE TRIGGER {table}_not_after_end BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END"""


def _triggers() -> Iterator[str]:
    yield NO_UPDATE.format(table="runs")
    yield NO_DELETE.format(table="runs", key="id")
    for table in ("run_ends", "requests", "client_samples"):
        yield NO_UPDATE.format(table=table)
        yield NO_DELETE.format(table=table, key="run_id")
        yield _NOT_AFTER_END.format(table=table)


def _m001_runs_and_requests(connection: Connection) -> None:
    tables = (_RUNS, _RUN_ENDS, _REQUESTS, _CLIENT_SAMPLES, _DELETING)
    indexes = (
        "CREATE INDEX runs_by_time ON runs (created_at)",
        "CREATE INDEX runs_by_fingerprint ON runs (fingerprint)",
        "CREATE INDEX client_samples_by_run ON client_samples (run_id)",
    )
    for statement in (*tables, *indexes, *_triggers(), _V_RUNS, _V_REQUESTS):
        connection.execute(statement)


# No UNIQUE id: ids are unique by their making, and an index of them costs a tenth of the insert and 22 bytes a row;
# it would also refuse a whole batch for one row.
_GATEWAY_REQUESTS = """
CREATE TABLE gateway_requests (
    id TEXT NOT NULL,
    arrived_at REAL NOT NULL,
    path TEXT NOT NULL,
    model TEXT,
    priority TEXT NOT NULL,
    flow TEXT,
    replica TEXT,
    attempts INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('answered', 'refused', 'broken', 'hung_up')),
    status INTEGER,
    code TEXT,
    streamed INTEGER NOT NULL CHECK (streamed IN (0, 1)),
    queued_s REAL,
    first_byte_s REAL,
    ended_s REAL NOT NULL,
    prompt_tokens INTEGER,
    cached_tokens INTEGER,
    output_tokens INTEGER,
    request_bytes INTEGER NOT NULL,
    response_bytes INTEGER NOT NULL
)"""

# The speed of an answer that came in one piece cannot be told from outside: its first byte is its last.
_V_GATEWAY_REQUESTS = """
CREATE VIEW v_gateway_requests AS
SELECT
    id AS request_id,
    strftime('%Y-%m-%d %H:%M:%f', arrived_at, 'unixepoch') AS arrived_utc,
    path,
    model,
    priority,
    flow,
    replica,
    attempts,
    outcome,
    status,
    code,
    streamed,
    queued_s * 1000 AS queued_ms,
    first_byte_s * 1000 AS ttft_ms,
    ended_s AS total_s,
    prompt_tokens,
    cached_tokens,
    output_tokens,
    CASE WHEN streamed AND ended_s > first_byte_s THEN output_tokens / (ended_s - first_byte_s) END AS tok_s,
    request_bytes,
    response_bytes
FROM gateway_requests"""

# The same exception as for runs: only rows older than the time that stands here may go, while it stands here.
_DELETING_BEFORE = "CREATE TABLE deleting_before (arrived_at REAL NOT NULL)"

_NO_DELETE_UNLESS_OLD = """
CREATE TRIGGER gateway_requests_no_delete BEFORE DELETE ON gateway_requests
WHEN NOT EXISTS (SELECT 1 FROM deleting_before WHERE OLD.arrived_at < arrived_at)
BEGIN SELECT raise(ABORT, 'rows of gateway_requests are final'); END"""


def _m002_gateway_requests(connection: Connection) -> None:
    index = "CREATE INDEX gateway_requests_by_time ON gateway_requests (arrived_at)"
    guards = (NO_UPDATE.format(table="gateway_requests"), _NO_DELETE_UNLESS_OLD)
    for statement in (_GATEWAY_REQUESTS, _DELETING_BEFORE, index, *guards, _V_GATEWAY_REQUESTS):
        connection.execute(statement)


# What belongs to a level and not to a request: energy, the engine's own counters, an imported summary.
_LEVEL_FACTS = """
CREATE TABLE level_facts (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    name TEXT NOT NULL,
    fact TEXT NOT NULL
)"""

_V_REQUESTS_3 = """
CREATE VIEW v_requests AS
SELECT
    run_id,
    level AS concurrency,
    repeat,
    idx AS task,
    kind,
    traffic,
    session,
    turn,
    error_kind IS NULL AS ok,
    status,
    error_kind,
    error,
    finish_reason,
    replica,
    started_s,
    ended_s - started_s AS total_s,
    (started_s - scheduled_s) * 1000 AS late_ms,
    (first_token_s - min(started_s, coalesce(scheduled_s, started_s))) * 1000 AS ttft_ms,
    prompt_tokens,
    output_tokens,
    output_tokens / nullif(last_token_s - first_token_s, 0) AS task_tok_s,
    queued_ms,
    engine_cached_tokens,
    engine_prompt_ms,
    engine_decode_tok_s,
    length(arrivals) / 8 AS chunks
FROM requests"""


def _m003_shapes_of_load(connection: Connection) -> None:
    columns = (
        "requests ADD COLUMN traffic TEXT NOT NULL DEFAULT ''",
        "requests ADD COLUMN scheduled_s REAL",
        "requests ADD COLUMN session INTEGER",
        "requests ADD COLUMN turn INTEGER",
        "requests ADD COLUMN engine_queue_ms REAL",
        "client_samples ADD COLUMN delivered REAL",
        "client_samples ADD COLUMN processes INTEGER NOT NULL DEFAULT 1",
    )
    for column in columns:
        connection.execute(f"ALTER TABLE {column}")
    index = "CREATE INDEX level_facts_by_run ON level_facts (run_id)"
    guards = (form.format(table="level_facts", key="run_id") for form in (NO_UPDATE, NO_DELETE, _NOT_AFTER_END))
    for statement in (_LEVEL_FACTS, index, *guards, "DROP VIEW v_requests", _V_REQUESTS_3):
        connection.execute(statement)


# `host` is a fingerprint or an address, `document` has the setup and every figure measured. The runs it was made from
# may be deleted later: their ids are in the document, and no reference holds them.
_CALIBRATIONS = """
CREATE TABLE calibrations (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    host TEXT NOT NULL,
    model TEXT NOT NULL,
    engine TEXT NOT NULL,
    quant TEXT NOT NULL,
    layout TEXT NOT NULL,
    rig TEXT NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    decode REAL NOT NULL,
    batch REAL,
    prompt REAL NOT NULL,
    document TEXT NOT NULL,
    skep_version TEXT NOT NULL
)"""

_V_CALIBRATIONS = """
CREATE VIEW v_calibrations AS
SELECT
    id AS calibration_id,
    datetime(created_at, 'unixepoch') AS measured_utc,
    host,
    model,
    engine,
    quant,
    layout,
    rig,
    simulated,
    decode AS step_factor,
    batch AS further_sequences_factor,
    prompt AS prompt_factor,
    skep_version
FROM calibrations"""


def _m004_calibrations(connection: Connection) -> None:
    index = "CREATE INDEX calibrations_by_host ON calibrations (host, engine, created_at)"
    guards = (form.format(table="calibrations", key="id") for form in (NO_UPDATE, NO_DELETE))
    for statement in (_CALIBRATIONS, index, *guards, _V_CALIBRATIONS):
        connection.execute(statement)


def _m005_verdicts_and_items(connection: Connection) -> None:
    connection.execute("ALTER TABLE requests ADD COLUMN reasoning TEXT")
    tables = ("verdicts", "run_items")
    forms = (NO_UPDATE, NO_DELETE, _NOT_AFTER_END)
    guards = (form.format(table=table, key="run_id") for table in tables for form in forms)
    for statement in (*VERDICTS_AND_ITEMS, *guards):
        connection.execute(statement)


def _m006_series(connection: Connection) -> None:
    v_runs = _V_RUNS.replace("count(*)", "count(idx)")  # DuckDB cannot read `count(*)` in a view of SQLite
    for statement in (*SERIES_TABLES, "DROP VIEW v_runs", v_runs):
        connection.execute(statement)


def _m007_swarm(connection: Connection) -> None:
    for statement in (*SWARM_TABLES, *BATCH_TABLES):
        connection.execute(statement)


def _m008_tunings(connection: Connection) -> None:
    for statement in TUNING_TABLES:
        connection.execute(statement)


def _m009_batch_beginnings(connection: Connection) -> None:
    for statement in BATCH_BEGINNINGS:
        connection.execute(statement)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _m001_runs_and_requests,
    _m002_gateway_requests,
    _m003_shapes_of_load,
    _m004_calibrations,
    _m005_verdicts_and_items,
    _m006_series,
    _m007_swarm,
    _m008_tunings,
    _m009_batch_beginnings,
)


def version_of(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: Connection) -> None:
    """Bring the schema to the newest version; the caller holds the write transaction."""
    for number, step in enumerate(MIGRATIONS[version_of(connection) :], start=version_of(connection) + 1):
        step(connection)
        connection.execute(f"PRAGMA user_version = {number}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
