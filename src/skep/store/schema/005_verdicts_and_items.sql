ALTER TABLE requests ADD COLUMN reasoning TEXT;

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

-- The item as it was asked: a bank's file may change, or go.
CREATE TABLE run_items (
    run_id TEXT NOT NULL REFERENCES runs (id),
    item TEXT NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (run_id, item)
);

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
