"""The budget of a climb: what an errand is expected to take, what is left, and what is kept for the last picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

from skep.tuner.ports import SearchSpace
from skep.tuner.records import KnobConfig, TuneGoal

FEWEST, MOST = 3, 8  # readings of a start that decides
CURVE_SHARE = 0.15  # of the budget kept for the curve, at most
_FASTEST, _SLOWEST = 0.1, 10.0  # what is measured over what was expected


class TimeBudget:
    def __init__(self, terrain: SearchSpace, aim: TuneGoal, budget_s: float) -> None:
        self.budget_s, self.spent_s = budget_s, 0.0
        self._terrain, self._aim = terrain, aim
        self._pace = 1.0  # measured over expected seconds

    def __repr__(self) -> str:
        return f"<TimeBudget {self.spent_s:.0f} of {self.budget_s:.0f} s, {self._pace:.2f} times as long as expected>"

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds

    def learn(self, configs: Sequence[KnobConfig], readings: int, seconds: float) -> None:
        """What an errand really took."""
        expected = self.seconds(configs, readings) / self._pace
        self._pace = 0.7 * self._pace + 0.3 * min(_SLOWEST, max(_FASTEST, seconds / max(1e-6, expected)))

    def seconds(self, configs: Sequence[KnobConfig], readings: int) -> float:
        """One start, a warm-up and so many readings of each."""
        each = (self._terrain.start_s(one) + (readings + 1) * self._terrain.reading_s(one) for one in configs)
        return self._pace * sum(each)

    def readings(self, config: KnobConfig) -> int:
        """As long as a start takes is measured: more readings would tell ever less than another start."""
        wanted = self._terrain.start_s(config) / max(0.1, self._terrain.reading_s(config))
        return min(MOST, max(FEWEST, round(wanted)))

    def can_afford(self, seconds: float, ends: Sequence[KnobConfig]) -> bool:
        """`ends`: what the curve will be drawn of."""
        wanted = self.seconds(ends, 2 * len(curve_levels(self._aim.concurrency)))
        return seconds <= self.budget_s - self.spent_s - min(CURVE_SHARE * self.budget_s, wanted)


def curve_levels(concurrency: int) -> tuple[int, ...]:
    """1, 2, 4, ... to one doubling beyond the goal's."""
    steps = [1 << n for n in range(int(math.log2(concurrency)) + 1) if 1 << n < concurrency]
    return (*steps, concurrency, 2 * concurrency)
