"""What is said of a search: from where to where, how much that is, and what became of each attempt. Pure.

The gain is the product of the accepted steps' ratios, because each of those was measured side by side. The figures of
two stages were taken at different times, so their quotient may be a little different.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from skep.errors import SkepError
from skep.stats.sequential import SequentialVerdict
from skep.tuner.measurements import over_limit
from skep.tuner.records import (
    ConfigFailure,
    ServerStart,
    StageDecision,
    TuneGoal,
    TuneStage,
    Tuning,
    changes_words,
)
from skep.units import UNKNOWN, Interval, known, number, one_line

UNITS = {"effective_tok_s": "tok/s", "task_tok_s": "tok/s for each agent", "tok_per_joule": "tok/J"}
KEPT = (StageDecision.BASELINE, StageDecision.ACCEPTED)
_FINE = 0.02  # an interval of ratios that is narrower is told with one digit more


def unit_of(tuning: Tuning) -> str:
    return UNITS.get(tuning.aim.metric, tuning.aim.metric)


def baseline_of(stages: Sequence[TuneStage]) -> TuneStage | None:
    """None: it was not measured yet, or could not be."""
    return next((one for one in stages if one.decision is StageDecision.BASELINE and one.figure is not None), None)


def best_of(stages: Sequence[TuneStage]) -> TuneStage | None:
    """Return the last step that stands; the baseline where there is none."""
    steps = [one for one in accepted(stages) if one.figure is not None]
    return steps[-1] if steps else baseline_of(stages)


def accepted(stages: Sequence[TuneStage]) -> list[TuneStage]:
    """Return the steps that the best stands on: one that was accepted and died later is none of them."""
    steps: list[TuneStage] = []
    for one in stages:
        if one.decision is StageDecision.ACCEPTED:
            steps.append(one)
        elif one.decision is StageDecision.FAILED and steps and steps[-1].config == one.config:
            steps.pop()
    return steps


def after_each(stages: Sequence[TuneStage]) -> list[tuple[TuneStage | None, list[TuneStage]]]:
    """Return each configuration that was kept, with the attempts between it and the next one that were not."""
    groups: list[tuple[TuneStage | None, list[TuneStage]]] = []
    for one in stages:
        if one.decision in KEPT:
            groups.append((one, []))
        elif groups:
            groups[-1][1].append(one)
        else:
            groups.append((None, [one]))
    return groups


def given_up(stages: Sequence[TuneStage]) -> frozenset[int]:
    """Return the numbers of those that were accepted and died later."""
    standing = {one.number for one in accepted(stages)}
    return frozenset(
        one.number for one in stages if one.decision is StageDecision.ACCEPTED and one.number not in standing
    )


def total_gain(stages: Sequence[TuneStage]) -> Interval | None:
    """All accepted steps over the baseline, their errors taken as independent; None: no step, or one without ratio."""
    steps = [one.ratio for one in accepted(stages)]
    ratios = [one for one in steps if one is not None and known(one.estimate) and one.estimate > 0]
    if not ratios or len(ratios) < len(steps):
        return None
    product = math.prod(one.estimate for one in ratios)
    below = math.hypot(*(_log(one.estimate, one.low) for one in ratios))
    above = math.hypot(*(_log(one.high, one.estimate) for one in ratios))
    return Interval(product * math.exp(-below), product, product * math.exp(above))


def _log(larger: float, smaller: float) -> float:
    return math.log(larger / smaller) if smaller > 0 and math.isfinite(larger) else math.inf


def headline(tuning: Tuning, stages: Sequence[TuneStage]) -> str:
    """Return one sentence without its full stop."""
    base, best, unit = baseline_of(stages), best_of(stages), unit_of(tuning)
    at = f"at C\u00a0=\u00a0{tuning.aim.concurrency}"
    if base is None or base.figure is None or best is None or best.figure is None:
        failed = next((one for one in stages if one.decision is StageDecision.FAILED), None)
        nothing = "Nothing could be measured" if stages else "Nothing is measured yet"
        return nothing if failed is None else f"{nothing}: it {decision_words(failed)}"
    if best is base:
        tried = len(stages) - 1
        said = f"none of {tried} changes was shown to be better" if tried > 1 else "no change was shown to be better"
        return f"{number(base.figure.estimate)} {unit} {at}: {said if tried else 'nothing else is decided yet'}"
    gain, steps = total_gain(stages), len(accepted(stages))
    gained = f"From {number(base.figure.estimate)} to {number(best.figure.estimate)} {unit} {at}"
    many = "one step" if steps == 1 else f"{steps} steps"
    if gain is None:
        return f"{gained} in {many}"
    told = f"{ratio_words(gain)} (95\u00a0%: {ratio_range(gain)})"
    return f"{gained} in one step: {told}" if steps == 1 else f"{gained}: {many} that multiply to {told}"


def decision_words(stage: TuneStage) -> str:
    """ "accepted"; of a dead end what it was, in a few words."""
    dead = stage.decision is StageDecision.FAILED
    return stage.failure.title if dead and stage.failure is not None else stage.decision.value


def reason(stage: TuneStage) -> str:
    """Return why it was kept or left, without the ratio in front: a table has that in columns of its own."""
    return stage.why.removeprefix(share_words(stage.ratio)).lstrip(" ,:;")


def ratio_words(ratio: Interval | None) -> str:
    """ "1.72×"; a digit more where its interval is narrow."""
    if ratio is None or not known(ratio.estimate):
        return UNKNOWN
    return f"{number(ratio.estimate, digits=_digits(ratio))}×"


def ratio_range(ratio: Interval | None) -> str:
    if ratio is None or not (known(ratio.low) and known(ratio.high)):
        return UNKNOWN
    digits = _digits(ratio)
    return f"{number(ratio.low, digits=digits)}–{number(ratio.high, digits=digits)}"


def _digits(ratio: Interval) -> int:
    return 1 if ratio.estimate >= 9.95 else 3 if ratio.high - ratio.low < _FINE else 2


def figure_words(figure: Interval) -> str:
    """ "190 (184 to 196)"; of what cannot be below zero, whatever two runs make of it."""
    return f"{number(figure.estimate)} ({number(max(0.0, figure.low))} to {number(figure.high)})"


def count_decisions(stages: Sequence[TuneStage]) -> str:
    """ "3 accepted, 2 worse, 1 failed"; empty while nothing but the baseline is decided."""
    found = Counter(one.decision for one in stages)
    told = [one for one in StageDecision if one is not StageDecision.BASELINE and found[one]]
    return ", ".join(f"{found[one]} {one.value}" for one in told)


def shape_words(tuning: Tuning) -> str:
    aim = tuning.aim
    agents = "one agent" if aim.concurrency == 1 else f"{aim.concurrency} agents at once"
    return f"{number(aim.input_tokens, digits=0)} tokens in, {number(aim.output_tokens, digits=0)} out, {agents}"


def unmet_goal(tuning: Tuning, stages: Sequence[TuneStage], starts: Sequence[ServerStart]) -> SkepError | None:
    """Return an SLO that nothing kept, or a target that nothing reached. None: all is well, or nothing was measured."""
    if (best := best_of(stages)) is None or best.figure is None:
        return None
    missed, target = _missed_slo(tuning, best, starts), tuning.aim.target
    if missed is not None or target is None or best.figure.estimate >= target:
        return missed
    unit = unit_of(tuning)
    what = f"no configuration reached {target:g} {unit}; closest came {figure_words(best.figure)} {unit}"
    return SkepError(what, hint="a longer --budget, more --knobs or another --checkpoint may; the best is kept")


def _missed_slo(tuning: Tuning, best: TuneStage, starts: Sequence[ServerStart]) -> SkepError | None:
    if tuning.aim.slo is None:
        return None
    read = [start for start in starts if start.figures]
    shares = {one.config: over_limit([other for other in read if other.config == one.config]) for one in read}
    if not shares or shares.get(best.config, 0.0) <= 1:
        return None
    closest = min(shares, key=lambda config: shares[config])
    words = "the baseline" if closest == tuning.baseline else changes_words(closest, tuning.baseline)
    if shares[closest] <= 1:
        what = f"the best is over {tuning.aim.slo} ({shares[best.config]:.2f} times it)"
        return SkepError(f"{what}; within it was only {words}, in a first look", hint="a longer --budget may decide it")
    what = f"no configuration kept {tuning.aim.slo} at C={tuning.aim.concurrency}"
    hint = "a wider --slo, or fewer agents; the nearest to it and fastest is kept"
    return SkepError(f"{what}; closest came {words} with {shares[closest]:.2f} times the limit", hint=hint)


def stage_words(stage: TuneStage, unit: str) -> str:
    """Return one line: what was decided of which change, by which figures."""
    figure = "" if stage.figure is None else f": {figure_words(stage.figure)} {unit}"
    why = f"; {stage.why}" if stage.why else ""
    what = stage.decision.value if not stage.changes else f"{stage.decision.value}, {stage.title}"
    return f"step {stage.number} {what}{figure}{why}"


def goal_words(aim: TuneGoal) -> str:
    limits = f", within {aim.slo}" if aim.slo else ""
    context = f", context of {aim.min_context} at least" if aim.min_context else ""
    return f"{aim} ({aim.shape}{limits}{context})"


def dead_end_lines(stages: Iterable[TuneStage]) -> list[str]:
    """In full, with the engine's own line and what would mend it: a table has no room for them."""
    numbers: dict[ConfigFailure, list[int]] = {}
    for stage in stages:
        if stage.failure is not None:
            numbers.setdefault(stage.failure, []).append(stage.number)
    lines: list[str] = []
    for failure, same in numbers.items():
        lines += failure_lines(f"step{'s' if len(same) > 1 else ''} {', '.join(map(str, same))}", failure)
    return lines


