"""A trial in words: what to expect before it, what may be said after it. Never more than the figures allow."""

from __future__ import annotations

from skep.quality.trial_figures import POWER, discordance_of
from skep.quality.trial_figures import UNANSWERED as NO_ANSWER_AT_ALL
from skep.quality.trial_plan import MOST_DELTA
from skep.report.quality_words import points
from skep.stats.noninferiority import ASSUMED_DISCORDANCE, Claim, delta_shown, items_needed
from skep.verdicts import LevelQuality, QualitySummary

MOST_REPEATS = 10  # that anybody is told to make
MUCH_CACHED = 0.05
UNANSWERED = frozenset(outcome.value for outcome in NO_ANSWER_AT_ALL)


def signed(share: float) -> str:
    """ "-1.2", "+0.4", "0.0": in points."""
    value = f"{100 * share:+.1f}"
    return "0.0" if float(value) == 0 else value


def outlook(
    items: int,
    delta: float,
    repeats: int,
    *,
    seen: LevelQuality | None = None,
    available: int | None = None,
) -> list[str]:
    """What so many items can show. `seen`: a level whose changed verdicts take the place of the assumed share;
    `available`: how many the bank has.
    """
    share = ASSUMED_DISCORDANCE if seen is None else discordance_of(seen.difference)
    needed = _needed(delta, share, repeats)
    best = delta_shown(items, discordance=share, repeats=repeats, power=POWER)
    source = "assumed until the first level was measured"
    if seen is not None:
        none = "" if seen.difference.lost + seen.difference.gained else f"; none of {seen.difference.pairs:,} did"
        source = f"as between C=1 and C={seen.concurrency}{none}"
    often = f", {repeats} times each," if repeats > 1 else ""
    first = (
        f"to exclude a loss of {points(delta)}, about {needed:,} items{often} are needed if {100 * share:.1f} % of the "
        f"verdicts change, for better or worse ({source}); {items:,} are asked, which can exclude {points(best)}"
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
    largest = int(100 * delta_shown(items, discordance=share, power=POWER)) + 1
    if largest <= MOST_DELTA:
        ways.append(f"--delta {largest}, if a loss of less does not matter")
    if available is not None and needed > available:
        ways.append("a larger bank (--bank drills has no end)")
    return ", or ".join(ways)


def _needed(delta: float, share: float, repeats: int) -> int:
    return items_needed(delta, discordance=share, repeats=repeats, power=POWER)


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
        unanswered = sum(count for name, count in level.base.outcomes if name in UNANSWERED)
        if unanswered:
            found.append(
                f"warning: {unanswered} of {level.base.requests} requests at C=1 beside C={level.concurrency} got no "
                "answer; they are counted as passed there, so that they cannot hide a loss"
            )
        cached = max(level.base.cached_share or 0.0, level.load.cached_share or 0.0)
        if cached > MUCH_CACHED:
            found.append(
                f"warning: {100 * cached:.0f} % of the prompts came from a cache beside C={level.concurrency}: "
                "TTFT is better than with fresh prompts"
            )
    return found
