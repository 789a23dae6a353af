"""Which level comes next, and when it is enough: fixed levels, the search for the knee, the search for a limit.

Deciders: a level in, its figures back, no clock of their own. The shell asks `following` until it gives None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skep.bench.metrics import repeat_of
from skep.bench.summary import worst_share
from skep.stats.precision import Precision, PrecisionGoal
from skep.stats.search import SaturationSearch
from skep.stats.slo import SloLimits, SloSearch
from skep.store.records import Request


class LevelSchedule(Protocol):
    def following(self) -> int | None:
        """The level to run now; None: it is enough."""

    def took(self, level: int, rows: Sequence[Request], *, limited: bool) -> None: ...

    def remaining(self) -> dict[int, float]:
        """About how many more runs of which levels are still to come."""


class LevelRounds:
    """Every level in turn, again and again, until each is known well enough; C=1 once more at the end.

    Runs of one level are spread over the whole time, so that drift does not pass for an effect of concurrency.
    """

    def __init__(self, levels: Sequence[int], goal: PrecisionGoal, *, runs: int | None = None) -> None:
        """`runs`: exactly so many of each instead of a goal, and none more at the end."""
        self._levels = tuple(levels)
        self._runs = runs
        self._goal = goal
        self._done: dict[int, int] = dict.fromkeys(levels, 0)
        self._precision = {level: Precision(goal) for level in levels}
        self._closing = runs is None and 1 in levels and len(levels) > 1

    def following(self) -> int | None:
        open_ones = [level for level in self._levels if not self._enough(level)]
        if open_ones:
            return min(open_ones, key=lambda level: (self._done[level], self._levels.index(level)))
        if self._closing:
            self._closing = False
            return 1
        return None

    def took(self, level: int, rows: Sequence[Request], *, limited: bool) -> None:
        """A run whose client was the limit makes nothing known; it counts only towards the most there may be."""
        self._done[level] += 1
        if not limited:
            self._precision[level].feed(figure_of(rows, level))

    def remaining(self) -> dict[int, float]:
        left = {level: self._left(level) for level in self._levels if not self._enough(level)}
        if self._closing:
            left[1] = left.get(1, 0.0) + 1
        return left

    def _enough(self, level: int) -> bool:
        if self._runs is not None:
            return self._done[level] >= self._runs
        return self._precision[level].done or self._done[level] >= self._goal.most

    def _left(self, level: int) -> float:
        if self._runs is not None:
            return self._runs - self._done[level]
        more = self._precision[level].expected_more()
        fewest = max(1, self._precision[level].goal.fewest - self._done[level])
        return float(fewest if more is None else more)


class ToSaturation:
    """Doubles C until nothing more is gained, then narrows the knee and, where it falls, the cliff."""

    def __init__(self, most: int) -> None:
        self._search = SaturationSearch(max_concurrency=most)
        self._closing = True

    def following(self) -> int | None:
        """C=1 once more at the end, so that drift is seen."""
        level = self._search.next_level()
        if level is None and self._closing:
            self._closing = False
            return 1
        return level

    def took(self, level: int, rows: Sequence[Request], *, limited: bool) -> None:
        if self._closing:
            self._search.measured(level, figure_of(rows, level), limited=limited)

    def remaining(self) -> dict[int, float]:
        level = self._search.next_level()
        return {} if level is None else {level: float(self._search.remaining())}


class WithinLimits:
    """The highest C that keeps a promise."""

    def __init__(self, limits: SloLimits, most: int) -> None:
        self._limits = limits
        self._search = SloSearch(max_concurrency=most)

    def following(self) -> int | None:
        return self._search.next_level()

    def took(self, level: int, rows: Sequence[Request], *, limited: bool) -> None:
        self._search.measured(level, worst_share(self._limits, rows), limited=limited)

    def remaining(self) -> dict[int, float]:
        level = self._search.next_level()
        return {} if level is None else {level: float(self._search.remaining())}


def figure_of(rows: Sequence[Request], level: int) -> float:
    """Tokens a second of one run: over its plateau where it had one, else over the whole batch."""
    thinking = any(row.session is not None for row in rows)
    summary = repeat_of(0, rows, None if thinking else level)
    return summary.effective_tok_s if summary.plateau_tok_s is None else summary.plateau_tok_s


def make_level_schedule(
    levels: Sequence[int],
    goal: PrecisionGoal,
    *,
    runs: int | None,
    to_saturation: bool,
    slo: SloLimits | None,
    most: int,
) -> LevelSchedule:
    if to_saturation:
        return ToSaturation(most)
    if slo is not None:
        return WithinLimits(slo, most)
    return LevelRounds(levels, goal, runs=runs)
