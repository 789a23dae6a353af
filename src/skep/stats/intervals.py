"""Confidence intervals by resampling: how far a median would move if the run were repeated.

The percentile bootstrap: draw samples of the same size with replacement, take the statistic of each, and cut
the tails. It assumes independent values; with fewer than ten or so it is too narrow. Chance comes in as `rng`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from skep.stats.percentiles import median, percentile

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """`estimate` is the statistic of the sample itself; low <= high."""

    low: float
    estimate: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


def median_interval(
    values: Iterable[float], *, rng: Random, confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval | None:
    """None below two values."""
    return _interval([values], lambda samples: median(samples[0]), rng, confidence, resamples)


def mean_interval(
    values: Iterable[float], *, rng: Random, confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval | None:
    """None below two values."""
    return _interval([values], lambda samples: fmean(samples[0]), rng, confidence, resamples)


def ratio_of_medians_interval(
    numerators: Iterable[float],
    denominators: Iterable[float],
    *,
    rng: Random,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """median(numerators) / median(denominators), the two drawn independently; None below two values of either."""
    below = sorted(denominators)
    if below and below[0] <= 0:
        raise ValueError(f"denominator {below[0]} is not positive")
    return _interval([numerators, below], _ratio_of_medians, rng, confidence, resamples)


def _ratio_of_medians(samples: Sequence[Sequence[float]]) -> float:
    return median(samples[0]) / median(samples[1])


def _interval(
    samples: Sequence[Iterable[float]],
    statistic: Callable[[Sequence[Sequence[float]]], float],
    rng: Random,
    confidence: float,
    resamples: int,
) -> Interval | None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    if resamples < 1:
        raise ValueError(f"{resamples} resamples are too few")
    ordered = [sorted(values) for values in samples]  # sorted: the order of the values must not matter
    if min(map(len, ordered)) < 2:
        return None
    drawn = [statistic([rng.choices(values, k=len(values)) for values in ordered]) for _ in range(resamples)]
    tail = 50 * (1 - confidence)
    return Interval(percentile(drawn, tail), statistic(ordered), percentile(drawn, 100 - tail))
