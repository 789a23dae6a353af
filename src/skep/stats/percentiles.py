"""Location and spread of a sample or of moving windows, and intervals: by how much a figure would
change in a repeated run.

For few values, such as the repeats of a level, Student's t. Ratios are taken on logarithms, where
a share is a difference: the result is the ratio of geometric means, which for a spread of a few
per cent is that of the means."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, stdev, variance

import msgspec
from msgspec.structs import replace

from skep.units import Interval


class Percentiles(msgspec.Struct, frozen=True):
    p50: float
    p95: float
    p99: float
    mean: float


def percentile(values: Iterable[float], q: float) -> float:
    """Return the q-th percentile by linear interpolation: `percentile([10, 20], 95)` is 19.5."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    return at_rank(ordered, q)


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """Return p50, p95, p99 and mean; None for an empty sample."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Percentiles(
        p50=at_rank(ordered, 50),
        p95=at_rank(ordered, 95),
        p99=at_rank(ordered, 99),
        mean=fmean(ordered),
    )


def median(values: Iterable[float]) -> float:
    return percentile(values, 50)


def mad(values: Iterable[float]) -> float:
    """Return the median absolute deviation from the median, unscaled: multiply by 1.4826 to
    compare it with a standard deviation.
    """
    sample = list(values)
    middle = median(sample)
    return median(abs(value - middle) for value in sample)


def coefficient_of_variation(values: Iterable[float]) -> float | None:
    """Return the sample standard deviation over the mean.

    None below two values or around a mean of zero.
    """
    sample = list(values)
    if len(sample) < 2:
        return None
    mean = fmean(sample)
    if mean:
        return stdev(sample, xbar=mean) / abs(mean)
    return None


def at_rank(ordered: Sequence[float], q: float) -> float:
    """Return the q-th percentile of values that are sorted already."""
    position = q * (len(ordered) - 1) / 100
    below = int(position)
    low = ordered[below]
    high = ordered[min(below + 1, len(ordered) - 1)]
    if position == below:  # infinity times zero is no number
        return low
    return min(high, low + (high - low) * (position - below))


class WindowStats(msgspec.Struct, frozen=True):
    count: int
    median: float
    mad: float  # unscaled: the median distance from the median
    cv: float | None  # None below two values, and around a mean of zero
    p05: float
    p25: float
    p75: float
    p95: float
    low: float
    high: float


def window_stats(values: Iterable[float]) -> WindowStats | None:
    """Return the statistics of the values; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return WindowStats(
        count=len(ordered),
        median=at_rank(ordered, 50),
        mad=mad(ordered),
        cv=coefficient_of_variation(ordered),
        p05=at_rank(ordered, 5),
        p25=at_rank(ordered, 25),
        p75=at_rank(ordered, 75),
        p95=at_rank(ordered, 95),
        low=ordered[0],
        high=ordered[-1],
    )


def rolling_median(
    points: Sequence[tuple[float, float]], width_s: float
) -> list[tuple[float, float, float, float]]:
    """Return (moment, median, lower quartile, upper quartile) of the `width_s` up to and with each
    point, oldest first.
    """
    medians = []
    # Kept sorted while it moves, so that 20,000 points take a tenth of a second.
    window: list[float] = []
    first = 0
    for at, value in points:
        insort(window, value)
        while points[first][0] <= at - width_s:
            del window[bisect_left(window, points[first][1])]
            first += 1
        medians.append((at, at_rank(window, 50), at_rank(window, 25), at_rank(window, 75)))
    return medians


