"""How bad could it be? The one-sided bound of a mean of paired differences between -1 and 1.

Tango's score interval (Statistics in Medicine 17, 1998, 891-908), which asks of every loss: were it the true one, would
what was seen be among the 5 % luckiest outcomes? The variance is that of the most likely distribution with this loss,
not that of the sample, so that a hundred pairs without a single change are not proof of no loss: the bound is then
-z^2 / (n + z^2), the loss of whole items that would have gone unseen.

Carried over to repeats: the unit is the item, its value the mean difference of its repeats, and the most likely
distribution may put weight on items that are lost altogether, even if none was seen. With one repeat this is Tango's
interval. Repeats make an item's value more certain; they never stand in for items.

Corrected for two things, both of the first order (Cornish and Fisher's): losses are rare and one-sided, so their sum is
skewed, and it moves in steps of whole items. Without, items that are lost one by one at exactly the margin pass in up
to 6.9 % of runs. The correction only ever makes the bound stricter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

Z = NormalDist().inv_cdf(0.95)
HALVINGS = 40


def lower_bound(items: Mapping[float, float], *, corrected: bool = True, z: float = Z) -> float:
    """`items`: how many have which mean difference; counts need not be whole."""
    low, high = -1.0, mean_of(items)
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


def upper_bound(items: Mapping[float, float], *, corrected: bool = True, z: float = Z) -> float:
    """The mirror image."""
    return -lower_bound({-value: count for value, count in items.items()}, corrected=corrected, z=z)


def score(items: Mapping[float, float], truth: float, *, corrected: bool = True, z: float = Z) -> float:
    """By how many standard errors the items are better than `truth`, a mean difference below theirs."""
    total = sum(items.values())
    shares = _most_likely(items, truth)
    variance = sum(share * (value - truth) ** 2 for value, share in shares.items())
    ahead = total * (mean_of(items) - truth)
    if corrected:
        ahead -= max(0.0, _correction(shares, truth, variance, z))
    return ahead / math.sqrt(total * variance) if variance > 0 else math.copysign(math.inf, ahead)


def mean_of(items: Mapping[float, float]) -> float:
    return math.fsum(value * count for value, count in items.items()) / math.fsum(items.values())


def _correction(shares: Mapping[float, float], truth: float, variance: float, z: float) -> float:
    """In items: half a typical step of the sum, and what skewness takes from its tail."""
    if variance <= 0:
        return 0.0
    changed = sum(share * abs(value) for value, share in shares.items())
    step = sum(share * value * value for value, share in shares.items()) / changed if changed else 0.0
    skew = sum(share * (value - truth) ** 3 for value, share in shares.items()) / variance
    return step / 2 + (z * z - 1) / 6 * skew


def _most_likely(items: Mapping[float, float], truth: float) -> dict[float, float]:
    """The distribution of mean `truth` under which the items are likeliest: each value's share is its count over
    1 + tilt * (value - truth). A tilt beyond 1 / (1 + truth) would be less likely than a weight on -1, and whatever
    that tilt leaves over is such weight."""
    total = sum(items.values())
    most = 1 / (1 + truth)
    none_lost = items.get(-1.0, 0) <= 0
    tilt = most if none_lost and _pull(items, truth, most) >= 0 else _root(items, truth, most)
    shares = {value: count / total / (1 + tilt * (value - truth)) for value, count in items.items() if value > -1}
    shares[-1.0] = max(0.0, 1 - sum(shares.values()))
    return shares


def _pull(items: Mapping[float, float], truth: float, tilt: float) -> float:
    """Falls with the tilt; zero where the tilted mean is `truth`."""
    return sum(count * (value - truth) / (1 + tilt * (value - truth)) for value, count in items.items() if count > 0)


def _root(items: Mapping[float, float], truth: float, most: float) -> float:
    """Newton's steps, and a halving wherever one would leave the bracket."""
    low, high, tilt = 0.0, most, 0.0
    for _ in range(200):
        value = slope = 0.0
        for difference, count in items.items():
            if count > 0:
                part = (difference - truth) / (1 + tilt * (difference - truth))
                value += count * part
                slope += count * part * part
        low, high = (tilt, high) if value > 0 else (low, tilt)
        following = tilt + value / slope if slope > 0 else (low + high) / 2
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - tilt) <= 1e-13 * most:
            return following
        tilt = following
    return tilt
