"""From the rows and verdicts of a mixed run to its figures, axes and advice. Pure: the same rows
give the same figures.

A figure of a turn or a side task is the median over repeats, of requests that succeeded. A failed
turn ends its conversation: the turns after it were not asked, have no rows, and count as failed.

The advice has a number for each use. Beside a conversation: the most side tasks at which it takes
at most 1.5 times as long as alone; at most 2.5 times, if more tasks that passed are finished a
minute than at the level below. For batch work: the level with the most tokens a second in answers
that passed, as its tasks differ from those of other levels. So few answers show no small loss of
quality; `skep bench quality` does."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from statistics import median
from typing import Any

import msgspec

from skep.bench.metrics import by_repeat, task_tok_s, ttft_values
from skep.store.records import LevelFact, Request
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.units import format_bytes, format_seconds
from skep.workload.items import Checker, Item

PRIMARY_TRAFFIC = "primary"
SIDE_TRAFFIC = "side"
NOT_ASKED = "not asked"  # beside the outcomes of verdicts
MEMORY = "memory"  # the name of the fact
# Times of the whole conversation, against C=1.
QUICK_SLOWDOWN = 1.5
MOST_SLOWDOWN = 2.5

Key = tuple[int, int, int]  # level, repeat, index
Span = tuple[float, float]


class AxisRule(msgspec.Struct, frozen=True):
    """How one axis is computed: a figure of a level, and what it is divided by."""

    name: str
    # "ttft_ms" is of turn 1; "side" and "turns" count answers; others are of the level.
    figure: str
    unit: str
    # "alone over loaded" | "loaded over C times alone" | "share passed" | "share left free"
    rule: str
    definition: str


def _item(task: Mapping[str, Any], texts: Mapping[str, str]) -> Item:
    parts = [("system", task["system"])] if "system" in task else []
    messages = [
        {"role": role, "content": _filled(text, texts)}
        for role, text in (*parts, ("user", task["prompt"]))
    ]
    values = {
        name: _filled(value, texts) if isinstance(value, str) else value
        for name, value in task["checker"].items()
    }
    kind = values.pop("kind")
    return Item(
        task["id"],
        tuple(messages),
        Checker(kind, values),
        task["max_tokens"],
        family=task["family"],
    )


def _filled(text: str, texts: Mapping[str, str]) -> str:
    """Return the text with each `<<name>>` replaced by the text of that name, and each
    `<<repr name>>` by its Python literal.
    """

    def replacement(match: re.Match[str]) -> str:
        part = _filled(texts[match[2]].strip(), texts)
        return repr(part) if match[1] else part

    return re.sub(r"<<(repr )?(\w+)>>", replacement, text)


_DATA = tomllib.loads(files(__package__).joinpath("coding.toml").read_text("utf-8"))
_ITEMS = [_item(task, _DATA["texts"]) for task in _DATA["task"]]

TEMPERATURE: float = _DATA["temperature"]
LEVEL_NAMES: Mapping[int, str] = {1 + beside: name for beside, name in _DATA["levels"]}  # by C
TITLES: Mapping[str, str] = {task["id"]: task["title"] for task in _DATA["task"]}
PRIMARY = tuple(item for item in _ITEMS if item.family == "primary")
SIDE = tuple(item for item in _ITEMS if item.family == "side")
AXES = tuple(AxisRule(**axis) for axis in _DATA["axis"])


class TaskFigures(msgspec.Struct, frozen=True):
    """One turn or side task at one level: medians over repeats (and over rounds, if the side load
    is sustained).
    """

    item: str  # "P1.1" | "S1"
    title: str
    runs: int
    ttft_ms: float | None
    seconds: float | None
    output_tokens: float | None
    tok_s: float | None  # tokens / (last - first token)
    passed: int
    judged: int


class MixedLevel(msgspec.Struct, frozen=True):
    """`name` as published: P1, P1+S1, P1+S1-S2, P1+S1-S4."""

    name: str
    concurrency: int
    repeats: int
    turns: tuple[TaskFigures, ...]
    side: tuple[TaskFigures, ...]
    primary_s: float | None  # the whole conversation, median over repeats
    primary_low_s: float | None  # fastest and slowest repeat
    primary_high_s: float | None
    wall_s: float  # all repeats together
    aggregate_tok_s: float | None  # output tokens of all requests over wall time
    seconds_per_task: float | None  # wall time over answers that passed; None: none did
    held_share: float | None  # of the primary's time with all side tasks in flight
    outcomes: tuple[tuple[str, int], ...] = ()
    # Tokens of the answers that passed over wall time; None: not judged or counted.
    passed_tok_s: float | None = None

    @property
    def tasks(self) -> tuple[TaskFigures, ...]:
        return (*self.turns, *self.side)

    @property
    def ttft_ms(self) -> float | None:
        """Return the time to the first token of turn 1."""
        return self.turns[0].ttft_ms

    @property
    def tok_s(self) -> float | None:
        """Return the speed of turn 1."""
        return self.turns[0].tok_s

    @property
    def passed_per_minute(self) -> float | None:
        """Return the answers that passed a minute; None: no answer passed."""
        if self.seconds_per_task:
            return 60 / self.seconds_per_task
        return None

    def slowdown(self, alone: MixedLevel | None) -> float | None:
        """Return the time of the conversation over that at C=1; None: one was not finished."""
        if alone is None or self.primary_s is None or not alone.primary_s:
            return None
        return self.primary_s / alone.primary_s


class Axis(msgspec.Struct, frozen=True):
    """One axis of the picture. `value` from 0 to 1, the more the better; None: not measured."""

    name: str
    definition: str
    value: float | None
    shown: str  # "191 ms, 1.4x of C=1"


class Advice(msgspec.Struct, frozen=True):
    """How many side tasks to run beside a conversation. None: no level would do.

    `reasons` has one line a level, with figures.
    """

    # Of the level at which a conversation takes at most 2.5 times as long as alone.
    concurrency: int | None
    level: str | None
    reasons: tuple[str, ...]
    quick_side_tasks: int | None = None  # at most 1.5 times
    batch_side_tasks: int | None = None


class MemoryUse(msgspec.Struct, frozen=True):
    """Memory of the GPUs in use at full load, all programs counted."""

    used_bytes: int
    total_bytes: int
    gpus: int
    source: str


class MixedSummary(msgspec.Struct, frozen=True):
    run_id: str
    model: str
    levels: tuple[MixedLevel, ...]
    axes: tuple[Axis, ...]
    advice: Advice
    simulated: bool = False
    incomplete: str = ""
    memory: MemoryUse | None = None

    @property
    def alone(self) -> MixedLevel | None:
        return next((level for level in self.levels if level.concurrency == 1), None)


def mixed_summary(
    run_id: str,
    model: str,
    rows: Sequence[Request],
    verdicts: Sequence[Verdict],
    *,
    simulated: bool,
    incomplete: str = "",
    facts: Sequence[LevelFact] = (),
) -> MixedSummary:
    """Return the figures of a run. Without verdicts, nothing is said about what passed.

    `incomplete`: why the run was cut short.
    """
    verdict_by_key = {
        (verdict.level, verdict.repeat, verdict.index): verdict for verdict in verdicts
    }
    asked_levels = sorted({row.level for row in rows} - {0})
    levels = [
        _level(level, [row for row in rows if row.level == level], verdict_by_key)
        for level in asked_levels
    ]
    memory = next((_memory_use(fact.fact) for fact in facts if fact.name == MEMORY), None)
    axes = axes_of(levels, memory)
    return MixedSummary(
        run_id, model, tuple(levels), axes, advice_of(levels), simulated, incomplete, memory
    )


def _memory_use(fact: object) -> MemoryUse | None:
    """Return the fact as it was stored; None for a form that another version of skep stored."""
    try:
        return msgspec.convert(fact, MemoryUse)
    except msgspec.ValidationError:
        return None


def axes_of(levels: Sequence[MixedLevel], memory: MemoryUse | None = None) -> tuple[Axis, ...]:
    """Return all axes. `levels` are in order of C; full load is the last of them."""
    solo = next((level for level in levels if level.concurrency == 1), None)
    full = None
    if levels and levels[-1].concurrency > 1:
        full = levels[-1]

    def axis_of(rule: AxisRule) -> Axis:
        if rule.rule == "share left free":
            return _memory_axis(rule, memory)
        if rule.rule == "share passed":
            return _passed_axis(rule, full)
        return _speed_axis(rule, solo, full)

    return tuple(map(axis_of, AXES))


def _memory_axis(rule: AxisRule, memory: MemoryUse | None) -> Axis:
    if memory is None or not memory.total_bytes:
        return Axis(rule.name, rule.definition, None, "not measured")
    free_share = max(0.0, 1 - memory.used_bytes / memory.total_bytes)
    in_use = f"{format_bytes(memory.used_bytes)} of {format_bytes(memory.total_bytes)} in use"
    return Axis(rule.name, rule.definition, free_share, in_use)


def _passed_axis(rule: AxisRule, full: MixedLevel | None) -> Axis:
    tasks: Sequence[TaskFigures] = getattr(full, rule.figure, ())
    passed = sum(task.passed for task in tasks)
    judged = sum(task.judged for task in tasks)
    if full is None or not judged:
        return Axis(rule.name, rule.definition, None, "not measured")
    words = f"{passed} of {judged} at C={full.concurrency}"
    return Axis(rule.name, rule.definition, passed / judged, words)


def _speed_axis(rule: AxisRule, solo: MixedLevel | None, full: MixedLevel | None) -> Axis:
    alone = getattr(solo, rule.figure, None)
    loaded = getattr(full, rule.figure, None)
    if not alone or not loaded or full is None:
        return Axis(rule.name, rule.definition, None, "not measured")
    if rule.rule == "loaded over C times alone":
        share = loaded / (full.concurrency * alone)
    else:
        share = alone / loaded
    words = (
        f"{_figure_words(loaded, rule)} at C={full.concurrency}, "
        f"{_figure_words(alone, rule)} at C=1"
    )
    return Axis(rule.name, rule.definition, min(1.0, share), words)


def _figure_words(value: float, rule: AxisRule) -> str:
    if rule.unit == "s":
        return format_seconds(value)
    return f"{value:,.1f} {rule.unit}"


def advice_of(levels: Sequence[MixedLevel]) -> Advice:
    """Return the advice, by `levels` in order of C."""
    solo = next((level for level in levels if level.concurrency == 1), None)
    if solo is None:
        return _no_advice(
            "C=1 was not measured: there is nothing to compare the other levels with"
        )
    if solo.primary_s is None:
        return _no_advice("the conversation was never finished at C=1")
    judged = sum(part.judged for level in levels for part in level.tasks)
    if not judged:
        return _no_advice("no answer was judged: skep does not choose a level by speed alone")
    if not any(part.passed for level in levels for part in level.tasks):
        return _no_advice(
            f"none of {judged} answers passed, at any level: no level does this work"
        )
    best = solo
    reasons = []
    below = None
    for level in levels:
        faults = _faults_of(level, solo, below)
        if not faults:
            best = level
        reasons.append(_reason_of(level, solo, faults))
        below = level
    return Advice(
        concurrency=best.concurrency,
        level=best.name,
        reasons=tuple(reasons),
        quick_side_tasks=_quick_side_tasks(levels, solo),
        batch_side_tasks=_batch_side_tasks(levels),
    )


def _no_advice(reason: str) -> Advice:
    return Advice(None, None, (reason,))


def _faults_of(level: MixedLevel, solo: MixedLevel, below: MixedLevel | None) -> list[str]:
    """Return what speaks against a level. `below`: the level before it."""
    faults = []
    slowdown = level.slowdown(solo)
    if slowdown is None or slowdown > MOST_SLOWDOWN:
        faults.append(f"more than {MOST_SLOWDOWN}x of C=1")
    if below is not None and _passed_rate(level) <= _passed_rate(below):
        faults.append(f"no more finished than at C={below.concurrency}")
    return faults


def _passed_rate(level: MixedLevel) -> float:
    return level.passed_per_minute or 0.0


def _reason_of(level: MixedLevel, solo: MixedLevel, faults: Sequence[str]) -> str:
    """Return the line of a level: its figures, and what speaks against it."""
    slowdown = level.slowdown(solo)
    if slowdown is None:
        facts = ["the conversation was never finished"]
    else:
        facts = [f"the conversation takes {slowdown:.2f}x of C=1"]
    facts.append(f"{_passed_rate(level):.1f} passed tasks a minute")
    if level.passed_tok_s is not None:
        facts.append(f"{level.passed_tok_s:.0f} tok/s in answers that passed")
    if faults:
        facts.append(f"not advised: {', '.join(faults)}")
    return f"C={level.concurrency}: {'; '.join(facts)}"


def _quick_side_tasks(levels: Sequence[MixedLevel], solo: MixedLevel) -> int:
    """Return the highest number of side tasks of which some pass, and beside which the
    conversation stays quick.
    """
    quick = [
        level.concurrency - 1
        for level in levels
        if (taken := level.slowdown(solo)) is not None
        and taken <= QUICK_SLOWDOWN
        and any(task.passed for task in level.side)
    ]
    return max(quick, default=0)


def _batch_side_tasks(levels: Sequence[MixedLevel]) -> int | None:
    measured = [level for level in levels if level.passed_tok_s]
    if measured:
        return max(measured, key=lambda level: level.passed_tok_s or 0.0).concurrency - 1
    return None


def _level(
    concurrency: int, rows: Sequence[Request], verdict_by_key: Mapping[Key, Verdict]
) -> MixedLevel:
    repeats = by_repeat(rows).values()
    not_asked: Counter[str] = Counter()
    if verdict_by_key:
        not_asked.update(item for repeat in repeats for item in turns_not_asked(repeat))
    verdicts = _verdicts_of(rows, verdict_by_key)
    conversation_times = [
        taken_s for repeat in repeats if (taken_s := conversation_s(repeat)) is not None
    ]
    wall_s = sum(map(wall_of, repeats))
    tokens = sum(row.output_tokens or 0 for row in rows if row.ok)
    passed = sum(verdict.passed for verdict in verdicts)
    return MixedLevel(
        name=LEVEL_NAMES.get(concurrency, f"C={concurrency}"),
        concurrency=concurrency,
        repeats=len(repeats),
        turns=tuple(_task(item.id, rows, verdict_by_key, not_asked[item.id]) for item in PRIMARY),
        side=tuple(_task(item.id, rows, verdict_by_key) for item in SIDE[: concurrency - 1]),
        primary_s=_median(conversation_times),
        primary_low_s=min(conversation_times, default=None),
        primary_high_s=max(conversation_times, default=None),
        wall_s=wall_s,
        aggregate_tok_s=tokens / wall_s if tokens and wall_s > 0 else None,
        seconds_per_task=wall_s / passed if passed else None,
        held_share=_held_share(concurrency - 1, repeats),
        outcomes=_outcomes(verdicts, not_asked.total()),
        passed_tok_s=_passed_tok_s(rows, verdict_by_key, wall_s),
    )


def _verdicts_of(rows: Iterable[Request], verdict_by_key: Mapping[Key, Verdict]) -> list[Verdict]:
    return [verdict for row in rows if (verdict := verdict_by_key.get(_key(row))) is not None]


def _outcomes(verdicts: Sequence[Verdict], not_asked: int) -> tuple[tuple[str, int], ...]:
    """Return how often each outcome came about, with the turns that were not asked."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    outcomes = [(outcome.value, counts[outcome]) for outcome in VerdictOutcome if counts[outcome]]
    if not_asked:
        outcomes.append((NOT_ASKED, not_asked))
    return tuple(outcomes)


