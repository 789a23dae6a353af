"""A trial in words: what to expect before it, what may be said after it. Never more than the figures allow."""

from __future__ import annotations

from skep.stats.noninferiority import ASSUMED_DISCORDANCE, delta_shown, items_needed
from skep.verdicts import Claim, LevelQuality, PairedDifference, QualitySummary

MOST_REPEATS = 10  # that anybody is told to make
MUCH_CACHED = 0.05


def points(share: float, digits: int = 1) -> str:
    """0.031 is "3.1 points"; -0.0 is no minus."""
    value = f"{100 * share + 0.0:.{digits}f}".removesuffix("." + "0" * digits)
    value = value.removeprefix("-") if float(value) == 0 else value
    return f"{value} point" if value == "1" else f"{value} points"


def signed(share: float) -> str:
    """ "-1.2", "+0.4", "0.0": in points."""
    value = f"{100 * share:+.1f}"
    return "0.0" if float(value) == 0 else value


def discordance_of(noise: PairedDifference | None) -> float:
    """The share of verdicts that change by themselves; none seen: as if the next one would."""
    if noise is None:
        return ASSUMED_DISCORDANCE
    return max(1, noise.lost + noise.gained) / max(1, noise.pairs)


def outlook(
    items: int,
    delta: float,
    repeats: int,
    *,
    noise: PairedDifference | None = None,
    available: int | None = None,
) -> list[str]:
    """What so many items can show. `noise`: as measured, else as assumed; `available`: how many the bank has."""
    share = discordance_of(noise)
    needed, best = _needed(delta, share, repeats), delta_shown(items, discordance=share, repeats=repeats)
    source = "assumed, and measured at the first level"
    if noise is not None:
        none = "" if noise.lost + noise.gained else f"; none of {noise.pairs:,} did"
        source = f"measured, C=1 against itself{none}"
    often = f", {repeats} times each," if repeats > 1 else ""
    first = (
        f"to exclude a loss of {points(delta)}, about {needed:,} items{often} are needed if {100 * share:.1f} % of the "
        f"verdicts change by themselves ({source}); {items:,} are asked, which can exclude {points(best)}"
    )
    if items >= needed:
        return [first]
    remedy = _remedy(items, delta, share, available)
    return [first, f"UNDERPOWERED: expect `not shown`, which says nothing about quality. What helps: {remedy}"]


def _remedy(items: int, delta: float, share: float, available: int | None) -> str:
    ways = []
    needed = _needed(delta, share, 1)
    if available is None or needed <= available:
        ways.append(f"--items {needed}")
    times = next((n for n in range(2, MOST_REPEATS + 1) if _needed(delta, share, n) <= items), None)
    if times is not None:
        ways.append(f"--repeats {times}")
    largest = int(100 * delta_shown(items, discordance=share)) + 1
    ways.append(f"--delta {largest}, if a loss of less does not matter")
    if available is not None and needed > available:
        ways.append("a larger bank (--bank drills has no end)")
    return ", or ".join(ways)


def _needed(delta: float, share: float, repeats: int) -> int:
    return items_needed(delta, discordance=share, repeats=repeats)


def claim_words(level: LevelQuality, delta: float) -> str:
    found = level.difference
    if level.claim is Claim.HOLDS:
        small = f" (though {points(-found.high)} at least are lost)" if found.high < 0 else ""
        return f"no worse than {points(delta)}{small}"
    if level.claim is Claim.LOST:
        return f"worse: at least {points(-found.high)} lost"
    if found.base_rate <= delta:
        return (
            f"not shown: C=1 passes {100 * found.base_rate:.1f} % of the items, so that a loss of {points(delta)} "
            "could not be seen; an easier bank is needed"
        )
    return f"not shown: a loss of up to {points(-found.low)} cannot be excluded; {_more(level)}"


def _more(level: LevelQuality) -> str:
    needed, asked = level.needed_items, level.difference.items
    if needed is None:
        return "more items are needed"
    if needed > asked:
        return f"about {needed:,} items would be needed"
    return f"{needed:,} items mostly do if nothing is lost, so something may be: ask more than {asked:,}"


def conclusion(summary: QualitySummary) -> str:
    """One sentence: how far quality holds, and what ended it."""
    failed = next((level for level in summary.levels if level.claim is not Claim.HOLDS), None)
    if summary.holds_up_to is None and (failed is None or failed.claim is Claim.UNSHOWN):
        if failed is None:
            return "nothing can be claimed: no level was measured"
        return f"nothing can be claimed: C={failed.concurrency} is {claim_words(failed, summary.delta)}"
    parts = []
    if summary.holds_up_to is not None:
        parts.append(
            f"quality holds up to C={summary.holds_up_to}: a loss of {points(summary.delta)} or more is excluded (95 %)"
        )
    if failed is not None:
        parts.append(f"C={failed.concurrency} is {claim_words(failed, summary.delta)}")
    return "; ".join(parts)


def noise_words(summary: QualitySummary) -> str | None:
    """What changes by itself; None: it was not measured."""
    noise = summary.noise
    if noise is None:
        return None
    changed = noise.lost + noise.gained
    texts = summary.noise_texts_changed
    said = "" if texts is None else f", {100 * texts:.0f} % of the texts"
    return (
        f"C=1 against itself: {changed} of {noise.pairs} verdicts changed ({100 * changed / noise.pairs:.1f} %){said}; "
        f"difference {signed(noise.difference)} points ({signed(noise.low)} .. {signed(noise.high)})"
    )


def remarks(summary: QualitySummary) -> list[str]:
    """What else one must know to read the table."""
    found = []
    if summary.incomplete:
        found.append(f"incomplete: {summary.incomplete}")
    stopped = next((level.concurrency for level in summary.levels if level.claim is not Claim.HOLDS), None)
    if summary.skipped:
        names = ", ".join(f"C={level}" for level in summary.skipped)
        why = f", as C={stopped} does not hold" if stopped is not None else ""
        found.append(f"not walked: {names}{why}")
    for level in summary.levels:
        cached = max(level.base.cached_share or 0.0, level.load.cached_share or 0.0)
        if cached > MUCH_CACHED:
            found.append(
                f"warning: {100 * cached:.0f} % of the prompts came from a cache beside C={level.concurrency}: "
                "TTFT is better than with fresh prompts"
            )
    return found
