"""Figures of pairs: the median with an interval, a word for it, and the tables.

Knows no process.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cluster_rig.load import Level

from skep.units import Interval

GOAL = 0.05
CONFIDENCE = 0.95
SURE = 6  # pairs
FIGURES = ("tok_s", "ttft_ms", "tpot_ms", "whole_ms")


def middle(values: Sequence[float]) -> Interval:
    """The median, and the two values between which it lies with 95 %, whatever the distribution.

    By the binomial of how many lie below it. Under six values no two are that sure: then it is the
    least and greatest."""
    ordered = sorted(values)
    n = len(values)
    rank = 1
    while _coverage(n, rank + 1) >= CONFIDENCE:
        rank += 1
    return Interval(ordered[rank - 1], statistics.median(ordered), ordered[n - rank])


def _coverage(n: int, rank: int) -> float:
    """Of the interval from the value of that rank to the one of the same rank from above."""
    if 2 * rank <= n:
        return 1 - 2 * sum(math.comb(n, count) for count in range(rank)) / 2**n
    return 0.0


def paired(above: Sequence[Level], below: Sequence[Level]) -> dict[str, Interval]:
    """Of each figure the ratio, and of the times the difference too (`added_…`), pair by pair."""
    pairs = list(zip(above, below, strict=True))
    found = {
        name: middle([getattr(a, name) / getattr(b, name) for a, b in pairs]) for name in FIGURES
    }
    for name in FIGURES[1:]:
        found[f"added_{name}"] = middle([getattr(a, name) - getattr(b, name) for a, b in pairs])
    return found


def verdict(ratio: Interval, pairs: int, *, more_is_better: bool) -> str:
    """Within 5 %, or better: met where the whole interval is, missed where the median is not."""
    far = 1 - ratio.low if more_is_better else ratio.high - 1
    if more_is_better:
        here = 1 - ratio.estimate
    else:
        here = ratio.estimate - 1
    if pairs < SURE:
        return "open"
    if here > GOAL:
        return "missed"
    return "met" if far <= GOAL else "open"


def print_paths(title: str, found: Mapping[int, Mapping[str, Sequence[Level]]]) -> None:
    """The cluster path against the local path, level by level."""
    pairs = len(next(iter(found.values()))["cluster"])
    print(
        f"{title}\n{pairs} pairs, medians; cluster over local with {_sure(pairs)}; goal: "
        "within 5 %, or better"
    )
    print(f"{'C':>4} {'':16} {'local':>8} {'cluster':>8} {'ratio':>7} {'':17} {'goal':8} added")
    for streams, ways in found.items():
        compared = paired(ways["cluster"], ways["local"])
        for name, words, unit in _SHOWN:
            values = [_median(ways[way], name) for way in ("local", "cluster")]
            if unit:
                added = f"{_signed(compared[f'added_{name}'])} ms"
            else:
                added = ""
            goal = verdict(compared[name], pairs, more_is_better=not unit)
            numbers = f"{values[0]:8.2f} {values[1]:8.2f} {_ratio(compared[name])}"
            print(
                (
                    f"{streams if name == 'tok_s' else '':>4} {words:16} {numbers} {goal:8} "
                    f"{added}"
                ).rstrip()
            )
        if "direct" in ways:
            for way in ("local", "cluster"):
                own = paired(ways[way], ways["direct"])
                added = f"{_signed(own['added_ttft_ms'])} ms to the first token"
                print(
                    f"     {way} path adds {added}, {_signed(own['added_tpot_ms'])} ms to "
                    "each, over no gateway"
                )


_SHOWN = (
    ("tok_s", "effective tok/s", ""),
    ("ttft_ms", "TTFT p50 ms", "ms"),
    ("tpot_ms", "TPOT p50 ms", "ms"),
    ("whole_ms", "whole p50 ms", "ms"),
)


def print_times(title: str, times: Mapping[str, Sequence[float]], digits: int = 1) -> None:
    print(title)
    for name, values in times.items():
        low = min(values)
        here = statistics.median(values)
        high = max(values)
        spread = f"{low:.{digits}f}..{high:.{digits}f}"
        print(f"  {name:44} {here:7.{digits}f} s   {spread:14} n={len(values)}")


def as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    known = getattr(value, "__dataclass_fields__", None) or getattr(
        value, "__struct_fields__", None
    )
    if known is not None:
        return {name: as_json(getattr(value, name)) for name in known}
    return value


def _median(levels: Sequence[Level], name: str) -> float:
    return statistics.median(getattr(level, name) for level in levels)


def _ratio(found: Interval) -> str:
    return f"{found.estimate:7.3f} {f'({found.low:.3f}..{found.high:.3f})':17}"


def _signed(found: Interval) -> str:
    return f"{found.estimate:+.2f} ({found.low:+.2f}..{found.high:+.2f})"


def _sure(count: int) -> str:
    if count >= SURE:
        return "95 % intervals"
    return "least and greatest"
