"""What a tuning is made of: configurations, what the search asks for and is told of them, and the
stages it decides.

`skep.tuner.search` decides, a `Bench` carries out. A search that is given the same answers makes
the same requests, so that a stored one is taken up by giving it the stored answers again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from skep.units import Interval

Value = str | int | float | bool | None


class KnobChange(msgspec.Struct, frozen=True):
    knob: str
    before: Value
    after: Value

    def __str__(self) -> str:
        return f"{self.knob} {value_words(self.before)} → {value_words(self.after)}"


class KnobConfig(msgspec.Struct, frozen=True, dict=True):
    """One configuration: a value for every knob, in the order of their names."""

    values: tuple[tuple[str, Value], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.values)

    @cached_property
    def as_dict(self) -> dict[str, Value]:
        """Not to be written to."""
        return dict(self.values)

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> KnobConfig:
        return cls(tuple(sorted(values.items())))

    def __getitem__(self, knob: str) -> Value:
        return self.as_dict[knob]

    def get(self, knob: str, default: Value = None) -> Value:
        return self.as_dict.get(knob, default)

    def turned(self, changes: Mapping[str, Value]) -> KnobConfig:
        return KnobConfig.of({**self.as_dict, **changes})

    def changes_from(self, knob_config: KnobConfig) -> tuple[KnobChange, ...]:
        """Return what makes this one out of the other."""
        as_dict = knob_config.as_dict
        return tuple(
            KnobChange(knob, as_dict.get(knob), value)
            for knob, value in self.values
            if as_dict.get(knob) != value
        )

    @property
    def key(self) -> str:
        """Short, and equal for equal configurations."""
        return hashlib.sha256(json.dumps(self.values).encode()).hexdigest()[:8]


class Knob(msgspec.Struct, frozen=True):
    """Something that can be turned.

    `ordered`: its values are a ladder, to be searched by bracketing.
    """

    name: str
    title: str
    values: tuple[Value, ...]
    ordered: bool = False
    # a faster value may answer worse: the quality guard looks before it is accepted
    alters_answers: bool = False
    expected: float = 0.02  # share gained by turning it, where nobody can foresee it
    along: bool = False  # it is turned only together with another one that does not fit without it


class ConfigFailure(msgspec.Struct, frozen=True):
    """A dead end: what happened, the line of the log that says so, and what would mend it."""

    kind: str  # of FAILURES
    cause: str
    evidence: str | None = None
    remedy: str | None = None

    @property
    def title(self) -> str:
        """What it did: "ran out of memory"."""
        return FAILURES.get(self.kind, self.kind)

    @property
    def is_of_memory(self) -> bool:
        return self.kind == OUT_OF_MEMORY

    def __str__(self) -> str:
        text = self.cause
        if self.evidence and self.evidence not in self.cause:
            text += f" ({self.evidence})"
        if self.remedy:
            text += f"; {self.remedy}"
        return text


OUT_OF_MEMORY = "out-of-memory"
FAILURES = {
    "refused": "refused before the start",
    "no-start": "did not start",
    OUT_OF_MEMORY: "ran out of memory",
    "crash-under-load": "died under load after a good start",
    "errors-under-load": "answered with errors under load",
    "hang": "hung",
}


class SessionReading(msgspec.Struct, frozen=True):
    """What sessions got beside turns a minute. First tokens are of turns after a session's first.

    None: not known, or nobody told.
    """

    session_s: float | None = None  # one of the usual number of turns, pauses included
    first_p50_ms: float | None = None
    first_p95_ms: float | None = None
    hit_rate: float | None = None
    mean_w: float | None = None  # of all cards together

    def times(self, factor: float) -> SessionReading:
        """Return the figures of a machine that takes `factor` times as long."""
        names = ("session_s", "first_p50_ms", "first_p95_ms")
        known_times = {name: getattr(self, name) for name in names}
        longer = {name: value * factor for name, value in known_times.items() if value is not None}
        return replace(self, **longer)


class TuneReading(msgspec.Struct, frozen=True):
    """One run of the goal's load.

    `figure`: of the goal's metric, more is better; None: nothing was answered.
    """

    figure: float | None
    effective_tok_s: float | None
    task_tok_s: float | None
    ttft_ms: float | None  # median
    tpot_ms: float | None  # median
    wall_s: float
    requests: int
    failed: int = 0
    limited: bool = False  # the client was the limit: it does not count
    over_limit: float = 0.0  # the worst figure as a share of its limit; 1 or less is within
    sessions: SessionReading | None = None  # where sessions are the load

    @property
    def counts(self) -> bool:
        return self.figure is not None and self.figure > 0 and not self.limited


class ServerStart(msgspec.Struct, frozen=True):
    """One start of one configuration, and what was measured until it was stopped."""

    config: KnobConfig
    start_s: float  # until it answered
    readings: tuple[TuneReading, ...] = ()
    failure: ConfigFailure | None = None
    run_id: str | None = None  # under which its requests are stored

    @property
    def figures(self) -> tuple[float, ...]:
        return tuple(
            reading.figure
            for reading in self.readings
            if reading.counts and reading.figure is not None
        )


class MeasurementRound(msgspec.Struct, frozen=True):
    """Several configurations measured in turns, each started once.

    The nth readings of all stood side by side.
    """

    # In the request's order of configurations.
    starts: tuple[ServerStart, ...] = msgspec.field(name="sittings")
    seconds: float


class JudgeResult(msgspec.Struct, frozen=True):
    """What the quality guard found: whether the second configuration answers as well as the
    first.
    """

    ok: bool
    words: str  # "38 of 40 right against 39 of 40: not worse by more than 5 points"
    seconds: float
    skipped: bool = False  # it could not look, and says why


class StageDecision(StrEnum):
    BASELINE = "baseline"
    ACCEPTED = "accepted"
    WORSE = "worse"
    SAME = "not distinguishable"
    FAILED = "failed"
    OVER_LIMIT = "over the SLO"
    ANSWERS_WORSE = "answers worse"
    UNDECIDED = "not finished"  # time ran out, or was better spent


class TuneStage(msgspec.Struct, frozen=True):
    """One step of the ladder.

    `figure` and `ratio` have 95 % intervals, from the readings that decided.
    """

    number: int  # 0: the baseline
    changes: tuple[KnobChange, ...]  # against the best of that moment
    config: KnobConfig
    decision: StageDecision
    why: str
    figure: Interval | None = None
    ratio: Interval | None = None  # over the best of that moment
    predicted: float | None = None  # that ratio, as the planner foresaw it
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    starts: int = 0
    readings: int = 0
    seconds: float = 0.0  # that deciding it took, the other side's share included
    over_limit: float = 0.0  # as of a reading, in the middle
    failure: ConfigFailure | None = None
    runs: tuple[str, ...] = ()
    sessions: SessionReading | None = None  # in the middle

    @property
    def title(self) -> str:
        return ", ".join(map(str, self.changes)) or "baseline"


class SessionAim(msgspec.Struct, frozen=True):
    """The sessions of a goal: in the middle of their work, without sub-agents."""

    load: str  # their shape
    window_tokens: int  # that each may have
    turns: int = 1  # of each, in a reading


class TuneGoal(msgspec.Struct, frozen=True):
    """What is to grow: `metric` at `concurrency` agents under one shape of load, within limits."""

    metric: str  # of METRICS
    concurrency: int
    input_tokens: int = 512
    output_tokens: int = 128
    slo: str | None = None  # as `skep bench sweep --slo` takes it
    min_context: int | None = None
    # None: single tasks are the load. Else the tokens are those of a usual turn.
    sessions: SessionAim | None = None

    def __str__(self) -> str:
        return f"{self.metric}@{self.concurrency}"

    @property
    def shape(self) -> str:
        """Rows of different shapes are never ranked together."""
        if self.sessions is not None:
            window = f"{self.sessions.window_tokens:,} tokens of context"
            return f"{self.sessions.load} sessions, {window}, C={self.concurrency}"
        return f"{self.input_tokens} in, {self.output_tokens} out, C={self.concurrency}"


TURNS_MIN = "turns_min"  # the metric of sessions
METRICS = {
    "effective_tok_s": "output tokens over wall time, all agents together",
    "task_tok_s": "tokens a second that one agent sees while it is answered",
    TURNS_MIN: "turns a minute of all sessions together",
}


class Tuning(msgspec.Struct, frozen=True):
    """A search as it was begun.

    What became of it are its stages, in the order in which they were decided.
    """

    id: str
    created_at: float
    model: str
    engine: str
    rig: str  # in words: "2x rtx-3090", "this machine's CPU (2 cores)"
    aim: TuneGoal
    budget_s: float
    seed: int
    simulated: bool
    baseline: KnobConfig
    knobs: tuple[Knob, ...]
    base: Mapping[str, Any]  # the preset that configurations are turned from, as a document
    host: Mapping[str, Any]
    skep_version: str


def changes_words(config: KnobConfig, before: KnobConfig) -> str:
    """Return "slots 4 → 8, kv auto → fp8"."""
    return ", ".join(map(str, config.changes_from(before))) or "nothing"


def value_words(value: Value) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


class MeasureRequest(msgspec.Struct, frozen=True):
    """Start each of these once and take so many readings of each, in turns: A B, B A, A B, ..."""

    configs: tuple[KnobConfig, ...]  # the best so far first, then its challengers
    readings: int
    purpose: str  # "baseline" | "screen" | "confirm"
    words: str  # for who watches: "graphs off → on, start 2"


class JudgeRequest(msgspec.Struct, frozen=True):
    """Whether the challenger answers as well as the incumbent."""

    incumbent: KnobConfig
    challenger: KnobConfig

    @property
    def words(self) -> str:
        return f"are the answers as good? {changes_words(self.challenger, self.incumbent)}"


BenchRequest = MeasureRequest | JudgeRequest
BenchResult = MeasurementRound | JudgeResult


class BenchProgress(msgspec.Struct, frozen=True):
    config: KnobConfig
    activity: str  # "starting" | "warming up" | "measuring" | "stopping" | "judging"
    reading: int = 0  # of this configuration, from 1
    readings: int = 0
    tok_s: float | None = None


OnProgress = Callable[[BenchProgress], None]
# A request that begins, how it goes on, its answer and the stages that it decided; those two are
# stored by then.
TuneEvent = BenchRequest | BenchProgress | BenchResult | TuneStage


class Bench(Protocol):
    """Carries requests out, on real engines or on a rig in virtual time."""

    async def measure(
        self, request: MeasureRequest, on_progress: OnProgress
    ) -> MeasurementRound: ...

    async def judge(self, request: JudgeRequest, on_progress: OnProgress) -> JudgeResult: ...


class ConfigFailed(Exception):
    """A configuration that did not start, or no longer answers."""

    def __init__(self, failure: ConfigFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure
