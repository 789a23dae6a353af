"""Where a curve of effective tok/s against C stops growing, and where it falls.

The *knee* is the smallest C that no larger C betters by 5 %. The *cliff* is the last C before the
curve lies more than 5 % under its best, and stays there. Both are judged on the repeats: the
relative noise is taken as the same at all levels and estimated from all of them together, since
three repeats of one level say little about it. Each question is one-sided and asked at 95 %. Two
levels whose own intervals overlap are never told apart. Levels where the client was the limit are
never used, nor runs with few tasks an agent. Knows neither clock nor server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from statistics import fmean

import msgspec
from msgspec.structs import replace

from skep.stats.percentiles import WIDEST, runs_interval, t_quantile

MARGIN = 0.05
# Ratios beyond which a level is faster or slower than another by the margin.
_FASTER = 1 + MARGIN
_SLOWER = 1 - MARGIN
TAILS = 0.10  # of both sides together: one-sided questions are answered at 95 %


class Turning(msgspec.Struct, frozen=True):
    """Where a curve of effective tok/s against C turns.

    Each bracket holds the point with the confidence given.
    """

    # The smallest measured C from which on nothing is gained; None: it still grows, or not known.
    knee: int | None
    # It lies in (low, high]; low is 0 where the first level is the knee.
    knee_bracket: tuple[int, int] | None
    cliff: int | None  # the last measured C before it falls; None: it does not, or not known
    cliff_bracket: tuple[int, int] | None  # it falls between the two
    drop_pct: float | None  # from the best level to the lowest beyond the cliff
    sure: bool  # nothing is left open by the spread of the runs
    # Levels that their runs do not tell apart; () and not sure: no level was run twice.
    unclear: tuple[int, ...] = ()
    few: tuple[int, ...] = ()  # levels that say nothing: no run of them had three tasks an agent


class LevelPoint(msgspec.Struct, frozen=True):
    """One level with the figure of each repeat; zero where not one request succeeded."""

    concurrency: int
    values: Sequence[float]
    limited: bool = False  # the client was the limit
    # The interval that people are shown; None: that of the values.
    spread: tuple[float, float] | None = None
    few: bool = False  # its runs had too few tasks an agent


class CurveSide(Enum):
    """The side of a knee or cliff on which a level lies; UNCLEAR: the repeats do not say."""

    BEFORE = "before"
    AFTER = "after"
    UNCLEAR = "unclear"


SideOf = Callable[[int], CurveSide]  # of a level, by index


class TurningPoint(msgspec.Struct, frozen=True):
    """A knee or a cliff among the measured levels, by index: it lies between `low` and `high`."""

    at: int
    low: int  # -1 where even the first level is past it
    high: int
    sure: bool  # both ends are shown by the repeats

    @property
    def is_known(self) -> bool:
        """Return whether the repeats show both ends, or that even the first level is past it."""
        return self.sure and (self.low >= 0 or self.high == 0)


class _CurveLevel(msgspec.Struct, frozen=True):
    concurrency: int
    count: int
    estimate: float  # geometric mean; 0 where a repeat brought nothing
    squares: float  # of the deviations of the logarithms
    low: float  # of the level's own interval; the slowest run where there is none
    high: float

    @classmethod
    def of(cls, points: Sequence[LevelPoint]) -> _CurveLevel:
        """Return the level of its points."""
        values = [value for point in points for value in point.values]
        spreads = [_spread(point) for point in points]
        level = cls(
            concurrency=points[0].concurrency,
            count=len(values),
            estimate=0.0,
            squares=0.0,
            low=min(low for low, _ in spreads),
            high=max(high for _, high in spreads),
        )
        if min(values) <= 0:
            return level
        logs = [math.log(value) for value in values]
        mean = fmean(logs)
        return replace(
            level,
            estimate=math.exp(mean),
            squares=math.fsum((value - mean) ** 2 for value in logs),
        )


def _spread(point: LevelPoint) -> tuple[float, float]:
    if point.spread is not None:
        return point.spread
    interval = runs_interval(point.values)
    if interval is None:
        return (min(point.values), max(point.values))
    return (interval.low, interval.high)


class SpeedCurve:
    """The usable levels in order of C, with what can be said about each pair of them."""

    def __init__(self, levels: Iterable[LevelPoint]) -> None:
        points: dict[int, list[LevelPoint]] = {}
        for level in levels:
            if level.values and not level.limited and not level.few:
                points.setdefault(level.concurrency, []).append(level)
        self.levels = [_CurveLevel.of(points[concurrency]) for concurrency in sorted(points)]
        measured = [level for level in self.levels if level.estimate]
        self._freedom = sum(level.count - 1 for level in measured)
        self.noise: float | None = None
        if self._freedom:
            squares = math.fsum(level.squares for level in measured)
            self.noise = math.sqrt(squares / self._freedom)

    def ratio(self, above: int, below: int, *, among: int = 1) -> tuple[float, float, float]:
        """Return low, estimate and high of one level over another; without bounds while no level
        was repeated.

        `among`: the most extreme of so many levels is looked at, so the bounds have to hold for
        all of them.
        """
        above_level = self.levels[above]
        below_level = self.levels[below]
        if not below_level.estimate:
            if not above_level.estimate:
                return (1.0, 1.0, 1.0)
            return (0.0, math.inf, math.inf)
        share = above_level.estimate / below_level.estimate
        if self.noise is None:
            return (0.0, share, math.inf)
        quantile = t_quantile(1 - TAILS / among, self._freedom)
        inverse_runs = 1 / above_level.count + 1 / below_level.count
        reach = quantile * self.noise * math.sqrt(inverse_runs)
        spread = math.exp(min(reach, WIDEST))
        return (share / spread, share, share * spread)

    def best_before(self, index: int) -> int | None:
        """Return the best of the smaller levels; None for the first."""
        return max(range(index), key=lambda place: self.levels[place].estimate, default=None)

    def is_below(self, index: int, reference: int) -> bool:
        """Return whether all of one level's interval lies below the other's."""
        highest = self.levels[index].high
        lowest = self.levels[reference].low
        return highest < lowest

    def knee_side(self, index: int) -> CurveSide:
        """Return the side of a level. BEFORE: a larger level is surely better by the margin.
        AFTER: surely none is.
        """
        later = range(index + 1, len(self.levels))
        for place in later:
            low, _, _ = self.ratio(place, index, among=len(later))
            if low > _FASTER and self.is_below(index, place):
                return CurveSide.BEFORE
        ratios = [self.ratio(place, index) for place in later]
        if ratios and all(high < _FASTER for _, _, high in ratios):
            return CurveSide.AFTER
        return CurveSide.UNCLEAR

    def cliff_side(self, index: int) -> CurveSide:
        """Return the side of a level. BEFORE: surely within the margin of the best level so far.
        AFTER: surely under it.
        """
        best = self.best_before(index)
        if best is None:
            return CurveSide.BEFORE
        low, _, _ = self.ratio(index, best)
        if low > _SLOWER:
            return CurveSide.BEFORE
        _, _, high = self.ratio(index, best, among=index)
        if high < _SLOWER and self.is_below(index, best):
            return CurveSide.AFTER
        return CurveSide.UNCLEAR

    def knee(self) -> TurningPoint | None:
        """Return the knee; None: the last level is still faster, or there are fewer than two."""
        count = len(self.levels)
        for at in range(count - 1):
            later = range(at + 1, count)
            gains = (self._estimate(place, at) for place in later)
            if all(gain < _FASTER for gain in gains):
                return self._place(at, at - 1, at, self.knee_side)
        return None

    def cliff(self) -> TurningPoint | None:
        """Return the cliff; None: the last level is not under the best."""
        count = len(self.levels)
        first_under = count
        while self._is_under_best(first_under - 1):
            first_under -= 1
        if first_under == count:
            return None
        last_good = first_under - 1
        return self._place(last_good, last_good, first_under, self.cliff_side)

    def _is_under_best(self, index: int) -> bool:
        """Return whether a level is estimated under the best of the smaller ones by the margin."""
        best = self.best_before(index)
        return best is not None and self._estimate(index, best) < _SLOWER

    def _estimate(self, above: int, below: int) -> float:
        _, estimate, _ = self.ratio(above, below)
        return estimate

    def bracket(self, place: TurningPoint) -> tuple[int, int]:
        """Return the bracket in C; it begins at 0 where even the first level is past the point."""
        low = 0
        if place.low >= 0:
            low = self.levels[place.low].concurrency
        high = self.levels[place.high].concurrency
        return low, high

    def _place(self, at: int, low: int, high: int, side: SideOf) -> TurningPoint:
        """Return the point, its bracket widened over levels that are unclear.

        While the noise is not known, the bracket is that of the estimates alone.
        """
        if self.noise is None:
            return TurningPoint(at, low, high, sure=False)
        count = len(self.levels)
        smaller = range(low, -1, -1)
        larger = range(high, count)
        surely_before = (place for place in smaller if side(place) is CurveSide.BEFORE)
        surely_after = (place for place in larger if side(place) is CurveSide.AFTER)
        sure_low = next(surely_before, -1)
        sure_high = next(surely_after, None)
        if sure_high is None:
            return TurningPoint(
                at=at,
                low=sure_low,
                high=count - 1,
                sure=False,
            )
        return TurningPoint(
            at=at,
            low=sure_low,
            high=sure_high,
            sure=True,
        )


def find_turning(levels: Iterable[LevelPoint]) -> Turning:
    """Return knee and cliff as far as the repeats show them, and the levels that they do not tell
    apart.
    """
    levels = list(levels)
    curve = SpeedCurve(levels)
    few = {level.concurrency for level in levels if level.few and not level.limited}
    knee = curve.knee()
    cliff = curve.cliff()
    unclear_places = _unclear_places(curve, knee, cliff)
    unclear: list[int] = []
    if curve.noise is not None and len(curve.levels) > 1:
        unclear = [curve.levels[place].concurrency for place in unclear_places]
    turning = Turning(
        knee=None,
        knee_bracket=None,
        cliff=None,
        cliff_bracket=None,
        drop_pct=None,
        sure=not unclear_places and not few,
        unclear=tuple(unclear),
        few=tuple(sorted(few)),
    )
    if knee is not None and knee.is_known:
        turning = replace(
            turning,
            knee=curve.levels[knee.at].concurrency,
            knee_bracket=curve.bracket(knee),
        )
    if cliff is not None and cliff.is_known:
        turning = replace(
            turning,
            cliff=curve.levels[cliff.at].concurrency,
            cliff_bracket=curve.bracket(cliff),
            drop_pct=_drop_pct(curve, cliff),
        )
    return turning


def _drop_pct(curve: SpeedCurve, cliff: TurningPoint) -> float:
    """Return by how much the lowest level beyond the cliff lies under the best of all."""
    estimates = [level.estimate for level in curve.levels]
    lowest = min(estimates[cliff.at + 1 :])
    best = max(estimates)
    return 100 * (1 - lowest / best)


def _unclear_places(
    curve: SpeedCurve,
    knee: TurningPoint | None,
    cliff: TurningPoint | None,
) -> list[int]:
    """Return the levels, by index, between which a point lies that the repeats do not show."""
    unclear: set[int] = set()
    if knee is None and cliff is None:
        last = len(curve.levels) - 1
        if last < 1 or curve.knee_side(last - 1) is not CurveSide.BEFORE:
            # It is open whether the speed grows up to the last level.
            unclear.update((last - 1, last))
    if knee is not None and not knee.is_known:
        unclear.update(range(knee.low + 1, knee.high + 1))
    if cliff is not None and not cliff.is_known:
        unclear.update(range(cliff.low, cliff.high + 1))
    return sorted(unclear)
