"""How far the words of a tuning reach: what was foreseen, what was left out, what the figures hold for. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from skep.records import Interval
from skep.tunings import Decision, Stage, Tuning
from skep.units import format_seconds

SILENT = 0.005  # a ratio so near to 1 foresees nothing
FAR = 0.03  # outside of the interval, on a logarithm, from which a prediction is told as off
SHORT_OUTPUT = 64  # tokens, below which the first one takes a large part of the time
SPENT = 0.9  # of the budget: then time was the reason


def foresight_words(stages: Iterable[Stage]) -> list[str]:
    """Predicted against measured, where something was foreseen and the direction is clear."""
    told = [
        (stage, stage.predicted, stage.ratio)
        for stage in stages
        if stage.changes and stage.predicted is not None and stage.ratio is not None
        if abs(stage.predicted - 1) >= SILENT and stage.predicted > 0
    ]
    clear = [(stage, predicted, ratio) for stage, predicted, ratio in told if not ratio.contains(1.0)]
    said = []
    if clear:
        right = sum((predicted > 1) is (ratio.estimate > 1) for _, predicted, ratio in clear)
        said.append(f"the planner foresaw the direction of {right} of the {len(clear)} changes that had a clear one")
    off = [(_off(predicted, ratio), stage, predicted, ratio) for stage, predicted, ratio in told]
    far = max(off, key=lambda one: one[0], default=None)
    if far is not None and far[0] >= FAR:
        _, stage, predicted, ratio = far
        measured = f"{ratio.estimate:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        said.append(f"it was farthest off with {stage.title}: {predicted:.2f} times foreseen, {measured} measured")
    return said


def _off(predicted: float, ratio: Interval) -> float:
    """How far outside of the interval, on a logarithm; 0: inside."""
    if ratio.contains(predicted) or ratio.low <= 0:
        return 0.0
    return math.log(predicted / ratio.high) if predicted > ratio.high else math.log(ratio.low / predicted)


def left_out_words(tuning: Tuning, stages: Sequence[Stage]) -> list[str]:
    said = []
    undecided = [stage.title for stage in stages if stage.decision is Decision.UNDECIDED]
    if undecided:
        said.append(f"not finished, as time ran out: {'; '.join(undecided)}")
    turned = {change.knob for stage in stages for change in stage.changes}
    never = [knob.name for knob in tuning.knobs if knob.name not in turned and len(knob.values) > 1]
    if never:
        spent = sum(stage.seconds for stage in stages)
        used = f"{format_seconds(spent)} of the {format_seconds(tuning.budget_s)} went into what was decided"
        why = "not reached, refused beforehand, or too little was expected of it"
        if _has_reached(tuning, stages):
            why = "the target was reached before"
        elif undecided or spent >= SPENT * tuning.budget_s:
            why = "time ran out"
        said.append(f"never decided about: {', '.join(never)}: {why} ({used})")
    return said


def _has_reached(tuning: Tuning, stages: Iterable[Stage]) -> bool:
    target = tuning.aim.target
    kept = [stage.figure for stage in stages if stage.decision in (Decision.BASELINE, Decision.ACCEPTED)]
    return target is not None and any(figure is not None and figure.estimate >= target for figure in kept)


def special_words(tuning: Tuning, stages: Sequence[Stage], kept: Sequence[Stage]) -> list[str]:
    """What the figures hold for, and what was taken on trust."""
    aim = tuning.aim
    said = [f"all this holds for {aim.shape} on {tuning.rig}: other lengths or numbers of agents may rank otherwise"]
    if aim.output_tokens < SHORT_OUTPUT:
        said.append(
            f"answers of {aim.output_tokens} tokens are short: the time to the first token weighs heavily, and "
            "longer ones give higher figures without any change"
        )
    if aim.concurrency == 1 and len(stages) > 1:
        said.append("one agent alone: slots, batches and replicas cannot show here what they are for")
    if aim.slo is not None:
        late = sum(stage.decision is Decision.OVER_LIMIT for stage in stages)
        cost = f"{late} faster ones were turned down for it" if late else "it turned none down"
        said.append(f"within {aim.slo}: {cost}")
    unsure = [stage.title for stage in kept if "could not be shown" in stage.why or "not judged" in stage.why]
    if unsure:
        said.append(f"that answers are as good was not shown for: {'; '.join(unsure)}")
    return said
