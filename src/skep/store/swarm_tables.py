"""The tables and views of a swarm's journal, as the seventh migration makes them. Runs no statement.

Rows are final, and a whole run goes or none of it: its id stands in `deleting` while it does. That a task has at most
one result is a key of the table, not a habit of its writers.
"""

from __future__ import annotations

from skep.store.triggers import NO_DELETE, NO_UPDATE

_RUNS = """
CREATE TABLE swarm_runs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    created_at REAL NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    model TEXT,
    config TEXT NOT NULL,
    skep_version TEXT NOT NULL
)"""

# `key` grows in the order of the input; the other tables name a task by it.
_TASKS = """
CREATE TABLE swarm_tasks (
    key INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    id TEXT NOT NULL,
    stage INTEGER NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (run_id, id)
)"""

_RESULTS = """
CREATE TABLE swarm_results (
    task INTEGER PRIMARY KEY REFERENCES swarm_tasks (key),
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    ending TEXT NOT NULL CHECK (ending IN ('done', 'failed')),
    answer TEXT,
    value TEXT,
    error_kind TEXT,
    error TEXT,
    tries INTEGER NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    finish_reason TEXT,
    replica TEXT
)"""

_SESSIONS = """
CREATE TABLE swarm_sessions (
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    number INTEGER NOT NULL CHECK (number >= 1),
    started_at REAL NOT NULL,
    agents INTEGER,
    endpoint TEXT NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    writer_pid INTEGER NOT NULL,
    writer_start_ticks INTEGER,
    boot_id TEXT,
    PRIMARY KEY (run_id, number)
)"""

_SESSION_ENDS = """
CREATE TABLE swarm_session_ends (
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'stopped', 'cancelled', 'failed')),
    error TEXT,
    PRIMARY KEY (run_id, number),
    FOREIGN KEY (run_id, number) REFERENCES swarm_sessions (run_id, number)
)"""

# No key over task and number: a row that two processes wrote under one number is told twice, not lost.
_ATTEMPTS = """
CREATE TABLE swarm_attempts (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    task INTEGER NOT NULL REFERENCES swarm_tasks (key),
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    agent INTEGER NOT NULL,
    why TEXT NOT NULL,
    outcome TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    first_token_at REAL,
    queued_ms REAL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    decode_ms REAL,
    status INTEGER,
    error_kind TEXT,
    error TEXT,
    finish_reason TEXT,
    replica TEXT,
    answer TEXT
)"""

_STEPS = """
CREATE TABLE swarm_steps (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    task INTEGER NOT NULL REFERENCES swarm_tasks (key),
    attempt INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    asked TEXT NOT NULL,
    answered TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    error TEXT
)"""

_FACTS = """
CREATE TABLE swarm_facts (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    session INTEGER NOT NULL,
    name TEXT NOT NULL,
    at REAL NOT NULL,
    fact TEXT NOT NULL
)"""

_CANCELS = """
CREATE TABLE swarm_cancels (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    at REAL NOT NULL
)"""

# SQLite puts the row's own key behind the columns: tasks and results of a run come in the order of the input.
_INDEXES = (
    "CREATE INDEX swarm_tasks_by_run ON swarm_tasks (run_id)",
    "CREATE INDEX swarm_results_by_run ON swarm_results (run_id)",
    "CREATE INDEX swarm_results_by_ending ON swarm_results (run_id, ending)",
    "CREATE INDEX swarm_attempts_by_time ON swarm_attempts (run_id, started_at)",
    "CREATE INDEX swarm_attempts_by_task ON swarm_attempts (task, outcome, started_at)",
    "CREATE INDEX swarm_steps_by_task ON swarm_steps (task, attempt, idx)",
    "CREATE INDEX swarm_facts_by_run ON swarm_facts (run_id, name)",
    "CREATE INDEX swarm_cancels_by_run ON swarm_cancels (run_id, at)",
    "CREATE INDEX swarm_runs_by_time ON swarm_runs (created_at)",
)

# Those that point at others come first: they are deleted in this order.
TABLES_OF_A_SWARM_RUN = (
    ("swarm_steps", "run_id"),
    ("swarm_attempts", "run_id"),
    ("swarm_results", "run_id"),
    ("swarm_tasks", "run_id"),
    ("swarm_facts", "run_id"),
    ("swarm_cancels", "run_id"),
    ("swarm_session_ends", "run_id"),
    ("swarm_sessions", "run_id"),
    ("swarm_runs", "id"),
)

