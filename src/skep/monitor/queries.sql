-- The longer questions of store.py and status.py, by the name that begins the comment before each.

-- samples_of_a_day: of one kind of run, with every figure
SELECT * FROM samples
WHERE target = ? AND heat = ? AND shape = ? AND concurrency = ? AND at >= ? AND at < ? AND error_kind IS NULL

-- targets_with_probes: one look at the index for each, however many probes it has
WITH RECURSIVE probed (target) AS (
    SELECT min(target) FROM probes
    UNION ALL SELECT (SELECT min(target) FROM probes WHERE target > probed.target) FROM probed WHERE target IS NOT NULL
)
SELECT target FROM probed WHERE target IS NOT NULL

-- row_before: rows of an era never overlap, so the last that begins before the end of a new one is the only one to look at
SELECT slot + slots FROM probes WHERE target = ? AND era = ? AND slot < ? ORDER BY slot DESC LIMIT 1

-- last_slot: be it one of a gap
SELECT era, slot + slots - 1, ended_at FROM probes WHERE target = ? ORDER BY era DESC, slot DESC LIMIT 1

-- probes: a gap that began before the window may reach into it
SELECT * FROM probes WHERE target = ?1 AND due_at >= ?2 AND due_at < ?3
UNION ALL
SELECT * FROM probes WHERE target = ?1 AND slots > 1 AND ended_at >= ?2 AND due_at < ?2
ORDER BY due_at DESC, id DESC LIMIT ?4

-- occasions: sums in one pass over the index, where a GROUP BY would sort all of them first
SELECT
    coalesce(sum(outcome = 'done'), 0) AS done,
    coalesce(sum(outcome = 'failed'), 0) AS failed,
    coalesce(sum(outcome = 'missed'), 0) AS missed
FROM probes WHERE target = ? AND due_at >= ? AND due_at < ? AND slots = 1

-- points: {metric} is the column of a figure
SELECT at, {metric} AS value, busy, probe_id FROM samples
WHERE target = ? AND heat = ? AND shape = ? AND concurrency = ? AND at >= ? AND at < ?
    AND {metric} IS NOT NULL AND error_kind IS NULL
ORDER BY at DESC, id DESC LIMIT ?

-- spans: those that have figures
SELECT * FROM spans
WHERE series = (SELECT id FROM series WHERE target = ? AND heat = ? AND shape = ? AND concurrency = ? AND metric = ?)
    AND kind = ? AND start >= ? AND start < ? AND count > 0
ORDER BY start

-- alerts: open ones, or all that were open at some time from then on
SELECT alerts.*, alert_ends.closed_at, alert_ends.because
FROM alerts LEFT JOIN alert_ends ON alert_ends.alert_id = alerts.id
WHERE closed_at IS NULL OR (NOT ?1 AND closed_at >= ?2)
ORDER BY opened_at DESC, id DESC

-- changes: with the series that changed
SELECT changes.*, series.target, series.heat, series.shape, series.concurrency, series.metric
FROM changes JOIN series ON series.id = changes.series
WHERE (?1 IS NULL OR series.target = ?1) AND changes.at >= ?2
ORDER BY changes.at, series.id
