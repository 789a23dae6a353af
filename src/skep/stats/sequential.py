"""B against A, round by round, until the answer is clear: better, worse, or not to be told apart.

A round is one start of both with readings in pairs. Readings of one start share what that start was like, so the spread
between starts is part of the error, however many readings there are. Looked at after every round; each look spends its
part of the whole chance of a false alarm, so that looking often does not make one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from statistics import fmean, variance

from skep.stats.percentiles import MeanEstimate, median
from skep.units import Interval

READING, START = 0.03, 0.012  # spreads taken for granted until there are figures
_GUESS_READING, _GUESS_START = 6.0, 2.0  # as many values as these guesses are worth
_CLIP = 3.0  # deviations beyond which a reading is pulled in: a five-prompt outlier must not decide
_MOST_FREEDOM = 40.0
CHANCE = 0.05  # that the true ratio lies outside of the interval at any look


class SequentialVerdict(Enum):
    OPEN = "open"
    BETTER = "better"
    WORSE = "worse"
    SAME = "not distinguishable"


class MeasurementNoise:
    """How much readings of one start differ, and starts of one configuration, as shares. Learns from every start."""

    def __init__(self, *, reading: float = READING, start: float = START) -> None:
        self._reading_squares, self._reading_freedom = _GUESS_READING * reading**2, _GUESS_READING
        self._start_squares, self.start_freedom = _GUESS_START * start**2, _GUESS_START

    @property
    def reading(self) -> float:
        return math.sqrt(self._reading_squares / self._reading_freedom)

    @property
    def start(self) -> float:
        return math.sqrt(self._start_squares / self.start_freedom)

    def add_start(self, logs: Sequence[float]) -> None:
        """The logarithms of one start's readings."""
        if len(logs) < 2:
            return
        clipped = self.clipped(logs)
        middle = fmean(clipped)
        self._reading_squares += sum((value - middle) ** 2 for value in clipped)
        self._reading_freedom += len(clipped) - 1

    def add_means(self, means: Sequence[float], counts: Sequence[int], *, sides: int) -> None:
        """Of one configuration's starts, or two sides' differences by round: what readings do not explain is theirs."""
        if len(means) >= 2:
            within = sides * self.reading**2 * fmean(1 / count for count in counts)
            self._start_squares += (len(means) - 1) * max(0.0, variance(means) - within) / sides
            self.start_freedom += len(means) - 1

    def clipped(self, logs: Sequence[float]) -> list[float]:
        """Return the readings with outliers pulled in to three deviations."""
        middle, room = median(logs), _CLIP * self.reading
        return [min(max(value, middle - room), middle + room) for value in logs]

    def mean_variance(self, count: int) -> float:
        """Of the mean of one start's readings, as a measure of the configuration."""
        return float(self.start**2 + self.reading**2 / max(1, count))


class SequentialTest:
    """Fed the pairs of one round at a time; `verdict` is final once it is not OPEN. `worth`: a share below which a
    gain is not looked for any longer. At least two rounds, so two starts of either side, before B is called better."""

    def __init__(self, noise: MeasurementNoise, *, rounds: int = 6, worth: float = 0.01) -> None:
        self._noise, self._rounds, self._worth = noise, rounds, worth
        self._each = CHANCE / (rounds - 1)
        self._differences: list[list[float]] = []
        self.verdict = SequentialVerdict.OPEN

    @property
    def rounds(self) -> int:
        return len(self._differences)

    @property
    def pairs(self) -> int:
        return sum(map(len, self._differences))

    def feed(self, pairs: Sequence[tuple[float, float]]) -> None:
        """(A, B), logarithms both. A round without any is one in which nothing could be measured."""
        if self.verdict is not SequentialVerdict.OPEN:
            return
        if pairs:
            self._differences.append(self._clipped([b - a for a, b in pairs]))
        if self.pairs >= 2:
            self.verdict = self._judged()

    @property
    def ratio(self) -> Interval | None:
        """B over A, as far as it is known at this look; None before there are two pairs."""
        if self.pairs < 2:
            return None
        return _mean_of(self._differences, self._noise, sides=2).as_ratio(1 - self._each, _MOST_FREEDOM)

    @property
    def round_means(self) -> tuple[list[float], list[int]]:
        return [fmean(one) for one in self._differences], [len(one) for one in self._differences]

    def _judged(self) -> SequentialVerdict:
        now = _mean_of(self._differences, self._noise, sides=2)
        reach = now.reach(1 - self._each, _MOST_FREEDOM)
        if now.estimate + reach < 0:
            return SequentialVerdict.WORSE
        if self.rounds >= 2 and now.estimate - reach > 0:
            return SequentialVerdict.BETTER
        if now.estimate + reach < self._worth:  # no gain worth having is left in it
            return SequentialVerdict.SAME
        even_if_lucky = now.estimate + now.error < reach * math.sqrt(self.rounds / self._rounds)
        over = self.rounds >= 2 and (self.rounds >= self._rounds or even_if_lucky)
        return SequentialVerdict.SAME if over else SequentialVerdict.OPEN

    def _clipped(self, differences: list[float]) -> list[float]:
        middle = median([*(value for one in self._differences for value in one), *differences])
        room = _CLIP * math.sqrt(2) * math.hypot(self._noise.reading, self._noise.start)
        return [min(max(value, middle - room), middle + room) for value in differences]


def mean_of_starts(starts: Sequence[Sequence[float]], noise: MeasurementNoise) -> Interval | None:
    """Return the mean of one configuration with its 95 % interval, from logarithms of its readings by start."""
    groups = [noise.clipped(one) for one in starts if one]
    if not groups:
        return None
    return _mean_of(groups, noise, sides=1).as_ratio(0.95, _MOST_FREEDOM)


def _mean_of(groups: Sequence[Sequence[float]], noise: MeasurementNoise, *, sides: int) -> MeanEstimate:
    """Return the mean over starts, or over rounds of two sides, by what is known of noise and what these groups show.
    Groups that differ more than others did know it best: a machine may be more moody than one took it for."""
    count, thin = len(groups), fmean(1 / len(one) for one in groups)
    means = [fmean(one) for one in groups]
    estimate = fmean(means)
    readings = _GUESS_READING + sum(len(one) - 1 for one in groups)
    within = sum((value - mean) ** 2 for one, mean in zip(groups, means, strict=True) for value in one)
    reading = (_GUESS_READING * sides * noise.reading**2 + within) / readings
    between = max(0.0, sum((mean - estimate) ** 2 for mean in means) - (count - 1) * reading * thin)
    freedom = noise.start_freedom + count - 1
    start = (noise.start_freedom * sides * noise.start**2 + between) / freedom
    own = between / (count - 1) if count > 1 else 0.0
    if own > start:
        start, freedom = own, float(count) if sides == 1 else freedom
    return MeanEstimate(estimate, ((start / count, freedom), (reading * thin / count, readings)))
