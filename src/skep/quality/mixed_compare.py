"""Two mixed runs beside each other: which does the same coding work sooner, and with as many right
answers.

The sample is the repeats of a level. Right answers are compared over all levels together, item by
item: a run has so few of them that only a collapse can be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from skep.bench.compare import strict_confidence, worse_beyond
from skep.bench.metrics import Comparison, by_repeat, task_tok_s, ttft_values
from skep.bench.stored_run import nothing_measured
from skep.quality.mixed_figures import (
    PRIMARY,
    MixedLevel,
    MixedSummary,
    conversation_s,
    mixed_summary,
    turns_not_asked,
    wall_of,
)
from skep.stats.noninferiority import PairedDifference, paired_difference
from skep.stats.versus import Judgement, judge
from skep.store.database import Store
from skep.store.records import Request, RunState, StoredRun
from skep.store.verdicts import Verdict

TTFT = "TTFT of turn 1"
CONVERSATION = "conversation time"
ONE_REPEAT = "one repeat of a level shows no spread; measure both with --repeats 3 or more"


class MixedFigure(msgspec.Struct, frozen=True):
    """A figure that is compared: of one repeat, and as a level has it."""

    name: str
    higher_is_better: bool
    of_repeat: Callable[[Sequence[Request]], float | None]
    of_level: Callable[[MixedLevel], float | None]


class MixedSide(msgspec.Struct, frozen=True):
    """A run with all that a comparison needs of it.

    `limited`: levels at which the client was the limit.
    """

    run: StoredRun
    summary: MixedSummary
    rows: Sequence[Request]
    verdicts: Sequence[Verdict]
    limited: frozenset[int] = frozenset()

    def level(self, concurrency: int) -> MixedLevel | None:
        return next(
            (level for level in self.summary.levels if level.concurrency == concurrency), None
        )

    def figures(self, figure: MixedFigure, concurrency: int) -> list[float]:
        """Return a value for each repeat of a level that has one."""
        repeats = by_repeat(row for row in self.rows if row.level == concurrency)
        values = [figure.of_repeat(rows) for rows in repeats.values()]
        return [value for value in values if value is not None and value > 0]

    def answers(self) -> dict[tuple[int, int, str], bool]:
        """Return whether each item passed, by level, repeat and item.

        A turn that was not asked counts as failed.
        """
        passed = {
            (verdict.level, verdict.repeat, verdict.item): verdict.passed
            for verdict in self.verdicts
            if verdict.level
        }
        if not passed:
            return passed
        for level in self.summary.levels:
            repeats = by_repeat(row for row in self.rows if row.level == level.concurrency)
            for repeat, rows in repeats.items():
                for item in turns_not_asked(rows):
                    passed[level.concurrency, repeat, item] = False
        return passed


class MixedComparison(msgspec.Struct, frozen=True):
    """How B compares with A.

    `worse`: figures of B that are worse by more than was allowed, at 95 % over all of them
    together. `answers` is None unless answers of both runs were judged. `unfinished`: the levels
    at which only B finished the conversation, and those at which only A did.
    """

    found: Sequence[Comparison]
    worse: Sequence[Comparison]
    answers: PairedDifference | None
    unfinished: tuple[Sequence[int], Sequence[int]] = ((), ())

    @property
    def better(self) -> str | None:
        """Return "A" or "B", the side that does this work better; None: neither is shown to.

        More right answers go before a conversation that is finished, and that before speed: a
        conversation must be faster at some level and slower at none. Where no answer of either
        passed, speed is worth nothing.
        """
        if self.none_passed:
            return None
        if self.answers_judgement is Judgement.WORSE:
            return "A"
        if self.answers_judgement is Judgement.BETTER:
            return "B"
        unfinished_a, unfinished_b = self.unfinished
        if unfinished_a or unfinished_b:
            return _only("A" if unfinished_b else None, "B" if unfinished_a else None)
        slower_b = self.judged(CONVERSATION, Judgement.WORSE)
        faster_b = self.judged(CONVERSATION, Judgement.BETTER)
        return _only("A" if slower_b else None, "B" if faster_b else None)

    @property
    def none_passed(self) -> bool:
        return self.answers is not None and self.answers.base_rate == self.answers.rate == 0

    @property
    def answers_judgement(self) -> Judgement:
        """Return how B's answers stand against A's, by whether one-sided bounds of 95 % leave out
        that they are equal.
        """
        if self.answers is None:
            return Judgement.UNKNOWN
        if self.answers.high < 0:
            return Judgement.WORSE
        if self.answers.low > 0:
            return Judgement.BETTER
        return Judgement.SAME

    def judged(self, metric: str, judgement: Judgement) -> list[Comparison]:
        return [
            comparison
            for comparison in self.found
            if comparison.metric == metric and comparison.judgement is judgement
        ]


def _only(a: str | None, b: str | None) -> str | None:
    """Return the side that is given; None for both or none."""
    if a and b:
        return None
    return a or b


def _first_turn(rows: Sequence[Request]) -> list[Request]:
    return [row for row in rows if row.kind == PRIMARY[0].id]


def _ttft_ms(rows: Sequence[Request]) -> float | None:
    return next(iter(ttft_values(_first_turn(rows))), None)


def _aggregate_tok_s(rows: Sequence[Request]) -> float | None:
    wall_s = wall_of(rows)
    if wall_s > 0:
        return sum(row.output_tokens or 0 for row in rows if row.ok) / wall_s
    return None


FIGURES: tuple[MixedFigure, ...] = (
    MixedFigure(TTFT, False, _ttft_ms, lambda level: level.ttft_ms),
    MixedFigure(CONVERSATION, False, conversation_s, lambda level: level.primary_s),
    MixedFigure(
        "turn 1 tok/s", True, lambda rows: task_tok_s(_first_turn(rows)), lambda level: level.tok_s
    ),
    MixedFigure("aggregate tok/s", True, _aggregate_tok_s, lambda level: level.aggregate_tok_s),
)


def load_mixed(store: Store, run: StoredRun) -> MixedSide:
    """Load a run with its figures. Raises UserError where nothing was measured."""
    why_incomplete = ""
    if run.state is not RunState.DONE:
        why_incomplete = run.error or f"the run is {run.state.value}"
    rows = store.requests(run.id)
    verdicts = store.verdicts(run.id)
    facts = store.level_facts(run.id)
    summary = mixed_summary(
        run.id,
        run.model,
        rows,
        verdicts,
        simulated=run.simulated,
        incomplete=why_incomplete,
        facts=facts,
    )
    if not summary.levels:
        raise nothing_measured(run)
    limited = frozenset(
        sample.level for sample in store.client_samples(run.id) if sample.client_limited
    )
    return MixedSide(run, summary, rows, verdicts, limited)


def compare_mixed(a: MixedSide, b: MixedSide, allowed: float = 0.05) -> MixedComparison:
    """Compare B with A at the levels that both have.

    `allowed`: the share by which B may be worse.
    """
    comparisons = _compared(a, b, 0.95)
    strict = _compared(a, b, strict_confidence(len(comparisons)))
    unfinished = (_never_finished(a, b), _never_finished(b, a))
    return MixedComparison(comparisons, worse_beyond(allowed, strict), _answers(a, b), unfinished)


def _never_finished(side: MixedSide, against: MixedSide) -> list[int]:
    """Return the levels at which no conversation of a side was finished, while one of the side it
    is held against was.
    """
    pairs = ((level, against.level(level.concurrency)) for level in side.summary.levels)
    return [
        level.concurrency
        for level, partner in pairs
        if level.primary_s is None and partner is not None and partner.primary_s is not None
    ]


def _compared(a: MixedSide, b: MixedSide, confidence: float) -> list[Comparison]:
    levels = [
        level.concurrency for level in a.summary.levels if b.level(level.concurrency) is not None
    ]
    return [
        _compared_figure(figure, level, a, b, confidence) for figure in FIGURES for level in levels
    ]


def _compared_figure(
    figure: MixedFigure, level: int, a: MixedSide, b: MixedSide, confidence: float
) -> Comparison:
    level_a = a.level(level)
    level_b = b.level(level)
    unjudged = Comparison(
        concurrency=level,
        metric=figure.name,
        a=None if level_a is None else figure.of_level(level_a),
        b=None if level_b is None else figure.of_level(level_b),
        ratio=None,
        judgement=Judgement.UNKNOWN,
        higher_is_better=figure.higher_is_better,
    )
    limited = [name for name, side in (("A", a), ("B", b)) if level in side.limited]
    if limited:
        return replace(unjudged, why=f"the client was the limit in {' and '.join(limited)}")
    values_a = a.figures(figure, level)
    values_b = b.figures(figure, level)
    ratio, judgement = judge(
        values_a, values_b, higher_is_better=figure.higher_is_better, confidence=confidence
    )
    if judgement is Judgement.UNKNOWN:
        why = _why_unknown(values_a, values_b, _repeats(a, level), _repeats(b, level))
        return replace(unjudged, ratio=ratio, why=why)
    return replace(unjudged, ratio=ratio, judgement=judgement)


def _why_unknown(
    values_a: Sequence[float], values_b: Sequence[float], repeats_a: int, repeats_b: int
) -> str:
    without_values = [name for name, values in (("A", values_a), ("B", values_b)) if not values]
    if without_values:
        return f"not measured in {' and '.join(without_values)}"
    if min(repeats_a, repeats_b) <= 1:
        return ONE_REPEAT
    return (
        f"only {len(values_a)} of {repeats_a} repeats (A) "
        f"and {len(values_b)} of {repeats_b} (B) came to an end"
    )


def _repeats(side: MixedSide, concurrency: int) -> int:
    level = side.level(concurrency)
    return 0 if level is None else level.repeats


def _answers(a: MixedSide, b: MixedSide) -> PairedDifference | None:
    """Return the difference of right answers of the same item, at the same level and in the same
    repeat.
    """
    answers_a = a.answers()
    answers_b = b.answers()
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for place, passed in answers_a.items():
        if place in answers_b:
            _, _, item = place
            pairs.setdefault(item, []).append((passed, answers_b[place]))
    return paired_difference(pairs) if pairs else None
