"""Location and spread of a sample. Knows numbers only; what they measure is the caller's business."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p95: float
    p99: float
    mean: float


def percentile(values: Iterable[float], q: float) -> float:
    """The q-th percentile, 0 <= q <= 100, by linear interpolation between the two nearest ranks.

    The smallest value is percentile 0 and the largest percentile 100; the n values between them lie
    100 / (n - 1) apart. `percentile([10, 20], 95)` is 19.5.
    """
    return _at(_sorted(values), q)


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """Return p50, p95, p99 and mean; None for an empty sample."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p95, p99 = (_at(ordered, q) for q in (50, 95, 99))
    return Percentiles(p50=p50, p95=p95, p99=p99, mean=fmean(ordered))


def median(values: Iterable[float]) -> float:
    return percentile(values, 50)


def mad(values: Iterable[float]) -> float:
    """Median absolute deviation from the median, unscaled: multiply by 1.4826 to compare with a deviation."""
    ordered = _sorted(values)
    middle = median(ordered)
    return median(abs(value - middle) for value in ordered)


def coefficient_of_variation(values: Iterable[float]) -> float | None:
    """Sample standard deviation over mean; None below two values or around a mean of zero."""
    sample = list(values)
    if len(sample) < 2:
        return None
    mean = fmean(sample)
    return stdev(sample, xbar=mean) / abs(mean) if mean else None


def _sorted(values: Iterable[float]) -> list[float]:
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    return ordered


def _at(ordered: list[float], q: float) -> float:
    if not 0 <= q <= 100:
        raise ValueError(f"percentile {q} is not between 0 and 100")
    position = q * (len(ordered) - 1) / 100
    below = int(position)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    if position == below:  # infinity times zero is no number
        return low
    return min(high, low + (high - low) * (position - below))
