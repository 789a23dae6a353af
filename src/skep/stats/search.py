"""Which level to run next until knee and cliff are bracketed. Knows figures; knows neither clock nor server.

C doubles from 1 until two successive levels bring less than 5 %, or fall. Then the brackets are made sure, by repeating
the levels whose side is unclear, and narrow, by halving them. Every answer is worked out anew from all that was
measured, so a step that looked flat by chance does not end the search for good. A cliff beyond the two flat levels is
not looked for.

Simulated with 3 % noise and one run at a time, the brackets held the points in 97 to 100 % for curves that level off
or fall at one place, in 16 to 39 runs. On a curve that goes on creeping up by some 3 % a doubling, in two thirds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from skep.stats.turning import MARGIN, CurveSide, LevelPoint, SpeedCurve, Turning, TurningPoint, estimate_turning

WIDTH = 0.25  # a bracket no wider than this share of its lower end is narrow enough
RUNS_A_HALVING = 3  # a new level and the repeats that make its side clear; for the estimate of what is to come


class End(Enum):
    FOUND = "found"
    STILL_GROWS = "still grows at the largest C allowed"
    CLIENT_LIMITED = "the client was the limit"  # at the C above those used, or no figure came from it
    BUDGET = "the budget of runs is spent"


class SaturationSearch:
    """Ask `next_level`, run it, tell `measured`; until it is None.

    `most_repeats` of one level leave a side open that the noise does not let tell; the bracket then spans it.
    """

    def __init__(self, *, max_concurrency: int, budget: int = 60, most_repeats: int = 5) -> None:
        if max_concurrency < 1 or budget < 1 or most_repeats < 2:
            raise ValueError("a search needs a level, a run, and two repeats where a level is unclear")
        self._max, self._budget, self._most = max_concurrency, budget, most_repeats
        self._figures: dict[int, list[float]] = {}
        self._unusable: set[int] = set()
        self.runs = 0

    def __repr__(self) -> str:
        return f"<SaturationSearch {self.runs}/{self._budget} runs, next {self.next_level()}>"

    def measured(self, concurrency: int, *figures: float, limited: bool = False) -> None:
        """One run of a level, or several. Without a figure, or where the client was the limit, nothing is asked above.

        Zero is a figure: the server was there and not one request succeeded.
        """
        self.runs += max(1, len(figures))
        if limited or not figures:
            self._unusable.add(concurrency)
        else:
            self._figures.setdefault(concurrency, []).extend(figures)

    def next_level(self) -> int | None:
        """Return the level to run next; None when the search is done."""
        if self.runs >= self._budget:
            return None
        curve = self._curve()
        climb = self._next_rung(curve)
        return next(self._refinements(curve), None) if climb is None else climb

    @property
    def done(self) -> bool:
        return self.next_level() is None

    @property
    def turning(self) -> Turning:
        """The result by what is known so far."""
        return estimate_turning(self.points)

    @property
    def points(self) -> tuple[LevelPoint, ...]:
        usable = {c: values for c, values in self._figures.items() if c not in self._unusable}
        return tuple(LevelPoint(c, tuple(usable[c])) for c in sorted(usable))

    @property
    def end(self) -> End | None:
        """How it ended; None while it goes on."""
        if not self.done:
            return None
        if self.turning.knee is None and self._unusable:
            return End.CLIENT_LIMITED
        if self.runs >= self._budget and self._left_open():
            return End.BUDGET
        return End.STILL_GROWS if self.turning.knee is None else End.FOUND

    def remaining(self) -> int:
        """Runs still to come, roughly: how often a level must be repeated is only known afterwards."""
        if self.done:
            return 0
        curve = self._curve()
        places = [place for place in (curve.knee(), curve.cliff()) if place is not None]
        rungs = 0
        if self._next_rung(curve) is not None:
            rungs = min(max(1, 2 - self._flat_rungs(curve)), sum(rung not in self._figures for rung in self._rungs()))
        halvings = sum(self._halvings(*curve.bracket(place)) for place in places) if places else 2
        unsure = sum(not place.sure for place in places)
        return max(1, min(self._budget - self.runs, rungs + RUNS_A_HALVING * halvings + 2 * unsure))

    def _left_open(self) -> bool:
        curve = self._curve()
        return self._next_rung(curve) is not None or next(self._refinements(curve), None) is not None

    def _curve(self) -> SpeedCurve:
        return SpeedCurve(self.points)

    def _rungs(self) -> list[int]:
        doubled = [2**power for power in range(self._max.bit_length()) if 2**power < self._max]
        return [*doubled, self._max]

    def _next_rung(self, curve: SpeedCurve) -> int | None:
        if self._flat_rungs(curve) >= 2:
            return None
        rung = next((rung for rung in self._rungs() if rung not in self._figures), None)
        ceiling = min(self._unusable, default=math.inf)
        return rung if rung is not None and rung < ceiling else None

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
        knee, cliff = curve.knee(), curve.cliff()
        if knee is not None:
            yield from self._refine(curve, knee, curve.knee_side, curve.rival)
        elif len(curve.levels) > 1:
            yield from self._repeats(curve, [len(curve.levels) - 2], curve.knee_side, curve.rival)
        if cliff is not None:
            yield from self._refine(curve, cliff, curve.cliff_side, curve.best_before)

    def _refine(
        self,
        curve: SpeedCurve,
        place: TurningPoint,
        side: Callable[[int], CurveSide],
        against: Callable[[int], int | None],
    ) -> Iterator[int]:
        low, high = curve.bracket(place)
        if place.sure and self._is_narrow(low, high):
            return
        yield from self._repeats(curve, range(max(place.low, 0), place.high + 1), side, against)
        inside = [level.concurrency for level in curve.levels[place.low + 1 : place.high]]
        for lower, upper in dict.fromkeys([(low, [*inside, high][0]), ([low, *inside][-1], high)]):
            middle = min(max(round(math.sqrt(lower * upper)), lower + 1), upper - 1)
            if not self._is_narrow(lower, upper) and middle not in self._unusable:
                yield middle

    def _repeats(
        self,
        curve: SpeedCurve,
        places: Iterable[int],
        side: Callable[[int], CurveSide],
        against: Callable[[int], int | None],
    ) -> Iterator[int]:
        """Of each unclear level or of the one it is held against, whichever was run less often."""
        for place in places:
            rival = against(place)
            if rival is None or side(place) is not CurveSide.UNCLEAR:
                continue
            less = min(curve.levels[place], curve.levels[rival], key=lambda level: level.count)
            if less.count < self._most:
                yield less.concurrency

    def _is_narrow(self, low: int, high: int) -> bool:
        return high - low <= 1 or high <= low * (1 + WIDTH)

    def _halvings(self, low: int, high: int) -> int:
        if self._is_narrow(low, high):
            return 0
        return math.ceil(math.log2(max(2.0, math.log(high / max(low, 1)) / math.log(1 + WIDTH))))
