"""Which stages of a ladder are told, and in which words: a climb of fifty attempts must not be buried by them. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from skep.cli.swarm_words import one_line
from skep.report.tuning_words import decision_words, given_up
from skep.tuner.foresight import FORESEEN
from skep.tuner.verdicts import share_words
from skep.tunings import Decision, Stage

_SORTED_OUT = (Decision.WORSE, Decision.SAME, Decision.OVER_LIMIT)  # of these each knob's best attempt is told
_SEVERAL = "several knobs at once"


def told(stages: Sequence[Stage]) -> list[Stage]:
    """The baseline, what was accepted, failed or answers worse, and each knob's best attempt: also over the SLO."""
    best: dict[tuple[str, bool], Stage] = {}
    for stage in stages:
        if stage.decision in _SORTED_OUT:
            knob = stage.changes[0].knob if len(stage.changes) == 1 else _SEVERAL
            key = knob, stage.decision is Decision.OVER_LIMIT
            if key not in best or _height(stage) > _height(best[key]):
                best[key] = stage
    shown = {stage.number for stage in best.values()}
    return [stage for stage in stages if stage.decision not in _SORTED_OUT or stage.number in shown]


def left_out_words(stages: Sequence[Stage], shown: Sequence[Stage]) -> str | None:
    """How many are not told, and what became of them; None: all are."""
    numbers = {stage.number for stage in shown}
    hidden = [stage.decision for stage in stages if stage.number not in numbers]
    if not hidden:
        return None
    counted = ", ".join(f"{hidden.count(one)} {one.value}" for one in _SORTED_OUT if one in hidden)
    more = "attempt is" if len(hidden) == 1 else "attempts are"
    return f"{len(hidden)} more {more} left out here ({counted}): of each knob the best one is shown"


def foreseen_ratio(stage: Stage) -> float | None:
    """The planner's, where it knows any of the knobs: one that it knows nothing of leaves its figure as it is."""
    return stage.predicted if any(change.knob in FORESEEN for change in stage.changes) else None


def verdict_words(stage: Stage, stages: Sequence[Stage]) -> str:
    return f"{stage.decision.value}, died later" if stage.number in given_up(stages) else stage.decision.value


def why_words(stage: Stage) -> str:
    """Without the ratio, which has columns of its own, and without the log of a dead end, which is told in full."""
    if stage.decision is Decision.FAILED:
        return decision_words(stage)
    said = share_words(stage.ratio)
    return stage.why.removeprefix(said).lstrip(",:; ") if stage.ratio is not None else stage.why


def wrapped(text: str, width: int) -> str:
    """Lines of at most so many letters, nothing cut but words that are longer."""
    return "\n".join(textwrap.wrap(one_line(text, 2000), width, break_on_hyphens=False))


def changes_wrapped(stage: Stage, width: int) -> str:
    """A change to a line where they do not fit on one."""
    if len(stage.title) <= width or len(stage.changes) < 2:
        return wrapped(stage.title, width)
    return "\n".join(wrapped(str(change), width) for change in stage.changes)


def _height(stage: Stage) -> float:
    return stage.ratio.estimate if stage.ratio is not None else 0.0
