"""What mattered on this machine and what did not: a tuning in plain sentences. Pure.

Every figure stands with its 95 % interval, and nothing is said that the interval does not carry: a change that could
not be told from nothing is told with the gain that can be excluded, never as one that does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from skep.records import Interval
from skep.report.tuning_words import accepted, multiplied, unit_of
from skep.tuner.explain_ends import dead_end_words
from skep.tuner.explain_limits import Standing, again_words, foresight_words, left_out_words, special_words
from skep.tuner.verdicts import share_words
from skep.tunings import Decision, Stage, Tuning, value_words
from skep.units import format_seconds

MOST_TOLD = 3  # steps that made most of it
MOST_LISTED = 6
MOST_OF_IT = 0.9  # share of the gain, after which no further step is named
_NEVER_ALONE = "not tried alone"


def explain(tuning: Tuning, stages: Sequence[Stage], standing: Standing | None = None) -> list[str]:
    """In the order of what matters most. A climb that is not over yet is told as far as it came."""
    standing = standing or Standing()
    base = stages[0] if stages else None
    before = [*_mark(tuning), *standing.words]
    if base is None or base.figure is None:
        why = "" if base is None else f": {base.why}"
        return [*before, f"nothing was tuned, as there is no figure of the baseline{why}"]
    kept = accepted(stages)
    return [
        *before,
        _from_to(tuning, stages, kept, standing),
        *again_words(tuning, kept, standing),
        *_steps(kept),
        *_leaps(stages, kept),
        *_nothing(stages),
        *_lost(stages),
        *_rejected(stages),
        *dead_end_words(stages),
        *foresight_words(tuning, stages),
        *left_out_words(tuning, stages, standing),
        *special_words(tuning, stages, kept),
    ]


def times(ratio: Interval | None) -> str:
    """ "1.72 times (1.69 to 1.75)"."""
    if ratio is None:
        return "not measured"
    digits = 2 if ratio.half_width * ratio.estimate >= 0.01 else 3
    return f"{ratio.estimate:.{digits}f} times ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"


def _mark(tuning: Tuning) -> list[str]:
    return ["SIMULATED: no engine ran; this speaks of a rig in virtual time"] if tuning.simulated else []


def _from_to(tuning: Tuning, stages: Sequence[Stage], kept: Sequence[Stage], standing: Standing) -> str:
    unit, deciding_s = unit_of(tuning), sum(stage.seconds for stage in stages)
    spent = format_seconds(max(standing.measured_s or 0.0, deciding_s))
    tried = f"{_count(len(stages) - 1, 'change')} decided in {spent} of measuring"
    begin = _figure(stages[0].figure)
    if not kept:
        return f"nothing that was tried was shown to be better than the baseline's {begin} {unit}; {tried}"
    total = multiplied(kept)
    by = "in one step" if len(kept) == 1 else f"by the {len(kept)} steps multiplied"
    gain = "" if total is None else f", {times(total)} {by}"
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
    rest = [stage for _, stage in ordered[len(said) :]]
    if len(rest) == 1:
        said.append(f"the other step, {rest[0].title}: {times(rest[0].ratio)}")
    elif rest:
        said.append(f"the other {len(rest)} steps together: {times(multiplied(rest))}")
    return said


def _leaps(stages: Sequence[Stage], kept: Iterable[Stage]) -> list[str]:
    """Steps of several changes, with what each did where it was tried alone."""
    said = []
    for stage in kept:
        if len(stage.changes) < 2:
            continue
        became: dict[str, list[str]] = {}
        for change in stage.changes:
            became.setdefault(_alone(stages, stage, change.knob), []).append(change.knob)
        told = [f"{_and(knobs)} {'was' if len(knobs) == 1 else 'were'} {what}" for what, knobs in became.items()]
        if became.keys() == {_NEVER_ALONE}:
            told = ["what each of them brings was not measured"]
        knobs = _and([change.knob for change in stage.changes])
        said.append(f"stage {stage.number} turned {knobs} together: {'; '.join(told)}")
    return said


def _alone(stages: Iterable[Stage], stage: Stage, knob: str) -> str:
    before = _tried_alone(stages, stage, knob)
    if before is None:
        return _NEVER_ALONE
    return "a dead end alone" if before.decision is Decision.FAILED else f"{before.decision} alone"


def _tried_alone(stages: Iterable[Stage], stage: Stage, knob: str) -> Stage | None:
    """The last stage before it that turned just this, to the same value."""
    wanted = next(change for change in stage.changes if change.knob == knob)
    found = None
    for one in stages:
        if one.number < stage.number and len(one.changes) == 1 and one.decision is not Decision.ACCEPTED:
            change = one.changes[0]
            found = one if (change.knob, change.after) == (wanted.knob, wanted.after) else found
    return found


def _nothing(stages: Iterable[Stage]) -> list[str]:
    """Knob by knob: which values, and how large a gain of the most hopeful of them may be."""
    same = [stage for stage in stages if stage.decision is Decision.SAME]
    groups: dict[str, list[Stage]] = {}
    several = []
    for stage in same:
        if stage.ratio is None:
            continue
        if len(stage.changes) == 1:
            groups.setdefault(stage.changes[0].knob, []).append(stage)
        else:
            several.append(stage)
    told = [f"{knob} {_values(found)} ({_at_most(found)})" for knob, found in groups.items()]
    if several:
        told.append(f"{_count(len(several), 'turn')} of several knobs at once ({_at_most(several)})")
    said = []
    if told:
        said.append(f"not to be told from nothing: {', '.join(told)}; each `at most` is the end of a 95 % interval")
    unknown = [stage.title for stage in same if stage.ratio is None]
    return said + ([f"no reading of it counted: {_listed(unknown)}"] if unknown else [])


def _values(found: Iterable[Stage]) -> str:
    values = list(dict.fromkeys(stage.changes[0].after for stage in found))
    if all(isinstance(value, int | float) for value in values):
        values.sort(key=lambda value: value if isinstance(value, int | float) else 0.0)
    return _and([value_words(value) for value in values], "or")


def _at_most(found: Iterable[Stage]) -> str:
    most = max(100 * (stage.ratio.high - 1) for stage in found if stage.ratio is not None)
    return f"at most {most:+.1f} %" if most > 0 else "no gain"


def _lost(stages: Iterable[Stage]) -> list[str]:
    worse = [stage for stage in stages if stage.decision is Decision.WORSE]
    worse.sort(key=lambda stage: stage.ratio.estimate if stage.ratio is not None else 1.0)
    return [f"lost: {_listed(f'{stage.title} {share_words(stage.ratio)}' for stage in worse)}"] if worse else []


def _rejected(stages: Sequence[Stage]) -> list[str]:
    """Not taken, however fast."""
    said = []
    for decision, what in ((Decision.OVER_LIMIT, "over the SLO"), (Decision.ANSWERS_WORSE, "answers worse")):
        found = [stage for stage in stages if stage.decision is decision]
        said += [f"{what}: {stage.title}: {stage.why}" for stage in found[:MOST_TOLD]]
        if len(found) > MOST_TOLD:
            said.append(f"{what} as well: {_listed(stage.title for stage in found[MOST_TOLD:])}")
    return said


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    shown = "; ".join(every[:MOST_LISTED])
    return shown if len(every) <= MOST_LISTED else f"{shown}; and {len(every) - MOST_LISTED} more"


def _and(names: Sequence[str], last: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _figure(figure: Interval | None) -> str:
    if figure is None:
        return "an unknown figure"
    digits = 1 if figure.estimate >= 1 else 3
    return f"{figure.estimate:,.{digits}f} ({figure.low:,.{digits}f} to {figure.high:,.{digits}f})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
