"""Several runs beside each other: one page, and one picture for a README.

What makes them unlike is said above both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
from markupsafe import Markup

from skep.bench.agent_figures import AgentsSummary
from skep.bench.compare import differing
from skep.bench.metrics import Comparison, SweepSummary
from skep.quality.mixed_figures import MixedSummary
from skep.report import charts, theme
from skep.report.charts import Spec
from skep.report.columns import Column, at
from skep.report.page import html_table, render
from skep.report.sweep_text import left_out_sentences, level_columns
from skep.report.tables import effective_columns
from skep.stats.versus import Judgement
from skep.store.records import StoredRun
from skep.units import known, moment, number, printable, shortened

Summary = TypeVar("Summary", SweepSummary, MixedSummary, AgentsSummary)
Entries = Sequence[tuple[StoredRun, SweepSummary]]
MOST_RUNS = len(theme.SERIES)
_LONGEST_NAME = 70
# of the part of a picture that curves are drawn in: letters keep their distance in its terms
_HEIGHT = 200


class Series(msgspec.Struct, Generic[Summary], frozen=True):
    """One run as it is drawn: `letter` in the pictures, `name` in the legend."""

    letter: str
    name: str
    run: StoredRun
    summary: Summary
    colour: str
    dash: tuple[int, ...]
    shape: str

    @property
    def levels(self) -> list[Any]:
        return sorted(self.summary.levels, key=lambda level: level.concurrency)


def series_of(
    entries: Sequence[tuple[StoredRun, Summary]], labels: Sequence[str] | None = None
) -> tuple[Series[Summary], ...]:
    """Return the runs as they are drawn, lettered from A.

    Without labels a run is called by its preset or model, with its time where others have it, too.
    Its id is added where two are still alike.
    """
    models = Counter(_name_of(run) for run, _ in entries)
    called = ((run, _name_of(run)) for run, _ in entries)
    timed = (
        f"{name} @ {moment(run.created_at)}" if models[name] > 1 else name for run, name in called
    )
    names = list(labels or timed)
    names = [
        f"{name} ({entries[i][0].id})" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]
    looks = zip(cycle(theme.SERIES), cycle(charts.DASHES), cycle(charts.SHAPES), strict=False)
    return tuple(
        Series(chr(ord("A") + i), shortened(printable(name), _LONGEST_NAME), run, summary, *look)
        for i, ((run, summary), name, look) in enumerate(zip(entries, names, looks, strict=False))
    )


def _name_of(run: StoredRun) -> str:
    """Return the preset that `skep bench presets` measured, else the model."""
    return str(run.config.get("preset") or run.model)


# What is drawn of each run: title, the figure's key, unit and caption.
_CURVES = (
    ("Effective tok/s", "effective_tok_s", "tok/s",
     "Vertical lines: 95 % interval of the mean, for levels with three runs or more."),
    ("Per-task tok/s", "task_tok_s", "tok/s", ("The speed one agent sees while its answer "
"streams.")),
    ("Time to first token", "ttft_p50_ms", "ms", "Median of each level."),
    ("Time per output token", "tpot_p50_ms", "ms", "Median of each level."),
)  # fmt: skip


def overlay(
    runs: Sequence[Series[SweepSummary]], key: str, unit: str, height: int = _HEIGHT
) -> Spec | None:
    """Return one curve a run.

    A level that the client limited is hollow; the letter stands at the end of its curve.
    """
    (column,) = level_columns(key)
    curves = []
    for run in runs:
        measured = [
            (level.concurrency, value)
            for level in run.levels
            if (value := column.value(level)) is not None
        ]
        intervals = {
            level.concurrency: level.effective_interval
            for level in run.levels
            if charts.has_interval(level)
        }
        banded = key == "effective_tok_s"
        ranges = {
            c: (interval.low, interval.high)
            for c, interval in intervals.items()
            if banded and interval is not None
        }
        hollow = [level.concurrency for level in run.levels if level.client_limited]
        points = [(c, value) for c, value in measured if known(value)]
        curves.append(
            charts.ChartCurve(points, run.colour, run.letter, run.dash, run.shape, hollow, ranges)
        )
    return charts.curves_chart(curves, unit, height=height)


Banner = tuple[str, str, str]  # kind, title and words

_STYLES = {Judgement.BETTER: "left up", Judgement.WORSE: "left bad"}


def comparison_page(
    entries: Entries,
    comparisons: Sequence[Comparison] = (),
    *,
    labels: Sequence[str] | None = None,
    verdict: str = "",
) -> str:
    """Return one HTML document of up to eight runs.

    `comparisons` are those of the second run against the first.
    """
    runs = series_of(entries, labels)
    named = [(f"{run.letter}  {run.name}", run.summary) for run in runs]
    return render(
        "comparison_page.html",
        kind="comparison",
        name="comparison",
        title=comparison_heading(runs),
        verdict=verdict,
        told=comparison_banners(runs),
        runs=runs,
        drawn=[
            (overlay(runs, key, unit), title, caption) for title, key, unit, caption in _CURVES
        ],
        judgement=comparison_table(comparisons) if comparisons else None,
        effective=html_table("Effective tok/s of each run", effective_columns(named), named),
        footer=" · ".join(f"{run.letter}: run {run.run.id}" for run in runs),
    )


def comparison_banners(runs: Sequence[Series[SweepSummary]]) -> Markup:
    """Return what makes runs beside each other unlike in kind."""
    lines = [(run.letter, line) for run in runs for line in left_out_sentences(run.levels)]
    left_out = [f"{letter} {line.removeprefix('left out: ')}" for letter, line in lines]
    slow = {
        run.letter: [level.concurrency for level in run.levels if level.client_limited]
        for run in runs
    }
    return unlike_banners(runs, slow, left_out)


def unlike_banners(
    runs: Sequence[Series[Summary]],
    limited: Mapping[str, Sequence[int]],
    left_out: Sequence[str] = (),
) -> Markup:
    """Return the banners above runs that are not alike.

    `limited`: by letter, the levels at which the client was the limit.
    """
    slow = [
        f"{letter} at C = {', '.join(map(str, levels))}"
        for letter, levels in limited.items()
        if levels
    ]
    about = {"limited": slow, "left_out": left_out, "most": MOST_RUNS, "differ": _difference(runs)}
    return render("comparison_banners.html", runs=runs, **about)


def _side(side: str) -> Column[Comparison]:
    """Return the figure of one run: times are milliseconds in the records, rates are what their
    name says.
    """

    def cell(comparison: Comparison) -> str:
        is_time = comparison.metric.upper().startswith(("TTFT", "TPOT")) and known(
            getattr(comparison, side)
        )
        return f"{number(getattr(comparison, side))}{' ms' if is_time else ''}"

    return Column(side, side.upper(), attrgetter(side), html=cell)


RATIO_COLUMNS: tuple[Column[Comparison], ...] = (
    Column("ratio", "B / A", at("ratio.estimate"), partial(number, digits=3), style="strong"),
    Column(
        "interval",
        "95 %",
        lambda comparison: comparison.ratio,
        lambda ratio: f"{ratio.low:.2f}..{ratio.high:.2f}",
        style="soft",
    ),
    Column(
        "verdict",
        "Verdict",
        lambda comparison: (
            comparison.judgement.value + (f": {comparison.why}" if comparison.why else "")
        ),
        right=False,
        style=lambda comparison: _STYLES.get(comparison.judgement, "left soft"),
    ),
)
_COMPARED: tuple[Column[Comparison], ...] = (
    Column("concurrency", "C", lambda comparison: comparison.concurrency),
    Column("metric", "Figure", lambda comparison: comparison.metric, right=False),
    _side("a"),
    _side("b"),
    *RATIO_COLUMNS,
)


def comparison_table(
    comparisons: Sequence[Comparison], columns: Sequence[Column[Comparison]] = _COMPARED
) -> Markup:
    """Return one row for each figure of each level, with the ratio, its interval and what it
    means.
    """
    counts = Counter(comparison.judgement for comparison in comparisons)
    below = ", ".join(
        f"{counts[judgement]} {judgement.value}" for judgement in Judgement if counts[judgement]
    )
    table = html_table("All figures by level", columns, comparisons)
    return table + Markup('<p class="below">B compared with A: {}. – means unknown.</p>').format(
        below
    )


def _difference(runs: Sequence[Series[Summary]]) -> list[Banner]:
    differences = []
    for key, values in differing([series.run for series in runs]).items():
        lettered = [
            f"{value} ({series.letter})" for series, value in zip(runs, values, strict=True)
        ]
        differences.append(f"{key} {', '.join(lettered)}")
    if differences:
        return [("differs", "Not alike", f"These settings differ: {'; '.join(differences)}.")]
    return []


def comparison_heading(runs: Sequence[Series[Summary]]) -> str:
    models = list(dict.fromkeys(run.run.model for run in runs))
    if len(models) == 1:
        return f"{printable(models[0])}: {len(runs)} run{'' if len(runs) == 1 else 's'}"
    if len(models) == 2:
        return printable(" / ".join(models))
    return f"{len(models)} models, {len(runs)} runs"
