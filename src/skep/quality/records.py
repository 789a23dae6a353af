"""Frozen values of quality under load: a verdict names its request by level, repeat, index. `None`: not judged."""

from __future__ import annotations

import msgspec

from skep.stats.noninferiority import Claim, PairedDifference


class ArmFigures(msgspec.Struct, frozen=True):
    """Figures of one arm: outcomes by name, and latency of the same requests."""

    concurrency: int
    requests: int
    outcomes: tuple[tuple[str, int], ...]
    keyword_rate: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    total_p50_s: float | None = None
    total_p95_s: float | None = None
    effective_tok_s: float | None = None
    cached_share: float | None = None  # of the prompts, taken from a cache: their TTFT is too good


class LevelQuality(msgspec.Struct, frozen=True):
    """One level against C=1 on the same items."""

    concurrency: int
    difference: PairedDifference
    claim: Claim
    base: ArmFigures
    load: ArmFigures
    needed_items: int | None = None  # for delta, by the noise seen here; None where the claim holds
    texts_changed: float | None = None  # share of pairs whose answers are not the same text


class QualitySummary(msgspec.Struct, frozen=True):
    run_id: str
    bank: str
    delta: float  # 0.03: three points
    items: int
    noise: PairedDifference | None  # C=1 against C=1: what changes by itself
    noise_texts_changed: float | None
    levels: tuple[LevelQuality, ...]
    holds_up_to: int | None  # the highest C for which no loss beyond delta is claimed
    skipped: tuple[int, ...] = ()  # levels not walked, as one below them did not hold
    by_family: tuple[tuple[str, int, float], ...] = ()  # (family, items, base rate)
    simulated: bool = False
    incomplete: str = ""  # why, if the run was cut short


class TaskFigures(msgspec.Struct, frozen=True):
    """One turn or side task at one level: medians over repeats (and over rounds, if the side load is sustained)."""

    item: str  # "P1.1" | "S1"
    title: str
    runs: int
    ttft_ms: float | None
    seconds: float | None
    output_tokens: float | None
    tok_s: float | None  # tokens / (last - first token)
    passed: int
    judged: int


class PassLoss(msgspec.Struct, frozen=True):
    """How many answers passed at a level, and how many to the same tasks at the lowest level that had each of them."""

    passed: int
    judged: int
    base_passed: int
    base_judged: int
    chance: float  # of so few or fewer if load changed nothing: Fisher's exact test, one-sided
    shows_at: int | None  # the most passes that would count as a loss; None: with so few answers none would

    @property
    def is_shown(self) -> bool:
        return self.shows_at is not None and self.passed <= self.shows_at


class MixedLevel(msgspec.Struct, frozen=True):
    """`name` as published: P1, P1+S1, P1+S1-S2, P1+S1-S4."""

    name: str
    concurrency: int
    repeats: int
    turns: tuple[TaskFigures, ...]
    side: tuple[TaskFigures, ...]
    primary_s: float | None  # the whole conversation, median over repeats
    primary_low_s: float | None  # fastest and slowest repeat
    primary_high_s: float | None
    wall_s: float  # all repeats together
    aggregate_tok_s: float | None  # output tokens of all requests over wall time
    seconds_per_task: float | None  # wall time over answers that passed; None: none did
    held_share: float | None  # of the primary's time with all side tasks in flight
    outcomes: tuple[tuple[str, int], ...] = ()
    loss: PassLoss | None = None  # None: of the lowest level, or nothing was judged

    @property
    def tasks(self) -> tuple[TaskFigures, ...]:
        return (*self.turns, *self.side)

    @property
    def ttft_ms(self) -> float | None:
        """Of turn 1."""
        return self.turns[0].ttft_ms

    @property
    def tok_s(self) -> float | None:
        """Of turn 1."""
        return self.turns[0].tok_s

    @property
    def passed_per_minute(self) -> float | None:
        """None: no answer passed."""
        return 60 / self.seconds_per_task if self.seconds_per_task else None

    def slowdown(self, alone: MixedLevel | None) -> float | None:
        """Time of the conversation over that at C=1."""
        base = None if alone is None else alone.primary_s
        return self.primary_s / base if self.primary_s is not None and base else None


class Axis(msgspec.Struct, frozen=True):
    """One axis of the picture. `value` from 0 to 1, the more the better; None: not measured."""

    name: str
    definition: str
    value: float | None
    shown: str  # "191 ms, 1.4x of C=1"


class Advice(msgspec.Struct, frozen=True):
    """The sweet spot: `concurrency` is None where no level would do; `reasons` has one line a level, with figures."""

    concurrency: int | None
    level: str | None
    reasons: tuple[str, ...]


class MixedSummary(msgspec.Struct, frozen=True):
    run_id: str
    model: str
    form: str  # "published" | "sustained"
    levels: tuple[MixedLevel, ...]
    axes: tuple[Axis, ...]
    advice: Advice
    simulated: bool = False
    incomplete: str = ""

    @property
    def alone(self) -> MixedLevel | None:
        return next((level for level in self.levels if level.concurrency == 1), None)
