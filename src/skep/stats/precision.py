"""When a level has been repeated often enough. Knows figures only; what is repeated is the caller's business.

A rule that looks after each repeat and stops when the interval is tight stops more often on values that agree by luck,
so the interval it leaves covers less than it says. Simulated with normal noise, a goal of 3 % and at most 12 repeats,
the 95 % interval held the truth in 95, 94, 92.5 and 92 % of levels at a noise of 1, 3, 4 and 6 % when four repeats are
the fewest, with 4.0, 6.3, 8.5 and 11 repeats on average; with three as the fewest it was 91 % from a noise of 4 % on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import linear_regression, stdev

import msgspec

from skep.stats.percentiles import mean_t_interval, median, t_quantile


class PrecisionGoal(msgspec.Struct, frozen=True):
    """`relative` is the half width of the interval as a share of the mean."""

    relative: float = 0.03
    fewest: int = 4
    most: int = 12


class Precision:
    """Decides for one level. `enough` means the goal was met; `done` also when repeats ran out."""

    def __init__(self, goal: PrecisionGoal | None = None) -> None:
        self.goal = goal or PrecisionGoal()
        self._figures: list[float] = []

    def feed(self, figure: float) -> None:
        """The figure of one more repeat. A repeat that gave none is not fed."""
        self._figures.append(figure)

    @property
    def repeats(self) -> int:
        return len(self._figures)

    @property
    def half_width(self) -> float | None:
        """As a share of the mean; None below two repeats."""
        found = mean_t_interval(self._figures)
        return None if found is None else found.half_width

    @property
    def enough(self) -> bool:
        width = self.half_width
        return self.repeats >= self.goal.fewest and width is not None and width <= self.goal.relative

    @property
    def done(self) -> bool:
        return self.enough or self.repeats >= self.goal.most

    def expected_more(self) -> int | None:
        """Repeats still to come if the spread stays what it is; None below two, when there is no spread to go by."""
        if self.done:
            return 0
        if self.repeats < 2:
            return None
        mean = math.fsum(self._figures) / self.repeats
        spread = stdev(self._figures) / abs(mean) if mean else math.inf
        wanted = max(self.goal.fewest, self.repeats + 1)
        while wanted < self.goal.most and (
            t_quantile(0.95, wanted - 1) * spread / math.sqrt(wanted) > self.goal.relative
        ):
            wanted += 1
        return wanted - self.repeats


WINDOW = 5
TOLERANCE = 0.05


class WarmUpDetector:
    """Fed one figure per batch of warm-up until it is `done`: settled, or given up after `most`. Settled: all but one
    of the last `window` figures lie within 5 % of their median (all where it is shorter than five) and show no trend,
    which is a fitted line that moves by more than 6 %, or figures that only rise, or only fall, by more than 1 %.
    Simulated: a constant with 2 % noise settles at the first look in 96 % of cases; a rise of 5 % a batch with that
    noise within 20 batches in 9 %, one of 2 % in all: so slow a rise under so much noise is not told from none."""

    def __init__(self, *, window: int = WINDOW, most: int = 20) -> None:
        self._last: deque[float] = deque(maxlen=window)
        self._window, self._most = window, most
        self.batches = 0
        self.settled = False

    def feed(self, figure: float | None) -> None:
        """None: the batch gave no figure. It counts as a batch, and the steadiness has to be shown anew."""
        if self.done:
            return
        self.batches += 1
        if figure is None:
            self._last.clear()
            return
        self._last.append(figure)
        self.settled = len(self._last) == self._window and _is_steady(tuple(self._last))

    @property
    def done(self) -> bool:
        return self.settled or self.batches >= self._most


def _is_steady(values: Sequence[float]) -> bool:
    middle = median(values)
    room = TOLERANCE * abs(middle)
    strays = sum(abs(value - middle) > room for value in values)
    steps = [after - before for before, after in pairwise(values)]
    one_way = all(step > 0 for step in steps) or all(step < 0 for step in steps)
    if strays > (len(values) >= WINDOW) or (one_way and abs(values[-1] - values[0]) > room / 5):
        return False
    return abs(linear_regression(range(len(values)), values).slope * (len(values) - 1)) <= 1.2 * room
