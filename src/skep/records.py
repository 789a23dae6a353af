"""The frozen values that all layers speak: runs, requests, summaries, findings.

Knows nothing of where they are stored or shown. `None` means unknown, never zero.
Times ending in `_s` inside a request are seconds since its run began, on one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class RunState(Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INCOMPLETE = "incomplete"  # the writer vanished before it could say how the run ended

    @property
    def is_final(self) -> bool:
        return self is not RunState.RUNNING


@dataclass(frozen=True, slots=True)
class Run:
    """One benchmark run as stored. `config`, `host` and `engine` are JSON objects, kept as they were."""

    id: str
    kind: str  # "sweep"
    state: RunState
    created_at: float  # unix time
    ended_at: float | None
    model: str
    url: str
    fingerprint: str  # digest of workload, engine version and host: equal for repeats
    config: Mapping[str, Any]  # concurrency, tasks, runs, max_tokens, seed, ...
    host: Mapping[str, Any]  # what `HostFacts.as_json` gives; the client's machine
    engine: Mapping[str, Any]  # what the endpoint told: version, slots, replicas, model file
    simulated: bool
    skep_version: str
    error: str | None = None
    requests: int = 0  # rows stored so far


@dataclass(frozen=True, slots=True)
class EngineTimings:
    """What the engine itself reported for one request."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, taken from a cache
    prompt_ms: float | None = None
    output_tokens: int | None = None
    decode_ms: float | None = None
    decode_tok_s: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client saw it, with the engine's own figures beside it. Tokens come from `usage`."""

    level: int  # concurrency asked for; 0 for warm-up
    repeat: int  # 0, 1, ...: which run of that level
    index: int  # which task of that run
    kind: str  # implement, test, fix, document
    started_s: float
    ended_s: float
    first_byte_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    status: int | None = None  # HTTP status, None when no answer came
    error_kind: str | None = None  # None: the request succeeded
    error: str | None = None
    finish_reason: str | None = None
    replica: str | None = None
    queued_ms: float | None = None
    engine: EngineTimings = field(default_factory=EngineTimings)
    arrivals_s: tuple[float, ...] = ()  # arrival of each chunk that carried content
    prompt: str | None = None  # None: left unstored
    answer: str | None = None

    @property
    def ok(self) -> bool:
        return self.error_kind is None


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """One request as the gateway saw it, from its arrival to its one end. Seconds are after the arrival."""

    id: str
    arrived_at: float  # unix time
    path: str
    model: str | None
    priority: str  # "interactive" | "normal" | "batch"
    flow: str | None  # whose request: the name of an API key or of an agent
    replica: str | None
    attempts: int
    outcome: str  # "answered" | "refused": by the gateway itself | "broken": cut after its first byte | "hung_up"
    status: int | None
    code: str | None  # of the gateway's own error
    streamed: bool
    queued_s: float | None
    first_byte_s: float | None
    ended_s: float
    prompt_tokens: int | None  # tokens are None where nobody said
    cached_tokens: int | None
    output_tokens: int | None
    request_bytes: int
    response_bytes: int


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p95: float
    p99: float
    mean: float


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """One run of one level."""

    repeat: int
    wall_s: float
    output_tokens: int
    effective_tok_s: float


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """All runs of one level together. `wall_s` is the sum over its runs."""

    concurrency: int
    requests: int
    failed: int
    output_tokens: int
    wall_s: float
    effective_tok_s: float | None  # None: not one request succeeded
    effective_low: float | None  # slowest and fastest run of the level: the spread
    effective_high: float | None
    task_tok_s: float | None  # median over tasks of tokens / (last - first token)
    contention_pct: float | None  # None without C=1
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    engine_tok_s: float | None  # the engine's own decode speed per stream, median; None: it does not say
    cached_prompt_share: float | None
    truncated: int  # answers that ended at the token limit
    client_limited: bool
    repeats: tuple[RepeatSummary, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepSummary:
    run_id: str
    levels: tuple[LevelSummary, ...]
    serial_wall_s: float | None
    swarm_wall_s: float | None
    speedup: float | None
    client_limited: bool


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `skep doctor`. `hint` says what to do; None when there is nothing to do."""

    check: str
    verdict: Verdict
    detail: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    memory_bytes: int | None
    compute_capability: str | None = None
    pcie_generation: int | None = None  # as negotiated now; an idle card may drop to 1
    pcie_generation_max: int | None = None
    pcie_lanes: int | None = None
    pcie_lanes_max: int | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    os: str
    machine: str  # x86_64, aarch64
    python: str
    cpu_model: str | None
    cpu_cores: int
    cpu_features: tuple[str, ...]
    memory_bytes: int | None
    memory_available_bytes: int | None
    open_files_soft: int | None
    open_files_hard: int | None
    driver_version: str | None = None
    cuda_version: str | None = None  # the newest CUDA that the driver carries
    gpus: tuple[Gpu, ...] = ()
    links: tuple[tuple[int, int, str], ...] = ()  # (gpu, gpu, "NV4" | "PIX" | "PHB" | ...)
