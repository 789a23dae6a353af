"""Where a noisy series went from one level to another. Knows numbers in their order, and nothing
of when they were measured.

Values are taken as logarithms, so that a change is a share, and clipped at three deviations around
the middle of the stretch that is looked at: an outlier counts for no more than that. The best cut
in two levels, and the best stretch that lies apart from both sides of it, are weighed by their
likelihood; above a bound the series is cut, and the parts are looked at in the same way. Slow
noise, where values are like their forerunners, raises the bound.

The bounds are for one who looks again after every new value: in simulation, of series of 336
values (14 days, hourly) without a change, one in a hundred may be said to have changed at any of
these looks. `benchmarks/change_points.py` has the figures, also of what else noise may be like."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import mul, sub

import msgspec

from skep.stats.percentiles import median
from skep.stats.versus import ratio_of_medians, slowness
from skep.units import Interval

FEWEST_VALUES = 24  # values before anything is said
SHORTEST_LEVEL = 6  # values of a level: fewer are outliers
CLIP_DEVIATIONS = 3.0  # from the middle of a level: values farther out are pulled in
LEAST_DIFFERENCE = 0.005  # a smaller difference is not reported, however sure it is
MOST_VALUES = 5000  # values that are looked at: more would take too long after every probe

# In 670 series of normal noise, looked at after each of 24 to 336 values, the highest figure of
# one in a hundred was 4.0 of a cut and 3.8 of a stretch apart. The bounds lie above that, because
# slow noise, which is only estimated, comes near them: with an autocorrelation of 0.3 about one in
# a hundred reaches 4.4 (`benchmarks/change_points.py --bounds`).
CUT_BOUND = 4.4
STRETCH_BOUND = 4.7
# For each halving of the shorter level below LONG_LEVEL values: short levels are new at every
# look, and would else make most of the false alarms. At the same false alarms, 0.1 to 0.4 find
# more of the shifts by 3 % than 0 does.
SHORT_LEVEL_EXTRA = 0.2
LONG_LEVEL = 96
# Values up to which the bounds hold; with more there are more looks, and the bounds grow with the
# logarithm.
VALUES_IN_BOUNDS = 336

# The median step between neighbours, times this, is a deviation.
_MAD_OF_STEPS = 1.4826 / math.sqrt(2)
# A spread below this share counts as this share: equal values have no noise to measure by.
_FLOOR = 0.0005
# A sum of squared deviations up to this one is that of equal values, which rounding sets apart.
_NO_SQUARES = 1e-9
# Twice the logarithm of likelihood by which a slope has to beat one step to be called a drift.
_LINE_BETTER = 4.0


class Split(msgspec.Struct, frozen=True):
    """From `index` on, the series lies at another level.

    Levels reach to the neighbouring splits.
    """

    index: int
    # With 95 %, the first value after the change is one of these, ends included.
    bracket: tuple[int, int]
    before: float  # medians
    after: float
    ratio: Interval  # after over before, 95 %
    count_before: int
    count_after: int


def changes_in_series(values: Sequence[float]) -> list[Split]:
    """Return the steps of a series, oldest first, without those that a slow drift explains as
    well.

    A level that is not above zero has no ratio, and no split.
    """
    if len(values) < FEWEST_VALUES:
        return []
    scale = _LogScale.of(values)
    cuts = scale.cuts(1.0)
    if not cuts:
        return []
    slow = scale.slowness(cuts)
    if slow > 1:
        cuts = scale.cuts(slow)
    steps = _without_drifts(scale, cuts)
    return _splits_of(scale, values, steps, slow)


class _LogScale(msgspec.Struct, frozen=True):
    """The values as they are weighed: logarithms if all are above zero."""

    xs: Sequence[float]
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _LogScale:
        """Return the scale of these values, with the spread of their noise."""
        if min(values) > 0:
            xs = [math.log(value) for value in values]
            floor = _FLOOR
        else:
            xs = list(values)
            usual = abs(median(xs))
            largest = max(map(abs, xs))
            floor = max(_FLOOR * usual, _FLOOR * largest, 1e-12)
        steps = [abs(step) for step in map(sub, xs[1:], xs)]
        deviation = _MAD_OF_STEPS * _middle(steps)
        return cls(xs, max(deviation, floor))

    def clipped(self, first: int, last: int, cut: int | None = None) -> list[float]:
        """Return a stretch in deviations from its middle, clipped at three deviations around it.

        With a cut, clipped only outside of both its levels.
        """
        part = self.xs[first:last]
        middle = _middle(part)
        lower_level = middle
        upper_level = middle
        if cut is not None:
            level_before = _middle(self.xs[first:cut])
            level_after = _middle(self.xs[cut:last])
            lower_level = min(level_before, level_after)
            upper_level = max(level_before, level_after)
        room = CLIP_DEVIATIONS * self.spread
        low = lower_level - room
        high = upper_level + room
        scale = 1 / self.spread
        # Not min() and max(), which take three times as long.
        if min(part) < low:
            part = [low if x < low else x for x in part]  # noqa: FURB136
        if max(part) > high:
            part = [high if x > high else x for x in part]  # noqa: FURB136
        return [(x - middle) * scale for x in part]

    def _parted(self, first: int, last: int, slow: float) -> list[int]:
        """Return the cut that stands out, or both ends of a stretch that does, with the cuts of
        the parts.
        """
        n = last - first
        if n < 2 * SHORTEST_LEVEL:
            return []
        ys = self.clipped(first, last)
        best_cut = _weighed(ys)
        if best_cut is None:
            return []
        if best_cut.height > _bound(CUT_BOUND, n) * slow:
            cuts = [first + best_cut.cut]
        else:
            stretch = _apart(ys)
            if stretch.height <= _bound(STRETCH_BOUND, n) * slow:
                return []
            cuts = [first + stretch.begin, first + stretch.end]
        edges = [first, *cuts, last]
        all_cuts = set(cuts)
        for begin, end in pairwise(edges):
            cuts_of_part = self._parted(begin, end, slow)
            all_cuts.update(cuts_of_part)
        return sorted(all_cuts)

    def cuts(self, slow: float) -> list[int]:
        """Return each cut at its best place between its neighbours, without those that no longer
        stand out there.
        """
        cuts = self._parted(0, len(self.xs), slow)
        for _ in range(len(cuts) + 3):
            moved = self._moved(cuts, slow)
            if moved == cuts:
                break
            cuts = moved
        return cuts

    def _moved(self, cuts: Sequence[int], slow: float) -> list[int]:
        """Return the cuts moved once, oldest first: each to its best place between the moved cut
        before it and the cut after it. One that does not stand out there is left out.
        """
        moved: list[int] = []
        first = 0
        for cut, last in pairwise([*cuts, len(self.xs)]):
            ys = self.clipped(first, last, cut)
            best_cut = _weighed(ys)
            bound = _bound(CUT_BOUND, last - first) * slow
            if best_cut is not None and best_cut.height > bound:
                first += best_cut.cut
                moved.append(first)
        return moved

    def slowness(self, cuts: Sequence[int]) -> float:
        """Return how much wider slow noise makes a mean than quick noise of the same spread."""
        edges = [0, *cuts, len(self.xs)]
        parts = [self.clipped(first, last) for first, last in pairwise(edges)]
        return slowness(parts)


class _BestCut(msgspec.Struct, frozen=True):
    """The cut in two levels that stands out most."""

    cut: int
    # As deviations of a normal figure, less the extra that a short level has to stand out by.
    height: float
    shares: list[float]  # of the squares that every cut from SHORTEST_LEVEL on explains


def _weighed(ys: Sequence[float]) -> _BestCut | None:
    """Return the best cut; None for too few values, or if all of them are equal."""
    n = len(ys)
    if n < 2 * SHORTEST_LEVEL:
        return None
    sums = list(accumulate(ys))
    mean = sums[-1] / n
    total = _squares_around(mean, ys)
    if total <= _NO_SQUARES:
        return None
    scale = n / total
    sums_at_cuts = sums[SHORTEST_LEVEL - 1 : n - SHORTEST_LEVEL]
    shares = [
        (so_far - count * mean) ** 2 / (count * (n - count)) * scale
        for count, so_far in enumerate(sums_at_cuts, SHORTEST_LEVEL)
    ]
    best_height = -math.inf
    best_place = 0
    for first, last in _octaves(len(shares)):
        share = max(shares[first:last])
        shorter = min(first, len(shares) - last) + SHORTEST_LEVEL
        height = _height(n, share, shorter)
        if height > best_height:
            best_height = height
            best_place = shares.index(share, first)
    return _BestCut(
        cut=best_place + SHORTEST_LEVEL,
        height=best_height,
        shares=shares,
    )


def _squares_around(mean: float, ys: Sequence[float]) -> float:
    """Return the sum of the squared distances of the values from their mean."""
    squares: float = sum(map(mul, ys, ys))
    return squares - len(ys) * mean * mean


def _octaves(places: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of cuts by the length of the shorter level, from 6, 12, 24, 48 and 96 values
    on, from either end.
    """
    half = (places + 1) // 2
    start = 0
    length = SHORTEST_LEVEL
    while start < half:
        end = half
        if length < LONG_LEVEL:
            end = min(2 * length - SHORTEST_LEVEL, half)
        yield start, end
        mirrored_start = max(places - end, half - 1)
        mirrored_end = places - start
        yield mirrored_start, mirrored_end
        start = end
        length = 2 * length


