"""Figures derived from the requests of a run. `None` means unknown, never zero."""

from __future__ import annotations

from enum import Enum

import msgspec

from skep.stats.percentiles import Percentiles
from skep.stats.turning import Turning
from skep.stats.versus import Judgement
from skep.units import Interval


class RepeatSummary(msgspec.Struct, frozen=True):
    """One run of one level."""

    repeat: int
    wall_s: float
    output_tokens: int
    effective_tok_s: float
    plateau_tok_s: float | None = None
    client_limited: bool = False
    counted: bool = True  # False: left out of the level's figures
    why: str = ""  # the client was the limit


class Energy(msgspec.Struct, frozen=True):
    """Energy that the GPUs used while a level ran. Absent where nothing measures it."""

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


class Disagreement(msgspec.Struct, frozen=True):
    """Client and engine say different things of the same requests, with the likely cause."""

    clock: Clock
    client: float
    engine: float
    cause: str


class LevelSummary(msgspec.Struct, frozen=True):
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


class Speedup(msgspec.Struct, frozen=True):
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


class Promise(msgspec.Struct, frozen=True):
    """Which levels kept the limits asked for. `safe`: the highest C that did, with none below it that did not."""

    limits: str
    highest_met: int | None
    lowest_failed: int | None
    safe: int | None


class Comparison(msgspec.Struct, frozen=True):
    """One figure of one level in two runs. `ratio` is B over A; better and worse know which way is up."""

    concurrency: int
    metric: str  # "effective tok/s", "TTFT p50", ...
    a: float | None
    b: float | None
    ratio: Interval | None
    judgement: Judgement
    why: str = ""  # where it is not comparable


class SweepSummary(msgspec.Struct, frozen=True):
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
