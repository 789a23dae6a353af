"""Is it no worse? The same items in two arms, the difference of their rates, and what may be
claimed of it.

"No worse than delta" is claimed if the one-sided 95 % bound of the difference lies above -delta:
were the loss delta or more, the claim would be made in at most 5 % of runs. "Worse" is claimed if
the other bound lies below zero. Everything between is "not shown", which is not "no loss".

Levels are walked upward, and the walk ends at the first that does not hold: then no further
correction is needed, however many levels there are. A walk that says anything false must say it
first of the lowest level that lost delta or more, and of that one it does so in at most 5 % of
runs; whether the levels share their base arm does not matter. Of "worse" this holds level by level
only.

The error is that of drawing items: it speaks of items like these, answered on a rig in the state
it was in.

Worked out and simulated (`benchmarks/noninferiority.py`; 50 to 1000 items, delta 2 to 10 points,
base rates 0.1 to 0.95): a loss of exactly delta is called no worse in at most 4.9 % of runs with
one repeat (Tango's interval as published: 6.9 %). With 2 and 5 repeats in 3.8 % on average; of the
worst cells, run again, one gave 6.2 %, where delta is the whole base rate of 0.1 and nothing
passes under load, the others 4.6 % at most. Equal arms are called worse in 4.8 % at most. As many
items as `items_needed` says gave 75 to 87 % where 80 % were asked for."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import chain
from statistics import NormalDist, fmean

import msgspec


class Claim(Enum):
    HOLDS = "no worse"  # than delta, by the one-sided bound
    LOST = "worse"  # by the other bound: the loss is there
    UNSHOWN = "not shown"  # neither: too few items, or too much noise


class PairedDifference(msgspec.Struct, frozen=True):
    """The same items in two arms.

    Rates and differences are shares, 0.03 is three points; bounds one-sided, 95 %.
    """

    items: int
    pairs: int  # items x repeats
    base_rate: float
    rate: float
    difference: float  # rate - base_rate
    low: float
    high: float
    lost: int  # pairs that passed in the base arm only
    gained: int


Z_ONE_SIDED = NormalDist().inv_cdf(0.95)
HALVINGS = 40


def lower_bound(
    items: Mapping[float, float], *, corrected: bool = True, z: float = Z_ONE_SIDED
) -> float:
    """Return the one-sided lower bound of the mean difference.

    `items`: how many have which mean difference; counts need not be whole.
    """
    low = -1.0
    high = mean_of(items)
    if high <= -1:
        return -1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle == low:
            break
        if score(items, middle, corrected=corrected, z=z) > z:
            low = middle
        else:
            high = middle
    return low


def upper_bound(
    items: Mapping[float, float], *, corrected: bool = True, z: float = Z_ONE_SIDED
) -> float:
    """Return the one-sided upper bound, as the mirror image of the lower one."""
    mirrored = {-value: count for value, count in items.items()}
    return -lower_bound(mirrored, corrected=corrected, z=z)


def score(
    items: Mapping[float, float],
    truth: float,
    *,
    corrected: bool = True,
    z: float = Z_ONE_SIDED,
) -> float:
    """Return by how many standard errors the items are better than `truth`, a mean difference
    below theirs.
    """
    total = sum(items.values())
    shares = _most_likely(items, truth)
    variance = _moment(shares, truth, 2)
    ahead = total * (mean_of(items) - truth)
    if corrected:
        correction = _correction(shares, truth, variance, z)
        ahead -= max(0.0, correction)
    if variance > 0:
        return ahead / math.sqrt(total * variance)
    return math.copysign(math.inf, ahead)


def _moment(shares: Mapping[float, float], centre: float, power: int) -> float:
    """Return the mean of this power of the distances from the centre."""
    return sum(share * (value - centre) ** power for value, share in shares.items())


def mean_of(items: Mapping[float, float]) -> float:
    total = math.fsum(value * count for value, count in items.items())
    count_of_all = math.fsum(items.values())
    return total / count_of_all


def _correction(shares: Mapping[float, float], truth: float, variance: float, z: float) -> float:
    """Return in items: half a typical step of the sum, and what skewness takes from its tail."""
    if variance <= 0:
        return 0.0
    step = 0.0
    changed = sum(share * abs(value) for value, share in shares.items())
    if changed:
        squares = sum(share * value * value for value, share in shares.items())
        step = squares / changed
    skew = _moment(shares, truth, 3) / variance
    skew_factor = (z * z - 1) / 6
    return step / 2 + skew_factor * skew


def _most_likely(items: Mapping[float, float], truth: float) -> dict[float, float]:
    """Return the distribution of mean `truth` under which the items are likeliest.

    Each value's share is its count over 1 + tilt * (value - truth). A tilt beyond 1 / (1 + truth)
    would be less likely than a weight on -1, and the share that this tilt leaves is such weight.
    """
    total = sum(items.values())
    max_tilt = 1 / (1 + truth)
    if items.get(-1.0, 0) <= 0 and _pull(items, truth, max_tilt) >= 0:
        tilt = max_tilt
    else:
        tilt = _root(items, truth, max_tilt)
    shares: dict[float, float] = {}
    for value, count in items.items():
        if value > -1:
            shares[value] = count / total / (1 + tilt * (value - truth))
    shares[-1.0] = max(0.0, 1 - sum(shares.values()))
    return shares


def _pull(items: Mapping[float, float], truth: float, tilt: float) -> float:
    """Return the slope of the likelihood: it falls with the tilt, and is zero where the tilted
    mean is `truth`.
    """
    return sum(
        count * (value - truth) / (1 + tilt * (value - truth))
        for value, count in items.items()
        if count > 0
    )


def _root(items: Mapping[float, float], truth: float, max_tilt: float) -> float:
    """Return the tilt at which `_pull` is zero, by Newton's steps; a step that would leave the
    bracket halves it instead.
    """
    low = 0.0
    high = max_tilt
    tilt = 0.0
    for _ in range(200):
        value = 0.0
        slope = 0.0
        for difference, count in items.items():
            if count > 0:
                distance = difference - truth
                part = distance / (1 + tilt * distance)
                value += count * part
                slope += count * part * part
        if value > 0:
            low = tilt
        else:
            high = tilt
        following = (low + high) / 2
        if slope > 0:
            newton = tilt + value / slope
            if low < newton < high:
                following = newton
        if abs(following - tilt) <= 1e-13 * max_tilt:
            return following
        tilt = following
    return tilt


# Share of pairs that one arm passes and the other does not, before anything was measured: greedy
# decoding, short answers. An assumption between published figures: HumanEval moved by 2 to 4 of
# its 164 items between batch sizes of 16, 64 and 128 (open-compass/opencompass issue 1097), which
# is the net of at least as many changes; reasoning models, whose answers are long, by up to 9
# points (arXiv 2506.09501). The A/A arm of a run measures it.
ASSUMED_DISCORDANCE = 0.05
# How alike the repeats of an item are: 0 if both arms are drawn afresh each time, 1 if each arm
# always answers the same. Greedy decoding of one request at a time does, under load it does not:
# halfway.
ASSUMED_CORRELATION = 0.5
MOST_ITEMS = 10**8


def paired_difference(pairs: Mapping[str, Sequence[tuple[bool, bool]]]) -> PairedDifference:
    """Return the difference of two arms. `pairs`: by item, (passed in the base arm, passed under
    load) for each repeat.

    Every item counts the same; an item without a pair does not count.
    """
    items = [repeats for repeats in pairs.values() if repeats]
    if not items:
        raise ValueError("a difference needs at least one pair")
    base_rates = [fmean(before for before, _ in repeats) for repeats in items]
    load_rates = [fmean(after for _, after in repeats) for repeats in items]
    changes_by_item = [[after - before for before, after in repeats] for repeats in items]
    mean_differences = Counter(sum(changes) / len(changes) for changes in changes_by_item)
    changed_pairs = Counter(chain.from_iterable(changes_by_item))
    count = len(items)
    return PairedDifference(
        items=count,
        pairs=sum(map(len, items)),
        base_rate=math.fsum(base_rates) / count,
        rate=math.fsum(load_rates) / count,
        difference=mean_of(mean_differences),
        low=lower_bound(mean_differences),
        high=upper_bound(mean_differences),
        lost=changed_pairs[-1],
        gained=changed_pairs[1],
    )


def claim_of(difference: PairedDifference, delta: float) -> Claim:
    """Return what may be claimed.

    A loss that is certain but certainly smaller than delta HOLDS: that was the question.
    """
    if difference.low > -delta:
        return Claim.HOLDS
    if difference.high < 0:
        return Claim.LOST
    return Claim.UNSHOWN


def items_needed(
    delta: float,
    *,
    discordance: float = ASSUMED_DISCORDANCE,
    repeats: int = 1,
    power: float = 0.8,
    correlation: float = ASSUMED_CORRELATION,
) -> int:
    """Return how many items must be asked so that the claim is made in `power` of runs, if nothing
    is lost.

    `discordance`: share of pairs that differ; `correlation`: of one item's repeats. Even where
    nothing ever differs about 3.1 / delta are needed, and repeats do not help below that: fewer
    would hide as many lost items.
    """
    values = _item_values(discordance, repeats, correlation)

    def is_enough(items: int) -> bool:
        outcome = _unlucky(values, items, power)
        return mean_of(outcome) > -delta and score(outcome, -delta) > Z_ONE_SIDED

    high = 1
    while not is_enough(high):
        high *= 2
        if high > MOST_ITEMS:
            raise ValueError(f"more than {MOST_ITEMS} items are needed to show {delta}")
    if high > 1:
        return bisect_left(range(high), True, lo=high // 2 + 1, key=is_enough)
    return 1


def delta_shown(
    items: int,
    *,
    discordance: float = ASSUMED_DISCORDANCE,
    repeats: int = 1,
    power: float = 0.8,
) -> float:
    """Return the smallest loss that so many items can exclude in `power` of runs."""
    values = _item_values(discordance, repeats, ASSUMED_CORRELATION)
    outcome = _unlucky(values, items, power)
    return -lower_bound(outcome)


def _item_values(discordance: float, repeats: int, correlation: float) -> dict[float, float]:
    """Return how an item's mean difference is spread.

    A share of `correlation` of the items is the same in all repeats, the repeats of the others are
    independent. This gives the variance that a correlation stands for.
    """
    one_way = discordance / 2
    once = {-1: one_way, 0: 1 - discordance, 1: one_way}
    sums = {0: 1.0}
    for _ in range(repeats):
        sums = _sums_after(sums, once)
    values = {total / repeats: (1 - correlation) * share for total, share in sums.items()}
    for change, chance in once.items():
        value = float(change)
        values[value] = values.get(value, 0.0) + correlation * chance
    return {value: share for value, share in values.items() if share > 0}


def _sums_after(sums: Mapping[int, float], once: Mapping[int, float]) -> dict[int, float]:
    """Return how the sum of the repeats is spread after one more of them."""
    following: dict[int, float] = {}
    for total, share in sums.items():
        for change, chance in once.items():
            changed = total + change
            following[changed] = following.get(changed, 0.0) + share * chance
    return following


def _unlucky(values: Mapping[float, float], items: int, power: float) -> dict[float, float]:
    """Return the outcome of a run in which chance goes against the claim as far as `power` allows:
    the spread, tilted to that mean.
    """
    mean = mean_of(values)
    variance = _moment(values, mean, 2)
    error = math.sqrt(variance / items)
    deviations = NormalDist().inv_cdf(power)
    aim = mean - deviations * error
    lowest = min(values)
    if aim <= lowest:
        return {lowest: float(items)}
    low = -100.0
    high = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        if mean_of(_tilted(values, middle)) < aim:
            low = middle
        else:
            high = middle
    tilted = _tilted(values, high)
    total = sum(tilted.values())
    return {value: items * share / total for value, share in tilted.items()}


def _tilted(values: Mapping[float, float], tilt: float) -> dict[float, float]:
    return {value: share * math.exp(tilt * value) for value, share in values.items()}
