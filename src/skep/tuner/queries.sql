-- The longer questions of store.py, by the name that begins the comment before each.

-- tunings: a tuning's last session is the one that counts
SELECT tunings.*,
    (SELECT count(*) FROM tuning_answers WHERE tuning_id = tunings.id) AS answers,
    (SELECT sum(seconds) FROM tuning_answers WHERE tuning_id = tunings.id) AS measured_s,
    coalesce(last.number, 0) AS sessions, last.started_at, last.writer_pid, last.writer_start_ticks, last.boot_id,
    ends.ended_at, ends.outcome, ends.reason
FROM tunings
LEFT JOIN tuning_sessions AS last ON last.tuning_id = tunings.id
    AND last.number = (SELECT max(number) FROM tuning_sessions WHERE tuning_id = tunings.id)
LEFT JOIN tuning_session_ends AS ends ON ends.tuning_id = last.tuning_id AND ends.number = last.number