def _passed_tok_s(
    rows: Sequence[Request], verdict_by_key: Mapping[Key, Verdict], wall_s: float
) -> float | None:
    """Return the output tokens of answers that passed, a second; None: not judged or counted."""
    is_judged = any(_key(row) in verdict_by_key for row in rows)
    is_counted = any(row.output_tokens for row in rows if row.ok)
    if not is_judged or not is_counted or wall_s <= 0:
        return None
    tokens = 0
    for row in rows:
        verdict = verdict_by_key.get(_key(row))
        if verdict is not None and verdict.passed:
            tokens += row.output_tokens or 0
    return tokens / wall_s


def conversation_s(rows: Iterable[Request]) -> float | None:
    """Return how long the conversation of one repeat took; None: it was not finished."""
    turns = _turns(rows)
    if len(turns) < len(PRIMARY) or not all(row.ok for row in turns):
        return None
    return turns[-1].ended_s - turns[0].started_s


def turns_not_asked(rows: Iterable[Request]) -> list[str]:
    """Return the turns of one repeat that were not asked because the turn before them failed.

    They count as failed. A conversation that was cut off from outside, without a failed turn, says
    nothing about later turns.
    """
    turns = _turns(rows)
    if not turns or turns[-1].ok:
        return []
    return [item.id for item in PRIMARY[len(turns) :]]


