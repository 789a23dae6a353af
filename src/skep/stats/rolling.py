"""A series in moving windows: where it lies and how much it spreads. Knows numbers only."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import msgspec

from skep.stats.percentiles import at_rank, coefficient_of_variation, mad, median

LEAST_SLOPES = 3  # points below which a line through them says nothing


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


class TrendLine(msgspec.Struct, frozen=True):
    """A straight line through a series, by the median of slopes, which outliers do not move."""

    slope: float  # per unit of time
    low: float  # 95 %
    high: float
    start: float  # its value at the first moment


def window_stats(values: Iterable[float]) -> WindowStats | None:
    """Return the statistics of the values; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    p05, p25, middle, p75, p95 = (at_rank(ordered, q) for q in (5, 25, 50, 75, 95))
    return WindowStats(
        len(ordered), middle, mad(ordered), coefficient_of_variation(ordered), p05, p25, p75, p95,
        low=ordered[0], high=ordered[-1],
    )  # fmt: skip


def rolling_median(points: Sequence[tuple[float, float]], width_s: float) -> list[tuple[float, float, float, float]]:
    """(moment, median, lower quartile, upper quartile) of the `width_s` up to and with each point, oldest first."""
    found = []
    window: list[float] = []  # kept sorted while it moves, so that 20,000 points take a tenth of a second
    first = 0
    for at, value in points:
        insort(window, value)
        while points[first][0] <= at - width_s:
            del window[bisect_left(window, points[first][1])]
            first += 1
        found.append((at, at_rank(window, 50), at_rank(window, 25), at_rank(window, 75)))
    return found


def line_through(points: Sequence[tuple[float, float]], most: int = 120) -> TrendLine | None:
    """By Theil and Sen; the interval by Sen's ranks. None below three moments.
    Longer series are first gathered into `most` medians of neighbours, which keeps the slope and its interval."""
    size, gathered = -(-len(points) // most), points
    if size > 1:
        groups = [points[start : start + size] for start in range(0, len(points), size)]
        gathered = [(median(at for at, _ in group), median(value for _, value in group)) for group in groups]
    slopes = sorted(
        (later - value) / (after - at)
        for place, (at, value) in enumerate(gathered)
        for after, later in gathered[place + 1 :]
        if after > at
    )
    if len({at for at, _ in gathered}) < LEAST_SLOPES:
        return None
    n = len(gathered)
    reach = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - reach) / 2))
    high = min(len(slopes) - 1, round((len(slopes) + reach) / 2))
    slope = median(slopes)
    middle = median(value - slope * (at - gathered[0][0]) for at, value in gathered)
    return TrendLine(slope, slopes[low], slopes[high], middle + slope * (points[0][0] - gathered[0][0]))
