-- The longer questions of store.py, by the name that begins the comment before each.

-- runs: a run's last session is the one that counts; one that was ever simulated stays so
SELECT swarm_runs.*,
    (SELECT count(*) FROM swarm_tasks WHERE run_id = swarm_runs.id) AS total,
    (SELECT count(*) FROM swarm_results WHERE run_id = swarm_runs.id AND ending = 'done') AS done,
    (SELECT count(*) FROM swarm_results WHERE run_id = swarm_runs.id AND ending = 'failed') AS failed,
    (SELECT max(simulated) FROM swarm_sessions WHERE run_id = swarm_runs.id) AS simulated,
    (SELECT max(id) FROM swarm_cancels WHERE run_id = swarm_runs.id) AS newest_cancel,
    (SELECT fact FROM swarm_facts WHERE run_id = swarm_runs.id AND name = 'opened' AND session = last.number) AS opened,
    coalesce(last.number, 0) AS sessions, last.started_at, last.writer_pid, last.writer_start_ticks, last.boot_id,
    ends.ended_at, ends.outcome, ends.error
FROM swarm_runs
LEFT JOIN swarm_sessions AS last ON last.run_id = swarm_runs.id
    AND last.number = (SELECT max(number) FROM swarm_sessions WHERE run_id = swarm_runs.id)
LEFT JOIN swarm_session_ends AS ends ON ends.run_id = last.run_id AND ends.number = last.number

-- results: two columns are named `task`; the second, which is the task's id, is the one that is read
SELECT swarm_results.*, swarm_tasks.id AS task
FROM swarm_results JOIN swarm_tasks ON swarm_tasks.key = swarm_results.task
WHERE swarm_results.run_id = ? {of} ORDER BY swarm_results.task LIMIT ? OFFSET ?

-- attempts: of a run, or of one of its tasks
SELECT swarm_attempts.*, swarm_tasks.id AS task
FROM swarm_attempts JOIN swarm_tasks ON swarm_tasks.key = swarm_attempts.task
WHERE swarm_attempts.run_id = ?1 AND (?2 IS NULL OR swarm_tasks.id = ?2) ORDER BY started_at, swarm_attempts.id

-- sessions: with their ends, if they had one
SELECT swarm_sessions.*, ends.ended_at, ends.outcome, ends.error
FROM swarm_sessions LEFT JOIN swarm_session_ends AS ends
    ON ends.run_id = swarm_sessions.run_id AND ends.number = swarm_sessions.number
WHERE swarm_sessions.run_id = ? ORDER BY swarm_sessions.number
