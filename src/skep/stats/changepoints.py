"""Where a noisy series went from one level to another. Knows numbers in their order; knows nothing
of moments.

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
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import mul, sub

import msgspec

from skep.stats.percentiles import median
from skep.stats.versus import ratio_of_medians, slowness
from skep.units import Interval

FEWEST = 24  # values before anything is said
SHORTEST = 6  # values of a level: fewer are outliers
CLIP = 3.0  # deviations
LEAST = 0.005  # a smaller difference is not told, however sure it is
MOST = 5000  # values that are looked at: more would take too long after every probe

# In 670 series of normal noise, looked at after each of 24 to 336 values, the highest figure of
# one in a hundred was 4.0 of a cut and 3.8 of a stretch apart. The bounds lie above that, because
# slow noise, which is only estimated, comes near them: with an autocorrelation of 0.3 about one in
# a hundred reaches 4.4 (`benchmarks/change_points.py --bounds`).
CUT = 4.4
APART = 4.7
# For each halving of the shorter level below LONG values: short levels are new at every look, and
# would else make most of the false alarms. At the same false alarms, 0.1 to 0.4 find more of the
# shifts by 3 % than 0 does.
EXTRA = 0.2
LONG = 96
# values up to which the bounds hold; with more there are more looks, and they grow with the
# logarithm
USUAL = 336

_MAD_OF_STEPS = 1.4826 / math.sqrt(
    2
)  # the median step between neighbours, times it, is a deviation
# a spread below it, as a share, is taken as it: equal values have no noise to measure by
_FLOOR = 0.0005
# twice the logarithm of likelihood by which a slope has to beat one step to be called a drift
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
    well. A level that is not above zero has no ratio, and no split."""
    if len(values) < FEWEST:
        return []
    scale = _LogScale.of(values)
    cuts = scale.cuts(1.0)
    if not cuts:
        return []
    slow = scale.slowness(cuts)
    cuts = _without_drifts(scale, scale.cuts(slow) if slow > 1 else cuts)
    return list(_told(scale, values, cuts, slow))


class _LogScale(msgspec.Struct, frozen=True):
    """The values as they are weighed: logarithms where all are above zero."""

    xs: Sequence[float]
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _LogScale:
        logs = min(values) > 0
        xs = list(map(math.log, values)) if logs else list(values)
        steps = sorted(map(abs, map(sub, xs[1:], xs)))
        if logs:
            floor = _FLOOR
        else:
            floor = max(_FLOOR * abs(median(xs)), _FLOOR * max(map(abs, xs)), 1e-12)
        return cls(xs, max(_MAD_OF_STEPS * _middle(steps), floor))

    def clipped(self, first: int, last: int, cut: int | None = None) -> list[float]:
        """In deviations from the middle of the stretch; with a cut, clipped outside of its two
        levels only.
        """
        part = self.xs[first:last]
        middle = _middle(sorted(part))
        low = high = middle
        if cut is not None:
            low, high = sorted(
                (_middle(sorted(self.xs[first:cut])), _middle(sorted(self.xs[cut:last])))
            )
        low = low - CLIP * self.spread
        high = high + CLIP * self.spread
        scale = 1 / self.spread
        if min(part) < low or max(part) > high:
            part = [low if x < low else high if x > high else x for x in part]  # noqa: FURB136 - thrice as quick
        return [(x - middle) * scale for x in part]

    def _parted(self, first: int, last: int, slow: float) -> list[int]:
        """Return the cut that stands out, or both ends of a stretch that does, with those of the
        parts.
        """
        if last - first >= 2 * SHORTEST:
            ys = self.clipped(first, last)
        else:
            ys = []
        best_cut = _weighed(ys)
        if best_cut is None:
            return []
        cuts = [best_cut.cut]
        if best_cut.height <= _bound(CUT, len(ys)) * slow:
            begin, end, height = _apart(ys)
            if height <= _bound(APART, len(ys)) * slow:
                return []
            cuts = [begin, end]
        edges = [first, *(first + cut for cut in cuts), last]
        return sorted(
            {*edges[1:-1], *(cut for a, b in pairwise(edges) for cut in self._parted(a, b, slow))}
        )

    def cuts(self, slow: float) -> list[int]:
        """Return each cut at its best place between its neighbours, without those that no longer
        stand out there.
        """
        cuts = self._parted(0, len(self.xs), slow)
        for _ in range(len(cuts) + 3):
            edges = [0, *cuts, len(self.xs)]
            moved: list[int] = []
            for place in range(1, len(edges) - 1):
                first = moved[-1] if moved else 0
                last = edges[place + 1]
                best_cut = _weighed(self.clipped(first, last, edges[place]))
                if best_cut is not None and best_cut.height > _bound(CUT, last - first) * slow:
                    moved.append(first + best_cut.cut)
            if moved == cuts:
                break
            cuts = moved
        return cuts

    def slowness(self, cuts: Sequence[int]) -> float:
        """Return how much wider slow noise makes a mean than quick noise of the same spread."""
        return slowness([self.clipped(a, b) for a, b in pairwise([0, *cuts, len(self.xs)])])


