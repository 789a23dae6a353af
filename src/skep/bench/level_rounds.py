"""Which level of a sweep is run next, and when it is enough.

Pure: knows neither clock nor server.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.bench.metrics import SearchEnd, repeat_of
from skep.stats.sequential import Precision, PrecisionGoal
from skep.stats.turning import LevelPoint, SpeedCurve
from skep.store.records import Request

PAST_KNEE = 2  # levels beyond it
LIMITED_RUNS = 3  # of one level, all limited by the client, before the search ends there


class LevelRounds:
    """Every level in turn, until each is known well enough: drift does not pass for an effect of
    concurrency.
    """

    def __init__(
        self, levels: Sequence[int], goal: PrecisionGoal, *, runs: int | None = None
    ) -> None:
        """`runs`: exactly so many of each instead of a goal, and none more at the end."""
        self._levels = tuple(levels)
        self._runs = runs
        self._goal = goal
        self._done: dict[int, int] = dict.fromkeys(levels, 0)
        self._precision = {level: Precision(goal) for level in levels}
        self._given_up: set[int] = set()
        self._closing = runs is None and 1 in levels and len(levels) > 1

    def following(self) -> int | None:
        """Return the level to run now; None: it is enough."""
        if open_ones := self.open_levels():
            return min(open_ones, key=lambda level: (self._done[level], self._levels.index(level)))
        if self._closing:
            self._closing = False
            return 1
        return None

    def open_levels(self) -> list[int]:
        """Return the levels that are not known well enough yet."""
        return [level for level in self._levels if not self._enough(level)]

    def add(self, level: int) -> None:
        """One more level, beyond all others."""
        self._levels = (*self._levels, level)
        self._done[level] = 0
        self._precision[level] = Precision(self._goal)
        self._closing = self._runs is None and 1 in self._levels

    def give_up(self, level: int) -> None:
        """It is not run again."""
        self._given_up.add(level)

    def took(self, level: int, rows: Sequence[Request], *, limited: bool) -> None:
        """A run whose client was the limit makes nothing known; it counts only towards the most
        there may be.
        """
        self._done[level] += 1
        if not limited:
            self._precision[level].feed(figure_of(rows, level))

    def remaining(self) -> dict[int, float]:
        left: dict[int, float] = {}
        for level in self._levels:
            done = self._done[level]
            precision = self._precision[level]
            if self._enough(level):
                continue
            if self._runs is None:
                more = precision.expected_more()
            else:
                more = self._runs - done
            left[level] = float(max(1, precision.goal.fewest - done) if more is None else more)
        if self._closing:
            left[1] = left.get(1, 0.0) + 1
        return left

    def _enough(self, level: int) -> bool:
        if level in self._given_up:
            return True
        if self._runs is not None:
            return self._done[level] >= self._runs
        return self._precision[level].done or self._done[level] >= self._goal.most


def figure_of(rows: Sequence[Request], level: int) -> float:
    """Tokens a second of one run: over its plateau where it had one, else over the whole batch."""
    summary = repeat_of(0, rows, None if any(row.session is not None for row in rows) else level)
    if summary.plateau_tok_s is None:
        return summary.effective_tok_s
    return summary.plateau_tok_s


class LevelSearch:
    """Doubles C until two levels lie past the knee, then runs all levels in turns as `LevelRounds`
    does.

    Where the later runs move the knee, it doubles further.
    """

    def __init__(self, goal: PrecisionGoal, *, most: int, runs: int | None = None) -> None:
        """`most`: agents that the client can be."""
        self._rounds = LevelRounds((1,), goal, runs=runs)
        self._levels = [1]
        self._most = most
        self._figures: dict[int, list[float]] = {1: []}
        self._limited_runs: dict[int, int] = {1: 0}
        self.end: SearchEnd | None = None  # None: it still doubles

    def following(self) -> int | None:
        """Return the level to run now; None: it is enough."""
        is_settled = self.end is not None and (
            bool(self._rounds.open_levels()) or self.end == self._found_end()
        )
        if not is_settled:
            self.end = self._found_end()
        if self.end is None:
            return self._climb()
        return self._rounds.following()

    def took(self, level: int, rows: Sequence[Request], *, limited: bool) -> None:
        self._rounds.took(level, rows, limited=limited)
        if limited:
            self._limited_runs[level] += 1
            if not self._figures[level] and self._limited_runs[level] >= LIMITED_RUNS:
                self._rounds.give_up(level)
        else:
            self._figures[level].append(figure_of(rows, level))

    def remaining(self) -> dict[int, float]:
        return self._rounds.remaining()

    def ended(self) -> SearchEnd:
        """Return where it stopped, by all runs so far; where they leave it open, the budget was
        spent before.
        """
        measured = [
            level for level in self._levels if self._figures[level] or self._limited_runs[level]
        ]
        return self._found_end() or SearchEnd(max(measured, default=1), "budget")

    def _climb(self) -> int:
        last = self._levels[-1]
        if not self._figures[last]:
            return last
        self._levels.append(2 * last)
        self._rounds.add(2 * last)
        self._figures[2 * last] = []
        self._limited_runs[2 * last] = 0
        return 2 * last

    def _found_end(self) -> SearchEnd | None:
        last = self._levels[-1]
        if not self._figures[last]:
            if self._limited_runs[last] >= LIMITED_RUNS:
                return SearchEnd(last, "client")
            return None
        knee = SpeedCurve(LevelPoint(level, self._figures[level]) for level in self._levels).knee()
        beyond = None if knee is None else self._levels[knee.at]
        if knee is not None and len(self._levels) - 1 - knee.at >= PAST_KNEE:
            return SearchEnd(last, "past the knee", beyond)
        if 2 * last > self._most:
            return SearchEnd(last, "most", beyond)
        return None
