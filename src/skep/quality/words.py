"""What may be said of quality under load, for the terminal and the page. Never more than the bounds allow."""

from __future__ import annotations

from skep.quality.records import LevelQuality, QualitySummary
from skep.quality.trial_figures import POWER, UNANSWERED, discordance_of, needed_items
from skep.stats.noninferiority import ASSUMED_DISCORDANCE, Claim, delta_shown
from skep.store.verdicts import VerdictOutcome

LEAST_DELTA, MOST_DELTA = 0.1, 50.0  # points
MOST_REPEATS = 10  # that anybody is told to make
MUCH_CACHED = 0.05


def points(share: float, digits: int = 1) -> str:
    """0.031 is "3.1 points"; -0.0 is no minus."""
    value = f"{100 * share + 0.0:.{digits}f}".removesuffix("." + "0" * digits)
    value = value.removeprefix("-") if float(value) == 0 else value
    return f"{value} point" if value == "1" else f"{value} points"


def claim_words(level: LevelQuality, delta: float) -> str:
    found = level.difference
    if level.claim is Claim.HOLDS:
        small = f", though at least {points(-found.high)} are lost" if found.high < 0 else ""
        return f"no worse than {points(delta)}{small}"
    if level.claim is Claim.LOST:
        return f"worse: at least {points(-found.high)} lost"
    cut = dict(level.base.outcomes).get(VerdictOutcome.TRUNCATED.value, 0)
    if 2 * cut > level.base.requests:
        return (
            f"not shown: {cut:,} of {level.base.requests:,} answers at C=1 were cut at the token limit; "
            "--output-tokens gives them more room"
        )
    if found.base_rate <= delta:
        return (
            f"not shown: C=1 passes {100 * found.base_rate:.1f} % of the items, so a loss of {points(delta)} "
            "could not be seen; use an easier bank"
        )
    needed, asked = level.needed_items, found.items
    more = "more items are needed" if needed is None else f"about {needed:,} items would be needed"
    if needed is not None and needed <= asked:
        more = f"{needed:,} items usually do if nothing is lost, so there may be a loss: ask more than {asked:,}"
    return f"not shown: a loss of up to {points(-found.low)} cannot be excluded; {more}"


def conclusion(summary: QualitySummary) -> str:
    """Return one sentence: how far quality holds, and what ended it."""
    failed = next((level for level in summary.levels if level.claim is not Claim.HOLDS), None)
    if summary.holds_up_to is None and (failed is None or failed.claim is Claim.UNSHOWN):
        if failed is None:
            return "nothing can be claimed: no level was measured"
        return f"nothing can be claimed: C={failed.concurrency} is {claim_words(failed, summary.delta)}"
    parts = []
    if summary.holds_up_to is not None:
        excluded = f"a loss of {points(summary.delta)} or more is excluded (95 %)"
        parts.append(f"quality holds up to C={summary.holds_up_to}: {excluded}")
    if failed is not None:
        parts.append(f"C={failed.concurrency} is {claim_words(failed, summary.delta)}")
    return "; ".join(parts)


def signed(share: float) -> str:
    """ "-1.2", "+0.4", "0.0": in points."""
    value = f"{100 * share:+.1f}"
    return "0.0" if float(value) == 0 else value


def outlook(
    items: int, delta: float, repeats: int, *, seen: LevelQuality | None = None, available: int | None = None
) -> list[str]:
    """What so many items can show. `seen`: its changed verdicts replace the assumed share; `available`: in the bank."""
    share = ASSUMED_DISCORDANCE if seen is None else discordance_of(seen.difference)
    needed = needed_items(delta, share, repeats)
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
    needed = needed_items(delta, share, 1)
    if available is None or needed <= available:
        ways.append(f"--items {needed}")
    times = next((n for n in range(2, MOST_REPEATS + 1) if needed_items(delta, share, n) <= items), None)
    if times is not None:
        ways.append(f"--repeats {times}")
    largest = int(100 * delta_shown(items, discordance=share, power=POWER)) + 1
    if largest <= MOST_DELTA:
        ways.append(f"--delta {largest}, if a loss of less does not matter")
    if available is not None and needed > available:
        ways.append("a larger bank (--bank drills is unlimited)")
    return ", or ".join(ways)


def noise_words(summary: QualitySummary) -> str | None:
    """Describe what changes without load; None if it was not measured."""
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
    """Return warnings and gaps that a reader of the table must know."""
    found = []
    if summary.incomplete:
        found.append(f"incomplete: {summary.incomplete}")
    stopped = next((level.concurrency for level in summary.levels if level.claim is not Claim.HOLDS), None)
    if summary.skipped:
        names = ", ".join(f"C={level}" for level in summary.skipped)
        why = f", as C={stopped} does not hold" if stopped is not None else ""
        found.append(f"not measured: {names}{why}")
    for level in summary.levels:
        if unanswered := sum(count for name, count in level.base.outcomes if VerdictOutcome(name) in UNANSWERED):
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
