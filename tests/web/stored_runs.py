"""Stored benchmark runs with figures that are easy to foretell."""

import time

from running_site import folders

from sample_tuning import sample_tuning
from skep.paths import user_paths
from skep.store.database import open_store
from skep.store.records import GatewayRequest, Request
from skep.tuner.store import TuningStore

HOST = {
    "cpu_model": "Test CPU",
    "cpu_cores": 4,
    "memory_bytes": 16 << 30,
    "gpus": [],
    "driver_version": "570",
}
RTX = {**HOST, "gpus": [{"name": "NVIDIA GeForce RTX 3090"}, {"name": "NVIDIA GeForce RTX 3090"}]}
ENGINE = {"engine": "vllm", "version": "0.19", "slots": 4, "replicas": 1}
SIMULATED = "simulated: qwen3-8b AWQ 4-bit, KV BF16, 2 x TP=1 on 2x rtx-3090, as vllm"
WORKLOAD = {"max_tokens": 64, "seed": 1}
DAY = 86400.0
PROMPT = "a prompt of somebody"
ANSWER = "an answer of the model"


def requests(levels, tokens=100, *, slow=1.0, failed=0):
    """At each level as many as its number, all at once for a second: `tokens` tok/s each, divided
    by `slow`.
    """
    begin = 0.0
    for level in levels:
        for index in range(level):
            bad = index < failed
            yield Request(
                level,
                0,
                index,
                "implement",
                begin,
                begin + slow,
                first_byte_s=begin + 0.1,
                first_token_s=begin + 0.1,
                last_token_s=begin + slow,
                prompt_tokens=50,
                output_tokens=0 if bad else tokens,
                status=500 if bad else 200,
                error_kind="http" if bad else None,
                error="10.9.8.7 is cross" if bad else None,
                finish_reason="stop",
                prompt=PROMPT,
                answer=ANSWER,
            )
        begin += slow + 1


def put_run(
    store,
    place,
    *,
    levels=(1, 2, 4),
    tokens=100,
    failed=0,
    end="done",
    why="10.9.8.7 went away",
    **changed,
):
    """One more, `place` days after the first. `end`: None for one whose writer is still there."""
    facts = {
        "kind": "sweep",
        "model": "qwen3-8b",
        "url": "http://127.0.0.1:8400/v1",
        "fingerprint": "f" * 16,
        "config": {"concurrency": list(levels), "workload": WORKLOAD},
        "host": RTX,
        "engine": ENGINE,
        "simulated": False,
        "skep_version": "0.1.0",
    }
    run = store.begin_run(created_at=1_790_000_000.0 + place * DAY, **{**facts, **changed})
    store.append_requests(run, requests(levels, tokens, failed=failed))
    if end is not None:
        store.end_run(run, 1_790_000_100.0 + place * DAY, end, None if end == "done" else why)
    return run


def gateway_request(arrived_at, **changed):
    """A streamed request that the gateway answered."""
    facts = {
        "id": "x", "path": "/v1/chat/completions", "model": "m", "priority": "normal",
        "flow": None, "replica": "m-0", "attempts": 1, "outcome": "answered", "status": 200,
        "code": None, "streamed": True, "queued_s": 0.0, "first_byte_s": 0.1, "ended_s": 9.0,
        "prompt_tokens": 1, "cached_tokens": None, "output_tokens": 1, "request_bytes": 1,
        "response_bytes": 1,
    }  # fmt: skip
    return GatewayRequest(arrived_at=arrived_at, **{**facts, **changed})


def put_session(store):
    """A stored session of one turn; its id."""
    names = {"session": "3fa90b12", "conversation": "3fa90b12"}
    store.append_gateway_requests([gateway_request(time.time() - 60, turn=1, **names)])
    return names["session"]


def put_tuning(store, stages, *, end="done", reason=None, **changed):
    """A stored tuning of which this process is the writer; its id.

    `end`: None for one that still runs.
    """
    tunings = TuningStore(store)
    tuning = sample_tuning(**changed)
    tuning_id = tunings.begin(tuning)
    began = tuning.created_at
    session = tunings.begin_session(tuning_id, began)
    tunings.append(tuning_id, stages, began + 60)
    if end is not None:
        tunings.end_session(tuning_id, session, at=began + 90, outcome=end, reason=reason)
    return tuning_id


def installation(place, *fills):
    """Paths whose store was filled by each of `fills(store)`."""
    paths = user_paths(folders(place))
    with open_store(paths.store) as store:
        for fill in fills:
            fill(store)
    return paths