class _Best(msgspec.Struct, frozen=True):
    cut: int
    height: (
        float  # as deviations of a normal figure, less what a short level has to stand out more
    )
    shares: list[float]  # of the squares that every cut from SHORTEST on explains


def _weighed(ys: Sequence[float]) -> _Best | None:
    """Return the cut in two levels that stands out most; None where there is no room, or nothing
    but one value.
    """
    n = len(ys)
    if n < 2 * SHORTEST:
        return None
    sums = list(accumulate(ys))
    mean = sums[-1] / n
    total = sum(map(mul, ys, ys)) - n * mean * mean
    if total <= 1e-9:
        return None
    scale = n / total
    shares = [
        (so_far - count * mean) ** 2 / (count * (n - count)) * scale
        for count, so_far in enumerate(sums[SHORTEST - 1 : n - SHORTEST], SHORTEST)
    ]
    best = -math.inf
    where = 0
    for first, last in _octaves(len(shares)):
        share = max(shares[first:last])
        height = math.sqrt(_likelihood(n, share)) - _extra(
            min(first, len(shares) - last) + SHORTEST
        )
        if height > best:
            best = height
            where = shares.index(share, first)
    return _Best(where + SHORTEST, best, shares)


def _octaves(places: int) -> Iterator[tuple[int, int]]:
    """Yield all cuts, by the length of the shorter level: from 6, 12, 24, 48 and 96 values on,
    from either end.
    """
    half = (places + 1) // 2
    start = 0
    length = SHORTEST
    while start < half:
        if length < LONG:
            end = min(2 * length - SHORTEST, half)
        else:
            end = half
        yield start, end
        yield max(places - end, half - 1), places - start
        start = end
        length = 2 * length


def _extra(length: int) -> float:
    """A short level is looked at anew so much oftener than a long one:
    it has to stand out more.
    """
    return EXTRA * math.log2(max(LONG / length, 1.0))


