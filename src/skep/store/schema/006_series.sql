-- Watching over time. Probes, samples, events and alerts are final like the rows of a run. Samples alone may go, and only
-- those older than the time in `thinning_before` while it stands there. Targets, changes, spans and watermarks are updated.

CREATE TABLE targets (
    name TEXT PRIMARY KEY,
    document TEXT NOT NULL,
    added_at REAL NOT NULL,
    removed_at REAL
);

-- No reference to a target: its history outlives it.
CREATE TABLE probes (
    id INTEGER PRIMARY KEY,
    target TEXT NOT NULL,
    era INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    slots INTEGER NOT NULL CHECK (slots >= 1),
    due_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'failed', 'missed')),
    error_kind TEXT,
    error TEXT,
    running INTEGER,
    waiting INTEGER,
    idle_s REAL,
    model TEXT,
    versions TEXT NOT NULL,
    host TEXT NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    UNIQUE (target, era, slot)
);

-- `target` and `busy` are the probe's: a series is read without a look at its probes.
CREATE TABLE samples (
    id INTEGER PRIMARY KEY,
    probe_id INTEGER NOT NULL REFERENCES probes (id),
    target TEXT NOT NULL,
    heat TEXT NOT NULL,
    shape TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    at REAL NOT NULL,
    busy INTEGER NOT NULL CHECK (busy IN (0, 1)),
    tok_s REAL,
    engine_tok_s REAL,
    effective_tok_s REAL,
    ttft_ms REAL,
    quality REAL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    error_kind TEXT,
    error TEXT
);

CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    target TEXT NOT NULL,
    heat TEXT NOT NULL,
    shape TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    metric TEXT NOT NULL,
    UNIQUE (target, heat, shape, concurrency, metric)
);

-- Figures are NULL where all samples were busy.
CREATE TABLE spans (
    series INTEGER NOT NULL REFERENCES series (id),
    kind TEXT NOT NULL CHECK (kind IN ('hour', 'day')),
    start REAL NOT NULL,
    count INTEGER NOT NULL,
    low REAL,
    p10 REAL,
    median REAL,
    p90 REAL,
    high REAL,
    mean REAL,
    mad REAL,
    busy INTEGER NOT NULL,
    PRIMARY KEY (series, kind, start)
) WITHOUT ROWID;

CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    target TEXT,
    text TEXT NOT NULL,
    detail TEXT NOT NULL
);

CREATE TABLE alerts (
    id INTEGER PRIMARY KEY,
    rule TEXT NOT NULL,
    target TEXT,
    opened_at REAL NOT NULL,
    message TEXT NOT NULL,
    value REAL,
    limit_value REAL
);

CREATE TABLE alert_ends (
    alert_id INTEGER PRIMARY KEY REFERENCES alerts (id),
    closed_at REAL NOT NULL,
    because TEXT NOT NULL
);

CREATE TABLE notices (
    id INTEGER PRIMARY KEY,
    alert_id INTEGER NOT NULL REFERENCES alerts (id),
    what TEXT NOT NULL CHECK (what IN ('opened', 'closed')),
    at REAL NOT NULL,
    via TEXT NOT NULL,
    error TEXT
);

CREATE TABLE changes (
    series INTEGER NOT NULL REFERENCES series (id),
    at REAL NOT NULL,
    earliest_at REAL NOT NULL,
    latest_at REAL NOT NULL,
    median_before REAL NOT NULL,
    median_after REAL NOT NULL,
    ratio_low REAL NOT NULL,
    ratio_high REAL NOT NULL,
    count_before INTEGER NOT NULL,
    count_after INTEGER NOT NULL,
    because TEXT,
    PRIMARY KEY (series, at)
) WITHOUT ROWID;

