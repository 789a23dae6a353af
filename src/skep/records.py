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
    kind: str  # "sweep", "serial-vs-swarm", "ab", "matrix", "open", "classes", "replay", "mixed", "quality", ...
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
    queue_ms: float | None = None  # inside the engine, before it began


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client saw it, with the engine's own figures beside it. Tokens come from `usage`."""

    level: int  # concurrency asked for; 0 for warm-up
    repeat: int  # 0, 1, ...: which run of that level
    index: int  # which task of that run
    kind: str  # implement, test, fix, refactor, document; replay
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
    arrivals_s: tuple[float, ...] = ()  # of each event that carried content; equal where one read brought several
    prompt: str | None = None  # None: left unstored
    answer: str | None = None
    reasoning: str | None = None  # streamed apart from the answer; None: left unstored, or there was none
    traffic: str = ""  # which kind of traffic, where a load mixes several
    scheduled_s: float | None = None  # when it was to be sent, where a schedule says so
    session: int | None = None  # which conversation, and which of its turns, from 0
    turn: int | None = None

    @property
    def ok(self) -> bool:
        return self.error_kind is None

    @property
    def due_s(self) -> float:
        """What latency counts from: a late client must not make a server look quick."""
        return self.started_s if self.scheduled_s is None else min(self.scheduled_s, self.started_s)


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
class Interval:
    """`estimate` is the statistic of the sample itself; low <= high."""

    low: float
    estimate: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def half_width(self) -> float:
        """As a share of the estimate: 0.03 is +- 3 %."""
        return (self.high - self.low) / 2 / abs(self.estimate) if self.estimate else float("inf")

    @property
    def upper_width(self) -> float:
        """From the estimate up, as a share of it: the whole half of an interval that was cut at zero."""
        return (self.high - self.estimate) / abs(self.estimate) if self.estimate else float("inf")


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """One run of one level."""

    repeat: int
    wall_s: float
    output_tokens: int
    effective_tok_s: float
    plateau_tok_s: float | None = None
    client_limited: bool = False
    counted: bool = True  # False: left out of the level's figures
    why: str = ""  # the client was the limit


@dataclass(frozen=True, slots=True)
class Energy:
    """What the GPUs drew while a level ran. Absent where nothing measures it."""

    joules: float
    seconds: float
    joules_per_token: float | None
    mean_w: float
    max_w: float
    throttled: tuple[str, ...] = ()  # reasons seen: "power cap", "thermal", ...
    source: str = "NVML"  # "NVML energy counter" | "NVML power samples"


class Clock(Enum):
    """Which of the engine's figures stands against which of the client's."""

    DECODE = "decode speed"
    FIRST_TOKEN = "time to first token"  # noqa: S105
    TOKENS = "output tokens"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Client and engine say different things of the same requests, with the likely cause."""

    clock: Clock
    client: float
    engine: float
    cause: str


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """All runs of one level together. Figures are of the runs that count; `wall_s` is the sum over them."""

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
    traffic: str = ""  # of which kind of traffic; "": of all together
    thinking: bool = False  # agents in conversation, who pause between turns: fewer than C are in flight
    effective_interval: Interval | None = None  # 95 %, of the mean over runs; None with fewer than three
    ttft_interval: Interval | None = None  # 95 %, of the runs' medians, in ms
    tpot_interval: Interval | None = None
    plateau_tok_s: float | None = None  # while at least 95 % of C were in flight; None: that was never so
    task_tok_s_whole: float | None = None  # median over tasks of tokens / (last token - sending): TTFT included
    first_byte_ms: Percentiles | None = None
    gap_ms: Percentiles | None = None  # between two tokens, over all tokens of all requests
    total_ms: Percentiles | None = None  # from sending (or when it was due) to the end
    queued_ms: Percentiles | None = None  # in skep's gateway
    prompt_tokens: float | None = None  # mean of a request
    output_tokens_each: float | None = None  # mean of a request
    delivered: float | None = None  # requests really in flight while the level was full, as a share of C
    finish_reasons: tuple[tuple[str, int], ...] = ()
    errors: tuple[tuple[str, int], ...] = ()  # by kind
    energy: Energy | None = None
    clocks: tuple[Disagreement, ...] = ()
    late_ms: float | None = None  # load processes began so much too late; None: in time

    @property
    def counted(self) -> tuple[RepeatSummary, ...]:
        """The runs that its figures are made of."""
        return tuple(repeat for repeat in self.repeats if repeat.counted)

    @property
    def left_out(self) -> tuple[RepeatSummary, ...]:
        return tuple(repeat for repeat in self.repeats if not repeat.counted)


@dataclass(frozen=True, slots=True)
class Speedup:
    """The same tasks one after the other and all at once. Given in several ways, as answers differ in length."""

    tasks: int  # of one run
    concurrency: int
    serial_wall_s: float  # of one run, the mean
    swarm_wall_s: float
    by_wall: float
    by_tokens: float | None  # ratio of effective tok/s
    by_wall_whole: float | None  # by wall time of the tasks truncated in neither batch
    by_tokens_whole: float | None
    truncated_serial: int
    truncated_swarm: int
    tokens_serial: int
    tokens_swarm: int


@dataclass(frozen=True, slots=True)
class Turning:
    """Where a curve of effective tok/s against C turns. Each bracket holds the point with the confidence given."""

    knee: int | None  # the smallest measured C from which on nothing is gained; None: it still grows, or not known
    knee_bracket: tuple[int, int] | None  # it lies in (low, high]; low is 0 where the first level is the knee
    cliff: int | None  # the last measured C before it falls; None: it does not, or not known
    cliff_bracket: tuple[int, int] | None  # it falls between the two
    drop_pct: float | None  # from the best level to the lowest beyond the cliff
    sure: bool  # nothing is left open by the spread of the runs
    unclear: tuple[int, ...] = ()  # levels that their runs do not tell apart; () and not sure: no level was run twice


@dataclass(frozen=True, slots=True)
class Promise:
    """Which levels kept the limits asked for. `safe`: the highest C that did, with none below it that did not."""

    limits: str
    highest_met: int | None
    lowest_failed: int | None
    safe: int | None


class Judgement(Enum):
    BETTER = "better"
    WORSE = "worse"
    SAME = "not distinguishable"
    UNKNOWN = "not comparable"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one level in two runs. `ratio` is B over A; better and worse know which way is up."""

    concurrency: int
    metric: str  # "effective tok/s", "TTFT p50", ...
    a: float | None
    b: float | None
    ratio: Interval | None
    judgement: Judgement
    why: str = ""  # where it is not comparable


@dataclass(frozen=True, slots=True)
class SweepSummary:
    run_id: str
    levels: tuple[LevelSummary, ...]
    serial_wall_s: float | None
    swarm_wall_s: float | None
    speedup: float | None
    client_limited: bool
    classes: tuple[LevelSummary, ...] = ()  # by kind of traffic, where a load mixes several
    turning: Turning | None = None
    speedups: Speedup | None = None
    promise: Promise | None = None
    drift: Interval | None = None  # C=1 at the end over C=1 at the beginning: 1 means none
    simulated: bool = False  # no model ran: the speed is made up or predicted


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
