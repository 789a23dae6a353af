"""What mattered on this machine and what did not: a tuning in plain sentences. Pure.

Every figure stands with its 95 % interval, and nothing is said that the interval does not carry: a change that could
not be told from nothing is told with the gain that can be excluded, never as one that does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

from skep.records import Interval
from skep.tuner.explain_limits import foresight_words, left_out_words, special_words
from skep.tunings import FAILURES, Decision, Stage, Tuning
from skep.units import format_seconds

UNITS = {"effective_tok_s": "tok/s", "task_tok_s": "tok/s for each agent", "tok_per_joule": "tokens a joule"}
MOST_TOLD = 3  # steps that made most of it
MOST_LISTED = 6
MOST_OF_IT = 0.9  # share of the gain, after which no further step is named


def explain(tuning: Tuning, stages: Sequence[Stage]) -> list[str]:
    """In the order of what matters most. A climb that is not over yet is told as far as it came."""
    base = stages[0] if stages else None
    if base is None or base.figure is None:
        why = "" if base is None else f": {base.why}"
        return [*_mark(tuning), f"nothing was tuned, as there is no figure of the baseline{why}"]
    kept = kept_steps(stages)
    return [
        *_mark(tuning),
        _from_to(tuning, stages, kept),
        *_steps(kept),
        *_pairs(stages, kept),
        *_nothing(stages),
        *_lost(stages),
        *_rejected(stages),
        *_dead_ends(stages),
        *foresight_words(stages),
        *left_out_words(tuning, stages),
        *special_words(tuning, stages, kept),
    ]


def kept_steps(stages: Sequence[Stage]) -> list[Stage]:
    """Those that the best stands on: what was accepted, less what failed afterwards."""
    kept: list[Stage] = []
    for stage in stages:
        if stage.decision is Decision.ACCEPTED:
            kept.append(stage)
        elif stage.decision is Decision.FAILED and kept and kept[-1].config == stage.config:
            kept.pop()
    return kept


def total_ratio(kept: Sequence[Stage]) -> Interval | None:
    """The steps multiplied, their errors taken as independent. None: a step has no ratio."""
    ratios = [stage.ratio for stage in kept]
    if not ratios or any(ratio is None or ratio.low <= 0 for ratio in ratios):
        return None
    known = [ratio for ratio in ratios if ratio is not None]
    middle = math.fsum(math.log(ratio.estimate) for ratio in known)
    below = math.sqrt(math.fsum(math.log(ratio.estimate / ratio.low) ** 2 for ratio in known))
    above = math.sqrt(math.fsum(math.log(ratio.high / ratio.estimate) ** 2 for ratio in known))
    return Interval(math.exp(middle - below), math.exp(middle), math.exp(middle + above))


def times(ratio: Interval | None) -> str:
    """ "1.72 times (1.69 to 1.75)"."""
    if ratio is None:
        return "not measured"
    digits = 2 if ratio.half_width * ratio.estimate >= 0.01 else 3
    return f"{ratio.estimate:.{digits}f} times ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"


def percent(ratio: Interval | None) -> str:
    """ "+0.4 % (-0.8 to +1.6)"."""
    if ratio is None:
        return "not measured"
    low, middle, high = (100 * (value - 1) for value in (ratio.low, ratio.estimate, ratio.high))
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"


def _mark(tuning: Tuning) -> list[str]:
    return ["SIMULATED: no engine ran; this speaks of a rig in virtual time"] if tuning.simulated else []


def _from_to(tuning: Tuning, stages: Sequence[Stage], kept: Sequence[Stage]) -> str:
    unit, spent = UNITS.get(tuning.aim.metric, tuning.aim.metric), sum(stage.seconds for stage in stages)
    tried = f"{len(stages) - 1} changes decided in {format_seconds(spent)} of measuring"
    begin = _figure(stages[0].figure)
    if not kept:
        return f"nothing that was tried was shown to be better than the baseline's {begin} {unit}; {tried}"
    total = total_ratio(kept)
    gain = "" if total is None else f", {times(total)} by the {_count(len(kept), 'step')} multiplied"
    return f"from {begin} to {_figure(kept[-1].figure)} {unit}{gain}; {tried}"


def _steps(kept: Sequence[Stage]) -> list[str]:
    known = [(math.log(stage.ratio.estimate), stage) for stage in kept if stage.ratio is not None]
    total = math.fsum(gain for gain, _ in known)
    if total <= 0:
        return []
    ordered = sorted(known, key=lambda pair: -pair[0])
    if len(ordered) == 1:
        return [f"it was one step: {ordered[0][1].title}"]
    said, told = [], 0.0
    for gain, stage in ordered[:MOST_TOLD]:
        if told >= MOST_OF_IT * total:
            break
        told += gain
        said.append(f"{stage.title} brought {times(stage.ratio)}, {100 * gain / total:.0f} % of the gain")
    others = len(ordered) - len(said)
    if others:
        rest = math.exp(total - told)
        said.append(f"the other {_count(others, 'step')} together: {rest:.2f} times")
    return said


def _pairs(stages: Sequence[Stage], kept: Iterable[Stage]) -> list[str]:
    """Steps of several changes, with what each did where it was tried alone."""
    said = []
    for stage in kept:
        if len(stage.changes) < 2:
            continue
        alone = [
            f"{change.knob} alone: {before.decision}"
            for change in stage.changes
            if (before := _tried_alone(stages, stage, change.knob)) is not None
        ]
        if alone:
            said.append(f"only together: {stage.title} ({'; '.join(alone)})")
        else:
            said.append(f"turned together: {stage.title}; what each of them brings was not measured")
    return said


def _tried_alone(stages: Iterable[Stage], stage: Stage, knob: str) -> Stage | None:
    """The last stage before it that turned just this, to the same value."""
    wanted = [change for change in stage.changes if change.knob == knob]
    found = None
    for one in stages:
        if one.number < stage.number and len(one.changes) == 1 and one.decision is not Decision.ACCEPTED:
            change = one.changes[0]
            found = one if (change.knob, change.after) == (wanted[0].knob, wanted[0].after) else found
    return found


def _nothing(stages: Iterable[Stage]) -> list[str]:
    same = [stage for stage in stages if stage.decision is Decision.SAME]
    known = [(stage.ratio, stage.title) for stage in same if stage.ratio is not None]
    said = []
    if known:
        largest = max(100 * (ratio.high - 1) for ratio, _ in known)
        listed = _listed(f"{title} {percent(ratio)}" for ratio, title in known)
        excluded = f"a gain of more than {largest:.1f} % is excluded for each of them" if largest > 0 else "none gains"
        said.append(f"not to be told from nothing: {listed}; {excluded} (95 %)")
    unknown = [stage.title for stage in same if stage.ratio is None]
    return said + ([f"no reading of it counted: {_listed(unknown)}"] if unknown else [])


def _lost(stages: Iterable[Stage]) -> list[str]:
    worse = [stage for stage in stages if stage.decision is Decision.WORSE]
    worse.sort(key=lambda stage: stage.ratio.estimate if stage.ratio is not None else 1.0)
    return [f"lost: {_listed(f'{stage.title} {percent(stage.ratio)}' for stage in worse)}"] if worse else []


def _rejected(stages: Iterable[Stage]) -> list[str]:
    """Faster, and not taken all the same."""
    what = {Decision.OVER_LIMIT: "over the SLO", Decision.ANSWERS_WORSE: "answers worse"}
    return [f"{what[stage.decision]}: {stage.title}: {stage.why}" for stage in stages if stage.decision in what]


def _dead_ends(stages: Sequence[Stage]) -> list[str]:
    said = []
    for stage in stages:
        if stage.failure is None or stage.decision is not Decision.FAILED:
            continue
        kind = FAILURES.get(stage.failure.kind, stage.failure.kind)
        said.append(f"dead end: {stage.title} {kind}: {stage.failure}{_way_out(stages, stage)}")
    return said


def _way_out(stages: Iterable[Stage], dead: Stage) -> str:
    """A later stage that turned the same and something besides, and ran."""
    wanted = {(change.knob, change.after) for change in dead.changes}
    for stage in stages:
        turned = {(change.knob, change.after) for change in stage.changes}
        if stage.number > dead.number and wanted < turned and stage.decision is not Decision.FAILED:
            besides = ", ".join(str(one) for one in stage.changes if (one.knob, one.after) not in wanted)
            return f"; with {besides} it ran: {stage.decision}, {percent(stage.ratio)}"
    return ""


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    shown = ", ".join(islice(every, MOST_LISTED))
    return shown if len(every) <= MOST_LISTED else f"{shown}, and {len(every) - MOST_LISTED} more"


def _figure(figure: Interval | None) -> str:
    if figure is None:
        return "an unknown figure"
    digits = 1 if figure.estimate >= 1 else 3
    return f"{figure.estimate:,.{digits}f} ({figure.low:,.{digits}f} to {figure.high:,.{digits}f})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