-- "thinned": days before it have lost their samples; "gateway": hours before it are summarised.
CREATE TABLE watermarks (name TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;

CREATE TABLE thinning_before (at REAL NOT NULL);

CREATE INDEX probes_by_time ON probes (target, due_at, outcome, slots);

CREATE INDEX probes_that_were_made ON probes (target) WHERE outcome <> 'missed';

CREATE INDEX probes_with_gaps ON probes (target, ended_at) WHERE slots > 1;

CREATE INDEX samples_by_series ON samples (target, heat, shape, concurrency, at);

CREATE INDEX samples_by_probe ON samples (probe_id);

CREATE INDEX events_by_time ON events (at);

CREATE INDEX notices_by_alert ON notices (alert_id);

CREATE TRIGGER probes_no_update BEFORE UPDATE ON probes
BEGIN SELECT raise(ABORT, 'rows of probes are final'); END;

CREATE TRIGGER samples_no_update BEFORE UPDATE ON samples
BEGIN SELECT raise(ABORT, 'rows of samples are final'); END;

CREATE TRIGGER events_no_update BEFORE UPDATE ON events
BEGIN SELECT raise(ABORT, 'rows of events are final'); END;

CREATE TRIGGER alerts_no_update BEFORE UPDATE ON alerts
BEGIN SELECT raise(ABORT, 'rows of alerts are final'); END;

CREATE TRIGGER alert_ends_no_update BEFORE UPDATE ON alert_ends
BEGIN SELECT raise(ABORT, 'rows of alert_ends are final'); END;

CREATE TRIGGER notices_no_update BEFORE UPDATE ON notices
BEGIN SELECT raise(ABORT, 'rows of notices are final'); END;

CREATE TRIGGER probes_no_delete BEFORE DELETE ON probes
BEGIN SELECT raise(ABORT, 'rows of probes are final'); END;

CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN SELECT raise(ABORT, 'rows of events are final'); END;

CREATE TRIGGER alerts_no_delete BEFORE DELETE ON alerts
BEGIN SELECT raise(ABORT, 'rows of alerts are final'); END;

CREATE TRIGGER alert_ends_no_delete BEFORE DELETE ON alert_ends
BEGIN SELECT raise(ABORT, 'rows of alert_ends are final'); END;

CREATE TRIGGER notices_no_delete BEFORE DELETE ON notices
BEGIN SELECT raise(ABORT, 'rows of notices are final'); END;

CREATE TRIGGER samples_no_delete BEFORE DELETE ON samples
WHEN NOT EXISTS (SELECT 1 FROM thinning_before WHERE OLD.at < at)
BEGIN SELECT raise(ABORT, 'rows of samples are final'); END;

CREATE VIEW v_probes AS
SELECT
    id AS probe_id,
    target,
    datetime(due_at, 'unixepoch') AS due_utc,
    datetime(started_at, 'unixepoch') AS started_utc,
    datetime(ended_at, 'unixepoch') AS ended_utc,
    outcome,
    slots,
    error_kind,
    error,
    running,
    waiting,
    coalesce(running, 0) > 0 OR coalesce(waiting, 0) > 0 AS busy,
    idle_s,
    model,
    versions,
    host,
    simulated
FROM probes;

CREATE VIEW v_samples AS
SELECT
    samples.id AS sample_id,
    samples.probe_id,
    samples.target,
    strftime('%Y-%m-%d %H:%M:%f', samples.at, 'unixepoch') AS at_utc,
    samples.heat,
    samples.shape,
    samples.concurrency,
    samples.tok_s,
    samples.engine_tok_s,
    samples.effective_tok_s,
    samples.ttft_ms,
    samples.quality,
    samples.prompt_tokens,
    samples.output_tokens,
    samples.busy,
    probes.idle_s,
    samples.error_kind,
    samples.error,
    probes.simulated
FROM samples JOIN probes ON probes.id = samples.probe_id;

CREATE VIEW v_series_hours AS
SELECT
    series.target || '/' || series.heat || '/' || series.shape || '/c' || series.concurrency || '/' || series.metric AS series,
    series.target,
    series.heat,
    series.shape,
    series.concurrency,
    series.metric,
    strftime('%Y-%m-%d %H:00:00', spans.start, 'unixepoch') AS hour_utc,
    spans.count,
    spans.busy,
    spans.low,
    spans.p10,
    spans.median,
    spans.p90,
    spans.high,
    spans.mean,
    spans.mad
FROM spans JOIN series ON series.id = spans.series WHERE spans.kind = 'hour';

CREATE VIEW v_series_days AS
SELECT
    series.target || '/' || series.heat || '/' || series.shape || '/c' || series.concurrency || '/' || series.metric AS series,
    series.target,
    series.heat,
    series.shape,
    series.concurrency,
    series.metric,
    strftime('%Y-%m-%d', spans.start, 'unixepoch') AS day_utc,
    spans.count,
    spans.busy,
    spans.low,
    spans.p10,
    spans.median,
    spans.p90,
    spans.high,
    spans.mean,
    spans.mad
FROM spans JOIN series ON series.id = spans.series WHERE spans.kind = 'day';

CREATE VIEW v_events AS
SELECT events.id AS event_id, datetime(events.at, 'unixepoch') AS at_utc, kind, target, text, detail FROM events;

CREATE VIEW v_alerts AS
SELECT
    alerts.id AS alert_id,
    alerts.rule,
    alerts.target,
    datetime(alerts.opened_at, 'unixepoch') AS opened_utc,
    datetime(alert_ends.closed_at, 'unixepoch') AS closed_utc,
    alert_ends.closed_at - alerts.opened_at AS duration_s,
    alerts.message,
    alert_ends.because AS closed_because,
    alerts.value,
    alerts.limit_value,
    (SELECT count(notices.id) FROM notices WHERE alert_id = alerts.id) AS notices
FROM alerts LEFT JOIN alert_ends ON alert_ends.alert_id = alerts.id;

CREATE VIEW v_changes AS
SELECT
    series.target || '/' || series.heat || '/' || series.shape || '/c' || series.concurrency || '/' || series.metric AS series,
    series.target,
    series.metric,
    datetime(changes.at, 'unixepoch') AS at_utc,
    datetime(changes.earliest_at, 'unixepoch') AS earliest_utc,
    datetime(changes.latest_at, 'unixepoch') AS latest_utc,
    changes.median_before,
    changes.median_after,
    changes.median_after / nullif(changes.median_before, 0) AS ratio,
    changes.ratio_low,
    changes.ratio_high,
    changes.count_before,
    changes.count_after,
    changes.because
FROM changes JOIN series ON series.id = changes.series;

DROP VIEW v_runs;

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
    (SELECT count(idx) FROM requests WHERE run_id = runs.id) AS requests,
    (SELECT count(idx) FROM requests WHERE run_id = runs.id AND error_kind IS NOT NULL) AS failed_requests,
    (SELECT sum(output_tokens) FROM requests WHERE run_id = runs.id) AS output_tokens
FROM runs LEFT JOIN run_ends ON run_ends.run_id = runs.id;