def _apart(ys: Sequence[float]) -> tuple[int, int, float]:
    """The stretch that stands out most from all the rest, of lengths that double and places a
    quarter of them apart.
    """
    n = len(ys)
    sums = [0.0, *accumulate(ys)]
    mean = sums[-1] / n
    total = sum(map(mul, ys, ys)) - n * mean * mean
    best = 0.0
    where = (0, 0)
    length = SHORTEST
    while length <= n // 2 and total > 1e-9:
        step = max(2, length // 4)
        usual = length * mean
        off = list(
            map(sub, sums[SHORTEST + length : n - SHORTEST + 1 : step], sums[SHORTEST::step])
        )
        if off:
            highest = max(off)
            lowest = min(off)
            farthest = highest if highest - usual > usual - lowest else lowest
            share = (farthest - usual) ** 2 * n / (length * (n - length) * total)
            height = math.sqrt(_likelihood(n, share)) - _extra(length)
            if height > best:
                first = SHORTEST + step * off.index(farthest)
                best = height
                where = (first, first + length)
        length *= 2
    return *where, best


def _likelihood(n: int, share: float) -> float:
    """Twice the logarithm of a likelihood ratio, the spread being unknown, of a share of the
    squares explained.
    """
    return -(n - 2.5) * math.log(max(1 - share, 1e-12))


def _bound(bound: float, n: int) -> float:
    return math.sqrt(bound * bound + 2 * math.log(max(n / USUAL, 1.0)))


def _bracket(scale: _LogScale, first: int, cut: int, last: int, slow: float) -> tuple[int, int]:
    """Every place of the cut is weighed by its likelihood; 2.5 % of the weight is left out on
    either side.
    """
    best_cut = _weighed(scale.clipped(first, last, cut))
    if best_cut is None:
        return cut, cut
    heights = [_likelihood(last - first, share) / (2 * slow * slow) for share in best_cut.shares]
    top = max(heights)
    sums = list(accumulate(math.exp(height - top) for height in heights))
    low = next(place for place, part in enumerate(sums) if part >= 0.025 * sums[-1])
    high = next(place for place, part in enumerate(sums) if part >= 0.975 * sums[-1])
    return min(first + SHORTEST + low, cut), max(first + SHORTEST + high, cut)


def _told(scale: _LogScale, values: Sequence[float], cuts: list[int], slow: float) -> list[Split]:
    """The cuts with their figures, without those that are too small to tell."""
    cuts = list(cuts)
    while True:
        edges = [0, *cuts, len(values)]
        splits = []
        for first, cut, last in zip(edges, edges[1:], edges[2:], strict=False):
            before = values[first:cut]
            after = values[cut:last]
            if (ratio := ratio_of_medians(before, after, slow=slow)) is not None:
                bracket = _bracket(scale, first, cut, last, slow)
                counts = (len(before), len(after))
                splits.append(Split(cut, bracket, median(before), median(after), ratio, *counts))
        sizes = {split.index: abs(split.ratio.estimate - 1) for split in splits}
        smallest = min(cuts, key=lambda cut: sizes.get(cut, 0.0), default=None)
        if smallest is None or sizes.get(smallest, 0.0) >= LEAST:
            return splits
        cuts.remove(smallest)


def _without_drifts(scale: _LogScale, cuts: list[int]) -> list[int]:
    """Runs of steps in the same direction that one straight line explains as well are a drift."""
    edges = [0, *cuts, len(scale.xs)]
    levels = [_middle(sorted(scale.xs[a:b])) for a, b in pairwise(edges)]
    steps: list[int] = []
    place = 0
    while place < len(cuts):
        up = levels[place + 1] > levels[place]
        end = place + 1
        while end < len(cuts) and (levels[end + 1] > levels[end]) is up:
            end += 1
        first = edges[place]
        last = edges[end + 1]
        if not _line_is_better(scale, first, cuts[place:end], last):
            steps += cuts[place:end]
        place = end
    return steps


def _line_is_better(scale: _LogScale, first: int, cuts: Sequence[int], last: int) -> bool:
    """Return whether a straight line explains the stretch as well as the steps do."""
    xs = scale.xs[first:last]
    n = last - first
    room = CLIP * scale.spread
    fitted: list[float] = []
    for part in (scale.xs[a:b] for a, b in pairwise([first, *cuts, last])):
        middle = _middle(sorted(part))
        level = math.fsum(min(max(x, middle - room), middle + room) for x in part) / len(part)
        fitted += [level] * len(part)
    centre = (n - 1) / 2
    wide = n * (n * n - 1) / 12
    steady: Sequence[float] = xs
    for _ in range(3):  # again with what lies far from the line clipped to it
        height = math.fsum(steady) / n
        slope = sum((place - centre) * x for place, x in enumerate(steady)) / wide
        line = [height + slope * (place - centre) for place in range(n)]
        steady = [min(max(x, on - room), on + room) for x, on in zip(xs, line, strict=True)]
    floor = n * (scale.spread / 10) ** 2
    by_line = floor + sum(min(abs(x - on), room) ** 2 for x, on in zip(xs, line, strict=True))
    by_steps = floor + sum(min(abs(x - on), room) ** 2 for x, on in zip(xs, fitted, strict=True))
    # Every further step could fit by chance.
    needed = _LINE_BETTER if len(cuts) == 1 else -len(cuts) * math.log(n)
    return n * math.log(by_steps / by_line) > needed


def _middle(ordered: Sequence[float]) -> float:
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
