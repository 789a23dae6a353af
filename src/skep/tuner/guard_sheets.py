"""Answer sheets and what two of them say: does the second configuration answer as well as the first? Pure.

Knows nothing of how the answers were got. A claim is made by the bounds of `skep.stats.noninferiority`; where neither
claim can be made the words say so, and the point estimate decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from skep.report.quality_words import points
from skep.stats.noninferiority import Claim, PairedDifference, claim_of, paired_difference
from skep.tunings import Config, Judged
from skep.verdicts import Outcome

FLOOR = 0.10  # of the items: who answers fewer rightly has nothing to lose that could be seen
UNANSWERED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})


@dataclass(frozen=True, slots=True)
class Mark:
    """What became of one item. `text`: the whole answer, None where there was none."""

    outcome: Outcome
    text: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One configuration's answers to a bank, each asked once, greedily and under the goal's load."""

    config: Config
    bank: str
    marks: Mapping[str, Mark] = field(default_factory=dict)  # by item
    seconds: float = 0.0  # of asking and judging
    run_id: str | None = None  # under which the answers and verdicts are stored
    trouble: str = ""  # why there are no marks at all

    @property
    def asked(self) -> int:
        return len(self.marks)

    @property
    def right(self) -> int:
        return self.count(Outcome.PASSED)

    @property
    def rate(self) -> float:
        return self.right / self.asked if self.asked else 0.0

    @property
    def cut(self) -> float:
        """Share of the answers that ended at the token limit."""
        return self.count(Outcome.TRUNCATED) / self.asked if self.asked else 0.0

    @property
    def unanswered(self) -> int:
        return self.count(*UNANSWERED)

    @property
    def is_silent(self) -> bool:
        """Not one request was answered: that is no matter of quality."""
        return self.unanswered == self.asked

    @property
    def fault(self) -> str:
        """Why requests were not answered, by the first of them."""
        told = next((mark.why for mark in self.marks.values() if mark.outcome in UNANSWERED and mark.why), "")
        return self.trouble or told or "no answer came"

    def of_items(self, items: Collection[str]) -> Sheet:
        return replace(self, marks={item: mark for item, mark in self.marks.items() if item in items})

    def count(self, *outcomes: Outcome) -> int:
        return sum(mark.outcome in outcomes for mark in self.marks.values())


def compared(before: Sheet, after: Sheet, delta: float) -> Judged:
    """Against what the climb began with, not the step before, small losses cannot add up from step to step."""
    seconds = before.seconds + after.seconds
    if before.is_silent:
        return Judged(
            ok=True,
            skipped=True,
            seconds=seconds,
            words=f"not judged: what it is held against answered nothing: {before.fault}",
        )
    if after.is_silent:
        return Judged(ok=False, seconds=seconds, words=f"none of its requests was answered: {after.fault}")
    both = before.marks.keys() & after.marks.keys()
    if before.bank != after.bank or not both:
        words = f"not judged: one was asked {before.bank}, the other {after.bank}"
        return Judged(ok=True, skipped=True, seconds=seconds, words=words)
    before, after = before.of_items(both), after.of_items(both)
    found = difference_of(before, after)
    if max(before.rate, after.rate) < max(FLOOR, delta):
        return Judged(ok=True, skipped=True, seconds=seconds, words=_nothing_told(before, after))
    ok, words = _claimed(before, after, found, delta)
    return Judged(ok=ok, seconds=seconds, words=f"{words}; {_texts(before, after)}")


def difference_of(before: Sheet, after: Sheet) -> PairedDifference:
    """Of the same items. One without an answer before counts as right there: else it would hide a loss."""
    pairs = {
        item: [(mark.outcome.passed or mark.outcome in UNANSWERED, after.marks[item].outcome.passed)]
        for item, mark in before.marks.items()
    }
    return paired_difference(pairs)


def _claimed(before: Sheet, after: Sheet, found: PairedDifference, delta: float) -> tuple[bool, str]:
    score = f"{after.right} of {after.asked} right against {before.right} of {before.asked} ({after.bank})"
    claim = claim_of(found, delta)
    if claim is Claim.HOLDS:
        small = f", though at least {points(-found.high)} are lost" if found.high < 0 else ""
        return True, f"{score}: not worse by more than {points(delta)}{small}"
    if claim is Claim.LOST:
        return False, f"{score}: worse by at least {points(-found.high)}"
    unshown = f"with {found.items} items a loss of up to {points(-found.low)} cannot be excluded"
    if found.difference < -delta:
        return False, f"{score}: {points(-found.difference)} fewer, and {unshown}"
    return True, f"{score}: that it is not worse by {points(delta)} could not be shown; {unshown}"


def _nothing_told(before: Sheet, after: Sheet) -> str:
    score = f"{after.right} of {after.asked} right against {before.right} of {before.asked} ({after.bank})"
    if before.cut > 0.5:
        cut = before.count(Outcome.TRUNCATED)
        return f"not judged: {score}; {cut} of {before.asked} answers were cut at the token limit"
    return f"not judged: {score}; these items are too hard for this model, so that nothing can be told"


def _texts(before: Sheet, after: Sheet) -> str:
    """For information: other texts are no worse ones."""
    said = [
        (mark.text, after.marks[item].text)
        for item, mark in before.marks.items()
        if mark.text is not None and after.marks[item].text is not None
    ]
    same = sum(one == other for one, other in said)
    return f"{same} of {len(said)} texts are the same"
