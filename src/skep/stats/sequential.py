"""B against A, round by round, until the answer is clear: better, worse, or not to be told apart.

A round is one start of both with readings in pairs. Readings of one start share what that start was like, so a mean of
many readings of one start is not better known than a start is repeatable: the spread between starts is part of the
error. Looked at after every round; each look spends its part of the whole chance of a false alarm, so that looking
often does not make one. Knows neither what is measured nor what a round costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, variance

from skep.stats.percentiles import MeanEstimate, median, t_quantile
from skep.units import Interval

READING, START = 0.03, 0.012  # spreads taken for granted until there are figures
_GUESS_READING, _GUESS_START = 6.0, 2.0  # as many values as these guesses are worth
_CLIP = 3.0  # deviations beyond which a reading is pulled in: a five-prompt outlier must not decide
_MOST_FREEDOM = 40.0


class SequentialVerdict(Enum):
    OPEN = "open"
    BETTER = "better"
    WORSE = "worse"
    SAME = "not distinguishable"


class MeasurementNoise:
    """How much readings of one start differ, and starts of one configuration, as shares. Learns from every start."""

    def __init__(self, *, reading: float = READING, start: float = START) -> None:
        self._reading_squares, self._reading_freedom = _GUESS_READING * reading**2, _GUESS_READING
        self._start_squares, self._start_freedom = _GUESS_START * start**2, _GUESS_START

    def __repr__(self) -> str:
        return f"<MeasurementNoise {100 * self.reading:.1f} % a reading, {100 * self.start:.1f} % a start>"

    @property
    def reading(self) -> float:
        return math.sqrt(self._reading_squares / self._reading_freedom)

    @property
    def start(self) -> float:
        return math.sqrt(self._start_squares / self._start_freedom)

    @property
    def start_freedom(self) -> float:
        return self._start_freedom

    def add_start(self, logs: Sequence[float]) -> None:
        """The logarithms of one start's readings."""
        if len(logs) < 2:
            return
        clipped = self.clipped(logs)
        middle = fmean(clipped)
        self._reading_squares += sum((value - middle) ** 2 for value in clipped)
        self._reading_freedom += len(clipped) - 1

    def add_rounds(self, means: Sequence[float], counts: Sequence[int]) -> None:
        """Differences of two configurations, one a round: what readings do not explain is the starts'."""
        self._add_means(means, counts, 2)

    def add_starts(self, means: Sequence[float], counts: Sequence[int]) -> None:
        """Of one configuration, one a start."""
        self._add_means(means, counts, 1)

    def _add_means(self, means: Sequence[float], counts: Sequence[int], sides: int) -> None:
        if len(means) >= 2:
            within = sides * self.reading**2 * fmean(1 / count for count in counts)
            self._start_squares += (len(means) - 1) * max(0.0, variance(means) - within) / sides
            self._start_freedom += len(means) - 1

    def clipped(self, logs: Sequence[float]) -> list[float]:
        """Return the readings with outliers pulled in to three deviations."""
        middle, room = median(logs), _CLIP * self.reading
        return [min(max(value, middle - room), middle + room) for value in logs]

    def mean_variance(self, count: int) -> float:
        """Of the mean of one start's readings, as a measure of the configuration."""
        return float(self.start**2 + self.reading**2 / max(1, count))


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """The logarithm of B over A, and how far it may be off at this look."""

    estimate: float
    error: float
    reach: float

    @property
    def ratio(self) -> Interval:
        low, high = self.estimate - self.reach, self.estimate + self.reach
        return Interval(math.exp(low), math.exp(self.estimate), math.exp(high))


