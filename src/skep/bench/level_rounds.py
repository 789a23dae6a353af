"""Which level of a sweep is run next, and when enough is measured.

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
    """Runs every level in turn until each is known well enough, so that a drift does not pass for
    an effect of concurrency.
    """

    def __init__(
        self, levels: Sequence[int], goal: PrecisionGoal, *, runs: int | None = None
    ) -> None:
        """`runs`: exactly so many of each level instead of a goal, and no closing run of C=1."""
        self._levels = tuple(levels)
        self._runs = runs
        self._goal = goal
        self._done: dict[int, int] = dict.fromkeys(levels, 0)
        self._precision = {level: Precision(goal) for level in levels}
        self._given_up: set[int] = set()
        self._closing = runs is None and 1 in levels and len(levels) > 1

    def next_level(self) -> int | None:
        """Return the level to run now; None: all are known well enough."""
        open_levels = self.open_levels()
        if open_levels:
            return min(open_levels, key=self._turn_of)
        if self._closing:
            self._closing = False
            return 1
        return None

    def _turn_of(self, level: int) -> tuple[int, int]:
        """Return the runs of a level and its place: the fewest runs go first, then the first
        place.
        """
        runs_done = self._done[level]
        place = self._levels.index(level)
        return runs_done, place

    def open_levels(self) -> list[int]:
        """Return the levels that are not known well enough yet."""
        return [level for level in self._levels if not self._is_enough(level)]

    def add(self, level: int) -> None:
        """Add a level beyond all others."""
        self._levels = (*self._levels, level)
        self._done[level] = 0
        self._precision[level] = Precision(self._goal)
        self._closing = self._runs is None and 1 in self._levels

    def give_up(self, level: int) -> None:
        """Do not run the level again."""
        self._given_up.add(level)

    def add_run(self, level: int, rows: Sequence[Request], *, limited: bool) -> None:
        """Take in a run. One that the client limited says nothing of the speed, and only counts
        towards the number of runs allowed.
        """
        self._done[level] += 1
        if not limited:
            self._precision[level].feed(figure_of(rows, level))

    def remaining(self) -> dict[int, float]:
        """Return how many runs of each level are still to come, as far as that can be said."""
        runs_left = {level: float(self._runs_left(level)) for level in self.open_levels()}
        if self._closing:
            runs_left[1] = runs_left.get(1, 0.0) + 1
        return runs_left

    def _runs_left(self, level: int) -> int:
        done = self._done[level]
        if self._runs is not None:
            return self._runs - done
        precision = self._precision[level]
        expected = precision.expected_more()
        if expected is None:
            return max(1, precision.goal.fewest - done)
        return expected

    def _is_enough(self, level: int) -> bool:
        """Return whether the level needs no further run."""
        if level in self._given_up:
            return True
        runs_done = self._done[level]
        if self._runs is not None:
            return runs_done >= self._runs
        if runs_done >= self._goal.max_repeats:
            return True
        return self._precision[level].done


def figure_of(rows: Sequence[Request], level: int) -> float:
    """Return tokens a second of one run: over its plateau if it had one, else over the batch."""
    in_conversation = any(row.session is not None for row in rows)
    concurrency = None if in_conversation else level
    summary = repeat_of(0, rows, concurrency)
    if summary.plateau_tok_s is None:
        return summary.effective_tok_s
    return summary.plateau_tok_s


class LevelSearch:
    """Doubles C until two levels lie past the knee, then runs all levels in turns as `LevelRounds`
    does.

    Where the later runs move the knee, it doubles further.
    """

    def __init__(self, goal: PrecisionGoal, *, max_agents: int, runs: int | None = None) -> None:
        """`max_agents`: how many agents this client can be at once."""
        self._rounds = LevelRounds((1,), goal, runs=runs)
        self._levels = [1]
        self._max_agents = max_agents
        self._figures: dict[int, list[float]] = {1: []}
        self._limited_runs: dict[int, int] = {1: 0}
        self.end: SearchEnd | None = None  # None: it still doubles

    def next_level(self) -> int | None:
        """Return the level to run now; None: all are known well enough."""
        if self.end is None or not self._rounds.open_levels():
            self.end = self._find_end()
        if self.end is None:
            return self._climb()
        return self._rounds.next_level()

    def add_run(self, level: int, rows: Sequence[Request], *, limited: bool) -> None:
        self._rounds.add_run(level, rows, limited=limited)
        if not limited:
            figure = figure_of(rows, level)
            self._figures[level].append(figure)
            return
        self._limited_runs[level] += 1
        if self._is_beyond_client(level):
            self._rounds.give_up(level)

    def _is_beyond_client(self, level: int) -> bool:
        """Return whether the client was the limit of every run, in as many runs as are allowed."""
        if self._figures[level]:
            return False
        return self._limited_runs[level] >= LIMITED_RUNS

    def remaining(self) -> dict[int, float]:
        return self._rounds.remaining()

    def ended(self) -> SearchEnd:
        """Return where the search stopped, by all runs so far.

        Where the runs leave that open, the budget was spent before.
        """
        end = self._find_end()
        if end is not None:
            return end
        measured = [
            level for level in self._levels if self._figures[level] or self._limited_runs[level]
        ]
        highest = max(measured, default=1)
        return SearchEnd(highest, "budget")

    def _climb(self) -> int:
        """Return the highest level until it has a figure; then add a level of twice its agents."""
        last = self._levels[-1]
        if not self._figures[last]:
            return last
        higher = 2 * last
        self._levels.append(higher)
        self._rounds.add(higher)
        self._figures[higher] = []
        self._limited_runs[higher] = 0
        return higher

    def _find_end(self) -> SearchEnd | None:
        last = self._levels[-1]
        if self._is_beyond_client(last):
            return SearchEnd(last, "client")
        if not self._figures[last]:
            return None
        points = [LevelPoint(level, self._figures[level]) for level in self._levels]
        knee = SpeedCurve(points).knee()
        beyond = None
        if knee is not None:
            beyond = self._levels[knee.at]
            levels_past_knee = len(self._levels) - 1 - knee.at
            if levels_past_knee >= PAST_KNEE:
                return SearchEnd(last, "past the knee", beyond)
        if 2 * last > self._max_agents:
            return SearchEnd(last, "most", beyond)
        return None
