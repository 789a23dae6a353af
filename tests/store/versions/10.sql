-- A store as schema 10 wrote it, by `sqlite3 FILE .dump`; never edited.
BEGIN TRANSACTION;
CREATE TABLE alert_ends (
    alert_id INTEGER PRIMARY KEY REFERENCES alerts (id),
    closed_at REAL NOT NULL,
    because TEXT NOT NULL
);
INSERT INTO "alert_ends" VALUES(1,1794752553.25,'it answers again');
CREATE TABLE alerts (
    id INTEGER PRIMARY KEY,
    rule TEXT NOT NULL,
    target TEXT,
    opened_at REAL NOT NULL,
    message TEXT NOT NULL,
    value REAL,
    limit_value REAL
);
INSERT INTO "alerts" VALUES(1,'down','box',1794752493.25,'box is down',NULL,NULL);
INSERT INTO "alerts" VALUES(2,'ttft','box',1794752553.25,'box: TTFT 900 ms',900.0,500.0);
CREATE TABLE batch_beginnings (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    idx INTEGER NOT NULL,
    begun_at REAL NOT NULL,
    PRIMARY KEY (batch_id, idx, begun_at)
) WITHOUT ROWID;
INSERT INTO "batch_beginnings" VALUES('batch_0123456789abcdef01234567',1,1794752556.25);
CREATE TABLE batch_events (
    number INTEGER PRIMARY KEY,
    batch_id TEXT NOT NULL REFERENCES batches (id),
    status TEXT NOT NULL CHECK (
        status IN ('in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelling', 'cancelled')
    ),
    at REAL NOT NULL,
    detail TEXT NOT NULL,
    UNIQUE (batch_id, status)
);
INSERT INTO "batch_events" VALUES(1,'batch_0123456789abcdef01234567','in_progress',1794752555.25,'{"model": "m", "total": 2}');
CREATE TABLE batch_requests (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    idx INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (batch_id, idx),
    UNIQUE (batch_id, custom_id)
) WITHOUT ROWID;
INSERT INTO "batch_requests" VALUES('batch_0123456789abcdef01234567',0,'c0',0,150);
INSERT INTO "batch_requests" VALUES('batch_0123456789abcdef01234567',1,'c1',150,150);
CREATE TABLE batch_results (
    batch_id TEXT NOT NULL REFERENCES batches (id),
    idx INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    ok INTEGER NOT NULL CHECK (ok IN (0, 1)),
    status INTEGER,
    prompt_tokens INTEGER,
    cached_tokens INTEGER,
    output_tokens INTEGER,
    reasoning_tokens INTEGER,
    line BLOB NOT NULL,
    UNIQUE (batch_id, idx)
);
CREATE TABLE batches (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    expires_at REAL NOT NULL,
    metadata TEXT,
    output_expires_s INTEGER
);
INSERT INTO "batches" VALUES(1,'batch_0123456789abcdef01234567','ann',1794752554.25,'/v1/chat/completions','file-0123456789abcdef01234567','24h',1794838954.25,NULL,NULL);
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
INSERT INTO "calibrations" VALUES('20261115-143000-c0ffee',1794753000.0,'0123456789abcdef','qwen3-8b','vllm','awq','TP=1','rtx-3090',0,1.25,0.9,1.4,'{"fitted": {"decode": 1.25}}','0.1.0');
CREATE TABLE changes (
    series INTEGER NOT NULL REFERENCES series (id),
    at REAL NOT NULL,
    earliest_at REAL NOT NULL,
    latest_at REAL NOT NULL,
    median_before REAL NOT NULL,
    median_after REAL NOT NULL,
    ratio_low REAL NOT NULL,
    ratio_high REAL NOT NULL,
    count_before INTEGER NOT NULL,
    count_after INTEGER NOT NULL,
    because TEXT,
    PRIMARY KEY (series, at)
) WITHOUT ROWID;
INSERT INTO "changes" VALUES(3,1794752557.25,1794748953.25,1794752557.25,52.0,50.0,0.95,0.97,24,24,'when the driver changed');
CREATE TABLE client_samples (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    loop_lag_p99_ms REAL,
    loop_lag_max_ms REAL,
    cpu_share REAL,
    client_limited INTEGER NOT NULL CHECK (client_limited IN (0, 1))
, delivered REAL, processes INTEGER NOT NULL DEFAULT 1);
INSERT INTO "client_samples" VALUES('20261115-142233-a1b2c3',1,0,0.5,2.0,0.25,0,NULL,1);
CREATE TABLE deleting (run_id TEXT PRIMARY KEY);
CREATE TABLE deleting_before (arrived_at REAL NOT NULL);
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    target TEXT,
    text TEXT NOT NULL,
    detail TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1794752553.25,'note',NULL,'NVLink bridges removed','{}');
