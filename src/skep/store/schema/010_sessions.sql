-- What a request is to its session. `session` and `conversation` are digests, never a client's text. NULL: the request
-- has no session, or an earlier skep wrote it.
ALTER TABLE gateway_requests ADD COLUMN session TEXT;

ALTER TABLE gateway_requests ADD COLUMN conversation TEXT;

ALTER TABLE gateway_requests ADD COLUMN turn INTEGER;

ALTER TABLE gateway_requests ADD COLUMN pause_s REAL;

ALTER TABLE gateway_requests ADD COLUMN tool_call INTEGER CHECK (tool_call IN (0, 1));

ALTER TABLE gateway_requests ADD COLUMN cold TEXT CHECK (cold IN ('first', 'moved', 'evicted', 'restarted', 'changed'));

ALTER TABLE gateway_requests ADD COLUMN cold_at INTEGER;

ALTER TABLE gateway_requests ADD COLUMN possible_tokens INTEGER;

CREATE INDEX gateway_requests_by_session ON gateway_requests (session, arrived_at) WHERE session IS NOT NULL;

DROP VIEW v_gateway_requests;

-- The speed of an answer that came in one piece cannot be told from outside: its first byte is its last.
CREATE VIEW v_gateway_requests AS
SELECT
    id AS request_id,
    strftime('%Y-%m-%d %H:%M:%f', arrived_at, 'unixepoch') AS arrived_utc,
    path,
    model,
    priority,
    flow,
    replica,
    attempts,
    outcome,
    status,
    code,
    streamed,
    queued_s * 1000 AS queued_ms,
    first_byte_s * 1000 AS ttft_ms,
    ended_s AS total_s,
    prompt_tokens,
    cached_tokens,
    output_tokens,
    CASE WHEN streamed AND ended_s > first_byte_s THEN output_tokens / (ended_s - first_byte_s) END AS tok_s,
    request_bytes,
    response_bytes,
    session,
    conversation,
    turn,
    pause_s,
    tool_call,
    cold,
    cold_at,
    possible_tokens
FROM gateway_requests;