def _height(n: int, share: float, length: int) -> float:
    """Return how far a cut of n values stands out that explains this share of the squares, with a
    shorter level of this length.
    """
    deviations = math.sqrt(_likelihood(n, share))
    return deviations - _extra(length)


def _extra(length: int) -> float:
    """Return by how much more a level of this length has to stand out than a long one, which is
    looked at anew less often.
    """
    halvings = math.log2(max(LONG_LEVEL / length, 1.0))
    return SHORT_LEVEL_EXTRA * halvings


class _BestStretch(msgspec.Struct, frozen=True):
    """The stretch that stands out most from all the rest."""

    begin: int
    end: int
    height: float


def _apart(ys: Sequence[float]) -> _BestStretch:
    """Return the stretch that stands out most; its height is 0 where none does.

    Lengths double from one to the next, and places lie a quarter of the length apart.
    """
    n = len(ys)
    sums = [0.0, *accumulate(ys)]
    mean = sums[-1] / n
    total = _squares_around(mean, ys)
    best_height = 0.0
    best_begin = 0
    best_end = 0
    length = SHORTEST_LEVEL
    while length <= n // 2 and total > _NO_SQUARES:
        step = max(2, length // 4)
        sums_at_ends = sums[SHORTEST_LEVEL + length : n - SHORTEST_LEVEL + 1 : step]
        sums_at_begins = sums[SHORTEST_LEVEL::step]
        stretch_sums = list(map(sub, sums_at_ends, sums_at_begins))
        if stretch_sums:
            usual = length * mean
            farthest = _farthest(stretch_sums, usual)
            share = (farthest - usual) ** 2 * n / (length * (n - length) * total)
            height = _height(n, share, length)
            if height > best_height:
                place = stretch_sums.index(farthest)
                best_height = height
                best_begin = SHORTEST_LEVEL + step * place
                best_end = best_begin + length
        length *= 2
    return _BestStretch(
        begin=best_begin,
        end=best_end,
        height=best_height,
    )


def _farthest(sums: Sequence[float], usual: float) -> float:
    """Return the sum that lies farthest from the usual one, the lowest of two as far."""
    highest = max(sums)
    lowest = min(sums)
    if highest - usual > usual - lowest:
        return highest
    return lowest


def _likelihood(n: int, share: float) -> float:
    """Return twice the logarithm of the likelihood ratio of a cut that explains this share of the
    squares, the spread being unknown.
    """
    unexplained = max(1 - share, 1e-12)
    return -(n - 2.5) * math.log(unexplained)


def _bound(bound: float, n: int) -> float:
    """Return the bound for a series of n values: beyond `VALUES_IN_BOUNDS` it grows with the
    looks.
    """
    looks = max(n / VALUES_IN_BOUNDS, 1.0)
    return math.sqrt(bound * bound + 2 * math.log(looks))


def _bracket(scale: _LogScale, first: int, cut: int, last: int, slow: float) -> tuple[int, int]:
    """Return the first and last place where the change may be, with 95 %.

    Every place is weighed by its likelihood; 2.5 % of the weight is left out on either side.
    """
    ys = scale.clipped(first, last, cut)
    best_cut = _weighed(ys)
    if best_cut is None:
        return cut, cut
    n = last - first
    widening = 2 * slow * slow
    heights = [_likelihood(n, share) / widening for share in best_cut.shares]
    top = max(heights)
    weights = [math.exp(height - top) for height in heights]
    weights_up_to = list(accumulate(weights))
    whole_weight = weights_up_to[-1]
    low = bisect_left(weights_up_to, 0.025 * whole_weight)
    high = bisect_left(weights_up_to, 0.975 * whole_weight)
    first_place = first + SHORTEST_LEVEL
    earliest = min(first_place + low, cut)
    latest = max(first_place + high, cut)
    return earliest, latest


def _splits_of(
    scale: _LogScale,
    values: Sequence[float],
    cuts: Sequence[int],
    slow: float,
) -> list[Split]:
    """Return the cuts with their figures, without those that are too small to report."""
    remaining = list(cuts)
    while True:
        splits = _splits_at(scale, values, remaining, slow)
        sizes = {split.index: abs(split.ratio.estimate - 1) for split in splits}
        smallest = min(remaining, key=lambda cut: sizes.get(cut, 0.0), default=None)
        if smallest is None or sizes.get(smallest, 0.0) >= LEAST_DIFFERENCE:
            return splits
        remaining.remove(smallest)


def _splits_at(
    scale: _LogScale,
    values: Sequence[float],
    cuts: Sequence[int],
    slow: float,
) -> list[Split]:
    """Return the cuts with their figures, without those between levels that have no ratio."""
    splits = []
    first = 0
    for cut, last in pairwise([*cuts, len(values)]):
        split = _split_at(scale, values, first, cut, last, slow)
        if split is not None:
            splits.append(split)
        first = cut
    return splits


def _split_at(
    scale: _LogScale,
    values: Sequence[float],
    first: int,
    cut: int,
    last: int,
    slow: float,
) -> Split | None:
    before = values[first:cut]
    after = values[cut:last]
    ratio = ratio_of_medians(before, after, slow=slow)
    if ratio is None:
        return None
    return Split(
        index=cut,
        bracket=_bracket(scale, first, cut, last, slow),
        before=median(before),
        after=median(after),
        ratio=ratio,
        count_before=len(before),
        count_after=len(after),
    )


def _without_drifts(scale: _LogScale, cuts: list[int]) -> list[int]:
    """Return the cuts without drifts: runs of steps in the same direction that one straight line
    explains as well.
    """
    edges = [0, *cuts, len(scale.xs)]
    levels = [_middle(scale.xs[begin:end]) for begin, end in pairwise(edges)]
    is_up = [after > before for before, after in pairwise(levels)]
    steps: list[int] = []
    place = 0
    while place < len(cuts):
        end = place + 1
        while end < len(cuts) and is_up[end] is is_up[place]:
            end += 1
        run = cuts[place:end]
        first = edges[place]
        last = edges[end + 1]
        if not _line_is_better(scale, first, run, last):
            steps += run
        place = end
    return steps


def _line_is_better(scale: _LogScale, first: int, cuts: Sequence[int], last: int) -> bool:
    """Return whether a straight line explains the stretch as well as the steps do."""
    xs = scale.xs[first:last]
    n = len(xs)
    room = CLIP_DEVIATIONS * scale.spread
    tenth = scale.spread / 10
    floor = n * tenth**2
    steps = _step_values(scale, [first, *cuts, last])
    line = _line_values(xs, room)
    left_by_steps = floor + _squares(xs, steps, room)
    left_by_line = floor + _squares(xs, line, room)
    needed = _LINE_BETTER
    if len(cuts) > 1:
        # Every further step could fit by chance.
        needed = -len(cuts) * math.log(n)
    likelihood = n * math.log(left_by_steps / left_by_line)
    return likelihood > needed


def _squares(xs: Sequence[float], fitted: Sequence[float], room: float) -> float:
    """Return the sum of squares of what a fit leaves, each residual clipped to `room`."""
    residuals: Iterable[float] = map(sub, xs, fitted)
    clipped = [min(abs(residual), room) for residual in residuals]
    return sum(distance**2 for distance in clipped)


def _step_values(scale: _LogScale, edges: Sequence[int]) -> list[float]:
    """Return the level of each value between the edges: the mean, with outliers clipped."""
    room = CLIP_DEVIATIONS * scale.spread
    fitted: list[float] = []
    for begin, end in pairwise(edges):
        part = scale.xs[begin:end]
        middle = _middle(part)
        low = middle - room
        high = middle + room
        clipped = [min(max(x, low), high) for x in part]
        level = math.fsum(clipped) / len(part)
        fitted += [level] * len(part)
    return fitted


def _line_values(xs: Sequence[float], room: float) -> list[float]:
    """Return the values of the straight line through all of them."""
    n = len(xs)
    centre = (n - 1) / 2
    offsets = [place - centre for place in range(n)]
    width = n * (n * n - 1) / 12
    line: list[float] = []
    steady: Sequence[float] = xs
    for _ in range(3):  # each pass clips outliers to the line of the pass before
        height = math.fsum(steady) / n
        rise = sum(map(mul, offsets, steady))
        slope = rise / width
        line = [height + slope * offset for offset in offsets]
        steady = [
            min(max(x, value - room), value + room) for x, value in zip(xs, line, strict=True)
        ]
    return line


def _middle(values: Iterable[float]) -> float:
    """Return the median, the mean of the two values in the middle."""
    ordered = sorted(values)
    n = len(ordered)
    below = ordered[(n - 1) // 2]
    above = ordered[n // 2]
    return (below + above) / 2
