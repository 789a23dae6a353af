-- The longer questions of database.py and named_rows.py, by the name that begins the comment before each.

-- runs: with their ends, and how many requests they have so far
SELECT runs.*, run_ends.ended_at, run_ends.outcome, run_ends.error,
    (SELECT count(*) FROM requests WHERE run_id = runs.id) AS requests
FROM runs LEFT JOIN run_ends ON run_ends.run_id = runs.id

-- gateway_requests: newest first
SELECT * FROM gateway_requests WHERE arrived_at >= ? ORDER BY arrived_at DESC, rowid DESC LIMIT ?

-- delete_some_gateway_requests: the oldest
DELETE FROM gateway_requests
WHERE rowid IN (SELECT rowid FROM gateway_requests WHERE arrived_at < ? ORDER BY arrived_at LIMIT ?)

-- taken: an id that any kind of run has
SELECT 1 FROM runs WHERE id = ?1 UNION ALL SELECT 1 FROM swarm_runs WHERE id = ?1
UNION ALL SELECT 1 FROM tunings WHERE id = ?1

-- session_requests: those of sessions, in the order of their arrival
SELECT * FROM gateway_requests WHERE arrived_at >= ? AND session IS NOT NULL ORDER BY arrived_at, rowid

-- last_turns: of each conversation that sent a request since then, those heard of last first
SELECT model, conversation, max(turn) AS turn FROM gateway_requests
WHERE arrived_at >= ?1 AND session IS NOT NULL AND turn IS NOT NULL
GROUP BY model, conversation ORDER BY max(arrived_at) DESC LIMIT ?2

-- requests_of_session: whose id begins so; all ids are digests in small letters
SELECT * FROM gateway_requests WHERE session >= ?1 AND session < ?1 || 'g' ORDER BY arrived_at, rowid
