-- Rows are final; a whole tuning goes or none of it: its id stands in `deleting` while it does. The documents have
-- everything; the plain columns beside them are for other programs that read the file.

CREATE TABLE tunings (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    model TEXT NOT NULL,
    engine TEXT NOT NULL,
    rig TEXT NOT NULL,
    goal TEXT NOT NULL,
    shape TEXT NOT NULL,
    slo TEXT,
    budget_s REAL NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    document TEXT NOT NULL,
    skep_version TEXT NOT NULL
);

CREATE TABLE tuning_sessions (
    tuning_id TEXT NOT NULL REFERENCES tunings (id),
    number INTEGER NOT NULL CHECK (number >= 1),
    started_at REAL NOT NULL,
    writer_pid INTEGER NOT NULL,
    writer_start_ticks INTEGER,
    boot_id TEXT,
    PRIMARY KEY (tuning_id, number)
);

-- `reason`: what went wrong, or why there was nothing more to try.
CREATE TABLE tuning_session_ends (
    tuning_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'stopped', 'failed')),
    reason TEXT,
    PRIMARY KEY (tuning_id, number),
    FOREIGN KEY (tuning_id, number) REFERENCES tuning_sessions (tuning_id, number)
);

-- What was asked and what came of it, in order from 1: a climb that is given these again stands where it stood.
CREATE TABLE tuning_answers (
    tuning_id TEXT NOT NULL REFERENCES tunings (id),
    number INTEGER NOT NULL CHECK (number >= 1),
    session INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('round', 'judged', 'curve')),
    seconds REAL NOT NULL,
    errand TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (tuning_id, number)
);

-- `answers`: how many had come when it was decided.
CREATE TABLE tuning_stages (
    tuning_id TEXT NOT NULL REFERENCES tunings (id),
    number INTEGER NOT NULL CHECK (number >= 0),
    at REAL NOT NULL,
    answers INTEGER NOT NULL,
    decision TEXT NOT NULL,
    title TEXT NOT NULL,
    why TEXT NOT NULL,
    config TEXT NOT NULL,
    figure REAL,
    figure_low REAL,
    figure_high REAL,
    ratio REAL,
    ratio_low REAL,
    ratio_high REAL,
    predicted_ratio REAL,
    ttft_ms REAL,
    tpot_ms REAL,
    starts INTEGER NOT NULL,
    readings INTEGER NOT NULL,
    seconds REAL NOT NULL,
    failure_kind TEXT,
    failure TEXT,
    document TEXT NOT NULL,
    PRIMARY KEY (tuning_id, number)
);

CREATE TABLE tuning_presets (
    id INTEGER PRIMARY KEY,
    tuning_id TEXT NOT NULL REFERENCES tunings (id),
    name TEXT NOT NULL,
    stage INTEGER,
    at REAL NOT NULL
);

CREATE INDEX tunings_by_time ON tunings (created_at);

CREATE INDEX tuning_presets_by_tuning ON tuning_presets (tuning_id);

CREATE TRIGGER tuning_presets_no_update BEFORE UPDATE ON tuning_presets
BEGIN SELECT raise(ABORT, 'rows of tuning_presets are final'); END;

CREATE TRIGGER tuning_stages_no_update BEFORE UPDATE ON tuning_stages
BEGIN SELECT raise(ABORT, 'rows of tuning_stages are final'); END;

CREATE TRIGGER tuning_answers_no_update BEFORE UPDATE ON tuning_answers
BEGIN SELECT raise(ABORT, 'rows of tuning_answers are final'); END;

CREATE TRIGGER tuning_session_ends_no_update BEFORE UPDATE ON tuning_session_ends
BEGIN SELECT raise(ABORT, 'rows of tuning_session_ends are final'); END;

CREATE TRIGGER tuning_sessions_no_update BEFORE UPDATE ON tuning_sessions
BEGIN SELECT raise(ABORT, 'rows of tuning_sessions are final'); END;

CREATE TRIGGER tunings_no_update BEFORE UPDATE ON tunings
BEGIN SELECT raise(ABORT, 'rows of tunings are final'); END;

CREATE TRIGGER tuning_presets_no_delete BEFORE DELETE ON tuning_presets
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_presets are final'); END;

CREATE TRIGGER tuning_stages_no_delete BEFORE DELETE ON tuning_stages
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_stages are final'); END;

CREATE TRIGGER tuning_answers_no_delete BEFORE DELETE ON tuning_answers
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_answers are final'); END;

CREATE TRIGGER tuning_session_ends_no_delete BEFORE DELETE ON tuning_session_ends
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_session_ends are final'); END;

CREATE TRIGGER tuning_sessions_no_delete BEFORE DELETE ON tuning_sessions
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_sessions are final'); END;