class SequentialTest:
    """Fed the pairs of one round at a time; `verdict` is final once it is not OPEN.

    `chance`: that the true ratio lies outside of the interval at any look. `worth`: a share below which a gain is not
    looked for any longer. At least two rounds, so two starts of either side, before B is called better.
    """

    def __init__(self, noise: MeasurementNoise, *, rounds: int = 6, chance: float = 0.05, worth: float = 0.01) -> None:
        if rounds < 2:
            raise ValueError(f"{rounds} rounds cannot show what starts differ by")
        self._noise, self._rounds, self._worth = noise, rounds, worth
        self._each = chance / (rounds - 1)
        self._differences: list[list[float]] = []
        self.verdict = SequentialVerdict.OPEN

    def __repr__(self) -> str:
        return f"<SequentialTest {self.verdict.value} after {len(self._differences)}/{self._rounds} rounds>"

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
        standing = self.standing
        if standing is not None:
            self.verdict = self._judged(standing)

    @property
    def standing(self) -> RatioEstimate | None:
        """None before there are two pairs."""
        if self.pairs < 2:
            return None
        rounds = self.rounds
        estimate = fmean(fmean(one) for one in self._differences)
        reading, reading_freedom = self._reading_variance()
        start, start_freedom = self._start_variance(reading)
        parts = ((start / rounds, start_freedom), (reading * self._thinness() / rounds, reading_freedom))
        known = MeanEstimate(estimate, parts)
        return RatioEstimate(estimate, known.error, _reach(known, 1 - self._each))

    @property
    def round_means(self) -> tuple[list[float], list[int]]:
        return [fmean(one) for one in self._differences], [len(one) for one in self._differences]

    def _judged(self, now: RatioEstimate) -> SequentialVerdict:
        if now.estimate + now.reach < 0:
            return SequentialVerdict.WORSE
        if self.rounds < 2:
            return SequentialVerdict.SAME if now.estimate + now.reach < self._worth else SequentialVerdict.OPEN
        if now.estimate - now.reach > 0:
            return SequentialVerdict.BETTER
        last = self.rounds >= self._rounds
        return SequentialVerdict.SAME if last or self._is_futile(now) else SequentialVerdict.OPEN

    def _is_futile(self, now: RatioEstimate) -> bool:
        """Either no gain worth having is left in it, or even a lucky remainder would not show one."""
        if now.estimate + now.reach < self._worth:
            return True
        at_the_end = now.reach * math.sqrt(self.rounds / self._rounds)
        return now.estimate + now.error < at_the_end

    def _thinness(self) -> float:
        return fmean(1 / len(one) for one in self._differences)

    def _reading_variance(self) -> tuple[float, float]:
        """Of one pair: what is known of readings in general, and what these pairs show."""
        squares, freedom = 2 * self._noise.reading**2 * _GUESS_READING, _GUESS_READING
        for one in self._differences:
            middle = fmean(one)
            squares += sum((value - middle) ** 2 for value in one)
            freedom += len(one) - 1
        return squares / freedom, freedom

    def _start_variance(self, reading: float) -> tuple[float, float]:
        guess, freedom = 2 * self._noise.start**2, self._noise.start_freedom
        if self.rounds < 2:
            return guess, freedom
        means = [fmean(one) for one in self._differences]
        middle = fmean(means)
        between = sum((value - middle) ** 2 for value in means) - (self.rounds - 1) * reading * self._thinness()
        pooled = (freedom * guess + max(0.0, between)) / (freedom + self.rounds - 1)
        own = max(0.0, between) / (self.rounds - 1)
        return max(pooled, own), freedom + self.rounds - 1  # a machine may be more moody than one took it for

    def _clipped(self, differences: list[float]) -> list[float]:
        middle = median([*(value for one in self._differences for value in one), *differences])
        room = _CLIP * math.sqrt(2) * math.hypot(self._noise.reading, self._noise.start)
        return [min(max(value, middle - room), middle + room) for value in differences]


def mean_of_starts(starts: Sequence[Sequence[float]], noise: MeasurementNoise) -> Interval | None:
    """Return the mean of one configuration with its 95 % interval, from logarithms of its readings by start."""
    groups = [noise.clipped(one) for one in starts if one]
    if not groups:
        return None
    count, thin = len(groups), fmean(1 / len(one) for one in groups)
    means = [fmean(one) for one in groups]
    estimate = fmean(means)
    readings = sum(len(one) - 1 for one in groups)
    squares = sum((value - fmean(one)) ** 2 for one in groups for value in one)
    reading = (_GUESS_READING * noise.reading**2 + squares) / (_GUESS_READING + readings)
    between = max(0.0, sum((mean - estimate) ** 2 for mean in means) - (count - 1) * reading * thin)
    start, freedom = (noise.start_freedom * noise.start**2 + between), noise.start_freedom + count - 1
    start /= freedom
    own = between / (count - 1) if count > 1 else 0.0
    if own > start:  # these starts differ more than others did: they know it best, few as they are
        start, freedom = own, float(count)
    parts = ((start / count, freedom), (reading * thin / count, _GUESS_READING + readings))
    reach = _reach(MeanEstimate(estimate, parts), 0.95)
    return Interval(math.exp(estimate - reach), math.exp(estimate), math.exp(estimate + reach))


def _reach(known: MeanEstimate, confidence: float) -> float:
    return t_quantile(confidence, min(known.freedom, _MOST_FREEDOM)) * known.error
