"""Runs of `skep bench agents` beside each other: what differs for sessions, as text and as a page.

Figures of two runs are judged; of more, they are drawn on the same axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from markupsafe import Markup
from msgspec import to_builtins

from skep.bench.agent_compare import (
    ANSWERED,
    FIGURES,
    HITS,
    SESSION,
    TTFT_P50,
    TTFT_P95,
    AgentsComparison,
    AgentsSide,
    PossibleHits,
    compare_agents,
)
from skep.bench.agent_figures import AgentLevel, AgentsSummary, p50_of, p95_of
from skep.bench.agent_load import session_count
from skep.bench.metrics import Comparison
from skep.report import theme
from skep.report.agents import agent_columns, cliff_sentences, hit_words
from skep.report.agents_page import over_sessions, turns_range
from skep.report.charts import ChartCurve, Spec, curves_chart
from skep.report.columns import Column, as_percent, print_records
from skep.report.comparison import (
    RATIO_COLUMNS,
    Series,
    comparison_heading,
    comparison_table,
    series_of,
    unlike_banners,
)
from skep.report.page import render
from skep.report.tables import CompareResult, Table, ratio_cell
from skep.report.terminal import note
from skep.units import UNKNOWN, known, milliseconds, number, seconds

SAME_RATE = 0.02  # so near, possible hits of two runs are drawn as one curve
AgentSeries = Series[AgentsSummary]


def _percent_of(share: float | None) -> float | None:
    if share is None:
        return None
    return 100 * share


_TEXTS: dict[str, Callable[[Any], str]] = {
    SESSION: seconds,
    TTFT_P50: milliseconds,
    TTFT_P95: milliseconds,
    ANSWERED: as_percent,
}
_NAMES = {TTFT_P50: "TTFT p50 of later turns", TTFT_P95: "TTFT p95 of later turns"}
# What is drawn of each run: a title, its figure of a level, its unit, and words below it.
_CURVES: tuple[tuple[str, Callable[[AgentLevel], float | None], str, str], ...] = (
    (
        "Turns a minute",
        lambda level: level.turns_per_min,
        "turns/min",
        "Vertical lines: 95 % interval of the mean, or slowest to fastest run.",
    ),
    (
        "Session time",
        lambda level: p50_of(level.session_s),
        "s",
        "Median, pauses among it.",
    ),
    (
        "First token of later turns",
        lambda level: p50_of(level.ttft_ms),
        "ms",
        "Median of each level.",
    ),
    (
        "First token of later turns, p95",
        lambda level: p95_of(level.ttft_ms),
        "ms",
        "95 of 100 turns were sooner.",
    ),
    (
        "Cache hits",
        lambda level: _percent_of(level.hit_rate),
        "%",
        "Of the prompts' tokens. Possible: of a cache that forgets nothing.",
    ),
)


class AgentsResult(CompareResult, frozen=True):
    """Two runs of sessions with their verdict."""

    def level_name(self, level: int) -> str:
        return session_count(level)

    def shown(self) -> list[str]:
        return [figure.name for figure in FIGURES]


class JudgedAgents(msgspec.Struct, frozen=True):
    """B against A, with its verdict, the cliffs and what is not to be compared."""

    sides: tuple[AgentsSide, AgentsSide]
    compared: AgentsComparison
    result: AgentsResult

    def document(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        a, b = self.sides
        document = self.result.document(a.run.id, b.run.id)
        return {**document, "sessions": self.sessions_document()}

    def sessions_document(self) -> dict[str, Any]:
        """Return what a comparison of sessions has beside its figures."""
        cliff_a, cliff_b = self.compared.cliffs
        facts = {
            "unlike": self.compared.unlike,
            "possible_hits": self.compared.possible,
            "cliff_a": cliff_a,
            "cliff_b": cliff_b,
        }
        document: dict[str, Any] = to_builtins(facts)
        return document

    def print(self) -> None:
        """Print a row for each figure of each level, the cliffs and the verdict."""
        a, b = self.sides
        note(
            f"A is run {a.run.id}, B is run {b.run.id}; B / A with its 95 % interval; "
            "= not distinguishable, ? not comparable"
        )
        print_records(_text_columns(self.compared), self.compared.comparisons)
        note(*self.result.remarks())
        print("\n".join([*cliffs_of(self.sides), self.result.words]))  # noqa: T201


def judged_agents(
    a: AgentsSide, b: AgentsSide, allowed: float = 0.05, *, anyway: bool = False
) -> JudgedAgents:
    compared = compare_agents(a, b, allowed, anyway=anyway)
    result = AgentsResult(compared.comparisons, compared.worse, allowed)
    return JudgedAgents((a, b), compared, result)


def cliffs_of(sides: Sequence[AgentsSide]) -> list[str]:
    """Return where each run has its session cliff."""
    lettered = zip("ABCDEFGH", sides, strict=False)
    return [f"{letter}: {_first_cliff(side.summary)}" for letter, side in lettered]


def _first_cliff(summary: AgentsSummary) -> str:
    """Return the first sentence on the cliff; of a single level there may be none."""
    return next(cliff_sentences(summary), "no cliff is sought in one level")


def _text_columns(compared: AgentsComparison) -> list[Column[Comparison]]:
    return [
        *_figure_columns(compared),
        Column("ratio", "B / A", ratio_cell, right=False),
    ]


def _figure_columns(compared: AgentsComparison) -> list[Column[Comparison]]:
    """Return the columns of what was measured: the level, the figure, A and B."""
    possible = {hits.sessions: hits for hits in compared.possible}
    return [
        Column("sessions", "sessions", lambda comparison: comparison.concurrency),
        Column("metric", "figure", _name_of, right=False),
        Column("a", "A", partial(_cell, possible, "a")),
        Column("b", "B", partial(_cell, possible, "b")),
    ]


def _name_of(comparison: Comparison) -> str:
    return _NAMES.get(comparison.metric, comparison.metric)


def _cell(possible: dict[int, PossibleHits], side: str, comparison: Comparison) -> str:
    """Return a figure with its unit; hits stand beside the possible ones."""
    value = getattr(comparison, side)
    if not known(value):
        return UNKNOWN
    if comparison.metric == HITS:
        return hit_words(value, getattr(possible[comparison.concurrency], side))
    return _TEXTS.get(comparison.metric, number)(value)


def agents_comparison_page(sides: Sequence[AgentsSide]) -> str:
    """Return one HTML document of two to eight runs; of two, B is judged against A."""
    runs = series_of([(side.run, side.summary) for side in sides])
    judged = None
    sentences = cliffs_of(sides)
    unlike = ""
    if len(sides) == 2:
        compared = compare_agents(sides[0], sides[1])
        unlike = compared.unlike
        judged = _judgement(compared)
    return render(
        "agents_comparison_page.html",
        kind="sessions of agents, side by side",
        name="comparison of sessions",
        title=comparison_heading(runs),
        unlike=unlike,
        told=unlike_banners(runs, {run.letter: _limited(run) for run in runs}),
        runs=runs,
        sentences=sentences,
        drawn=[
            (_overlay(runs, figure_of, unit), title, words)
            for title, figure_of, unit, words in _CURVES
        ],
        judgement=judged,
        tables=[_levels_table(run) for run in runs],
        footer=" · ".join(f"{run.letter}: run {run.run.id}" for run in runs),
    )


def _judgement(compared: AgentsComparison) -> Markup | None:
    if not compared.comparisons:
        return None
    return comparison_table(compared.comparisons, [*_figure_columns(compared), *RATIO_COLUMNS])


def _limited(run: AgentSeries) -> list[int]:
    return [level.sessions for level in run.summary.levels if level.limited]


def _levels_table(run: AgentSeries) -> Table:
    columns = agent_columns(
        "sessions turns_per_min spread session_p50_s session_p95_s ttft_p50_ms ttft_p95_ms "
        "hit_rate possible_hit_rate held_warm sessions_failed failed runs"
    )
    return Table(f"{run.letter}  {run.name}", columns, run.summary.levels)


def _overlay(
    runs: Sequence[AgentSeries], figure_of: Callable[[AgentLevel], float | None], unit: str
) -> Spec | None:
    """Draw one curve a run over the sessions; what the client limited is hollow."""
    curves = [_curve(run, figure_of, has_ranges=unit == "turns/min") for run in runs]
    if unit == "%":
        curves = [*_possible_curve(runs), *curves]
    return over_sessions(curves_chart(curves, unit))


def _possible_curve(runs: Sequence[AgentSeries]) -> Iterator[ChartCurve]:
    """Yield the possible hits, where those of all runs are the same."""
    rates = [_possible_rates(run) for run in runs]
    if any(_lies_apart(rates[0], other) for other in rates[1:]) or not rates[0]:
        return
    points = [(sessions, 100 * rate) for sessions, rate in rates[0].items()]
    yield ChartCurve(points, theme.STONE, "possible", (5, 4))


def _possible_rates(run: AgentSeries) -> dict[int, float]:
    rates = {}
    for level in run.summary.levels:
        if level.possible_hit_rate is not None:
            rates[level.sessions] = level.possible_hit_rate
    return rates


def _lies_apart(rates: dict[int, float], others: dict[int, float]) -> bool:
    common = rates.keys() & others.keys()
    return any(abs(rates[sessions] - others[sessions]) > SAME_RATE for sessions in common)


def _curve(
    run: AgentSeries, figure_of: Callable[[AgentLevel], float | None], *, has_ranges: bool
) -> ChartCurve:
    ranges = {}
    if has_ranges:
        ranges = {level.sessions: turns_range(level) for level in run.summary.levels}
    return ChartCurve(
        list(_points(run.summary.levels, figure_of)),
        run.colour,
        run.letter,
        run.dash,
        run.shape,
        _limited(run),
        ranges,
    )


def _points(
    levels: Sequence[AgentLevel], figure_of: Callable[[AgentLevel], float | None]
) -> Iterator[tuple[int, float]]:
    for level in levels:
        value = figure_of(level)
        if value is not None and known(value):
            yield level.sessions, value
