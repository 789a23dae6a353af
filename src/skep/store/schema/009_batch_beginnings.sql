-- A replica got the request and it has no result yet. An attempt that ended without one takes its row along: what is
-- there when a gateway begins was under way when an earlier one died.
CREATE TABLE batch_beginnings (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    idx INTEGER NOT NULL,
    begun_at REAL NOT NULL,
    PRIMARY KEY (batch_id, idx, begun_at)
) WITHOUT ROWID;

CREATE TRIGGER batch_beginnings_no_update BEFORE UPDATE ON batch_beginnings
BEGIN SELECT raise(ABORT, 'rows of batch_beginnings are final'); END;

CREATE TRIGGER batch_beginnings_not_after_end BEFORE INSERT ON batch_beginnings
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END;