CREATE TABLE files (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    expires_at REAL
);
INSERT INTO "files" VALUES(1,'file-0123456789abcdef01234567','ann',1794752553.25,'tasks.jsonl','batch',300,NULL);
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
, session TEXT, conversation TEXT, turn INTEGER, pause_s REAL, tool_call INTEGER CHECK (tool_call IN (0, 1)), cold TEXT CHECK (cold IN ('first', 'moved', 'evicted', 'restarted', 'changed')), cold_at INTEGER, possible_tokens INTEGER);
INSERT INTO "gateway_requests" VALUES('k3xq9a-1',1794752553.25,'/v1/chat/completions','smol','normal','agent-7','r0',1,'answered',200,NULL,1,0.25,0.5,2.5,20,16,100,512,4096,'0a1b2c3d','4e5f6071',2,1.5,1,'changed',12,18);
CREATE TABLE level_facts (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    name TEXT NOT NULL,
    fact TEXT NOT NULL
);
INSERT INTO "level_facts" VALUES('20261115-142233-a1b2c3',1,0,'energy','{"joules": 1.5}');
CREATE TABLE notices (
    id INTEGER PRIMARY KEY,
    alert_id INTEGER NOT NULL REFERENCES alerts (id),
    what TEXT NOT NULL CHECK (what IN ('opened', 'closed')),
    at REAL NOT NULL,
    via TEXT NOT NULL,
    error TEXT
);
INSERT INTO "notices" VALUES(1,1,'opened',1794752494.25,'log',NULL);
CREATE TABLE probes (
    id INTEGER PRIMARY KEY,
    target TEXT NOT NULL,
    era INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    slots INTEGER NOT NULL CHECK (slots >= 1),
    due_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'failed', 'missed')),
    error_kind TEXT,
    error TEXT,
    running INTEGER,
    waiting INTEGER,
    idle_s REAL,
    model TEXT,
    versions TEXT NOT NULL,
    host TEXT NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    UNIQUE (target, era, slot)
);
INSERT INTO "probes" VALUES(1,'box',0,498542,1,1794748953.25,NULL,1794752553.25,'missed',NULL,'not running',NULL,NULL,NULL,NULL,'{}','{}',0);
INSERT INTO "probes" VALUES(2,'box',0,498543,1,1794752553.25,1794752553.25,1794752562.25,'done',NULL,NULL,NULL,NULL,3600.0,'smol','{"engine": "b1"}','{"watts": 250.0}',0);
CREATE TABLE requests (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    kind TEXT NOT NULL,
    started_s REAL NOT NULL,
    ended_s REAL NOT NULL,
    first_byte_s REAL,
    first_token_s REAL,
    last_token_s REAL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    status INTEGER,
    error_kind TEXT,
    error TEXT,
    finish_reason TEXT,
    replica TEXT,
    queued_ms REAL,
    engine_prompt_tokens INTEGER,
    engine_cached_tokens INTEGER,
    engine_prompt_ms REAL,
    engine_output_tokens INTEGER,
    engine_decode_ms REAL,
    engine_decode_tok_s REAL,
    arrivals BLOB NOT NULL,
    prompt TEXT,
    answer TEXT, traffic TEXT NOT NULL DEFAULT '', scheduled_s REAL, session INTEGER, turn INTEGER, engine_queue_ms REAL, reasoning TEXT,
    UNIQUE (run_id, level, repeat, idx)
);
INSERT INTO "requests" VALUES('20261115-142233-a1b2c3',1,0,0,'fix',0.5,2.5,0.75,1.0,2.0,20,50,200,NULL,NULL,'stop',NULL,NULL,20,0,40.0,50,1000.0,50.0,X'000000000000F03F0000000000000040','p','a','',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE run_ends (
    run_id TEXT NOT NULL UNIQUE REFERENCES runs (id),
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'failed')),
    error TEXT
);
INSERT INTO "run_ends" VALUES('20261115-142233-a1b2c3',1794752600.0,'done',NULL);
CREATE TABLE run_items (
    run_id TEXT NOT NULL REFERENCES runs (id),
    item TEXT NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (run_id, item)
);
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    created_at REAL NOT NULL,
    model TEXT NOT NULL,
    url TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    config TEXT NOT NULL,
    host TEXT NOT NULL,
    engine TEXT NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    skep_version TEXT NOT NULL,
    writer_pid INTEGER NOT NULL,
    writer_start_ticks INTEGER,
    boot_id TEXT
);
INSERT INTO "runs" VALUES('20261115-142233-a1b2c3','sweep',1794752553.25,'smol','http://127.0.0.1:8000/v1','f00d','{"concurrency": [1]}','{"cpu_cores": 2}','{"version": "b1"}',0,'0.1.0',4242,1000,'00000000-0000-0000-0000-000000000000');
CREATE TABLE samples (
    id INTEGER PRIMARY KEY,
    probe_id INTEGER NOT NULL REFERENCES probes (id),
    target TEXT NOT NULL,
    heat TEXT NOT NULL,
    shape TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    at REAL NOT NULL,
    busy INTEGER NOT NULL CHECK (busy IN (0, 1)),
    tok_s REAL,
    engine_tok_s REAL,
    effective_tok_s REAL,
    ttft_ms REAL,
    quality REAL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    error_kind TEXT,
    error TEXT
);
INSERT INTO "samples" VALUES(1,2,'box','cold','short',1,1794752553.25,0,20.0,NULL,NULL,900.0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "samples" VALUES(2,2,'box','hot','short',1,1794752557.25,0,50.0,51.0,NULL,90.0,NULL,NULL,64,NULL,NULL);
CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    target TEXT NOT NULL,
    heat TEXT NOT NULL,
    shape TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    metric TEXT NOT NULL,
    UNIQUE (target, heat, shape, concurrency, metric)
);
INSERT INTO "series" VALUES(1,'box','cold','short',1,'tok_s');
INSERT INTO "series" VALUES(2,'box','cold','short',1,'ttft_ms');
INSERT INTO "series" VALUES(3,'box','hot','short',1,'tok_s');
INSERT INTO "series" VALUES(4,'box','hot','short',1,'engine_tok_s');
INSERT INTO "series" VALUES(5,'box','hot','short',1,'ttft_ms');
INSERT INTO "series" VALUES(6,'gateway:smol','seen','any',0,'ttft_ms');
INSERT INTO "series" VALUES(7,'gateway:smol','seen','any',0,'tok_s');
INSERT INTO "series" VALUES(8,'gateway:smol','seen','any',0,'requests');
INSERT INTO "series" VALUES(9,'gateway:smol','seen','any',0,'failed');
CREATE TABLE spans (
    series INTEGER NOT NULL REFERENCES series (id),
    kind TEXT NOT NULL CHECK (kind IN ('hour', 'day')),
    start REAL NOT NULL,
    count INTEGER NOT NULL,
    low REAL,
    p10 REAL,
    median REAL,
    p90 REAL,
    high REAL,
    mean REAL,
    mad REAL,
    busy INTEGER NOT NULL,
    PRIMARY KEY (series, kind, start)
) WITHOUT ROWID;
INSERT INTO "spans" VALUES(1,'day',1794700800.0,1,20.0,20.0,20.0,20.0,20.0,20.0,0.0,0);
INSERT INTO "spans" VALUES(1,'hour',1794751200.0,1,20.0,20.0,20.0,20.0,20.0,20.0,0.0,0);
INSERT INTO "spans" VALUES(2,'day',1794700800.0,1,900.0,900.0,900.0,900.0,900.0,900.0,0.0,0);
INSERT INTO "spans" VALUES(2,'hour',1794751200.0,1,900.0,900.0,900.0,900.0,900.0,900.0,0.0,0);
INSERT INTO "spans" VALUES(3,'day',1794700800.0,1,50.0,50.0,50.0,50.0,50.0,50.0,0.0,0);
INSERT INTO "spans" VALUES(3,'hour',1794751200.0,1,50.0,50.0,50.0,50.0,50.0,50.0,0.0,0);
INSERT INTO "spans" VALUES(4,'day',1794700800.0,1,51.0,51.0,51.0,51.0,51.0,51.0,0.0,0);
INSERT INTO "spans" VALUES(4,'hour',1794751200.0,1,51.0,51.0,51.0,51.0,51.0,51.0,0.0,0);
INSERT INTO "spans" VALUES(5,'day',1794700800.0,1,90.0,90.0,90.0,90.0,90.0,90.0,0.0,0);
INSERT INTO "spans" VALUES(5,'hour',1794751200.0,1,90.0,90.0,90.0,90.0,90.0,90.0,0.0,0);
INSERT INTO "spans" VALUES(6,'day',1794700800.0,1,500.0,500.0,500.0,500.0,500.0,500.0,0.0,0);
INSERT INTO "spans" VALUES(6,'hour',1794751200.0,1,500.0,500.0,500.0,500.0,500.0,500.0,0.0,0);
INSERT INTO "spans" VALUES(7,'day',1794700800.0,1,50.0,50.0,50.0,50.0,50.0,50.0,0.0,0);
INSERT INTO "spans" VALUES(7,'hour',1794751200.0,1,50.0,50.0,50.0,50.0,50.0,50.0,0.0,0);
INSERT INTO "spans" VALUES(8,'day',1794700800.0,1,1.0,1.0,1.0,1.0,1.0,1.0,0.0,0);
INSERT INTO "spans" VALUES(8,'hour',1794751200.0,1,1.0,1.0,1.0,1.0,1.0,1.0,0.0,0);
INSERT INTO "spans" VALUES(9,'day',1794700800.0,1,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0);
INSERT INTO "spans" VALUES(9,'hour',1794751200.0,1,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0);
CREATE TABLE swarm_attempts (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    task INTEGER NOT NULL REFERENCES swarm_tasks (key),
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    agent INTEGER NOT NULL,
    why TEXT NOT NULL,
    outcome TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    first_token_at REAL,
    queued_ms REAL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    decode_ms REAL,
    status INTEGER,
    error_kind TEXT,
    error TEXT,
    finish_reason TEXT,
    replica TEXT,
    answer TEXT
);
INSERT INTO "swarm_attempts" VALUES(1,'20261115-142233-5a4a3a',1,1,1,0,'first','done',1794752554.25,1794752555.25,NULL,NULL,1,NULL,3,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "swarm_attempts" VALUES(2,'20261115-142233-5a4a3a',2,1,1,1,'first','rejected',1794752554.25,1794752556.25,NULL,NULL,1,NULL,NULL,NULL,NULL,'schema','not JSON',NULL,NULL,'the Rhine');
CREATE TABLE swarm_cancels (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    at REAL NOT NULL
);
INSERT INTO "swarm_cancels" VALUES(1,'20261115-142233-5a4a3a',1794752557.25);
CREATE TABLE swarm_facts (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    session INTEGER NOT NULL,
    name TEXT NOT NULL,
    at REAL NOT NULL,
    fact TEXT NOT NULL
);
INSERT INTO "swarm_facts" VALUES(1,'20261115-142233-5a4a3a',1,'limit',1794752554.25,'{"agents": 4}');
CREATE TABLE swarm_results (
    task INTEGER PRIMARY KEY REFERENCES swarm_tasks (key),
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    ending TEXT NOT NULL CHECK (ending IN ('done', 'failed')),
    answer TEXT,
    value TEXT,
    error_kind TEXT,
    error TEXT,
    tries INTEGER NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    finish_reason TEXT,
    replica TEXT
);
INSERT INTO "swarm_results" VALUES(1,'20261115-142233-5a4a3a','done','An oak',NULL,NULL,NULL,1,1794752554.25,1794752555.25,20,3,'stop','r0');
INSERT INTO "swarm_results" VALUES(2,'20261115-142233-5a4a3a','failed','the Rhine',NULL,'schema','not JSON',1,1794752554.25,1794752556.25,20,4,NULL,NULL);
CREATE TABLE swarm_runs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    created_at REAL NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    model TEXT,
    config TEXT NOT NULL,
    skep_version TEXT NOT NULL
);
INSERT INTO "swarm_runs" VALUES('20261115-142233-5a4a3a','map',1794752553.25,'things.jsonl','http://127.0.0.1:8000/v1','smol','{"tries": 4}','0.1.0');
CREATE TABLE swarm_session_ends (
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'stopped', 'cancelled', 'failed')),
    error TEXT,
    PRIMARY KEY (run_id, number),
    FOREIGN KEY (run_id, number) REFERENCES swarm_sessions (run_id, number)
);
INSERT INTO "swarm_session_ends" VALUES('20261115-142233-5a4a3a',1,1794752558.25,'cancelled',NULL);
CREATE TABLE swarm_sessions (
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    number INTEGER NOT NULL CHECK (number >= 1),
    started_at REAL NOT NULL,
    agents INTEGER,
    endpoint TEXT NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    writer_pid INTEGER NOT NULL,
    writer_start_ticks INTEGER,
    boot_id TEXT,
    PRIMARY KEY (run_id, number)
);
INSERT INTO "swarm_sessions" VALUES('20261115-142233-5a4a3a',1,1794752554.25,NULL,'{"slots": 4}',0,4242,1000,'00000000-0000-0000-0000-000000000000');
CREATE TABLE swarm_steps (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    task INTEGER NOT NULL REFERENCES swarm_tasks (key),
    attempt INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    asked TEXT NOT NULL,
    answered TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    prompt_tokens INTEGER,
    output_tokens INTEGER,
    error TEXT
);
INSERT INTO "swarm_steps" VALUES(1,'20261115-142233-5a4a3a',1,1,0,'model','smol','Name a tree','An oak',1794752554.25,1794752555.25,20,3,NULL);
CREATE TABLE swarm_tasks (
    key INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES swarm_runs (id),
    id TEXT NOT NULL,
    stage INTEGER NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (run_id, id)
);
INSERT INTO "swarm_tasks" VALUES(1,'20261115-142233-5a4a3a','tree',0,'{"id": "tree", "messages": [{"role": "user", "content": "Name a tree"}]}');
INSERT INTO "swarm_tasks" VALUES(2,'20261115-142233-5a4a3a','river',0,'{"id": "river", "messages": [{"role": "user", "content": "Name a river"}], "schema": {"type": "object"}}');
INSERT INTO "swarm_tasks" VALUES(3,'20261115-142233-5a4a3a','hill',0,'{"id": "hill", "messages": [{"role": "user", "content": "Name a hill"}]}');
CREATE TABLE targets (
    name TEXT PRIMARY KEY,
    document TEXT NOT NULL,
    added_at REAL NOT NULL,
    removed_at REAL
);
INSERT INTO "targets" VALUES('box','{"added_at": 1794745353.25, "api": "openai", "concurrency": 0, "every_s": 3600.0, "jitter_s": null, "key_env": null, "kind": "endpoint", "long_tokens": 512, "model": null, "name": "box", "prompt_tokens": 256, "quality_items": 0, "short_tokens": 64, "slower_pct": null, "timeout_s": 300.0, "ttft_ms": null, "url": "http://127.0.0.1:8000/v1"}',1794745353.25,NULL);
CREATE TABLE thinning_before (at REAL NOT NULL);
CREATE TABLE tuning_answers (
    tuning_id TEXT NOT NULL REFERENCES tunings (id),
    number INTEGER NOT NULL CHECK (number >= 1),
    session INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('round', 'judged', 'curve')),
    seconds REAL NOT NULL,
    errand TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (tuning_id, number)
);
INSERT INTO "tuning_answers" VALUES('20261115-142233-c11b00',1,1,1794752653.25,'round',40.0,'{"configs": [{"values": [["graphs", false], ["slots", 4]]}], "readings": 1, "purpose": "baseline", "words": "baseline, start 1"}','{"sittings": [{"config": {"values": [["graphs", false], ["slots", 4]]}, "start_s": 30.0, "readings": [{"figure": 25.0, "effective_tok_s": 25.0, "task_tok_s": 6.25, "ttft_ms": 90.0, "tpot_ms": 20.0, "wall_s": 8.0, "requests": 12, "failed": 0, "limited": false, "over_limit": 0.0, "tok_per_joule": null}], "failure": null, "run_id": null}], "seconds": 40.0}');
INSERT INTO "tuning_answers" VALUES('20261115-142233-c11b00',2,1,1794752753.25,'round',100.0,'{"configs": [{"values": [["graphs", false], ["slots", 4]]}, {"values": [["graphs", true], ["slots", 4]]}], "readings": 1, "purpose": "screen", "words": "graphs off \u2192 on, start 1"}','{"sittings": [{"config": {"values": [["graphs", false], ["slots", 4]]}, "start_s": 30.0, "readings": [{"figure": 25.5, "effective_tok_s": 25.5, "task_tok_s": 6.375, "ttft_ms": 90.0, "tpot_ms": 20.0, "wall_s": 8.0, "requests": 12, "failed": 0, "limited": false, "over_limit": 0.0, "tok_per_joule": null}], "failure": null, "run_id": null}, {"config": {"values": [["graphs", true], ["slots", 4]]}, "start_s": 60.0, "readings": [], "failure": {"kind": "out-of-memory", "cause": "no memory for the graphs", "evidence": "CUDA out of memory", "remedy": "lower memory_share", "mended": []}, "run_id": null}], "seconds": 100.0}');
CREATE TABLE tuning_presets (
    id INTEGER PRIMARY KEY,
    tuning_id TEXT NOT NULL REFERENCES tunings (id),
    name TEXT NOT NULL,
    stage INTEGER,
    at REAL NOT NULL
);
INSERT INTO "tuning_presets" VALUES(1,'20261115-142233-c11b00','smol-tuned',0,1794752854.25);
CREATE TABLE tuning_session_ends (
    tuning_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('done', 'stopped', 'failed')),
    reason TEXT,
    PRIMARY KEY (tuning_id, number),
    FOREIGN KEY (tuning_id, number) REFERENCES tuning_sessions (tuning_id, number)
);
INSERT INTO "tuning_session_ends" VALUES('20261115-142233-c11b00',1,1794752853.25,'stopped',NULL);
CREATE TABLE tuning_sessions (
    tuning_id TEXT NOT NULL REFERENCES tunings (id),
    number INTEGER NOT NULL CHECK (number >= 1),
    started_at REAL NOT NULL,
    writer_pid INTEGER NOT NULL,
    writer_start_ticks INTEGER,
    boot_id TEXT,
    PRIMARY KEY (tuning_id, number)
);
INSERT INTO "tuning_sessions" VALUES('20261115-142233-c11b00',1,1794752554.25,4242,1000,'00000000-0000-0000-0000-000000000000');
CREATE TABLE tuning_stages (
    tuning_id TEXT NOT NULL REFERENCES tunings (id),
    number INTEGER NOT NULL CHECK (number >= 0),
    at REAL NOT NULL,
    answers INTEGER NOT NULL,
    decision TEXT NOT NULL,
    title TEXT NOT NULL,
    why TEXT NOT NULL,
    config TEXT NOT NULL,
    figure REAL,
    figure_low REAL,
    figure_high REAL,
    ratio REAL,
    ratio_low REAL,
    ratio_high REAL,
    predicted_ratio REAL,
    ttft_ms REAL,
    tpot_ms REAL,
    starts INTEGER NOT NULL,
    readings INTEGER NOT NULL,
    seconds REAL NOT NULL,
    failure_kind TEXT,
    failure TEXT,
    document TEXT NOT NULL,
    PRIMARY KEY (tuning_id, number)
);
INSERT INTO "tuning_stages" VALUES('20261115-142233-c11b00',0,1794752653.25,1,'baseline','baseline','where it begins','{"graphs": false, "slots": 4}',25.0,24.0,NULL,NULL,NULL,NULL,NULL,90.0,20.0,1,1,40.0,NULL,NULL,'{"number": 0, "changes": [], "config": {"values": [["graphs", false], ["slots", 4]]}, "decision": "baseline", "why": "where it begins", "figure": {"low": 24.0, "estimate": 25.0, "high": {"no_number": "inf"}}, "ratio": null, "predicted": null, "ttft_ms": 90.0, "tpot_ms": 20.0, "starts": 1, "readings": 1, "seconds": 40.0, "failure": null, "runs": ["20261115-142233-a1b2c3"]}');
INSERT INTO "tuning_stages" VALUES('20261115-142233-c11b00',1,1794752753.25,2,'failed','graphs off → on','ran out of memory','{"graphs": true, "slots": 4}',NULL,NULL,NULL,NULL,NULL,NULL,1.4,NULL,NULL,1,0,100.0,'out-of-memory','no memory for the graphs (CUDA out of memory); lower memory_share','{"number": 1, "changes": [{"knob": "graphs", "before": false, "after": true}], "config": {"values": [["graphs", true], ["slots", 4]]}, "decision": "failed", "why": "ran out of memory", "figure": null, "ratio": null, "predicted": 1.4, "ttft_ms": null, "tpot_ms": null, "starts": 1, "readings": 0, "seconds": 100.0, "failure": {"kind": "out-of-memory", "cause": "no memory for the graphs", "evidence": "CUDA out of memory", "remedy": "lower memory_share", "mended": []}, "runs": []}');
CREATE TABLE tunings (
    id TEXT PRIMARY KEY,
    created_at REAL NOT NULL,
    model TEXT NOT NULL,
    engine TEXT NOT NULL,
    rig TEXT NOT NULL,
    goal TEXT NOT NULL,
    shape TEXT NOT NULL,
    slo TEXT,
    budget_s REAL NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    document TEXT NOT NULL,
    skep_version TEXT NOT NULL
);
INSERT INTO "tunings" VALUES('20261115-142233-c11b00',1794752553.25,'smol','vllm','rtx-3090','effective_tok_s@4','512 in, 128 out, C=4',NULL,7200.0,0,'{"id": "20261115-142233-c11b00", "created_at": 1794752553.25, "model": "smol", "engine": "vllm", "rig": "rtx-3090", "aim": {"metric": "effective_tok_s", "concurrency": 4, "input_tokens": 512, "output_tokens": 128, "target": null, "slo": null, "min_context": null}, "budget_s": 7200.0, "seed": 0, "simulated": false, "baseline": {"values": [["graphs", false], ["slots", 4]]}, "knobs": [{"name": "graphs", "title": "CUDA graphs", "values": [false, true], "ordered": false, "alters_answers": false, "expected": 0.02}, {"name": "slots", "title": "slots", "values": [1, 2, 4, 8], "ordered": true, "alters_answers": false, "expected": 0.02}], "base": {"model": "smol"}, "host": {"cpu_cores": 2}, "skep_version": "0.1.0"}','0.1.0');
CREATE TABLE verdicts (
    run_id TEXT NOT NULL REFERENCES runs (id),
    level INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    item TEXT NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL,
    checks TEXT NOT NULL,
    keywords INTEGER CHECK (keywords IN (0, 1)),
    keywords_missing TEXT NOT NULL,
    checker TEXT NOT NULL,
    sandbox TEXT,
    seconds REAL,
    UNIQUE (run_id, level, repeat, idx)
);
CREATE TABLE watermarks (name TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
INSERT INTO "watermarks" VALUES('gateway',1794754800.0);
CREATE INDEX runs_by_time ON runs (created_at);
CREATE INDEX runs_by_fingerprint ON runs (fingerprint);
CREATE INDEX client_samples_by_run ON client_samples (run_id);
CREATE INDEX gateway_requests_by_time ON gateway_requests (arrived_at);
CREATE INDEX level_facts_by_run ON level_facts (run_id);
CREATE INDEX calibrations_by_host ON calibrations (host, engine, created_at);
CREATE INDEX probes_by_time ON probes (target, due_at, outcome, slots);
CREATE INDEX probes_that_were_made ON probes (target) WHERE outcome <> 'missed';
CREATE INDEX probes_with_gaps ON probes (target, ended_at) WHERE slots > 1;
CREATE INDEX samples_by_series ON samples (target, heat, shape, concurrency, at);
CREATE INDEX samples_by_probe ON samples (probe_id);
CREATE INDEX events_by_time ON events (at);
CREATE INDEX notices_by_alert ON notices (alert_id);
CREATE TRIGGER runs_no_update BEFORE UPDATE ON runs
BEGIN SELECT raise(ABORT, 'rows of runs are final'); END;
CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs
WHEN OLD.id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of runs are final'); END;
CREATE TRIGGER run_ends_no_update BEFORE UPDATE ON run_ends
BEGIN SELECT raise(ABORT, 'rows of run_ends are final'); END;
CREATE TRIGGER run_ends_no_delete BEFORE DELETE ON run_ends
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of run_ends are final'); END;
CREATE TRIGGER run_ends_not_after_end BEFORE INSERT ON run_ends
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
CREATE TRIGGER requests_no_update BEFORE UPDATE ON requests
BEGIN SELECT raise(ABORT, 'rows of requests are final'); END;
CREATE TRIGGER requests_no_delete BEFORE DELETE ON requests
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of requests are final'); END;
CREATE TRIGGER requests_not_after_end BEFORE INSERT ON requests
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
CREATE TRIGGER client_samples_no_update BEFORE UPDATE ON client_samples
BEGIN SELECT raise(ABORT, 'rows of client_samples are final'); END;
CREATE TRIGGER client_samples_no_delete BEFORE DELETE ON client_samples
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of client_samples are final'); END;
CREATE TRIGGER client_samples_not_after_end BEFORE INSERT ON client_samples
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
CREATE TRIGGER gateway_requests_no_delete BEFORE DELETE ON gateway_requests
WHEN NOT EXISTS (SELECT 1 FROM deleting_before WHERE OLD.arrived_at < arrived_at)
BEGIN SELECT raise(ABORT, 'rows of gateway_requests are final'); END;
CREATE TRIGGER level_facts_no_update BEFORE UPDATE ON level_facts
BEGIN SELECT raise(ABORT, 'rows of level_facts are final'); END;
CREATE TRIGGER level_facts_no_delete BEFORE DELETE ON level_facts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of level_facts are final'); END;
CREATE VIEW v_requests AS
SELECT
    run_id,
    level AS concurrency,
    repeat,
    idx AS task,
    kind,
    traffic,
    session,
    turn,
    error_kind IS NULL AS ok,
    status,
    error_kind,
    error,
    finish_reason,
    replica,
    started_s,
    ended_s - started_s AS total_s,
    (started_s - scheduled_s) * 1000 AS late_ms,
    (first_token_s - min(started_s, coalesce(scheduled_s, started_s))) * 1000 AS ttft_ms,
    prompt_tokens,
    output_tokens,
    output_tokens / nullif(last_token_s - first_token_s, 0) AS task_tok_s,
    queued_ms,
    engine_cached_tokens,
    engine_prompt_ms,
    engine_decode_tok_s,
    length(arrivals) / 8 AS chunks
FROM requests;
CREATE TRIGGER level_facts_not_after_end BEFORE INSERT ON level_facts
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
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
CREATE VIEW v_verdicts AS
SELECT
    verdicts.run_id,
    verdicts.level AS concurrency,
    verdicts.repeat,
    verdicts.idx AS task,
    verdicts.item,
    verdicts.outcome,
    verdicts.outcome = 'passed' AS passed,
    verdicts.keywords AS keywords_passed,
    verdicts.detail,
    verdicts.checker,
    requests.traffic AS arm,
    requests.output_tokens,
    requests.ended_s - requests.started_s AS total_s,
    requests.answer,
    requests.reasoning
FROM verdicts LEFT JOIN requests
    ON requests.run_id = verdicts.run_id AND requests.level = verdicts.level
    AND requests.repeat = verdicts.repeat AND requests.idx = verdicts.idx;
CREATE TRIGGER verdicts_no_update BEFORE UPDATE ON verdicts
BEGIN SELECT raise(ABORT, 'rows of verdicts are final'); END;
CREATE TRIGGER verdicts_no_delete BEFORE DELETE ON verdicts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of verdicts are final'); END;
CREATE TRIGGER verdicts_not_after_end BEFORE INSERT ON verdicts
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
CREATE TRIGGER run_items_no_update BEFORE UPDATE ON run_items
BEGIN SELECT raise(ABORT, 'rows of run_items are final'); END;
CREATE TRIGGER run_items_no_delete BEFORE DELETE ON run_items
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of run_items are final'); END;
CREATE TRIGGER run_items_not_after_end BEFORE INSERT ON run_items
WHEN EXISTS (SELECT 1 FROM run_ends WHERE run_id = NEW.run_id)
BEGIN SELECT raise(ABORT, 'the run has ended'); END;
CREATE TRIGGER probes_no_update BEFORE UPDATE ON probes
BEGIN SELECT raise(ABORT, 'rows of probes are final'); END;
CREATE TRIGGER samples_no_update BEFORE UPDATE ON samples
BEGIN SELECT raise(ABORT, 'rows of samples are final'); END;
CREATE TRIGGER events_no_update BEFORE UPDATE ON events
BEGIN SELECT raise(ABORT, 'rows of events are final'); END;
CREATE TRIGGER alerts_no_update BEFORE UPDATE ON alerts
BEGIN SELECT raise(ABORT, 'rows of alerts are final'); END;
CREATE TRIGGER alert_ends_no_update BEFORE UPDATE ON alert_ends
BEGIN SELECT raise(ABORT, 'rows of alert_ends are final'); END;
CREATE TRIGGER notices_no_update BEFORE UPDATE ON notices
BEGIN SELECT raise(ABORT, 'rows of notices are final'); END;
CREATE TRIGGER probes_no_delete BEFORE DELETE ON probes
BEGIN SELECT raise(ABORT, 'rows of probes are final'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN SELECT raise(ABORT, 'rows of events are final'); END;
CREATE TRIGGER alerts_no_delete BEFORE DELETE ON alerts
BEGIN SELECT raise(ABORT, 'rows of alerts are final'); END;
CREATE TRIGGER alert_ends_no_delete BEFORE DELETE ON alert_ends
BEGIN SELECT raise(ABORT, 'rows of alert_ends are final'); END;
CREATE TRIGGER notices_no_delete BEFORE DELETE ON notices
BEGIN SELECT raise(ABORT, 'rows of notices are final'); END;
CREATE TRIGGER samples_no_delete BEFORE DELETE ON samples
WHEN NOT EXISTS (SELECT 1 FROM thinning_before WHERE OLD.at < at)
BEGIN SELECT raise(ABORT, 'rows of samples are final'); END;
CREATE VIEW v_probes AS
SELECT
    id AS probe_id,
    target,
    datetime(due_at, 'unixepoch') AS due_utc,
    datetime(started_at, 'unixepoch') AS started_utc,
    datetime(ended_at, 'unixepoch') AS ended_utc,
    outcome,
    slots,
    error_kind,
    error,
    running,
    waiting,
    coalesce(running, 0) > 0 OR coalesce(waiting, 0) > 0 AS busy,
    idle_s,
    model,
    versions,
    host,
    simulated
FROM probes;
CREATE VIEW v_samples AS
SELECT
    samples.id AS sample_id,
    samples.probe_id,
    samples.target,
    strftime('%Y-%m-%d %H:%M:%f', samples.at, 'unixepoch') AS at_utc,
    samples.heat,
    samples.shape,
    samples.concurrency,
    samples.tok_s,
    samples.engine_tok_s,
    samples.effective_tok_s,
    samples.ttft_ms,
    samples.quality,
    samples.prompt_tokens,
    samples.output_tokens,
    samples.busy,
    probes.idle_s,
    samples.error_kind,
    samples.error,
    probes.simulated
FROM samples JOIN probes ON probes.id = samples.probe_id;
CREATE VIEW v_series_hours AS
SELECT
    series.target || '/' || series.heat || '/' || series.shape || '/c' || series.concurrency || '/' || series.metric AS series,
    series.target,
    series.heat,
    series.shape,
    series.concurrency,
    series.metric,
    strftime('%Y-%m-%d %H:00:00', spans.start, 'unixepoch') AS hour_utc,
    spans.count,
    spans.busy,
    spans.low,
    spans.p10,
    spans.median,
    spans.p90,
    spans.high,
    spans.mean,
    spans.mad
FROM spans JOIN series ON series.id = spans.series WHERE spans.kind = 'hour';
CREATE VIEW v_series_days AS
SELECT
    series.target || '/' || series.heat || '/' || series.shape || '/c' || series.concurrency || '/' || series.metric AS series,
    series.target,
    series.heat,
    series.shape,
    series.concurrency,
    series.metric,
    strftime('%Y-%m-%d', spans.start, 'unixepoch') AS day_utc,
    spans.count,
    spans.busy,
    spans.low,
    spans.p10,
    spans.median,
    spans.p90,
    spans.high,
    spans.mean,
    spans.mad
FROM spans JOIN series ON series.id = spans.series WHERE spans.kind = 'day';
CREATE VIEW v_events AS
SELECT events.id AS event_id, datetime(events.at, 'unixepoch') AS at_utc, kind, target, text, detail FROM events;
CREATE VIEW v_alerts AS
SELECT
    alerts.id AS alert_id,
    alerts.rule,
    alerts.target,
    datetime(alerts.opened_at, 'unixepoch') AS opened_utc,
    datetime(alert_ends.closed_at, 'unixepoch') AS closed_utc,
    alert_ends.closed_at - alerts.opened_at AS duration_s,
    alerts.message,
    alert_ends.because AS closed_because,
    alerts.value,
    alerts.limit_value,
    (SELECT count(notices.id) FROM notices WHERE alert_id = alerts.id) AS notices
FROM alerts LEFT JOIN alert_ends ON alert_ends.alert_id = alerts.id;
CREATE VIEW v_changes AS
SELECT
    series.target || '/' || series.heat || '/' || series.shape || '/c' || series.concurrency || '/' || series.metric AS series,
    series.target,
    series.metric,
    datetime(changes.at, 'unixepoch') AS at_utc,
    datetime(changes.earliest_at, 'unixepoch') AS earliest_utc,
    datetime(changes.latest_at, 'unixepoch') AS latest_utc,
    changes.median_before,
    changes.median_after,
    changes.median_after / nullif(changes.median_before, 0) AS ratio,
    changes.ratio_low,
    changes.ratio_high,
    changes.count_before,
    changes.count_after,
    changes.because
FROM changes JOIN series ON series.id = changes.series;
CREATE VIEW v_runs AS
SELECT
    runs.id AS run_id,
    runs.kind AS kind,
    datetime(runs.created_at, 'unixepoch') AS started_utc,
    datetime(run_ends.ended_at, 'unixepoch') AS ended_utc,
    run_ends.ended_at - runs.created_at AS duration_s,
    coalesce(run_ends.outcome, 'no end recorded') AS outcome,
    run_ends.error AS error,
    runs.model AS model,
    runs.url AS url,
    runs.simulated AS simulated,
    runs.fingerprint AS fingerprint,
    runs.skep_version AS skep_version,
    (SELECT count(idx) FROM requests WHERE run_id = runs.id) AS requests,
    (SELECT count(idx) FROM requests WHERE run_id = runs.id AND error_kind IS NOT NULL) AS failed_requests,
    (SELECT sum(output_tokens) FROM requests WHERE run_id = runs.id) AS output_tokens
FROM runs LEFT JOIN run_ends ON run_ends.run_id = runs.id;
CREATE INDEX swarm_tasks_by_run ON swarm_tasks (run_id);
CREATE INDEX swarm_results_by_run ON swarm_results (run_id);
CREATE INDEX swarm_results_by_ending ON swarm_results (run_id, ending);
CREATE INDEX swarm_attempts_by_time ON swarm_attempts (run_id, started_at);
CREATE INDEX swarm_attempts_by_task ON swarm_attempts (task, outcome, started_at);
CREATE INDEX swarm_steps_by_task ON swarm_steps (task, attempt, idx);
CREATE INDEX swarm_facts_by_run ON swarm_facts (run_id, name);
CREATE INDEX swarm_cancels_by_run ON swarm_cancels (run_id, at);
CREATE INDEX swarm_runs_by_time ON swarm_runs (created_at);
CREATE TRIGGER swarm_steps_no_update BEFORE UPDATE ON swarm_steps
BEGIN SELECT raise(ABORT, 'rows of swarm_steps are final'); END;
CREATE TRIGGER swarm_attempts_no_update BEFORE UPDATE ON swarm_attempts
BEGIN SELECT raise(ABORT, 'rows of swarm_attempts are final'); END;
CREATE TRIGGER swarm_results_no_update BEFORE UPDATE ON swarm_results
BEGIN SELECT raise(ABORT, 'rows of swarm_results are final'); END;
CREATE TRIGGER swarm_tasks_no_update BEFORE UPDATE ON swarm_tasks
BEGIN SELECT raise(ABORT, 'rows of swarm_tasks are final'); END;
CREATE TRIGGER swarm_facts_no_update BEFORE UPDATE ON swarm_facts
BEGIN SELECT raise(ABORT, 'rows of swarm_facts are final'); END;
CREATE TRIGGER swarm_cancels_no_update BEFORE UPDATE ON swarm_cancels
BEGIN SELECT raise(ABORT, 'rows of swarm_cancels are final'); END;
CREATE TRIGGER swarm_session_ends_no_update BEFORE UPDATE ON swarm_session_ends
BEGIN SELECT raise(ABORT, 'rows of swarm_session_ends are final'); END;
CREATE TRIGGER swarm_sessions_no_update BEFORE UPDATE ON swarm_sessions
BEGIN SELECT raise(ABORT, 'rows of swarm_sessions are final'); END;
CREATE TRIGGER swarm_runs_no_update BEFORE UPDATE ON swarm_runs
BEGIN SELECT raise(ABORT, 'rows of swarm_runs are final'); END;
CREATE TRIGGER swarm_steps_no_delete BEFORE DELETE ON swarm_steps
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_steps are final'); END;
CREATE TRIGGER swarm_attempts_no_delete BEFORE DELETE ON swarm_attempts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_attempts are final'); END;
CREATE TRIGGER swarm_results_no_delete BEFORE DELETE ON swarm_results
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_results are final'); END;
CREATE TRIGGER swarm_tasks_no_delete BEFORE DELETE ON swarm_tasks
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_tasks are final'); END;
CREATE TRIGGER swarm_facts_no_delete BEFORE DELETE ON swarm_facts
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_facts are final'); END;
CREATE TRIGGER swarm_cancels_no_delete BEFORE DELETE ON swarm_cancels
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_cancels are final'); END;
CREATE TRIGGER swarm_session_ends_no_delete BEFORE DELETE ON swarm_session_ends
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_session_ends are final'); END;
CREATE TRIGGER swarm_sessions_no_delete BEFORE DELETE ON swarm_sessions
WHEN OLD.run_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_sessions are final'); END;
CREATE TRIGGER swarm_runs_no_delete BEFORE DELETE ON swarm_runs
WHEN OLD.id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of swarm_runs are final'); END;
CREATE VIEW v_swarm_runs AS
SELECT
    swarm_runs.id AS run_id,
    swarm_runs.kind,
    swarm_runs.name,
    datetime(swarm_runs.created_at, 'unixepoch') AS created_utc,
    datetime(swarm_session_ends.ended_at, 'unixepoch') AS ended_utc,
    coalesce(swarm_session_ends.outcome, 'no end recorded') AS outcome,
    swarm_session_ends.error,
    swarm_runs.url,
    swarm_runs.model,
    swarm_sessions.simulated,
    coalesce(swarm_sessions.number, 0) AS sessions,
    (SELECT count(key) FROM swarm_tasks WHERE run_id = swarm_runs.id) AS tasks,
    (SELECT count(task) FROM swarm_results WHERE run_id = swarm_runs.id AND ending = 'done') AS done,
    (SELECT count(task) FROM swarm_results WHERE run_id = swarm_runs.id AND ending = 'failed') AS failed,
    (SELECT count(swarm_attempts.id) FROM swarm_attempts WHERE run_id = swarm_runs.id) AS attempts,
    (SELECT sum(output_tokens) FROM swarm_results WHERE run_id = swarm_runs.id) AS output_tokens,
    (SELECT max(swarm_results.ended_at) - min(swarm_results.started_at) FROM swarm_results
        WHERE run_id = swarm_runs.id) AS span_s,
    swarm_runs.skep_version
FROM swarm_runs
LEFT JOIN swarm_sessions ON swarm_sessions.run_id = swarm_runs.id
    AND swarm_sessions.number = (SELECT max(number) FROM swarm_sessions WHERE run_id = swarm_runs.id)
LEFT JOIN swarm_session_ends ON swarm_session_ends.run_id = swarm_sessions.run_id
    AND swarm_session_ends.number = swarm_sessions.number;
CREATE VIEW v_swarm_tasks AS
SELECT
    swarm_tasks.run_id,
    swarm_tasks.id AS task,
    swarm_tasks.stage,
    coalesce(swarm_results.ending, 'no result') AS ending,
    swarm_results.tries,
    swarm_results.ended_at - swarm_results.started_at AS total_s,
    strftime('%Y-%m-%d %H:%M:%f', swarm_results.started_at, 'unixepoch') AS started_utc,
    strftime('%Y-%m-%d %H:%M:%f', swarm_results.ended_at, 'unixepoch') AS ended_utc,
    swarm_results.prompt_tokens,
    swarm_results.output_tokens,
    swarm_results.finish_reason,
    swarm_results.replica,
    swarm_results.error_kind,
    swarm_results.error,
    swarm_results.answer,
    swarm_results.value,
    swarm_tasks.document
FROM swarm_tasks LEFT JOIN swarm_results ON swarm_results.task = swarm_tasks.key;
CREATE VIEW v_swarm_attempts AS
SELECT
    swarm_attempts.run_id,
    swarm_tasks.id AS task,
    swarm_attempts.session,
    swarm_attempts.number,
    swarm_attempts.agent,
    swarm_attempts.why,
    swarm_attempts.outcome,
    strftime('%Y-%m-%d %H:%M:%f', swarm_attempts.started_at, 'unixepoch') AS started_utc,
    swarm_attempts.ended_at - swarm_attempts.started_at AS total_s,
    (swarm_attempts.first_token_at - swarm_attempts.started_at) * 1000 AS ttft_ms,
    swarm_attempts.queued_ms,
    swarm_attempts.requests,
    swarm_attempts.prompt_tokens,
    swarm_attempts.output_tokens,
    swarm_attempts.decode_ms,
    swarm_attempts.status,
    swarm_attempts.error_kind,
    swarm_attempts.error,
    swarm_attempts.finish_reason,
    swarm_attempts.replica
FROM swarm_attempts JOIN swarm_tasks ON swarm_tasks.key = swarm_attempts.task;
CREATE INDEX files_by_owner ON files (owner, number);
CREATE INDEX batches_by_owner ON batches (owner, number);
CREATE TRIGGER files_no_update BEFORE UPDATE ON files
BEGIN SELECT raise(ABORT, 'rows of files are final'); END;
CREATE TRIGGER batches_no_update BEFORE UPDATE ON batches
BEGIN SELECT raise(ABORT, 'rows of batches are final'); END;
CREATE TRIGGER batch_events_no_update BEFORE UPDATE ON batch_events
BEGIN SELECT raise(ABORT, 'rows of batch_events are final'); END;
CREATE TRIGGER batch_requests_no_update BEFORE UPDATE ON batch_requests
BEGIN SELECT raise(ABORT, 'rows of batch_requests are final'); END;
CREATE TRIGGER batch_results_no_update BEFORE UPDATE ON batch_results
BEGIN SELECT raise(ABORT, 'rows of batch_results are final'); END;
CREATE TRIGGER batch_events_not_after_end BEFORE INSERT ON batch_events
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END;
CREATE TRIGGER batch_requests_not_after_end BEFORE INSERT ON batch_requests
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END;
CREATE TRIGGER batch_results_not_after_end BEFORE INSERT ON batch_results
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END;
CREATE INDEX tunings_by_time ON tunings (created_at);
CREATE INDEX tuning_presets_by_tuning ON tuning_presets (tuning_id);
CREATE TRIGGER tuning_presets_no_update BEFORE UPDATE ON tuning_presets
BEGIN SELECT raise(ABORT, 'rows of tuning_presets are final'); END;
CREATE TRIGGER tuning_stages_no_update BEFORE UPDATE ON tuning_stages
BEGIN SELECT raise(ABORT, 'rows of tuning_stages are final'); END;
CREATE TRIGGER tuning_answers_no_update BEFORE UPDATE ON tuning_answers
BEGIN SELECT raise(ABORT, 'rows of tuning_answers are final'); END;
CREATE TRIGGER tuning_session_ends_no_update BEFORE UPDATE ON tuning_session_ends
BEGIN SELECT raise(ABORT, 'rows of tuning_session_ends are final'); END;
CREATE TRIGGER tuning_sessions_no_update BEFORE UPDATE ON tuning_sessions
BEGIN SELECT raise(ABORT, 'rows of tuning_sessions are final'); END;
CREATE TRIGGER tunings_no_update BEFORE UPDATE ON tunings
BEGIN SELECT raise(ABORT, 'rows of tunings are final'); END;
CREATE TRIGGER tuning_presets_no_delete BEFORE DELETE ON tuning_presets
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_presets are final'); END;
CREATE TRIGGER tuning_stages_no_delete BEFORE DELETE ON tuning_stages
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_stages are final'); END;
CREATE TRIGGER tuning_answers_no_delete BEFORE DELETE ON tuning_answers
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_answers are final'); END;
CREATE TRIGGER tuning_session_ends_no_delete BEFORE DELETE ON tuning_session_ends
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_session_ends are final'); END;
CREATE TRIGGER tuning_sessions_no_delete BEFORE DELETE ON tuning_sessions
WHEN OLD.tuning_id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tuning_sessions are final'); END;
CREATE TRIGGER tunings_no_delete BEFORE DELETE ON tunings
WHEN OLD.id NOT IN (SELECT run_id FROM deleting)
BEGIN SELECT raise(ABORT, 'rows of tunings are final'); END;
CREATE TRIGGER tuning_sessions_not_after_end BEFORE INSERT ON tuning_sessions
WHEN EXISTS (SELECT 1 FROM tuning_session_ends WHERE tuning_id = NEW.tuning_id AND outcome = 'done')
BEGIN SELECT raise(ABORT, 'the tuning has ended'); END;
CREATE TRIGGER tuning_session_ends_not_after_end BEFORE INSERT ON tuning_session_ends
WHEN EXISTS (SELECT 1 FROM tuning_session_ends WHERE tuning_id = NEW.tuning_id AND outcome = 'done')
BEGIN SELECT raise(ABORT, 'the tuning has ended'); END;
CREATE TRIGGER tuning_answers_not_after_end BEFORE INSERT ON tuning_answers
WHEN EXISTS (SELECT 1 FROM tuning_session_ends WHERE tuning_id = NEW.tuning_id AND outcome = 'done')
BEGIN SELECT raise(ABORT, 'the tuning has ended'); END;
CREATE TRIGGER tuning_stages_not_after_end BEFORE INSERT ON tuning_stages
WHEN EXISTS (SELECT 1 FROM tuning_session_ends WHERE tuning_id = NEW.tuning_id AND outcome = 'done')
BEGIN SELECT raise(ABORT, 'the tuning has ended'); END;
CREATE VIEW v_tunings AS
SELECT
    tunings.id AS tuning_id,
    datetime(tunings.created_at, 'unixepoch') AS created_utc,
    datetime(tuning_session_ends.ended_at, 'unixepoch') AS ended_utc,
    coalesce(tuning_session_ends.outcome, 'no end recorded') AS outcome,
    tuning_session_ends.reason,
    tunings.model,
    tunings.engine,
    tunings.rig,
    tunings.goal,
    tunings.shape,
    tunings.slo,
    tunings.budget_s,
    tunings.simulated,
    coalesce(tuning_sessions.number, 0) AS sessions,
    (SELECT count(number) FROM tuning_answers WHERE tuning_id = tunings.id) AS answers,
    (SELECT sum(seconds) FROM tuning_answers WHERE tuning_id = tunings.id) AS measured_s,
    (SELECT count(number) FROM tuning_stages WHERE tuning_id = tunings.id) AS stages,
    (SELECT count(number) FROM tuning_stages WHERE tuning_id = tunings.id AND decision = 'accepted') AS accepted,
    (SELECT figure FROM tuning_stages WHERE tuning_id = tunings.id AND number = 0) AS baseline_figure,
    (SELECT kept.figure FROM tuning_stages AS kept
        WHERE kept.tuning_id = tunings.id AND kept.decision IN ('baseline', 'accepted') AND NOT EXISTS (
            SELECT 1 FROM tuning_stages AS later WHERE later.tuning_id = kept.tuning_id
            AND later.number > kept.number AND later.config = kept.config AND later.decision = 'failed'
        ) ORDER BY kept.number DESC LIMIT 1) AS best_figure,
    tunings.skep_version
FROM tunings
LEFT JOIN tuning_sessions ON tuning_sessions.tuning_id = tunings.id
    AND tuning_sessions.number = (SELECT max(number) FROM tuning_sessions WHERE tuning_id = tunings.id)
LEFT JOIN tuning_session_ends ON tuning_session_ends.tuning_id = tuning_sessions.tuning_id
    AND tuning_session_ends.number = tuning_sessions.number;
CREATE VIEW v_tuning_stages AS
SELECT
    tuning_stages.tuning_id,
    tuning_stages.number AS stage,
    strftime('%Y-%m-%d %H:%M:%f', tuning_stages.at, 'unixepoch') AS decided_utc,
    tuning_stages.title AS change,
    tuning_stages.decision,
    tuning_stages.why,
    tuning_stages.figure,
    tuning_stages.figure_low,
    tuning_stages.figure_high,
    tuning_stages.ratio,
    tuning_stages.ratio_low,
    tuning_stages.ratio_high,
    tuning_stages.predicted_ratio,
    tuning_stages.ttft_ms,
    tuning_stages.tpot_ms,
    tuning_stages.starts,
    tuning_stages.readings,
    tuning_stages.seconds,
    tuning_stages.failure_kind,
    tuning_stages.failure,
    tuning_stages.config,
    tunings.goal,
    tunings.shape,
    tunings.simulated
FROM tuning_stages JOIN tunings ON tunings.id = tuning_stages.tuning_id;
CREATE TRIGGER batch_beginnings_no_update BEFORE UPDATE ON batch_beginnings
BEGIN SELECT raise(ABORT, 'rows of batch_beginnings are final'); END;
CREATE TRIGGER batch_beginnings_not_after_end BEFORE INSERT ON batch_beginnings
WHEN EXISTS (
    SELECT 1 FROM batch_events WHERE batch_id = NEW.batch_id
    AND status IN ('completed', 'failed', 'expired', 'cancelled')
)
BEGIN SELECT raise(ABORT, 'the batch has ended'); END;
CREATE INDEX gateway_requests_by_session ON gateway_requests (session, arrived_at) WHERE session IS NOT NULL;
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
CREATE TRIGGER gateway_requests_no_update BEFORE UPDATE ON gateway_requests
BEGIN SELECT raise(ABORT, 'rows of gateway_requests are final'); END;
COMMIT;
PRAGMA user_version = 10;
PRAGMA application_id = 1397441872;
