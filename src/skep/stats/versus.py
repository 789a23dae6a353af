"""B against A: the ratio of their medians with an interval, and how steady each is.

Values are given in the order in which they were measured. Hourly figures of one machine are no
independent draws: a slow hour is often followed by another. How strong that is, is estimated, and
widens the interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from statistics import NormalDist

import msgspec

from skep.stats.percentiles import MeanEstimate, WindowStats, median, t_quantile, window_stats
from skep.units import Interval


class Judgement(Enum):
    BETTER = "better"
    WORSE = "worse"
    SAME = "not distinguishable"
    UNKNOWN = "not comparable"


LEAST_RATIO_DIFFERENCE = 0.005  # a smaller difference is not reported, however sure it is
# Correlation of neighbouring values, beyond which the formula of `slowness` does not hold.
_SLOWEST = 0.9
_MANY = 60  # values from which a binomial is taken as normal
# Each fitted level hides this much of that correlation, over the number of values; by simulation.
_HIDDEN = 3.0


class SeriesComparison(msgspec.Struct, frozen=True):
    """Two series and how they compare.

    `ratio` is B over A; better and worse know which way is up.
    """

    a: WindowStats | None
    b: WindowStats | None
    # None: a side has fewer than two values, or a median that is not above zero.
    ratio: Interval | None
    judgement: Judgement

    @property
    def noise(self) -> float | None:
        """Return the greater of the two run-to-run variations; None where neither is known."""
        sides = (self.a, self.b)
        variations = [side.cv for side in sides if side is not None and side.cv is not None]
        return max(variations, default=None)


def versus(
    a: Sequence[float],
    b: Sequence[float],
    *,
    more_is_better: bool = True,
    confidence: float = 0.95,
) -> SeriesComparison:
    """Compare B with A. SAME where the interval holds 1 or the medians lie less than 0.5 % apart;
    UNKNOWN without a ratio.
    """
    slow = slowness([deviations(a), deviations(b)])
    ratio = ratio_of_medians(a, b, slow=slow, confidence=confidence)
    return SeriesComparison(
        a=window_stats(a),
        b=window_stats(b),
        ratio=ratio,
        judgement=_judgement(ratio, LEAST_RATIO_DIFFERENCE, more_is_better),
    )


def _judgement(ratio: Interval | None, indifferent: float, more_is_better: bool) -> Judgement:
    if ratio is None:
        return Judgement.UNKNOWN
    if ratio.contains(1.0) or abs(ratio.estimate - 1) < indifferent:
        return Judgement.SAME
    if (ratio.estimate > 1) is more_is_better:
        return Judgement.BETTER
    return Judgement.WORSE


def ratio_of_medians(
    a: Sequence[float],
    b: Sequence[float],
    *,
    slow: float = 1.0,
    confidence: float = 0.95,
) -> Interval | None:
    """Return median(b) / median(a), with an interval by the ranks around each median.

    `slow` widens it. None where either has fewer than two values, where A's median is not above
    zero, and where B's is below it.
    """
    if min(len(a), len(b)) < 2:
        return None
    median_a = median(a)
    median_b = median(b)
    if median_a <= 0 or median_b < 0:
        return None
    error_a = _error_of_median(a) / median_a
    error_b = 0.0
    if median_b:
        error_b = _error_of_median(b) / median_b
    error = math.hypot(error_a, error_b)
    freedom = len(a) + len(b) - 2
    reach = min(slow * t_quantile(confidence, freedom) * error, 50.0)
    ratio = median_b / median_a
    low = ratio * math.exp(-reach)
    high = ratio * math.exp(reach)
    return Interval(low, ratio, high)


def deviations(values: Sequence[float]) -> list[float]:
    """Return the distances from the median, clipped at three deviations."""
    if not values:
        return []
    middle = median(values)
    room = 3 * 1.4826 * median(abs(value - middle) for value in values)
    return [min(max(value - middle, -room), room) for value in values]


def slowness(parts: Sequence[Sequence[float]]) -> float:
    """Return the deviation of a mean over the deviation it would have of independent values.

    1 where no slow noise is seen. Each part is a stretch around one level, in order. Estimated
    from the correlation of neighbours, and from how much of it a mean of few values hides.
    """
    count = sum(map(len, parts))
    deviations_by_part: list[list[float]] = []
    for part in parts:
        if part:
            mean = math.fsum(part) / len(part)
            deviations_by_part.append([value - mean for value in part])
    squares = sum(deviation * deviation for part in deviations_by_part for deviation in part)
    if squares <= 0:
        return 1.0
    products = sum(
        before * after for part in deviations_by_part for before, after in pairwise(part)
    )
    hidden = _HIDDEN * len(deviations_by_part) / count
    correlation = products / squares + hidden
    correlation = min(max(correlation, 0.0), _SLOWEST)
    return math.sqrt((1 + correlation) / (1 - correlation))


def _error_of_median(values: Sequence[float]) -> float:
    """Return the standard error, from the two values that lie about one root of n ranks to either
    side of the middle.

    After Price and Bonett: the chance that the median lies between these two is known from the
    binomial, whatever the distribution, and their distance is divided by as many normal
    deviations.
    """
    ordered = sorted(values)
    n = len(ordered)
    rank = max(1, round((n + 1) / 2 - math.sqrt(n)))
    if n > _MANY:
        # Of a binomial, half a count nearer to the middle.
        deviations_off = (n + 1 - 2 * rank) / math.sqrt(n)
    else:
        chance_below = sum(math.comb(n, count) for count in range(rank)) / 2**n
        deviations_off = -NormalDist().inv_cdf(chance_below)
    distance = ordered[n - rank] - ordered[rank - 1]
    return distance / (2 * deviations_off)


def judge(
    a_values: Sequence[float],
    b_values: Sequence[float],
    *,
    higher_is_better: bool,
    paired: bool = False,
    indifferent: float = 0.01,
    confidence: float = 0.95,
) -> tuple[Interval | None, Judgement]:
    """Return the ratio of B over A, and the judgement: better or worse only if the interval leaves
    out 1 and the ratio is off by more than `indifferent`.

    `paired`: the i-th of A and of B were measured side by side. UNKNOWN, without interval, below
    two values of either, and where a value is not above zero: such a level failed, and its ratio
    would be made up. Simulated, equal A and B of 3 % noise were called better or worse in 3 to 4 %
    of cases with 3 to 6 repeats of each, in 5 to 6 % if paired or with 3 against 6; one tenth more
    was detected in 73 % with 3 of each, in 99 % with 5.
    """
    if min(len(a_values), len(b_values)) < 2 or min(*a_values, *b_values) <= 0:
        return None, Judgement.UNKNOWN
    a = list(map(math.log, a_values))
    b = list(map(math.log, b_values))
    if paired:
        shift = MeanEstimate.of([after - before for before, after in zip(a, b, strict=True)])
    else:
        shift = MeanEstimate.of(b) - MeanEstimate.of(a)
    ratio = shift.as_ratio(confidence)
    return ratio, _judgement(ratio, indifferent, higher_is_better)