STEPS = 100  # three to ten are needed
_TINY = 1e-300


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, freedom: float) -> float:
    """Return the t for which -t..t holds `confidence` of the distribution.

    It is 2.776 for 0.95 and 4 degrees of freedom.
    """
    t = NormalDist().inv_cdf((1 + confidence) / 2)
    scale = (
        math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    )
    tails = 1 - confidence
    for _ in range(STEPS):  # Newton's: the tail is convex, so each step stays below the answer
        x = freedom / (freedom + t * t)
        density = math.exp(scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        excess = _beta_share(x, freedom / 2, 0.5) - tails
        step = excess / (2 * density)
        t += step
        if abs(step) < 1e-11 * t:
            break
    return t


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function.

    Computed from the side where its continued fraction converges quickly.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    log_front = a * math.log(x) + b * math.log1p(-x)
    log_front += math.lgamma(a + b)
    log_front -= math.lgamma(a)
    log_front -= math.lgamma(b)
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return front / a / _fraction(x, a, b)
    return 1 - front / b / _fraction(1 - x, b, a)


def _fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d1/(1 + d2/(1 + ...)), computed from the left by the method of Lentz."""
    value = 1.0
    above = 1.0
    below = 0.0
    for step in range(1, 500):
        half = step // 2
        twice = 2 * half
        if step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + twice) * (a + twice + 1))
        else:
            term = half * (b - half) * x / ((a + twice - 1) * (a + twice))
        below = 1 / ((1 + term * below) or _TINY)
        above = (1 + term / above) or _TINY
        value *= above * below
        if abs(above * below - 1) < 1e-14:
            break
    return value


FEWEST_RUNS = 3  # of a level, for an interval over them
WIDEST = 700.0  # of a logarithm: its exponential is still a float


def mean_t_interval(values: Iterable[float]) -> Interval | None:
    """Return Student's 95 % interval of the mean, for few values of a roughly normal spread.

    None below two values.
    """
    sample = sorted(values)
    if len(sample) < 2:
        return None
    mean = MeanEstimate.of(sample)
    reach = mean.reach(0.95)
    return Interval(mean.estimate - reach, mean.estimate, mean.estimate + reach)


def runs_interval(values: Iterable[float]) -> Interval | None:
    """Return the 95 % interval of the mean over the runs of a level, never below zero.

    None below three runs: two values say more than their interval.
    """
    sample = list(values)
    if len(sample) < FEWEST_RUNS:
        return None
    interval = mean_t_interval(sample)
    if interval is None:
        return None
    return replace(interval, low=max(0.0, interval.low))


class MeanEstimate(msgspec.Struct, frozen=True):
    """A mean with the parts of its error, each a variance and its degrees of freedom."""

    estimate: float
    parts: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, sample: Sequence[float]) -> MeanEstimate:
        """Return the mean of a sample of two values at least."""
        error = variance(sample) / len(sample)
        return cls(fmean(sample), ((error, len(sample) - 1),))

    def __sub__(self, subtrahend: MeanEstimate) -> MeanEstimate:
        return MeanEstimate(self.estimate - subtrahend.estimate, self.parts + subtrahend.parts)

    @property
    def freedom(self) -> float:
        """Return the degrees of freedom, by the rule of Welch and Satterthwaite.

        For a single part, that is its plain count.
        """
        total = sum(part for part, _ in self.parts)
        if total <= 0:
            return sum(freedom for _, freedom in self.parts)
        return 1 / sum((part / total) ** 2 / freedom for part, freedom in self.parts)

    @property
    def error(self) -> float:
        return math.sqrt(sum(part for part, _ in self.parts))

    def reach(self, confidence: float, most_freedom: float = math.inf) -> float:
        return t_quantile(confidence, min(self.freedom, most_freedom)) * self.error

    def as_ratio(self, confidence: float, most_freedom: float = math.inf) -> Interval:
        """Return the interval of the ratio, if this is a mean of logarithms."""
        reach = self.reach(confidence, most_freedom)

        def ratio_at(logarithm: float) -> float:
            return math.exp(min(logarithm, WIDEST))

        return Interval(
            low=ratio_at(self.estimate - reach),
            estimate=ratio_at(self.estimate),
            high=ratio_at(self.estimate + reach),
        )
