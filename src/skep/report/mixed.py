"""The report of the mixed workload, of one model or of several side by side: its tables, one page, one picture.

Pure: takes records and verdicts, gives text. The tables are the same on a terminal and on the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from skep.bench.records import SweepSummary
from skep.quality.records import MixedLevel, MixedSummary, TaskFigures
from skep.report import theme
from skep.report.charts import COLOUR, Spec, headed, label, layer, quantity
from skep.report.comparison import Series, comparison_banners, series_of
from skep.report.levels import counted
from skep.report.markup import (
    Markup,
    banner,
    join,
    section,
    tag,
    term_list,
    text,
    text_table,
    trusted,
    wide_figure,
)
from skep.report.style import document, mark
from skep.report.svg import picture, standalone
from skep.report.sweep import heading, incomplete, provenance
from skep.store.records import StoredRun
from skep.store.verdicts import Verdict
from skep.units import (
    UNKNOWN,
    known,
    milliseconds,
    moment,
    number,
    percent,
    printable,
    public_url,
    seconds,
    shortened,
    times,
)

Entries = Sequence[tuple[StoredRun, MixedSummary]]
Row = tuple[str, ...]
Verdicts = Mapping[str, Sequence[Verdict]]  # by run

MOST_FAILURES = 20  # listed one by one, of a model
_DETAIL = 120  # characters of one
_FORMS = {
    "published": "Published form: each side task was sent once, together with turn 1.",
    "sustained": "Sustained form: each side task was sent again once it had ended, until the conversation was over.",
}
_STEP_PX, _BETWEEN_PX = 23, 16


@dataclass(frozen=True, slots=True)
class MixedTable:
    """One table as texts. `left`: the columns that hold words."""

    title: str
    head: tuple[str, ...]
    rows: list[Row]
    left: frozenset[str]


_Cell = Callable[[MixedLevel, MixedLevel | None], str]  # of a level, and of C=1
_CONVERSATION: Mapping[str, _Cell] = {
    "C": lambda level, _: str(level.concurrency),
    "level": lambda level, _: level.name,
    "TTFT of turn 1": lambda level, alone: milliseconds(level.ttft_ms) + _change(level, alone),
    "turns": lambda level, _: " / ".join(seconds(turn.seconds) for turn in level.turns),
    "total": lambda level, _: seconds(level.primary_s),
    "fastest–slowest": lambda level, _: f"{seconds(level.primary_low_s)}–{seconds(level.primary_high_s)}",
    "of C=1": lambda level, alone: times(level.slowdown(alone)),
    "tokens": lambda level, _: number(sum(turn.output_tokens or 0 for turn in level.turns) or None, digits=0),
}
_WORK: Mapping[str, _Cell] = {
    "C": lambda level, _: str(level.concurrency),
    "turn 1 tok/s": lambda level, _: number(level.tok_s),
    "aggregate tok/s": lambda level, _: number(level.aggregate_tok_s),
    "passed tasks/min": lambda level, _: number(level.passed_per_minute),
    "time per passed task": lambda level, _: seconds(level.seconds_per_task),
    "all side tasks in flight": lambda level, _: percent(None if not level.side else 100 * (level.held_share or 0.0)),
    "turns passed": lambda level, _: _share(level.turns),
    "side tasks passed": lambda level, _: _share(level.side),
    "outcomes": lambda level, _: counted(level.outcomes),
}


def tables_of(summaries: Sequence[MixedSummary], verdicts: Verdicts | None = None) -> list[MixedTable]:
    """One row a level, task, axis or failed answer; where there are several models, each row begins with its letter."""
    failed = [_failed((verdicts or {}).get(one.run_id, ())) for one in summaries]
    head = ("C", "task", "repeat", "outcome", "why")
    return [
        _levels("conversation", _CONVERSATION, summaries),
        _levels("work", _WORK, summaries),
        _tasks(summaries),
        _table("axes", ("axis", "0 to 1", "figures", "what it is"), [*map(_axes, summaries)], right=("0 to 1",)),
        *([_table("answers that did not pass", head, failed, right=("C", "repeat"))] if any(failed) else []),
    ]


def _table(title: str, head: Sequence[str], by_model: Sequence[Sequence[Row]], right: Sequence[str] = ()) -> MixedTable:
    left = frozenset({"model", *head} - set(right))
    if len(by_model) == 1:
        return MixedTable(title, tuple(head), list(by_model[0]), left)
    rows = [(chr(ord("A") + place), *row) for place, some in enumerate(by_model) for row in some]
    return MixedTable(title, ("model", *head), rows, left)


def _levels(title: str, columns: Mapping[str, _Cell], summaries: Sequence[MixedSummary]) -> MixedTable:
    rows = [[tuple(cell(level, one.alone) for cell in columns.values()) for level in one.levels] for one in summaries]
    return _table(title, [*columns], rows, [name for name in columns if name not in ("level", "outcomes")])


def _tasks(summaries: Sequence[MixedSummary]) -> MixedTable:
    """Return one column a level: passed of judged, and the median time."""
    at = sorted({level.concurrency for one in summaries for level in one.levels})
    by_model = []
    for one in summaries:
        found = {(part.item, level.concurrency): part for level in one.levels for part in level.tasks}
        titles = {part.item: part.title for part in found.values()}
        by_model.append(
            [
                (f"{item} {title}", *(_outcome(found.get((item, c))) for c in at))
                for item, title in sorted(titles.items())
            ]
        )
    return _table("tasks: passed when executed, time", ("task", *(f"C={c}" for c in at)), by_model)


def _axes(summary: MixedSummary) -> list[Row]:
    return [(axis.name, number(axis.value, digits=2), axis.shown, axis.definition) for axis in summary.axes]


def _failed(verdicts: Sequence[Verdict]) -> list[Row]:
    failed = [one for one in verdicts if one.level and not one.passed]
    rows: list[Row] = [
        (str(one.level), one.item, str(one.repeat + 1), one.outcome.value, shortened(one.detail, _DETAIL))
        for one in failed[:MOST_FAILURES]
    ]
    more = len(failed) - len(rows)
    return [*rows, ("", "", "", f"{more} more", "--json has them all")] if more > 0 else rows


def _outcome(part: TaskFigures | None) -> str:
    if part is None:
        return UNKNOWN
    if not part.runs:
        return "not asked"
    return f"{_share([part])} ({seconds(part.seconds)})"


def _share(parts: Sequence[TaskFigures]) -> str:
    passed, judged = sum(part.passed for part in parts), sum(part.judged for part in parts)
    return f"{passed}/{judged}" if judged else UNKNOWN


def _change(level: MixedLevel, alone: MixedLevel | None) -> str:
    """Of the TTFT of turn 1 against C=1: " (+41 %)"."""
    value, base = level.ttft_ms, None if alone is None else alone.ttft_ms
    if value is None or not base or level is alone:
        return ""
    return f" ({100 * (value / base - 1):+.0f} %)"


def spot_words(summary: MixedSummary) -> str:
    advice = summary.advice
    return "no level is advised" if advice.concurrency is None else f"{advice.concurrency} at once ({advice.level})"


def mixed_page(entries: Entries, verdicts: Verdicts | None = None) -> str:
    """Return one HTML document. `verdicts`: to list the answers that did not pass."""
    looks = _looks(entries)
    title = _heading(entries)
    header = tag("header", mark("mixed workload"), tag("h1", text(title)), *_top(entries, looks))
    chart = axes_chart(entries)
    caption = "From 0 to 1, the more the better; full load is the highest level that was measured."
    main = tag(
        "main",
        *_advice(entries, looks),
        section("picture", "Axes", wide_figure(trusted(picture(chart, "Axes")), "Axes", caption)),
        section("tables", "Figures", *map(_html, tables_of([one for _, one in entries], verdicts))),
        *(section(f"where-{look.letter}", f"What ran where: {look.name}", provenance(look.run)) for look in looks),
        section("how", "How this was measured", term_list("mixed")),
    )
    ids = " · ".join(f"run {run.id} · fingerprint {run.fingerprint} · skep {run.skep_version}" for run, _ in entries)
    return document(f"{title}: skep mixed", header, main, tag("footer", text(ids)))


def mixed_picture(entries: Entries) -> str:
    """Return one SVG document: the axes of every model."""
    marks = [
        word
        for word, holds in (("SIMULATED", _simulated), ("INCOMPLETE", _broken_off))
        if any(holds(*entry) for entry in entries)
    ]
    runs = [f"{one.form} form, {moment(run.created_at)}, skep {run.skep_version}" for run, one in entries]
    letters = [f"{look.letter} {look.name}: " if len(entries) > 1 else "" for look in _looks(entries)]
    spots = [f"{letter}{spot_words(one)}" for letter, (_, one) in zip(letters, entries, strict=True)]
    title = headed(_heading(entries), marks, *dict.fromkeys(runs), lines=spots)
    names = ", ".join(summary.model for _, summary in entries)
    chart = {name: value for name, value in axes_chart(entries).items() if name != "padding"}
    return standalone({**chart, "title": title}, f"Axes of the mixed workload of {names}")


def axes_chart(entries: Entries) -> Spec:
    """Return one bar an axis and model, its value and figures behind it; an axis that was not measured has no bar."""
    rows: list[Spec] = []
    for look, (_, one) in zip(_looks(entries), entries, strict=True):
        for place, axis in enumerate(one.axes):
            row = {
                "place": place,
                "letter": look.letter,
                "colour": look.colour,
                "value": None,
                "zero": 0.0,
                "end": 1.15,
            }
            row |= {"shown": shortened(printable(axis.shown), 60), "label": ""}
            if axis.value is not None and known(axis.value):
                value = min(max(axis.value, 0.0), 1.0)
                row |= {"value": value, "label": number(value, digits=2)}
            rows.append(row)
    names = [shortened(printable(axis.name), 24) for axis in entries[0][1].axes]
    x = {**quantity("value", None, [0, 2.6]), "axis": None}
    zero = {**x, "field": "zero"}
    words = {"labelColor": theme.INK, "labelFontWeight": 600, "labelPadding": 34, "labelLimit": 220, "domain": False}
    y = {"field": "place", "type": "ordinal", "title": None, "scale": {"paddingInner": 0.25, "paddingOuter": 0},
         "axis": {**words, "labelExpr": f"{json.dumps(names)}[datum.value]"}}  # fmt: skip
    sides: Spec = {"y": y, "yOffset": {"field": "letter", "scale": {"paddingInner": 0.2}}}
    layers = [
        layer(rows, {"type": "bar", "cornerRadius": 3}, x=x, **sides, color=COLOUR),
        layer(rows, label("left", dx=7, weight=600), x=x, **sides, text="label"),
        layer(rows, label("left", color=theme.MUTED), x={**x, "field": "end"}, **sides, text="shown"),
    ]
    if len(entries) > 1:
        layers.append(layer(rows, label("right", dx=-8, weight=700), x=zero, **sides, text="letter", color=COLOUR))
    height = len(names) * (_STEP_PX * len(entries) + _BETWEEN_PX)
    return {"width": 900, "height": height, "layer": layers}


def _looks(entries: Entries) -> tuple[Series, ...]:
    """Letter, name and colour of each run: called by its model, and by its time and id where two are alike."""
    models = [summary.model for _, summary in entries]
    names = [
        model if models.count(model) == 1 else f"{model} @ {moment(run.created_at)} ({run.id})"
        for model, (run, _) in zip(models, entries, strict=True)
    ]
    bare = [(run, SweepSummary(run.id, (), None, None, None, client_limited=False)) for run, _ in entries]
    return series_of(bare, names)


def _heading(entries: Entries) -> str:
    if len(entries) == 1:
        return printable(heading(entries[0][0]))
    names = list(dict.fromkeys(summary.model for _, summary in entries))
    return printable(" / ".join(names)) if len(names) < 3 else f"{len(names)} models beside each other"


def _simulated(run: StoredRun, summary: MixedSummary) -> bool:
    return summary.simulated or run.simulated


def _broken_off(run: StoredRun, summary: MixedSummary) -> bool:
    return bool(summary.incomplete) or incomplete(run)


def _top(entries: Entries, looks: Sequence[Series]) -> Iterator[Markup]:
    """Above the first figure: where and when, in which form, and what is not plain about it."""
    for (run, summary), look in zip(entries, looks, strict=True):
        said = f"{look.letter} {look.name} · " if len(entries) > 1 else ""
        form = _FORMS.get(summary.form, f"Form: {summary.form}.")
        yield tag("p", text(f"{said}{public_url(run.url)} · {moment(run.created_at)} · {form}"), class_="where")
        if _broken_off(run, summary):
            told = dict.fromkeys(
                part for part in (summary.incomplete, f"the run is {run.state.value}", run.error) if part
            )
            why = "; ".join(shortened(part, 300) for part in told)
            yield banner("incomplete", "Incomplete", f"{said}{run.requests} requests are stored; {why}.")
        if _simulated(run, summary):
            yield banner("simulated", "Simulated", f"{said}No model ran. The times are a prediction.")
    if len(entries) > 1:
        yield from comparison_banners(looks)
        if len({summary.form for _, summary in entries}) > 1:
            yield banner("differs", "Forms differ", "The load beside the conversation was not the same.")


def _advice(entries: Entries, looks: Sequence[Series]) -> Iterator[Markup]:
    for (_, summary), look in zip(entries, looks, strict=True):
        name = f"{look.letter} {look.name}: " if len(entries) > 1 else ""
        yield tag("p", text(f"{name}{spot_words(summary)}."), class_="lead")
        reasons = (tag("li", text(reason)) for reason in summary.advice.reasons)
        yield tag("ul", *reasons, class_="checks", style="margin-top:12px")


def _html(one: MixedTable) -> Markup:
    columns = [(name, "left") if name in one.left else name for name in one.head]
    title = f"{one.title[0].upper()}{one.title[1:]}"
    return join([tag("h3", text(title), style="margin-top:22px"), text_table(title, columns, one.rows)])
