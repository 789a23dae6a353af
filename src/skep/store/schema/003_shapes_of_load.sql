ALTER TABLE requests ADD COLUMN traffic TEXT NOT NULL DEFAULT '';

ALTER TABLE requests ADD COLUMN scheduled_s REAL;

ALTER TABLE requests ADD COLUMN session INTEGER;

ALTER TABLE requests ADD COLUMN turn INTEGER;

ALTER TABLE requests ADD COLUMN engine_queue_ms REAL;

ALTER TABLE client_samples ADD COLUMN delivered REAL;

ALTER TABLE client_samples ADD COLUMN processes INTEGER NOT NULL DEFAULT 1;

-- What belongs to a level and not to a request: energy, the engine's own counters, an imported summary.
CREATE TABLE level_facts (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    name TEXT NOT NULL,
    fact TEXT NOT NULL
);

CREATE INDEX level_facts_by_run ON level_facts (run_id);

CREATE TRIGGER level_facts_no_update BEFORE UPDATE ON level_facts
BEGIN SELECT raise(ABORT, 'rows of level_facts are final'); END;

CREATE TRIGGER level_facts_no_delete BEFORE DELETE ON level_facts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of level_facts are final'); END;

CREATE TRIGGER level_facts_not_after_end BEFORE INSERT ON level_facts
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;

DROP VIEW v_requests;

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
