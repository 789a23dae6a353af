-- The longer questions of store.py, by the name that begins the comment before each.

-- pending: requests of a batch without a result, in the order of its file
SELECT idx, custom_id, start, length FROM batch_requests AS request
WHERE batch_id = ?1 AND NOT EXISTS (SELECT 1 FROM batch_results WHERE batch_id = ?1 AND idx = request.idx)
ORDER BY idx

-- counts: what came of a batch's requests so far
SELECT coalesce(sum(ok), 0) AS completed, coalesce(sum(NOT ok), 0) AS failed, sum(prompt_tokens) AS prompt_tokens,
    sum(cached_tokens) AS cached_tokens, sum(output_tokens) AS output_tokens, sum(reasoning_tokens) AS reasoning_tokens
FROM batch_results WHERE batch_id = ?

-- files: a page of files, the newest first
SELECT * FROM files WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR purpose = ?2)
    AND (?3 IS NULL OR number < (SELECT number FROM files WHERE id = ?3))
ORDER BY number DESC LIMIT ?4

-- batches: a page of batches, the newest first
SELECT * FROM batches WHERE (?1 IS NULL OR owner = ?1)
    AND (?2 IS NULL OR number < (SELECT number FROM batches WHERE id = ?2))
ORDER BY number DESC LIMIT ?3

-- unfinished: the oldest first
SELECT id, owner, json_extract(begun.detail, '$.model') AS model, cancelling.at IS NOT NULL AS cancelling,
    cancelling.at IS NOT NULL OR expires_at <= ? AS ending
FROM batches
LEFT JOIN batch_events AS begun ON begun.batch_id = id AND begun.status = 'in_progress'
LEFT JOIN batch_events AS cancelling ON cancelling.batch_id = id AND cancelling.status = 'cancelling'
WHERE id NOT IN (SELECT batch_id FROM batch_events WHERE status IN ('cancelled', 'completed', 'expired', 'failed'))
ORDER BY batches.number

-- user: the unfinished batch that reads a file
SELECT id FROM batches WHERE input_file_id = ?
AND id NOT IN (SELECT batch_id FROM batch_events WHERE status IN ('cancelled', 'completed', 'expired', 'failed'))
