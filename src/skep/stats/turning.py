"""Where a curve of effective tok/s against C stops growing, where it falls, and which level to run next to find out.

The *knee* is the smallest C that no larger C betters by 5 %. The *cliff* is the last C before the curve lies more than
5 % under its best, and stays there. Both are judged on the repeats: the relative noise is taken as the same at all
levels and estimated from all of them together, since three repeats of one level say little about it. Each question is
one-sided and asked at 95 %. Levels where the client was the limit are never used. Knows neither clock nor server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from statistics import fmean

import msgspec

from skep.stats.percentiles import WIDEST, t_quantile

MARGIN = 0.05
TAILS = 0.10  # of both sides together: one-sided questions are answered at 95 %


class Turning(msgspec.Struct, frozen=True):
    """Where a curve of effective tok/s against C turns. Each bracket holds the point with the confidence given."""

    knee: int | None  # the smallest measured C from which on nothing is gained; None: it still grows, or not known
    knee_bracket: tuple[int, int] | None  # it lies in (low, high]; low is 0 where the first level is the knee
    cliff: int | None  # the last measured C before it falls; None: it does not, or not known
    cliff_bracket: tuple[int, int] | None  # it falls between the two
    drop_pct: float | None  # from the best level to the lowest beyond the cliff
    sure: bool  # nothing is left open by the spread of the runs
    unclear: tuple[int, ...] = ()  # levels that their runs do not tell apart; () and not sure: no level was run twice


class LevelPoint(msgspec.Struct, frozen=True):
    """One level with the figure of each repeat; zero where not one request succeeded."""

    concurrency: int
    values: Sequence[float]
    limited: bool = False  # the client was the limit


class CurveSide(Enum):
    """Of a point on the curve: where a level surely lies, or UNCLEAR where the repeats do not say."""

    BEFORE = "before"
    AFTER = "after"
    UNCLEAR = "unclear"


SideOf = Callable[[int], CurveSide]  # of a level, by index
RivalOf = Callable[[int], int | None]  # the level that it is held against


class TurningPoint(msgspec.Struct, frozen=True):
    """A knee or a cliff among the measured levels, by index: it lies between `low` and `high`."""

    at: int
    low: int  # -1 where even the first level is past it
    high: int
    sure: bool  # both ends are

    @property
    def is_known(self) -> bool:
        """The repeats show it, and do not leave open whether even the first level is past it."""
        return self.sure and (self.low >= 0 or self.high == 0)


class _CurveLevel(msgspec.Struct, frozen=True):
    concurrency: int
    count: int
    estimate: float  # geometric mean; 0 where a repeat brought nothing
    squares: float  # of the deviations of the logarithms

    @classmethod
    def of(cls, concurrency: int, values: Sequence[float]) -> _CurveLevel:
        if min(values) <= 0:
            return cls(concurrency, len(values), 0.0, 0.0)
        logs = [math.log(value) for value in values]
        mean = fmean(logs)
        return cls(concurrency, len(values), math.exp(mean), math.fsum((value - mean) ** 2 for value in logs))


class SpeedCurve:
    """The usable levels in order of C, with what can be said about each pair of them."""

    def __init__(self, levels: Iterable[LevelPoint]) -> None:
        figures: dict[int, list[float]] = {}
        for level in levels:
            if level.values and not level.limited:
                figures.setdefault(level.concurrency, []).extend(level.values)
        self.levels = [_CurveLevel.of(c, figures[c]) for c in sorted(figures)]
        self._freedom = sum(level.count - 1 for level in self.levels if level.estimate)
        squares = math.fsum(level.squares for level in self.levels)
        self.noise = math.sqrt(squares / self._freedom) if self._freedom else None

    def ratio(self, above: int, below: int, *, among: int = 1) -> tuple[float, float, float]:
        """low, estimate and high of one level over another; without bounds while no level was repeated.
        `among`: of so many levels the most extreme one is looked at, so the bounds have to hold for all of them."""
        one, two = self.levels[above], self.levels[below]
        if not two.estimate:
            return (1.0, 1.0, 1.0) if not one.estimate else (0.0, math.inf, math.inf)
        share = one.estimate / two.estimate
        if self.noise is None:
            return 0.0, share, math.inf
        reach = t_quantile(1 - TAILS / among, self._freedom) * self.noise * math.sqrt(1 / one.count + 1 / two.count)
        spread = math.exp(min(reach, WIDEST))
        return share / spread, share, share * spread

    def rival(self, index: int) -> int | None:
        """Of the larger levels the one that may be best, as far as the repeats say; None for the last."""
        return max(range(index + 1, len(self.levels)), key=lambda place: self.ratio(place, index)[:0:-1], default=None)

    def best_before(self, index: int) -> int | None:
        """Return the best of the smaller levels; None for the first."""
        return max(range(index), key=lambda place: self.levels[place].estimate, default=None)

    def knee_side(self, index: int) -> CurveSide:
        """BEFORE: a larger level is surely better by the margin. AFTER: surely none is."""
        later = range(index + 1, len(self.levels))
        if any(self.ratio(place, index, among=len(later))[0] > 1 + MARGIN for place in later):
            return CurveSide.BEFORE
        ratios = [self.ratio(place, index) for place in later]
        return CurveSide.AFTER if ratios and all(high < 1 + MARGIN for _, _, high in ratios) else CurveSide.UNCLEAR

    def cliff_side(self, index: int) -> CurveSide:
        """BEFORE: surely within the margin of the best up to here. AFTER: surely under it."""
        best = self.best_before(index)
        if best is None or self.ratio(index, best)[0] > 1 - MARGIN:
            return CurveSide.BEFORE
        return CurveSide.AFTER if self.ratio(index, best, among=index)[2] < 1 - MARGIN else CurveSide.UNCLEAR

    def knee(self) -> TurningPoint | None:
        """None: the last level still brings growth, or there are fewer than two."""
        for at in range(len(self.levels) - 1):
            if all(self.ratio(place, at)[1] < 1 + MARGIN for place in range(at + 1, len(self.levels))):
                return self._place(at, at - 1, at, self.knee_side)
        return None

    def cliff(self) -> TurningPoint | None:
        """None: the last level is not under the best."""
        first_bad = len(self.levels)
        while (best := self.best_before(first_bad - 1)) is not None and self.ratio(first_bad - 1, best)[1] < 1 - MARGIN:
            first_bad -= 1
        if first_bad == len(self.levels):
            return None
        return self._place(first_bad - 1, first_bad - 1, first_bad, self.cliff_side)

    def bracket(self, place: TurningPoint) -> tuple[int, int]:
        """In C; from 0 where even the first level is past the point."""
        low = self.levels[place.low].concurrency if place.low >= 0 else 0
        return low, self.levels[place.high].concurrency

    def _place(self, at: int, low: int, high: int, side: SideOf) -> TurningPoint:
        """Widened over levels that are unclear, where the noise is known; by the estimates alone where it is not."""
        if self.noise is None:
            return TurningPoint(at, low, high, sure=False)
        sure_low = next((place for place in range(low, -1, -1) if side(place) is CurveSide.BEFORE), -1)
        sure_high = next((place for place in range(high, len(self.levels)) if side(place) is CurveSide.AFTER), None)
        last = len(self.levels) - 1 if sure_high is None else sure_high
        return TurningPoint(at, sure_low, last, sure=sure_high is not None)


def find_turning(levels: Iterable[LevelPoint]) -> Turning:
    """Knee and cliff as far as the repeats show them, and the levels that they do not tell apart."""
    curve = SpeedCurve(levels)
    knee, cliff, count = curve.knee(), curve.cliff(), len(curve.levels)
    unclear: set[int] = set()
    if knee is None and cliff is None and (count < 2 or curve.knee_side(count - 2) is not CurveSide.BEFORE):
        unclear |= {count - 2, count - 1}  # whether it grows up to the last level
    if knee is not None and not knee.is_known:
        unclear |= {*range(knee.low + 1, knee.high + 1)}
        knee = None
    if cliff is not None and not cliff.is_known:
        unclear |= {*range(cliff.low, cliff.high + 1)}
        cliff = None
    estimates = [level.estimate for level in curve.levels]
    told = sorted(unclear) if curve.noise is not None and count > 1 else []
    return Turning(
        knee=None if knee is None else curve.levels[knee.at].concurrency,
        knee_bracket=None if knee is None else curve.bracket(knee),
        cliff=None if cliff is None else curve.levels[cliff.at].concurrency,
        cliff_bracket=None if cliff is None else curve.bracket(cliff),
        drop_pct=None if cliff is None else 100 * (1 - min(estimates[cliff.at + 1 :]) / max(estimates)),
        sure=not unclear,
        unclear=tuple(curve.levels[place].concurrency for place in told),
    )


WIDTH = 0.25  # a bracket no wider than this share of its lower end is narrow enough
RUNS_A_HALVING = 3  # a new level and the repeats that make its side clear; for the estimate of what is to come


class SaturationSearch:
    """Which level to run next until knee and cliff are bracketed: ask `next_level`, run it, tell `measured`.

    C doubles from 1 until two successive levels bring less than 5 %, or fall; a cliff beyond them is not looked for.
    Then the brackets are made sure, by repeating the levels whose side is unclear, at most `most_repeats` times, and
    narrow, by halving them. Every answer is worked out anew from all that was measured, so a step that looked flat by
    chance does not end the search for good. Simulated with 3 % noise and one run at a time, the brackets held the
    points in 97 to 100 % for curves that level off or fall at one place, in 16 to 39 runs; on a curve that goes on
    creeping up by some 3 % a doubling, in two thirds."""

    def __init__(self, *, max_concurrency: int, budget: int = 60, most_repeats: int = 5) -> None:
        self._max, self._budget, self._most = max_concurrency, budget, most_repeats
        self._figures: dict[int, list[float]] = {}
        self._unusable: set[int] = set()
        self.runs = 0

    def measured(self, concurrency: int, *figures: float, limited: bool = False) -> None:
        """Runs of a level. Without a figure (zero is one), or where the client is the limit, nothing is asked above."""
        self.runs += max(1, len(figures))
        if limited or not figures:
            self._unusable.add(concurrency)
        else:
            self._figures.setdefault(concurrency, []).extend(figures)

    def next_level(self) -> int | None:
        """Return the level to run next; None when the search is done."""
        if self.runs >= self._budget:
            return None
        curve = SpeedCurve(self.points)
        return self._next_rung(curve) or next(self._refinements(curve), None)

    @property
    def points(self) -> tuple[LevelPoint, ...]:
        usable = {c: values for c, values in self._figures.items() if c not in self._unusable}
        return tuple(LevelPoint(c, tuple(usable[c])) for c in sorted(usable))

    def remaining(self) -> int:
        """Runs still to come, roughly: how often a level must be repeated is only known afterwards."""
        if self.next_level() is None:
            return 0
        curve = SpeedCurve(self.points)
        places = [place for place in (curve.knee(), curve.cliff()) if place is not None]
        rungs = 0
        if self._next_rung(curve) is not None:
            rungs = min(max(1, 2 - self._flat_rungs(curve)), sum(rung not in self._figures for rung in self._rungs()))
        halvings = sum(_halvings(*curve.bracket(place)) for place in places) if places else 2
        unsure = sum(not place.sure for place in places)
        return max(1, min(self._budget - self.runs, rungs + RUNS_A_HALVING * halvings + 2 * unsure))

    def _rungs(self) -> list[int]:
        return [*(2**power for power in range(self._max.bit_length()) if 2**power < self._max), self._max]

    def _next_rung(self, curve: SpeedCurve) -> int | None:
        if self._flat_rungs(curve) >= 2:
            return None
        rung = next((rung for rung in self._rungs() if rung not in self._figures), None)
        return rung if rung is not None and rung < min(self._unusable, default=math.inf) else None

    def _flat_rungs(self, curve: SpeedCurve) -> int:
        """How many of the highest rungs in a row brought less than the margin over the best below the first of them."""
        rungs = set(self._rungs())
        places = [place for place, level in enumerate(curve.levels) if level.concurrency in rungs]
        flat = 0
        for place in reversed(places):
            below = curve.best_before(place)
            if below is None or curve.ratio(place, below)[1] >= 1 + MARGIN:
                break
            flat += 1
        return flat

    def _refinements(self, curve: SpeedCurve) -> Iterator[int]:
        of_knee, of_cliff = (curve.knee_side, curve.rival), (curve.cliff_side, curve.best_before)
        knee, cliff = curve.knee(), curve.cliff()
        if knee is not None:
            yield from self._refine(curve, knee, *of_knee)
        elif len(curve.levels) > 1:
            yield from self._repeats(curve, [len(curve.levels) - 2], *of_knee)
        if cliff is not None:
            yield from self._refine(curve, cliff, *of_cliff)

    def _refine(self, curve: SpeedCurve, place: TurningPoint, side: SideOf, against: RivalOf) -> Iterator[int]:
        low, high = curve.bracket(place)
        if place.sure and _is_narrow(low, high):
            return
        yield from self._repeats(curve, range(max(place.low, 0), place.high + 1), side, against)
        inside = [level.concurrency for level in curve.levels[place.low + 1 : place.high]]
        for lower, upper in dict.fromkeys([(low, [*inside, high][0]), ([low, *inside][-1], high)]):
            middle = min(max(round(math.sqrt(lower * upper)), lower + 1), upper - 1)
            if not _is_narrow(lower, upper) and middle not in self._unusable:
                yield middle

    def _repeats(self, curve: SpeedCurve, places: Iterable[int], side: SideOf, against: RivalOf) -> Iterator[int]:
        """Of each unclear level or of the one it is held against, whichever was run less often."""
        for place in places:
            rival = against(place)
            if rival is not None and side(place) is CurveSide.UNCLEAR:
                less = min(curve.levels[place], curve.levels[rival], key=lambda level: level.count)
                if less.count < self._most:
                    yield less.concurrency


def _is_narrow(low: int, high: int) -> bool:
    return high - low <= 1 or high <= low * (1 + WIDTH)


def _halvings(low: int, high: int) -> int:
    if _is_narrow(low, high):
        return 0
    return math.ceil(math.log2(max(2.0, math.log(high / max(low, 1)) / math.log(1 + WIDTH))))