def wall_of(rows: Sequence[Request]) -> float:
    """Return the time from the first request of one repeat to the end of the last."""
    return max(row.ended_s for row in rows) - min(row.started_s for row in rows)


def _task(
    item: str,
    level_rows: Sequence[Request],
    verdict_by_key: Mapping[Key, Verdict],
    not_asked: int = 0,
) -> TaskFigures:
    rows = [row for row in level_rows if row.kind == item]
    verdicts = _verdicts_of(rows, verdict_by_key)
    return TaskFigures(
        item=item,
        title=TITLES[item],
        runs=len(rows),
        ttft_ms=_median(ttft_values(rows)),
        seconds=_median([row.ended_s - row.started_s for row in rows if row.ok]),
        output_tokens=_median(
            [row.output_tokens for row in rows if row.ok and row.output_tokens is not None]
        ),
        tok_s=task_tok_s(rows),
        passed=sum(verdict.passed for verdict in verdicts),
        judged=len(verdicts) + not_asked,
    )


def _held_share(side_tasks: int, repeats: Iterable[Sequence[Request]]) -> float | None:
    """Return the share of the conversation's time with all side tasks in flight; None if there are
    none.
    """
    if side_tasks < 1:
        return None
    held_s = 0.0
    total_s = 0.0
    for repeat in repeats:
        sides = [(row.started_s, row.ended_s) for row in repeat if row.traffic == SIDE_TRAFFIC]
        for row in _turns(repeat):
            total_s += row.ended_s - row.started_s
            held_s += _time_with(side_tasks, sides, (row.started_s, row.ended_s))
    return held_s / total_s if total_s > 0 else None


def _time_with(count: int, spans: Iterable[Span], within: Span) -> float:
    """Return for how long at least `count` spans overlap inside the span `within`."""
    low, high = within
    cut = [(max(low, begin), min(high, end)) for begin, end in spans]
    edges = sorted(edge for begin, end in cut if begin < end for edge in ((begin, 1), (end, -1)))
    held = 0.0
    open_now = 0
    since = low
    for at, step in edges:
        if open_now >= count:
            held += at - since
        open_now += step
        since = at
    return held


def _turns(rows: Iterable[Request]) -> list[Request]:
    return sorted(
        (row for row in rows if row.traffic == PRIMARY_TRAFFIC), key=lambda row: row.turn or 0
    )


def _key(row: Request) -> Key:
    return row.level, row.repeat, row.index


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
