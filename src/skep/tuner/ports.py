"""What the climb asks for and of whom: errands, the terrain it climbs on, and the bench that measures.

`skep.tuner.search` decides, a `Bench` carries out. A climb that is given the same answers asks for the same errands, so
that a stored one is taken up by giving it the stored answers again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from skep.catalog.presets import Preset
from skep.tuner.records import Config, Curved, Failure, Judged, Knob, Round


@dataclass(frozen=True, slots=True)
class Measure:
    """Start each of these once and take so many readings of each, in turns: A B, B A, A B, ..."""

    configs: tuple[Config, ...]  # the best so far first, then its challengers
    readings: int
    purpose: str  # "baseline" | "screen" | "confirm"
    words: str  # for who watches: "graphs off → on, start 2"


@dataclass(frozen=True, slots=True)
class Judge:
    """Does the second answer as well as the first?"""

    incumbent: Config
    challenger: Config


@dataclass(frozen=True, slots=True)
class Curve:
    """Effective tok/s of these over concurrency, in turns."""

    configs: tuple[Config, ...]
    levels: tuple[int, ...]


Errand = Measure | Judge | Curve
Answer = Round | Judged | Curved


class Terrain(Protocol):
    """What can be turned here, and what is known of it before anything is measured. Pure."""

    @property
    def knobs(self) -> tuple[Knob, ...]: ...

    @property
    def pairs(self) -> Sequence[tuple[str, str]]:
        """Knobs that are worth turning again, or together, when the other one has been turned."""

    def refusal(self, config: Config) -> str | None:
        """Why it cannot be started at all, by a rule or by memory; None: it may be tried."""

    def foresee(self, config: Config) -> float | None:
        """The goal's figure as the planner expects it; None: it has nothing to say on this."""

    def spare_bytes(self, config: Config) -> float | None:
        """What the planner expects to be left of a card's memory; None: it has nothing to say on this."""

    def start_s(self, config: Config) -> float:
        """How long a start is expected to take."""

    def reading_s(self, config: Config) -> float:
        """How long one reading is expected to take."""


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """What goes on inside an errand."""

    config: Config
    what: str  # "starting" | "warming up" | "measuring" | "stopping" | "judging"
    reading: int = 0  # of this configuration, from 1
    readings: int = 0
    tok_s: float | None = None


OnProgress = Callable[[BenchProgress], None]


class Bench(Protocol):
    """Carries errands out, on real engines or on a rig in virtual time."""

    @property
    def simulated(self) -> bool: ...

    async def measure(self, errand: Measure, on_progress: OnProgress) -> Round: ...

    async def judge(self, errand: Judge, on_progress: OnProgress) -> Judged: ...

    async def curve(self, errand: Curve, on_progress: OnProgress) -> Curved: ...


@dataclass(frozen=True, slots=True)
class Served:
    """One configuration that answers. `trouble`: why it no longer does; None while it does."""

    url: str
    model: str
    start_s: float  # from the start of its first process until it answered
    trouble: Callable[[], Failure | None]
    last_words: Callable[[], str | None] = lambda: None  # the last line of its logs that complains


class DidNotStart(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class House(Protocol):
    def together(self, presets: Sequence[Preset]) -> bool:
        """Whether they may be up at the same time without taking memory or cards from each other."""

    def open(self, preset: Preset) -> AbstractAsyncContextManager[Served]:
        """Up until the block ends, on any end. Raises DidNotStart."""


def of_these_knobs(failure: Failure, config: Config) -> Failure:
    """Without remedies that are no knob of this configuration, or that it has already."""
    known = config.as_dict
    mended = tuple((knob, value) for knob, value in failure.mended if knob in known and known[knob] != value)
    return replace(failure, mended=mended)
