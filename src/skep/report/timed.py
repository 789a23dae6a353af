"""The report of a load that follows a clock: arrivals at a rate, a mix of classes, a recorded trace.

Its levels are no concurrencies, so nothing is drawn against C: a table of what was sent, and how each request fared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from skep.bench.records import LevelSummary, SweepSummary
from skep.report.checks import clock_section, left_out_sentences, listed
from skep.report.columns import Column, html_table
from skep.report.levels import energy_table, failure_table, level_columns
from skep.report.markup import Markup, card_list, section, trusted, wide_figure
from skep.report.svg import picture
from skep.report.sweep import run_banners, run_report
from skep.report.timeline import choose_timeline, timeline_caption, timeline_chart
from skep.store.records import Request, StoredRun
from skep.units import milliseconds, number, percent

TITLES = {"open": "arrivals at a rate", "classes": "a mix of traffic", "replay": "a recorded trace"}
_FIGURES = (
    "requests failed effective_tok_s ttft_p50_ms ttft_p95_ms ttft_p99_ms tpot_p50_ms tpot_p95_ms total_p95_ms "
    "queued_p50_ms task_tok_s"
)


def timed_page(run: StoredRun, summary: SweepSummary, rows: Sequence[Request]) -> str:
    levels, classes = summary.levels, summary.classes
    names = level_names(run, levels)
    parts = (
        _cards(levels, names),
        ("levels", "What was sent", _table("load", lambda level: names[levels.index(level)], levels)),
        ("left-out", "Runs left out", listed(left_out_sentences(levels, names))),
        ("classes", "By kind of traffic", _table("class", lambda level: level.traffic, classes) if classes else None),
        _timeline(summary, names, rows),
        failure_table(rows),
        energy_table(levels),
        clock_section(levels),
    )
    return run_report(run, TITLES[run.kind], run.kind, run_banners(run, summary), parts)


def level_names(run: StoredRun, levels: Sequence[LevelSummary]) -> list[str]:
    """Return what the numbers of the levels stand for."""
    rates = run.config.get("rates")
    if run.kind == "open" and isinstance(rates, list):
        return [f"{rates[level.concurrency - 1]:g} requests/s" for level in levels]
    return ["all traffic"] * len(levels) if run.kind == "classes" else ["the trace"] * len(levels)


def _cards(levels: Sequence[LevelSummary], names: Sequence[str]) -> Markup:
    last, name = levels[-1], names[-1]
    ttft = last.ttft_ms
    return card_list(
        (number(last.effective_tok_s), "Effective tok/s", name),
        (milliseconds(ttft.p50 if ttft else None), "TTFT p50", f"{name}; from when a request was due"),
        (milliseconds(ttft.p95 if ttft else None), "TTFT p95", name),
        (percent(100 * last.failed / last.requests if last.requests else None), "Failed", f"of {last.requests}"),
    )


def _table(first: str, name: Callable[[LevelSummary], str], levels: Sequence[LevelSummary]) -> Markup:
    figures = [replace(one, group=None, optional=False) for one in level_columns(_FIGURES)]
    return html_table(f"Figures by {first}", [Column(first, first, name), *figures], levels)


def _timeline(summary: SweepSummary, names: Sequence[str], rows: Sequence[Request]) -> Markup | None:
    chosen = choose_timeline(summary.levels, rows)
    if chosen is None:
        return None
    drawn = trusted(picture(timeline_chart(chosen), "Timeline of requests"))
    places = [level.concurrency for level in summary.levels]
    caption = timeline_caption(chosen, names[places.index(chosen.level)])
    return section("timeline", "Request by request", wide_figure(drawn, "Timeline", caption))
