"""The tables of a tuning's page: the ladder with every attempt, the dead ends, and the settings side by side. Pure.

Reasons and log lines come from engines: they are shown as text and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.report.levels import interval_text
from skep.report.markup import Markup, join, table, tag, text, text_table
from skep.tuner.records import StageDecision, TuneStage, Tuning, value_words
from skep.tuner.summary import (
    KEPT,
    after_each,
    best_of,
    count_decisions,
    decision_words,
    given_up,
    ratio_range,
    ratio_words,
    unit_of,
)
from skep.units import UNKNOWN, known, milliseconds, number, seconds, shortened

MOST_OPEN = 12  # attempts that were not kept, up to which nothing is folded away
_LONGEST_WHY = 400
_STYLES = {
    StageDecision.BASELINE: "left",
    StageDecision.ACCEPTED: "left",
    StageDecision.SAME: "left soft",
    StageDecision.UNDECIDED: "left soft",
}
_LEFT = ("Change", "Decision", "Why")


def ladder(tuning: Tuning, stages: Sequence[TuneStage]) -> Markup:
    """Every attempt in the order in which it was decided. Of many, those that were not kept are folded away."""
    if sum(one.decision not in KEPT for one in stages) <= MOST_OPEN:
        return _rungs("The ladder: every attempt and what became of it", tuning, stages, stages)
    kept = [one for one in stages if one.decision in KEPT]
    steps = _rungs("The ladder: every configuration that was the best of its time", tuning, stages, kept)
    folds = [_fold(tuning, stages, step, left) for step, left in after_each(stages) if left]
    return join([steps, *folds] if kept else folds)


def _fold(tuning: Tuning, stages: Sequence[TuneStage], step: TuneStage | None, left: Sequence[TuneStage]) -> Markup:
    """What was tried after a step and not kept. Its id lets a page that is read anew keep it open."""
    number = 0 if step is None else step.number
    after = "before the baseline" if step is None else f"after stage {number}, {shortened(step.title, 80)}"
    said = tag("summary", tag("b", text(f"{len(left)} not kept {after}")), text(f": {count_decisions(left)}"))
    made = _rungs(f"Attempts that were not kept {after}", tuning, stages, left)
    return tag("details", said, made, id=f"after-{number}", class_="attempts")


def _rungs(caption: str, tuning: Tuning, stages: Sequence[TuneStage], shown: Sequence[TuneStage]) -> Markup:
    names = ("#", "Change", "Decision", unit_of(tuning), "95 %", "Over the best then", "95 %", "Foreseen", "TPOT p50",
             "TTFT p50", "Why", "Starts", "Readings", "Took")  # fmt: skip
    head = tag("tr", *(tag("th", text(name), scope="col", class_="left" if name in _LEFT else None) for name in names))
    lost = given_up(stages)
    return table(caption, [head], [_row(one, lost=one.number in lost) for one in shown])


def settings_table(tuning: Tuning, stages: Sequence[TuneStage]) -> Markup | None:
    """Each knob in the baseline and in the best configuration."""
    best = best_of(stages)
    if best is None:
        return None
    titles = {knob.name: knob.title for knob in tuning.knobs}
    named = list(dict.fromkeys([*titles, *tuning.baseline.as_dict, *best.config.as_dict]))
    head = tag(
        "tr",
        tag("th", text("Knob"), scope="col"),
        *(tag("th", text(name), scope="col", class_="left") for name in ("What it is", "Baseline", "Best")),
    )
    rows = []
    for name in named:
        before, after = tuning.baseline.get(name), best.config.get(name)
        changed, said = before != after, text(shortened(value_words(after), 80))
        rows.append(
            tag(
                "tr",
                tag("th", text(name), scope="row"),
                tag("td", text(titles.get(name, "")), class_="note"),
                tag("td", text(shortened(value_words(before), 80)), class_="left"),
                tag("td", tag("b", said, text(" (changed)")) if changed else said, class_="left"),
                class_="best" if changed else None,
            )
        )
    return table("Settings of the baseline and of the best", [head], rows)


def dead_ends(stages: Sequence[TuneStage]) -> Markup | None:
    """What happened, the line of the log that says so, and what would mend it."""
    columns = ("#", ("Change", "wide"), ("What happened", "wide"), ("Log line", "wide"), ("Remedy", "wide"))
    rows = [
        (
            stage.number,
            shortened(stage.title, 160),
            shortened(f"{decision_words(stage)}: {failure.cause}", 400),
            shortened(failure.evidence, 600) if failure.evidence else UNKNOWN,
            shortened(failure.remedy or UNKNOWN, 400),
        )
        for stage in stages
        if (failure := stage.failure) is not None
    ]
    return text_table("Dead ends", columns, rows, inner={"Log line": "code"}) if rows else None


def _row(stage: TuneStage, *, lost: bool) -> Markup:
    figure = None if stage.figure is None else stage.figure.estimate
    kept = stage.decision is StageDecision.ACCEPTED and not lost
    style = "left bad" if lost else _STYLES.get(stage.decision, "left bad")
    said = text(decision_words(stage) + (", died later" if lost else ""))
    foreseen = f"{number(stage.predicted, digits=2)}×" if known(stage.predicted) else UNKNOWN
    return tag(
        "tr",
        tag("th", text(stage.number), scope="row"),
        tag("td", text(shortened(stage.title, 160)), class_="wide"),
        tag("td", tag("b", said) if kept else said, class_=style),
        tag("td", tag("b", text(number(figure))) if kept else text(number(figure))),
        tag("td", text(interval_text(stage.figure)), class_="soft"),
        tag("td", text(ratio_words(stage.ratio))),
        tag("td", text(ratio_range(stage.ratio)), class_="soft"),
        tag("td", text(foreseen), class_="soft"),
        tag("td", text(milliseconds(stage.tpot_ms))),
        tag("td", text(milliseconds(stage.ttft_ms))),
        tag("td", _why(stage), class_="wide soft"),
        tag("td", text(stage.starts)),
        tag("td", text(stage.readings)),
        tag("td", text(seconds(stage.seconds))),
        class_="best" if kept else None,
    )


def _why(stage: TuneStage) -> Markup:
    """Of a dead end the short form: its log line and remedy have a table of their own."""
    words = text(shortened(stage.why, _LONGEST_WHY))
    if stage.failure is None:
        return words
    return join([words, text(" "), tag("a", text("log line and remedy"), href="#dead-ends")])
