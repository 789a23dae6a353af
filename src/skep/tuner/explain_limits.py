"""How far the words of a tuning reach: what was foreseen, what was left out, what the figures hold for. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skep.records import Interval
from skep.tunings import CurvePoint, Decision, Stage, Tuning
from skep.units import format_seconds

SILENT = 0.005  # a ratio so near to 1 foresees nothing
FAR = 0.03  # outside of the interval, on a logarithm, from which a prediction is told as off
SHORT_OUTPUT = 64  # tokens, below which the first one takes a large part of the time
SPENT = 0.9  # of the budget: then time was the reason


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a climb besides its stages. `state` and `reason`: of TuningState, as the store has them."""

    state: str | None = None
    reason: str | None = None
    measured_s: float | None = None  # screening and curve included, which no stage counts
    curve: Sequence[CurvePoint] = ()

    @property
    def words(self) -> list[str]:
        if self.state == "running":
            return ["it still climbs: this is how far it came"]
        if self.state == "interrupted":
            why = f" ({self.reason})" if self.reason else ""
            return [f"it was broken off{why}: this is how far it came"]
        return []


def again_words(tuning: Tuning, kept: Sequence[Stage], standing: Standing) -> list[str]:
    """The best beside the baseline once more, by readings that decided nothing: what was accepted for looking good
    tends to look a little better than it is."""
    if not kept or tuning.aim.metric != "effective_tok_s":
        return []
    met = {one.config: one.figure for one in standing.curve if one.concurrency == tuning.aim.concurrency}
    base, best = met.get(tuning.baseline), met.get(kept[-1].config)
    if base is None or best is None or base.estimate <= 0:
        return []
    said = f"{best.estimate:,.1f} against {base.estimate:,.1f} tok/s, {best.estimate / base.estimate:.2f} times"
    return [f"measured once more for the curve, by readings that decided nothing: {said}"]


def foresight_words(tuning: Tuning, stages: Iterable[Stage]) -> list[str]:
    """Predicted against measured, where something was foreseen and the direction is clear.

    Nothing of a simulated rig: it is made of the same predictions.
    """
    if tuning.simulated:
        return []
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


def left_out_words(tuning: Tuning, stages: Sequence[Stage], standing: Standing) -> list[str]:
    said = []
    undecided = [stage.title for stage in stages if stage.decision is Decision.UNDECIDED]
    if undecided:
        said.append(f"not finished, as time ran out: {'; '.join(undecided)}")
    turned = {change.knob for stage in stages for change in stage.changes}
    never = [knob.name for knob in tuning.knobs if knob.name not in turned and len(knob.values) > 1]
    if never:
        said.append(f"never decided about: {', '.join(never)}: {_why_never(tuning, stages, standing)}")
    return said


def _why_never(tuning: Tuning, stages: Sequence[Stage], standing: Standing) -> str:
    if standing.state == "running":
        return "not reached yet"
    if standing.state == "interrupted":
        return "it was broken off before"
    if _has_reached(tuning, stages):
        return "the target was reached before"
    spent = standing.measured_s or sum(stage.seconds for stage in stages)
    if any(stage.decision is Decision.UNDECIDED for stage in stages) or spent >= SPENT * tuning.budget_s:
        used = f"{format_seconds(spent)} of {format_seconds(tuning.budget_s)}"
        return f"time ran out ({used}), or it was refused beforehand"
    return "refused beforehand, or too little was expected of it"


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
        cost = f"{late} change{'s' if late > 1 else ''} turned down for it" if late else "it turned none down"
        said.append(f"within {aim.slo}: {cost}")
    unsure = [stage.title for stage in kept if "could not be shown" in stage.why or "not judged" in stage.why]
    if unsure:
        said.append(f"that answers are as good was not shown for: {'; '.join(unsure)}")
    return said