CREATE TRIGGER tunings_no_delete BEFORE DELETE ON tunings
WHEN OLD.id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tunings are final'); END;

CREATE TRIGGER tuning_sessions_not_after_end BEFORE INSERT ON tuning_sessions
WHEN EXISTS (SELECT 1 FROM tuning_session_ends WHERE tuning_id = NEW.tuning_id AND outcome = 'done')
BEGIN SELECT raise(ABORT, 'the tuning has ended'); END;

CREATE TRIGGER tuning_session_ends_not_after_end BEFORE INSERT ON tuning_session_ends
WHEN EXISTS (SELECT 1 FROM tuning_session_ends WHERE tuning_id = NEW.tuning_id AND outcome = 'done')
BEGIN SELECT raise(ABORT, 'the tuning has ended'); END;

CREATE TRIGGER tuning_answers_not_after_end BEFORE INSERT ON tuning_answers
WHEN EXISTS (SELECT 1 FROM tuning_session_ends WHERE tuning_id = NEW.tuning_id AND outcome = 'done')
BEGIN SELECT raise(ABORT, 'the tuning has ended'); END;

CREATE TRIGGER tuning_stages_not_after_end BEFORE INSERT ON tuning_stages
WHEN EXISTS (SELECT 1 FROM tuning_session_ends WHERE tuning_id = NEW.tuning_id AND outcome = 'done')
BEGIN SELECT raise(ABORT, 'the tuning has ended'); END;

-- Without `count(*)`, and with the table before a column named `at`: DuckDB reads these with a parser of its own.
-- The best is the last that was kept and did not fail later.
CREATE VIEW v_tunings AS
SELECT
    tunings.id AS tuning_id,
    datetime(tunings.created_at, 'unixepoch') AS created_utc,
    datetime(tuning_session_ends.ended_at, 'unixepoch') AS ended_utc,
    coalesce(tuning_session_ends.outcome, 'no end recorded') AS outcome,
    tuning_session_ends.reason,
    tunings.model,
    tunings.engine,
    tunings.rig,
    tunings.goal,
    tunings.shape,
    tunings.slo,
    tunings.budget_s,
    tunings.simulated,
    coalesce(tuning_sessions.number, 0) AS sessions,
    (SELECT count(number) FROM tuning_answers WHERE tuning_id = tunings.id) AS answers,
    (SELECT sum(seconds) FROM tuning_answers WHERE tuning_id = tunings.id) AS measured_s,
    (SELECT count(number) FROM tuning_stages WHERE tuning_id = tunings.id) AS stages,
    (SELECT count(number) FROM tuning_stages WHERE tuning_id = tunings.id AND decision = 'accepted') AS accepted,
    (SELECT figure FROM tuning_stages WHERE tuning_id = tunings.id AND number = 0) AS baseline_figure,
    (SELECT kept.figure FROM tuning_stages AS kept
        WHERE kept.tuning_id = tunings.id AND kept.decision IN ('baseline', 'accepted') AND NOT EXISTS (
            SELECT 1 FROM tuning_stages AS later WHERE later.tuning_id = kept.tuning_id
            AND later.number > kept.number AND later.config = kept.config AND later.decision = 'failed'
        ) ORDER BY kept.number DESC LIMIT 1) AS best_figure,
    tunings.skep_version
FROM tunings
LEFT JOIN tuning_sessions ON tuning_sessions.tuning_id = tunings.id
    AND tuning_sessions.number = (SELECT max(number) FROM tuning_sessions WHERE tuning_id = tunings.id)
LEFT JOIN tuning_session_ends ON tuning_session_ends.tuning_id = tuning_sessions.tuning_id
    AND tuning_session_ends.number = tuning_sessions.number;

CREATE VIEW v_tuning_stages AS
SELECT
    tuning_stages.tuning_id,
    tuning_stages.number AS stage,
    strftime('%Y-%m-%d %H:%M:%f', tuning_stages.at, 'unixepoch') AS decided_utc,
    tuning_stages.title AS change,
    tuning_stages.decision,
    tuning_stages.why,
    tuning_stages.figure,
    tuning_stages.figure_low,
    tuning_stages.figure_high,
    tuning_stages.ratio,
    tuning_stages.ratio_low,
    tuning_stages.ratio_high,
    tuning_stages.predicted_ratio,
    tuning_stages.ttft_ms,
    tuning_stages.tpot_ms,
    tuning_stages.starts,
    tuning_stages.readings,
    tuning_stages.seconds,
    tuning_stages.failure_kind,
    tuning_stages.failure,
    tuning_stages.config,
    tunings.goal,
    tunings.shape,
    tunings.simulated
FROM tuning_stages JOIN tunings ON tunings.id = tuning_stages.tuning_id;