# Without `count(*)`, and with the table before a column named `at`: DuckDB reads these with a parser of its own.
_V_RUNS = """
CREATE VIEW v_swarm_runs AS
SELECT
    swarm_runs.id AS run_id,
    swarm_runs.kind,
    swarm_runs.name,
    datetime(swarm_runs.created_at, 'unixepoch') AS created_utc,
    datetime(swarm_session_ends.ended_at, 'unixepoch') AS ended_utc,
    coalesce(swarm_session_ends.outcome, 'no end recorded') AS outcome,
    swarm_session_ends.error,
    swarm_runs.url,
    swarm_runs.model,
    swarm_sessions.simulated,
    coalesce(swarm_sessions.number, 0) AS sessions,
    (SELECT count(key) FROM swarm_tasks WHERE run_id = swarm_runs.id) AS tasks,
    (SELECT count(task) FROM swarm_results WHERE run_id = swarm_runs.id AND ending = 'done') AS done,
    (SELECT count(task) FROM swarm_results WHERE run_id = swarm_runs.id AND ending = 'failed') AS failed,
    (SELECT count(swarm_attempts.id) FROM swarm_attempts WHERE run_id = swarm_runs.id) AS attempts,
    (SELECT sum(output_tokens) FROM swarm_results WHERE run_id = swarm_runs.id) AS output_tokens,
    (SELECT max(swarm_results.ended_at) - min(swarm_results.started_at) FROM swarm_results
        WHERE run_id = swarm_runs.id) AS span_s,
    swarm_runs.skep_version
FROM swarm_runs
LEFT JOIN swarm_sessions ON swarm_sessions.run_id = swarm_runs.id
    AND swarm_sessions.number = (SELECT max(number) FROM swarm_sessions WHERE run_id = swarm_runs.id)
LEFT JOIN swarm_session_ends ON swarm_session_ends.run_id = swarm_sessions.run_id
    AND swarm_session_ends.number = swarm_sessions.number"""

_V_TASKS = """
CREATE VIEW v_swarm_tasks AS
SELECT
    swarm_tasks.run_id,
    swarm_tasks.id AS task,
    swarm_tasks.stage,
    coalesce(swarm_results.ending, 'no result') AS ending,
    swarm_results.tries,
    swarm_results.ended_at - swarm_results.started_at AS total_s,
    strftime('%Y-%m-%d %H:%M:%f', swarm_results.started_at, 'unixepoch') AS started_utc,
    strftime('%Y-%m-%d %H:%M:%f', swarm_results.ended_at, 'unixepoch') AS ended_utc,
    swarm_results.prompt_tokens,
    swarm_results.output_tokens,
    swarm_results.finish_reason,
    swarm_results.replica,
    swarm_results.error_kind,
    swarm_results.error,
    swarm_results.answer,
    swarm_results.value,
    swarm_tasks.document
FROM swarm_tasks LEFT JOIN swarm_results ON swarm_results.task = swarm_tasks.key"""

_V_ATTEMPTS = """
CREATE VIEW v_swarm_attempts AS
SELECT
    swarm_attempts.run_id,
    swarm_tasks.id AS task,
    swarm_attempts.session,
    swarm_attempts.number,
    swarm_attempts.agent,
    swarm_attempts.why,
    swarm_attempts.outcome,
    strftime('%Y-%m-%d %H:%M:%f', swarm_attempts.started_at, 'unixepoch') AS started_utc,
    swarm_attempts.ended_at - swarm_attempts.started_at AS total_s,
    (swarm_attempts.first_token_at - swarm_attempts.started_at) * 1000 AS ttft_ms,
    swarm_attempts.queued_ms,
    swarm_attempts.requests,
    swarm_attempts.prompt_tokens,
    swarm_attempts.output_tokens,
    swarm_attempts.decode_ms,
    swarm_attempts.status,
    swarm_attempts.error_kind,
    swarm_attempts.error,
    swarm_attempts.finish_reason,
    swarm_attempts.replica
FROM swarm_attempts JOIN swarm_tasks ON swarm_tasks.key = swarm_attempts.task"""

SWARM_TABLES = (
    _RUNS, _TASKS, _RESULTS, _SESSIONS, _SESSION_ENDS, _ATTEMPTS, _STEPS, _FACTS, _CANCELS,
    *_INDEXES,
    *(NO_UPDATE.format(table=table) for table, _ in TABLES_OF_A_SWARM_RUN),
    *(NO_DELETE.format(table=table, key=key) for table, key in TABLES_OF_A_SWARM_RUN),
    _V_RUNS, _V_TASKS, _V_ATTEMPTS,
)  # fmt: skip
