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
SELECT era, slot + slots - 1 FROM probes WHERE target = ? ORDER BY era DESC, slot DESC LIMIT 1

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

-- thin_some: the oldest samples of one kind of run
DELETE FROM samples
WHERE id IN (
    SELECT id FROM samples
    WHERE target = ? AND heat = ? AND shape = ? AND concurrency = ? AND at < ? ORDER BY at LIMIT ?
)

-- requests: of each whether a replica had it, whether it failed, its first byte and its speed where they can be told
SELECT model, replica IS NOT NULL AS served,
    outcome IN ('broken', 'refused') OR coalesce(status, 0) >= 500 AS failed,
    CASE WHEN told THEN first_byte_s * 1000 END AS ttft_ms,
    CASE WHEN told AND output_tokens >= ?6 AND ended_s > first_byte_s
        THEN output_tokens / (ended_s - first_byte_s) END AS tok_s,
    arrived_at + ended_s AS ended_at
FROM (
    SELECT *, outcome = 'answered' AND streamed AND coalesce(status, 0) < 400 AS told
    FROM gateway_requests WHERE arrived_at >= ?1 AND arrived_at < ?2 AND coalesce(flow, '') <> ?4
)
WHERE arrived_at + ended_s >= ?3 AND ended_s <= ?5

-- export: samples with their probe; a probe without any is one row
SELECT
    coalesce(samples.at, chosen.started_at, chosen.due_at) AS at, chosen.target, chosen.outcome, chosen.slots,
    samples.heat, samples.shape, samples.concurrency, samples.tok_s, samples.engine_tok_s, samples.effective_tok_s,
    samples.ttft_ms, samples.quality, samples.prompt_tokens, samples.output_tokens, chosen.running, chosen.waiting,
    chosen.idle_s, chosen.model, coalesce(samples.error_kind, chosen.error_kind) AS error_kind,
    coalesce(samples.error, chosen.error) AS error, chosen.simulated, chosen.versions, chosen.host,
    chosen.id AS probe_id, chosen.era, chosen.slot
FROM (
    SELECT * FROM probes WHERE id > ?1 AND ended_at >= ?2 AND (?3 IS NULL OR target = ?3) ORDER BY id LIMIT ?4
) AS chosen LEFT JOIN samples ON samples.probe_id = chosen.id
ORDER BY chosen.id, samples.id
