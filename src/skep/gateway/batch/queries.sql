-- The longer questions of store.py, by the name that begins the comment before each.

-- held: files of an owner that have not expired, and their bytes
SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE owner = ? AND (expires_at IS NULL OR expires_at > ?)

-- pending: requests of a batch without a result, in the order of its file
SELECT idx, custom_id, start, length FROM batch_requests AS request
WHERE batch_id = ?1 AND NOT EXISTS (SELECT 1 FROM batch_results WHERE batch_id = ?1 AND idx = request.idx)
ORDER BY idx

-- counts: what came of a batch's requests so far
SELECT coalesce(sum(ok), 0) AS completed, coalesce(sum(NOT ok), 0) AS failed, sum(prompt_tokens) AS prompt_tokens,
    sum(cached_tokens) AS cached_tokens, sum(output_tokens) AS output_tokens, sum(reasoning_tokens) AS reasoning_tokens
FROM batch_results WHERE batch_id = ?
