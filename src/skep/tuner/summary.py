"""What is said of a search: from where to where, how much that is, and what became of each
attempt. Pure.

The gain is the product of the accepted steps' ratios, because each of those was measured side by
side. The figures of two stages were taken at different times, so their quotient may be a little
different.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from skep.errors import SkepError
from skep.stats.sequential import SequentialVerdict
from skep.tuner.records import (
    TURNS_MIN,
    ServerStart,
    StageDecision,
    TuneGoal,
    TuneStage,
    Tuning,
)
from skep.units import UNKNOWN, Interval, known, number

UNITS = {
    "effective_tok_s": "tok/s",
    "task_tok_s": "tok/s for each agent",
    TURNS_MIN: "turns/min",
}
KEPT = (StageDecision.BASELINE, StageDecision.ACCEPTED)
_FINE = 0.02  # an interval of ratios that is narrower is told with one digit more


def unit_of(tuning: Tuning) -> str:
    return UNITS.get(tuning.aim.metric, tuning.aim.metric)


def baseline_of(stages: Sequence[TuneStage]) -> TuneStage | None:
    """Return the stage of the baseline; None: it was not measured yet, or could not be."""
    for stage in stages:
        if stage.decision is StageDecision.BASELINE and stage.figure is not None:
            return stage
    return None


def best_of(stages: Sequence[TuneStage]) -> TuneStage | None:
    """Return the last step that stands; the baseline where there is none."""
    steps = [stage for stage in accepted(stages) if stage.figure is not None]
    if steps:
        return steps[-1]
    return baseline_of(stages)


def accepted(stages: Sequence[TuneStage]) -> list[TuneStage]:
    """Return the steps that the best stands on: one that was accepted and died later is none of
    them.
    """
    steps: list[TuneStage] = []
    for stage in stages:
        if stage.decision is StageDecision.ACCEPTED:
            steps.append(stage)
        elif stage.decision is StageDecision.FAILED and steps and steps[-1].config == stage.config:
            steps.pop()
    return steps


def given_up(stages: Sequence[TuneStage]) -> frozenset[int]:
    """Return the numbers of the stages that were accepted and died later."""
    standing = {stage.number for stage in accepted(stages)}
    return frozenset(
        stage.number
        for stage in stages
        if stage.decision is StageDecision.ACCEPTED and stage.number not in standing
    )


def total_gain(stages: Sequence[TuneStage]) -> Interval | None:
    """Return the gain of all accepted steps over the baseline, their errors taken as independent;
    None: no step, or one without ratio.
    """
    ratios = []
    for stage in accepted(stages):
        ratio = stage.ratio
        if ratio is None or not known(ratio.estimate) or ratio.estimate <= 0:
            return None
        ratios.append(ratio)
    if not ratios:
        return None
    product = math.prod(ratio.estimate for ratio in ratios)
    errors_below = [_log(ratio.estimate, ratio.low) for ratio in ratios]
    errors_above = [_log(ratio.high, ratio.estimate) for ratio in ratios]
    below = math.hypot(*errors_below)
    above = math.hypot(*errors_above)
    return Interval(
        low=product * math.exp(-below),
        estimate=product,
        high=product * math.exp(above),
    )


def _log(larger: float, smaller: float) -> float:
    """Return the logarithm of their ratio; infinity where there is none."""
    if smaller > 0 and math.isfinite(larger):
        return math.log(larger / smaller)
    return math.inf


def headline(tuning: Tuning, stages: Sequence[TuneStage]) -> str:
    """Return one sentence without its full stop."""
    base = baseline_of(stages)
    best = best_of(stages)
    unit = unit_of(tuning)
    at = f"at C\u00a0=\u00a0{tuning.aim.concurrency}"
    if base is None or base.figure is None or best is None or best.figure is None:
        failed = next((stage for stage in stages if stage.decision is StageDecision.FAILED), None)
        if failed:
            return f"Nothing could be measured: it {decision_words(failed)}"
        return "Nothing is measured yet"
    if best is base:
        tried = len(stages) - 1
        if tried:
            plural = "s" if tried > 1 else ""
            outcome = f"none of {tried} change{plural} was shown to be better"
        else:
            outcome = "no change has been measured"
        return f"{number(base.figure.estimate)} {unit} {at}: {outcome}"
    gain = total_gain(stages)
    steps = len(accepted(stages))
    steps_text = "one step" if steps == 1 else f"{steps} steps"
    if gain is not None:
        gain_text = f": {ratio_words(gain)} (95\u00a0%: {ratio_range(gain)})"
    else:
        gain_text = ""
    figures = f"{number(base.figure.estimate)} to {number(best.figure.estimate)} {unit}"
    return f"From {figures} {at} in {steps_text}{gain_text}"


def decision_words(stage: TuneStage) -> str:
    """Return "accepted" and the like; of a dead end what it was, in a few words."""
    dead = stage.decision is StageDecision.FAILED
    if dead and stage.failure is not None:
        return stage.failure.title
    return stage.decision.value


def ratio_words(ratio: Interval | None) -> str:
    """Return "1.72×", with a digit more where its interval is narrow."""
    if ratio is None or not known(ratio.estimate):
        return UNKNOWN
    return f"{number(ratio.estimate, digits=_digits(ratio))}×"


def ratio_range(ratio: Interval | None) -> str:
    if ratio is None or not (known(ratio.low) and known(ratio.high)):
        return UNKNOWN
    digits = _digits(ratio)
    return f"{number(ratio.low, digits=digits)}–{number(ratio.high, digits=digits)}"


def _digits(ratio: Interval) -> int:
    if ratio.estimate >= 9.95:
        return 1
    return 3 if ratio.high - ratio.low < _FINE else 2


def figure_words(figure: Interval) -> str:
    """Return "190 (184 to 196)"."""
    return f"{number(figure.estimate)} ({number(figure.low)} to {number(figure.high)})"


def count_decisions(stages: Sequence[TuneStage]) -> str:
    """Return "3 accepted, 2 worse, 1 failed"; empty while nothing but the baseline is decided."""
    counter = Counter(stage.decision for stage in stages)
    decisions = [
        decision
        for decision in StageDecision
        if decision is not StageDecision.BASELINE and counter[decision]
    ]
    return ", ".join(f"{counter[decision]} {decision.value}" for decision in decisions)


def turns_per_wh(stage: TuneStage) -> float | None:
    """Return the turns of one watt-hour; None: tasks are the load, or no power is known."""
    if stage.sessions is None or stage.figure is None or not stage.sessions.mean_w:
        return None
    return 60.0 * stage.figure.estimate / stage.sessions.mean_w


def shape_words(tuning: Tuning) -> str:
    aim = tuning.aim
    if aim.sessions is not None:
        return f"{aim.shape}, {aim.sessions.turns} turns of each in a reading"
    if aim.concurrency == 1:
        agents = "one agent"
    else:
        agents = f"{aim.concurrency} agents at once"
    return (
        f"{number(aim.input_tokens, digits=0)} tokens in, {number(aim.output_tokens, digits=0)} "
        f"out, {agents}"
    )


def goal_words(aim: TuneGoal) -> str:
    limits = f", within {aim.slo}" if aim.slo else ""
    if aim.min_context:
        context = f", context of {aim.min_context} at least"
    else:
        context = ""
    return f"{aim} ({aim.shape}{limits}{context})"


def missed_slo(tuning: Tuning, stages: Sequence[TuneStage]) -> SkepError | None:
    """Return the error of a search whose best does not keep the SLO; None: it does, or nothing was
    measured.
    """
    best = best_of(stages)
    if best is None or best.over_limit <= 1:
        return None
    subject = f"no configuration kept {tuning.aim.slo} at C={tuning.aim.concurrency}"
    hint = (
        "a wider --slo, fewer agents or a longer --budget; the nearest to it and fastest is kept"
    )
    return SkepError(
        f"{subject}; closest came step {best.number} with {best.over_limit:.2f} times the limit",
        hint=hint,
    )


def stage_words(stage: TuneStage, unit: str) -> str:
    """Return one line: what was decided of which change, by which figures."""
    if stage.figure is None:
        figure = ""
    else:
        figure = f": {figure_words(stage.figure)} {unit}"
    if stage.ratio is None:
        ratio = ""
    else:
        ratio = f", {ratio_words(stage.ratio)} ({ratio_range(stage.ratio)})"
    if not stage.changes:
        decided = stage.decision.value
    else:
        decided = f"{stage.decision.value}, {stage.title}"
    return f"step {stage.number} {decided}{figure}{ratio}; {stage.why}"


def speed_words(
    starts: Sequence[ServerStart], verdict: SequentialVerdict, ratio: Interval | None
) -> str:
    """Return how a contest of speeds ended."""
    if ratio is None:
        return "no reading of both sides counts: the client was the limit, or nothing was answered"
    measured = " with ".join(
        (
            _counted(sum(bool(start.figures) for start in starts), "start"),
            _counted(sum(len(start.figures) for start in starts), "reading"),
        )
    )
    if verdict is SequentialVerdict.SAME and ratio.low <= 1:
        smallest = 100 * (ratio.high / ratio.estimate - 1)
        return f"{measured}: a gain below {smallest:.1f} % cannot be told from chance"
    return measured


def _counted(count: int, noun: str) -> str:
    """Return "1 start", "2 starts"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def limit_words(own_share: float, rival_share: float, slo: str | None) -> str:
    """Return how a contest ended that limits decided, by the shares of them that either side
    took.
    """
    side = "within" if own_share <= 1 else "beyond"
    return f"{side} {slo}: {own_share:.2f} times the limit against {rival_share:.2f}"
