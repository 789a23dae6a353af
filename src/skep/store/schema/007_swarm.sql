-- The journal of a swarm and the batch API. Rows are final; a whole run goes or none of it: its id stands in `deleting`
-- while it does. That a task has at most one result is a key of the table. A file's row goes with the file; a batch's
-- requests and results go after it has ended. `owner` is the name of the key that made it, empty without keys.

CREATE TABLE swarm_runs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    created_at REAL NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    model TEXT,
    config TEXT NOT NULL,
    skep_version TEXT NOT NULL
);

-- `key` grows in the order of the input; the other tables name a task by it.
CREATE TABLE swarm_tasks (
    key INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    id TEXT NOT NULL,
    stage INTEGER NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (run_id, id)
);

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
);

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
);

CREATE TABLE swarm_session_ends (
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'stopped', 'cancelled', 'failed')),
    error TEXT,
    PRIMARY KEY (run_id, number),
    FOREIGN KEY (run_id, number) REFERENCES swarm_sessions (run_id, number)
);

-- No key over task and number: a row that two processes wrote under one number is told twice, not lost.
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
);

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
);

CREATE TABLE swarm_facts (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    session INTEGER NOT NULL,
    name TEXT NOT NULL,
    at REAL NOT NULL,
    fact TEXT NOT NULL
);

CREATE TABLE swarm_cancels (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    at REAL NOT NULL
);

CREATE INDEX swarm_tasks_by_run ON swarm_tasks (run_id);

CREATE INDEX swarm_results_by_run ON swarm_results (run_id);

CREATE INDEX swarm_results_by_ending ON swarm_results (run_id, ending);

CREATE INDEX swarm_attempts_by_time ON swarm_attempts (run_id, started_at);

CREATE INDEX swarm_attempts_by_task ON swarm_attempts (task, outcome, started_at);

CREATE INDEX swarm_steps_by_task ON swarm_steps (task, attempt, idx);

CREATE INDEX swarm_facts_by_run ON swarm_facts (run_id, name);

CREATE INDEX swarm_cancels_by_run ON swarm_cancels (run_id, at);

CREATE INDEX swarm_runs_by_time ON swarm_runs (created_at);

CREATE TRIGGER swarm_steps_no_update BEFORE UPDATE ON swarm_steps
BEGIN SELECT raise(ABORT, 'rows of swarm_steps are final'); END;

CREATE TRIGGER swarm_attempts_no_update BEFORE UPDATE ON swarm_attempts
BEGIN SELECT raise(ABORT, 'rows of swarm_attempts are final'); END;

CREATE TRIGGER swarm_results_no_update BEFORE UPDATE ON swarm_results
BEGIN SELECT raise(ABORT, 'rows of swarm_results are final'); END;

CREATE TRIGGER swarm_tasks_no_update BEFORE UPDATE ON swarm_tasks
BEGIN SELECT raise(ABORT, 'rows of swarm_tasks are final'); END;

CREATE TRIGGER swarm_facts_no_update BEFORE UPDATE ON swarm_facts
BEGIN SELECT raise(ABORT, 'rows of swarm_facts are final'); END;

CREATE TRIGGER swarm_cancels_no_update BEFORE UPDATE ON swarm_cancels
BEGIN SELECT raise(ABORT, 'rows of swarm_cancels are final'); END;

CREATE TRIGGER swarm_session_ends_no_update BEFORE UPDATE ON swarm_session_ends
BEGIN SELECT raise(ABORT, 'rows of swarm_session_ends are final'); END;

CREATE TRIGGER swarm_sessions_no_update BEFORE UPDATE ON swarm_sessions
BEGIN SELECT raise(ABORT, 'rows of swarm_sessions are final'); END;

CREATE TRIGGER swarm_runs_no_update BEFORE UPDATE ON swarm_runs
BEGIN SELECT raise(ABORT, 'rows of swarm_runs are final'); END;

CREATE TRIGGER swarm_steps_no_delete BEFORE DELETE ON swarm_steps
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_steps are final'); END;

CREATE TRIGGER swarm_attempts_no_delete BEFORE DELETE ON swarm_attempts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_attempts are final'); END;

CREATE TRIGGER swarm_results_no_delete BEFORE DELETE ON swarm_results
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_results are final'); END;

CREATE TRIGGER swarm_tasks_no_delete BEFORE DELETE ON swarm_tasks
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_tasks are final'); END;

CREATE TRIGGER swarm_facts_no_delete BEFORE DELETE ON swarm_facts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_facts are final'); END;

CREATE TRIGGER swarm_cancels_no_delete BEFORE DELETE ON swarm_cancels
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_cancels are final'); END;

CREATE TRIGGER swarm_session_ends_no_delete BEFORE DELETE ON swarm_session_ends
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_session_ends are final'); END;

CREATE TRIGGER swarm_sessions_no_delete BEFORE DELETE ON swarm_sessions
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_sessions are final'); END;

CREATE TRIGGER swarm_runs_no_delete BEFORE DELETE ON swarm_runs
WHEN OLD.id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_runs are final'); END;

-- Without `count(*)`, and with the table before a column named `at`: DuckDB reads these with a parser of its own.
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
    AND swarm_session_ends.number = swarm_sessions.number;

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
FROM swarm_tasks LEFT JOIN swarm_results ON swarm_results.task = swarm_tasks.key;

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
FROM swarm_attempts JOIN swarm_tasks ON swarm_tasks.key = swarm_attempts.task;

CREATE TABLE files (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    expires_at REAL
);

-- No reference to the file: it may be deleted when the batch has ended.
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
);

-- A batch begins as `validating`; its newest event says what it is now.
CREATE TABLE batch_events (
    number INTEGER PRIMARY KEY,
    batch_id TEXT NOT NULL REFERENCES batches (id),
    status TEXT NOT NULL CHECK (
        status IN ('in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelling', 'cancelled')
    ),
    at REAL NOT NULL,
    detail TEXT NOT NULL,
    UNIQUE (batch_id, status)
);

-- Where each request stands in the input file: its line's first byte and its length.
CREATE TABLE batch_requests (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    idx INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (batch_id, idx),
    UNIQUE (batch_id, custom_id)
) WITHOUT ROWID;

-- `line` is the line of the output file, or, where not `ok`, of the file of errors.
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
);

CREATE INDEX files_by_owner ON files (owner, number);

CREATE INDEX batches_by_owner ON batches (owner, number);

CREATE TRIGGER files_no_update BEFORE UPDATE ON files
BEGIN SELECT raise(ABORT, 'rows of files are final'); END;

CREATE TRIGGER batches_no_update BEFORE UPDATE ON batches
BEGIN SELECT raise(ABORT, 'rows of batches are final'); END;

CREATE TRIGGER batch_events_no_update BEFORE UPDATE ON batch_events
BEGIN SELECT raise(ABORT, 'rows of batch_events are final'); END;

CREATE TRIGGER batch_requests_no_update BEFORE UPDATE ON batch_requests
BEGIN SELECT raise(ABORT, 'rows of batch_requests are final'); END;

CREATE TRIGGER batch_results_no_update BEFORE UPDATE ON batch_results
BEGIN SELECT raise(ABORT, 'rows of batch_results are final'); END;

CREATE TRIGGER batch_events_not_after_end BEFORE INSERT ON batch_events
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END;

CREATE TRIGGER batch_requests_not_after_end BEFORE INSERT ON batch_requests
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END;

CREATE TRIGGER batch_results_not_after_end BEFORE INSERT ON batch_results
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END;
