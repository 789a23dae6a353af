"""What may be said of quality under load, for the terminal and the page. Never more than the bounds allow."""

from __future__ import annotations

from skep.quality.records import LevelQuality, QualitySummary
from skep.stats.noninferiority import Claim
from skep.store.verdicts import VerdictOutcome


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
            f"not shown: C=1 passes {100 * found.base_rate:.1f} % of the items, so that a loss of {points(delta)} "
            "could not be seen; an easier bank is needed"
        )
    needed, asked = level.needed_items, found.items
    more = "more items are needed" if needed is None else f"about {needed:,} items would be needed"
    if needed is not None and needed <= asked:
        more = f"{needed:,} items mostly do if nothing is lost, so something may be: ask more than {asked:,}"
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
