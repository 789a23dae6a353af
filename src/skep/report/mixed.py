"""The report of the mixed workload, of one model or of several side by side: its tables, one page, one picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from skep.bench.metrics import SweepSummary
from skep.quality.mixed_figures import Axis, MixedLevel, MixedSummary, TaskFigures
from skep.report.charts import Spec, drawing
from skep.report.columns import Column
from skep.report.comparison import Series, comparison_banners, comparison_heading, series_of
from skep.report.page import render
from skep.report.svg import picture
from skep.report.sweep import heading
from skep.report.sweep_text import counted
from skep.report.tables import Table
from skep.store.records import StoredRun
from skep.store.verdicts import Verdict
from skep.units import UNKNOWN, known, milliseconds, number, percent, printable, seconds, shortened, times

Entries = Sequence[tuple[StoredRun, MixedSummary]]
Verdicts = Mapping[str, Sequence[Verdict]]  # by run
MOST_FAILURES, _DETAIL = 20, 120  # listed one by one, of a model; characters of one
_FORMS = {
    "published": "Published form: each side task is sent once, together with turn 1.",
    "sustained": "Sustained form: each side task is sent again when it ends, until the conversation is over.",
}
_STEP_PX, _BETWEEN_PX = 23, 16
_Pair = tuple[MixedLevel, MixedLevel | None]  # a level, and C=1


def _level(title: str, text: Callable[[MixedLevel], str], rank: int = 0, *, right: bool = True) -> Column[_Pair]:
    return Column(title, title, lambda pair: text(pair[0]), rank=rank, right=right)


_CONVERSATION: tuple[Column[_Pair], ...] = (
    _level("C", lambda level: str(level.concurrency)),
    _level("level", lambda level: level.name, 3, right=False),
    Column("ttft", "TTFT of turn 1", lambda pair: milliseconds(pair[0].ttft_ms) + _change(*pair)),
    _level("turns", lambda level: " / ".join(seconds(turn.seconds) for turn in level.turns), 2),
    _level("total", lambda level: seconds(level.primary_s)),
    _level("fastest–slowest", lambda level: f"{seconds(level.primary_low_s)}–{seconds(level.primary_high_s)}", 1),
    Column("slowdown", "of C=1", lambda pair: times(pair[0].slowdown(pair[1]))),
    _level("tokens", lambda level: number(sum(turn.output_tokens or 0 for turn in level.turns) or None, digits=0), 4),
)
_WORK: tuple[Column[_Pair], ...] = (
    _level("C", lambda level: str(level.concurrency)),
    _level("turn 1 tok/s", lambda level: number(level.tok_s), 1),
    _level("aggregate tok/s", lambda level: number(level.aggregate_tok_s)),
    _level("passed tasks/min", lambda level: number(level.passed_per_minute), 3),
    _level("time per passed task", lambda level: seconds(level.seconds_per_task), 2),
    _level("all side tasks in flight", lambda level: percent(100 * (level.held_share or 0) if level.side else None), 4),
    _level("turns passed", lambda level: _share(level.turns)),
    _level("side tasks passed", lambda level: _share(level.side)),
    _level("outcomes", lambda level: counted(level.outcomes), 2, right=False),
)
_AXES: tuple[Column[Axis], ...] = (
    Column("name", "axis", lambda axis: axis.name, right=False),
    Column("value", "0 to 1", lambda axis: axis.value, partial(number, digits=2)),
    Column("shown", "figures", lambda axis: axis.shown, right=False),
    Column("definition", "meaning", lambda axis: axis.definition, rank=1, right=False),
)
_FAILED: tuple[Column[Verdict], ...] = (
    Column("level", "C", lambda one: one.level),
    Column("item", "task", lambda one: one.item, right=False),
    Column("repeat", "repeat", lambda one: one.repeat + 1),
    Column("outcome", "outcome", lambda one: one.outcome.value, right=False),
    Column("detail", "why", lambda one: one.detail, lambda detail: shortened(detail, _DETAIL), right=False),
)


def tables_of(summaries: Sequence[MixedSummary], verdicts: Verdicts) -> list[Table]:
    """One row a level, task, axis or failed answer; where there are several models, each row begins with its letter."""
    levels: list[list[_Pair]] = [[(level, one.alone) for level in one.levels] for one in summaries]
    failed = [[one for one in verdicts.get(of.run_id, ()) if one.level and not one.passed] for of in summaries]
    more = sum(max(0, len(some) - MOST_FAILURES) for some in failed)
    shown = _table("answers that did not pass", _FAILED, [some[:MOST_FAILURES] for some in failed])
    shown = replace(shown, notes=(f"{more} more; --json lists all",) if more else ())
    return [
        _table("conversation", _CONVERSATION, levels),
        _table("work", _WORK, levels),
        _tasks(summaries),
        _table("axes", _AXES, [one.axes for one in summaries]),
        *([shown] if shown.records else []),
    ]


def _table(title: str, columns: Sequence[Column[Any]], by_model: Sequence[Sequence[Any]]) -> Table:
    if len(by_model) == 1:
        return Table(title, columns, by_model[0])

    def of(one: Column[Any]) -> Column[Any]:
        return replace(one, value=lambda record: one.value(record[1]))

    records = [(chr(ord("A") + place), record) for place, some in enumerate(by_model) for record in some]
    model: Column[Any] = Column("model", "model", lambda record: record[0], right=False)
    return Table(title, [model, *map(of, columns)], records)


def _tasks(summaries: Sequence[MixedSummary]) -> Table:
    """Return one column a level: passed of judged, and the median time."""

    def at(c: int) -> Column[dict[int, TaskFigures]]:
        def outcome(by_level: dict[int, TaskFigures]) -> str:
            if (part := by_level.get(c)) is None or not part.runs:
                return UNKNOWN if part is None else "not asked"
            return f"{_share([part])} ({seconds(part.seconds)})"

        return Column(f"C={c}", f"C={c}", outcome, right=False)

    def title(by_level: dict[int, TaskFigures]) -> str:
        part = next(iter(by_level.values()))
        return f"{part.item} {part.title}"

    by_model = []
    for one in summaries:
        tasks: dict[str, dict[int, TaskFigures]] = {}
        for level in one.levels:
            for part in level.tasks:
                tasks.setdefault(part.item, {})[level.concurrency] = part
        by_model.append([tasks[item] for item in sorted(tasks)])
    levels = sorted({level.concurrency for one in summaries for level in one.levels})
    columns = [Column("task", "task", title, right=False), *map(at, levels)]
    return _table("tasks: passed when executed, time", columns, by_model)


def _share(parts: Sequence[TaskFigures]) -> str:
    passed, judged = sum(part.passed for part in parts), sum(part.judged for part in parts)
    return f"{passed}/{judged}" if judged else UNKNOWN


def _change(level: MixedLevel, alone: MixedLevel | None) -> str:
    """Of the TTFT of turn 1 against C=1: " (+41 %)"."""
    value, base = level.ttft_ms, None if alone is None else alone.ttft_ms
    return "" if value is None or not base or level is alone else f" ({100 * (value / base - 1):+.0f} %)"


def spot_words(summary: MixedSummary) -> str:
    advice = summary.advice
    return "no level is recommended" if advice.concurrency is None else f"{advice.concurrency} at once ({advice.level})"


def mixed_page(entries: Entries, verdicts: Verdicts | None = None) -> str:
    """Return one HTML document. `verdicts`: to list the answers that did not pass."""
    looks = _looks(entries)
    ids = " · ".join(f"run {run.id} · fingerprint {run.fingerprint} · skep {run.skep_version}" for run, _ in entries)
    return render(
        "mixed_page.html",
        kind="mixed workload",
        name="mixed",
        title=_heading(entries),
        several=len(entries) > 1,
        entries=[(look, run, summary) for look, (run, summary) in zip(looks, entries, strict=True)],
        forms=_FORMS,
        beside=comparison_banners(looks) if len(entries) > 1 else "",
        forms_differ=len({summary.form for _, summary in entries}) > 1,
        spot_words=spot_words,
        drawn=picture(axes_chart(entries), "Axes"),
        tables=tables_of([one for _, one in entries], verdicts or {}),
        footer=ids,
    )


def axes_chart(entries: Entries) -> Spec:
    """Return one bar an axis and model, its value and figures behind it; an axis that was not measured has no bar."""
    rows: list[Spec] = []
    for look, (_, one) in zip(_looks(entries), entries, strict=True):
        for place, axis in enumerate(one.axes):
            row = {"place": place, "letter": look.letter, "colour": look.colour, "value": None, "label": ""}
            if axis.value is not None and known(axis.value):
                value = min(max(axis.value, 0.0), 1.0)
                row |= {"value": value, "label": number(value, digits=2)}
            rows.append({**row, "shown": shortened(printable(axis.shown), 60)})
    names = [shortened(printable(axis.name), 24) for axis in entries[0][1].axes]
    height = len(names) * (_STEP_PX * len(entries) + _BETWEEN_PX)
    data = {"axes": rows, "letters": rows if len(entries) > 1 else []}
    return drawing("axes", data, height=height, names=f"{json.dumps(names)}[datum.value]")


def _looks(entries: Entries) -> tuple[Series, ...]:
    """Letter, name and colour of each run."""
    return series_of([(run, SweepSummary(run.id, (), None, None, None, client_limited=False)) for run, _ in entries])


def _heading(entries: Entries) -> str:
    return printable(heading(entries[0][0])) if len(entries) == 1 else comparison_heading(_looks(entries))
