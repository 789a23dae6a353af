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
);

CREATE TABLE run_ends (
    run_id TEXT NOT NULL UNIQUE REFERENCES runs (id),
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'failed')),
    error TEXT
);

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
);

CREATE TABLE client_samples (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    loop_lag_p99_ms REAL,
    loop_lag_max_ms REAL,
    cpu_share REAL,
    client_limited INTEGER NOT NULL CHECK (client_limited IN (0, 1))
);

-- Rows are final. Deleting whole runs is the one exception: their ids stand in `deleting` while it goes on.
CREATE TABLE deleting (run_id TEXT PRIMARY KEY);

CREATE INDEX runs_by_time ON runs (created_at);

CREATE INDEX runs_by_fingerprint ON runs (fingerprint);

CREATE INDEX client_samples_by_run ON client_samples (run_id);

CREATE TRIGGER runs_no_update BEFORE UPDATE ON runs
BEGIN SELECT raise(ABORT, 'rows of runs are final'); END;

CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs
WHEN OLD.id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of runs are final'); END;

CREATE TRIGGER run_ends_no_update BEFORE UPDATE ON run_ends
BEGIN SELECT raise(ABORT, 'rows of run_ends are final'); END;

CREATE TRIGGER run_ends_no_delete BEFORE DELETE ON run_ends
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of run_ends are final'); END;

CREATE TRIGGER run_ends_not_after_end BEFORE INSERT ON run_ends
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;

CREATE TRIGGER requests_no_update BEFORE UPDATE ON requests
BEGIN SELECT raise(ABORT, 'rows of requests are final'); END;

CREATE TRIGGER requests_no_delete BEFORE DELETE ON requests
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of requests are final'); END;

CREATE TRIGGER requests_not_after_end BEFORE INSERT ON requests
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;

CREATE TRIGGER client_samples_no_update BEFORE UPDATE ON client_samples
BEGIN SELECT raise(ABORT, 'rows of client_samples are final'); END;

CREATE TRIGGER client_samples_no_delete BEFORE DELETE ON client_samples
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of client_samples are final'); END;

CREATE TRIGGER client_samples_not_after_end BEFORE INSERT ON client_samples
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;

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
FROM runs LEFT JOIN run_ends ON run_ends.run_id = runs.id;

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
FROM requests;
