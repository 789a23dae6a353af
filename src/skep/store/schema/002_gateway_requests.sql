-- No UNIQUE id: ids are unique by their making, and an index of them costs a tenth of the insert and 22 bytes a row;
-- it would also refuse a whole batch for one row.
CREATE TABLE gateway_requests (
    id TEXT NOT NULL,
    arrived_at REAL NOT NULL,
    path TEXT NOT NULL,
    model TEXT,
    priority TEXT NOT NULL,
    flow TEXT,
    replica TEXT,
    attempts INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('answered', 'refused', 'broken', 'hung_up')),
    status INTEGER,
    code TEXT,
    streamed INTEGER NOT NULL CHECK (streamed IN (0, 1)),
    queued_s REAL,
    first_byte_s REAL,
    ended_s REAL NOT NULL,
    prompt_tokens INTEGER,
    cached_tokens INTEGER,
    output_tokens INTEGER,
    request_bytes INTEGER NOT NULL,
    response_bytes INTEGER NOT NULL
);

-- The same exception as for runs: only rows older than the time that stands here may go, while it stands here.
CREATE TABLE deleting_before (arrived_at REAL NOT NULL);

CREATE INDEX gateway_requests_by_time ON gateway_requests (arrived_at);

CREATE TRIGGER gateway_requests_no_update BEFORE UPDATE ON gateway_requests
BEGIN SELECT raise(ABORT, 'rows of gateway_requests are final'); END;

CREATE TRIGGER gateway_requests_no_delete BEFORE DELETE ON gateway_requests
WHEN NOT EXISTS (SELECT 1 FROM deleting_before WHERE OLD.arrived_at < arrived_at)
BEGIN SELECT raise(ABORT, 'rows of gateway_requests are final'); END;

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
    response_bytes
FROM gateway_requests;
