"""What the search asks for and of whom: requests, the search space it works on, and the bench that measures.

`skep.tuner.search` decides, a `Bench` carries out. A search that is given the same answers makes the same requests, so
that a stored one is taken up by giving it the stored answers again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from skep.tuner.records import (
    ConfigFailure,
    CurveResult,
    JudgeResult,
    Knob,
    KnobConfig,
    MeasurementRound,
    changes_words,
)


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """Start each of these once and take so many readings of each, in turns: A B, B A, A B, ..."""

    configs: tuple[KnobConfig, ...]  # the best so far first, then its challengers
    readings: int
    purpose: str  # "baseline" | "screen" | "confirm"
    words: str  # for who watches: "graphs off → on, start 2"


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """Does the second answer as well as the first?"""

    incumbent: KnobConfig
    challenger: KnobConfig

    @property
    def words(self) -> str:
        return f"are the answers as good? {changes_words(self.challenger, self.incumbent)}"


@dataclass(frozen=True, slots=True)
class CurveRequest:
    """Effective tok/s of these over concurrency, in turns."""

    configs: tuple[KnobConfig, ...]
    levels: tuple[int, ...]

    @property
    def words(self) -> str:
        return f"the curve at C={','.join(map(str, self.levels))}"


BenchRequest = MeasureRequest | JudgeRequest | CurveRequest
BenchResult = MeasurementRound | JudgeResult | CurveResult


class SearchSpace(Protocol):
    """What can be turned here, and what is known of it before anything is measured. Pure."""

    @property
    def knobs(self) -> tuple[Knob, ...]: ...

    @property
    def pairs(self) -> Sequence[tuple[str, str]]:
        """Knobs that are worth turning again, or together, when the other one has been turned."""

    def refusal(self, config: KnobConfig) -> str | None:
        """Return why it cannot be started at all, by a rule or by memory; None: it may be tried."""

    def predict(self, config: KnobConfig) -> float | None:
        """Return the goal's figure as the planner expects it; None: it has nothing to say on this."""

    def spare_bytes(self, config: KnobConfig) -> float | None:
        """Return what the planner expects to be left of a card's memory; None: it has nothing to say on this."""

    def start_s(self, config: KnobConfig) -> float:
        """Return how long a start is expected to take."""

    def reading_s(self, config: KnobConfig) -> float:
        """Return how long one reading is expected to take."""


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """What goes on inside a request."""

    config: KnobConfig
    what: str  # "starting" | "warming up" | "measuring" | "stopping" | "judging"
    reading: int = 0  # of this configuration, from 1
    readings: int = 0
    tok_s: float | None = None


OnProgress = Callable[[BenchProgress], None]


class Bench(Protocol):
    """Carries requests out, on real engines or on a rig in virtual time."""

    async def measure(self, request: MeasureRequest, on_progress: OnProgress) -> MeasurementRound: ...

    async def judge(self, request: JudgeRequest, on_progress: OnProgress) -> JudgeResult: ...

    async def curve(self, request: CurveRequest, on_progress: OnProgress) -> CurveResult: ...


@dataclass(frozen=True, slots=True)
class ServedConfig:
    """One configuration that answers. `trouble`: why it no longer does; None while it does."""

    url: str
    model: str
    start_s: float  # from the start of its first process until it answered
    trouble: Callable[[], ConfigFailure | None]
    last_words: Callable[[], str | None] = lambda: None  # the last line of its logs that complains


class ConfigFailed(Exception):
    """A configuration that did not start, or no longer answers."""

    def __init__(self, failure: ConfigFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def drop_unusable_remedies(failure: ConfigFailure, config: KnobConfig) -> ConfigFailure:
    """Without remedies that are no knob of this configuration, or that it has already."""
    known = config.as_dict
    mended = tuple((knob, value) for knob, value in failure.mended if knob in known and known[knob] != value)
    return replace(failure, mended=mended)
