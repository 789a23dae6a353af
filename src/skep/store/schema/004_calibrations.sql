-- `host` is a fingerprint or an address, `document` has the setup and every figure measured. The runs it was made from
-- may be deleted later: their ids are in the document, and no reference holds them.
CREATE TABLE calibrations (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    host TEXT NOT NULL,
    model TEXT NOT NULL,
    engine TEXT NOT NULL,
    quant TEXT NOT NULL,
    layout TEXT NOT NULL,
    rig TEXT NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    decode REAL NOT NULL,
    batch REAL,
    prompt REAL NOT NULL,
    document TEXT NOT NULL,
    skep_version TEXT NOT NULL
);

CREATE INDEX calibrations_by_host ON calibrations (host, engine, created_at);

CREATE TRIGGER calibrations_no_update BEFORE UPDATE ON calibrations
BEGIN SELECT raise(ABORT, 'rows of calibrations are final'); END;

CREATE TRIGGER calibrations_no_delete BEFORE DELETE ON calibrations
WHEN OLD.id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of calibrations are final'); END;

CREATE VIEW v_calibrations AS
SELECT
    id AS calibration_id,
    datetime(created_at, 'unixepoch') AS measured_utc,
    host,
    model,
    engine,
    quant,
    layout,
    rig,
    simulated,
    decode AS step_factor,
    batch AS further_sequences_factor,
    prompt AS prompt_factor,
    skep_version
FROM calibrations;