def failure_lines(which: str, failure: ConfigFailure) -> list[str]:
    lines = [f"{which} {failure.title}: {one_line(failure.cause)}"]
    if failure.evidence:
        lines.append(f"  it said: {one_line(failure.evidence)}")
    if failure.remedy:
        lines.append(f"  remedy: {one_line(failure.remedy)}")
    return lines


def speed_words(starts: Sequence[ServerStart], verdict: SequentialVerdict, ratio: Interval | None) -> str:
    """Return how a contest of speeds ended."""
    if ratio is None:
        return "no reading of both sides counts: the client was the limit, or nothing was answered"
    count, readings = sum(bool(one.figures) for one in starts), sum(len(one.figures) for one in starts)
    seen = f"{count} start{'s' if count != 1 else ''}, {readings} reading{'s' if readings != 1 else ''}"
    if verdict is not SequentialVerdict.SAME:
        return f"{share_words(ratio)}, {seen}"
    if ratio.low > 1:
        return f"{share_words(ratio)} in {seen}, but not promising enough for another look"
    least = 100 * (ratio.high / ratio.estimate - 1)
    return f"{share_words(ratio)}: {seen} cannot show less than {least:.1f} %"


def limit_words(here: float, there: float, slo: str | None, ratio: Interval | None) -> str:
    """Return the cases that limits decided, by the shares of them that either side took."""
    what = "within" if here <= 1 else "beyond"
    return f"{what} {slo or 'its limits'}: {here:.2f} times the limit against {there:.2f}; speed {share_words(ratio)}"


def share_words(ratio: Interval | None) -> str:
    """ "+4.1 % (+2.0 to +6.2)"."""
    if ratio is None:
        return "not measured"
    low, middle, high = (100 * (value - 1) for value in (ratio.low, ratio.estimate, ratio.high))
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"
