-- A store as schema 5 wrote it, by `sqlite3 FILE .dump`; never edited.
BEGIN TRANSACTION;
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
);
INSERT INTO "calibrations" VALUES('20261115-143000-c0ffee',1794753000.0,'0123456789abcdef','qwen3-8b','vllm','awq','TP=1','rtx-3090',0,1.25,0.9,1.4,'{"fitted": {"decode": 1.25}}','0.1.0');
CREATE TABLE client_samples (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    loop_lag_p99_ms REAL,
    loop_lag_max_ms REAL,
    cpu_share REAL,
    client_limited INTEGER NOT NULL CHECK (client_limited IN (0, 1))
, delivered REAL, processes INTEGER NOT NULL DEFAULT 1);
INSERT INTO "client_samples" VALUES('20261115-142233-a1b2c3',1,0,0.5,2.0,0.25,0,NULL,1);
CREATE TABLE deleting (run_id TEXT PRIMARY KEY);
CREATE TABLE deleting_before (arrived_at REAL NOT NULL);
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
);
INSERT INTO "gateway_requests" VALUES('k3xq9a-1',1794752553.25,'/v1/chat/completions','smol','normal','agent-7','r0',1,'answered',200,NULL,1,0.25,0.5,2.5,20,16,100,512,4096);
CREATE TABLE level_facts (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    name TEXT NOT NULL,
    fact TEXT NOT NULL
);
INSERT INTO "level_facts" VALUES('20261115-142233-a1b2c3',1,0,'energy','{"joules": 1.5}');
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
    answer TEXT, traffic TEXT NOT NULL DEFAULT '', scheduled_s REAL, session INTEGER, turn INTEGER, engine_queue_ms REAL, reasoning TEXT,
    UNIQUE (run_id, level, repeat, idx)
);
INSERT INTO "requests" VALUES('20261115-142233-a1b2c3',1,0,0,'fix',0.5,2.5,0.75,1.0,2.0,20,50,200,NULL,NULL,'stop',NULL,NULL,20,0,40.0,50,1000.0,50.0,X'000000000000F03F0000000000000040','p','a','',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE run_ends (
    run_id TEXT NOT NULL UNIQUE REFERENCES runs (id),
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'failed')),
    error TEXT
);
INSERT INTO "run_ends" VALUES('20261115-142233-a1b2c3',1794752600.0,'done',NULL);
CREATE TABLE run_items (
    run_id TEXT NOT NULL REFERENCES runs (id),
    item TEXT NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (run_id, item)
);
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
INSERT INTO "runs" VALUES('20261115-142233-a1b2c3','sweep',1794752553.25,'smol','http://127.0.0.1:8000/v1','f00d','{"concurrency": [1]}','{"cpu_cores": 2}','{"version": "b1"}',0,'0.1.0',4242,1000,'00000000-0000-0000-0000-000000000000');
CREATE TABLE verdicts (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    item TEXT NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL,
    checks TEXT NOT NULL,
    keywords INTEGER CHECK (keywords IN (0, 1)),
    keywords_missing TEXT NOT NULL,
    checker TEXT NOT NULL,
    sandbox TEXT,
    seconds REAL,
    UNIQUE (run_id, level, repeat, idx)
);
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
CREATE INDEX gateway_requests_by_time ON gateway_requests (arrived_at);
CREATE TRIGGER gateway_requests_no_update BEFORE UPDATE ON gateway_requests
BEGIN SELECT raise(ABORT, 'rows of gateway_requests are final'); END;
CREATE TRIGGER gateway_requests_no_delete BEFORE DELETE ON gateway_requests
WHEN NOT EXISTS (SELECT 1 FROM deleting_before WHERE OLD.arrived_at < arrived_at)
BEGIN SELECT raise(ABORT, 'rows of gateway_requests are final'); END;
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
FROM gateway_requests;
CREATE INDEX level_facts_by_run ON level_facts (run_id);
CREATE TRIGGER level_facts_no_update BEFORE UPDATE ON level_facts
BEGIN SELECT raise(ABORT, 'rows of level_facts are final'); END;
CREATE TRIGGER level_facts_no_delete BEFORE DELETE ON level_facts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of level_facts are final'); END;
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
FROM requests;
CREATE TRIGGER level_facts_not_after_end BEFORE INSERT ON level_facts
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
CREATE INDEX calibrations_by_host ON calibrations (host, engine, created_at);
CREATE TRIGGER calibrations_no_update BEFORE UPDATE ON calibrations
BEGIN SELECT raise(ABORT, 'rows of calibrations are final'); END;
CREATE TRIGGER calibrations_no_delete BEFORE DELETE ON calibrations
WHEN OLD.id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of calibrations are final'); END;
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
FROM calibrations;
CREATE VIEW v_verdicts AS
SELECT
    verdicts.run_id,
    verdicts.level AS concurrency,
    verdicts.repeat,
    verdicts.idx AS task,
    verdicts.item,
    verdicts.outcome,
    verdicts.outcome = 'passed' AS passed,
    verdicts.keywords AS keywords_passed,
    verdicts.detail,
    verdicts.checker,
    requests.traffic AS arm,
    requests.output_tokens,
    requests.ended_s - requests.started_s AS total_s,
    requests.answer,
    requests.reasoning
FROM verdicts LEFT JOIN requests
    ON requests.run_id = verdicts.run_id AND requests.level = verdicts.level
    AND requests.repeat = verdicts.repeat AND requests.idx = verdicts.idx;
CREATE TRIGGER verdicts_no_update BEFORE UPDATE ON verdicts
BEGIN SELECT raise(ABORT, 'rows of verdicts are final'); END;
CREATE TRIGGER verdicts_no_delete BEFORE DELETE ON verdicts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of verdicts are final'); END;
CREATE TRIGGER verdicts_not_after_end BEFORE INSERT ON verdicts
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
CREATE TRIGGER run_items_no_update BEFORE UPDATE ON run_items
BEGIN SELECT raise(ABORT, 'rows of run_items are final'); END;
CREATE TRIGGER run_items_no_delete BEFORE DELETE ON run_items
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of run_items are final'); END;
CREATE TRIGGER run_items_not_after_end BEFORE INSERT ON run_items
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
COMMIT;
PRAGMA user_version = 5;
PRAGMA application_id = 1397441872;
