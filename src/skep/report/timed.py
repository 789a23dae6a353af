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
from skep.report.markup import Markup, card, optional_section, section, tag, term_list, text, trusted, wide_figure
from skep.report.style import document, mark
from skep.report.svg import picture
from skep.report.sweep import heading, provenance, run_banners
from skep.report.timeline import choose_timeline, timeline_caption, timeline_chart
from skep.store.records import Request, StoredRun
from skep.units import milliseconds, moment, number, percent, public_url

TITLES = {"open": "arrivals at a rate", "classes": "a mix of traffic", "replay": "a recorded trace"}
_FIGURES = (
    "requests failed effective_tok_s ttft_p50_ms ttft_p95_ms ttft_p99_ms tpot_p50_ms tpot_p95_ms total_p95_ms "
    "queued_p50_ms task_tok_s"
)


def timed_page(run: StoredRun, summary: SweepSummary, rows: Sequence[Request]) -> str:
    header = tag(
        "header",
        mark(TITLES[run.kind]),
        tag("h1", text(heading(run))),
        tag("p", text(f"{public_url(run.url)} · {moment(run.created_at)}"), class_="where"),
        *run_banners(run, summary),
    )
    names = level_names(run, summary.levels)
    left_out = listed(left_out_sentences(summary.levels, names))
    classes = _table("class", lambda level: level.traffic, summary.classes) if summary.classes else None
    main = tag(
        "main",
        _cards(summary.levels, names),
        section(
            "levels", "What was sent", _table("load", lambda level: names[summary.levels.index(level)], summary.levels)
        ),
        optional_section("left-out", "Runs left out", left_out),
        optional_section("classes", "By kind of traffic", classes),
        _timeline(summary, names, rows),
        failure_table(rows),
        energy_table(summary.levels),
        clock_section(summary.levels),
        section("where", "What ran where", provenance(run)),
        section("how", "How this was measured", term_list("sweep")),
    )
    footer = tag("footer", text(f"skep {run.skep_version} · run {run.id} · fingerprint {run.fingerprint}"))
    return document(f"{heading(run)}: skep {run.kind}", header, main, footer)


def level_names(run: StoredRun, levels: Sequence[LevelSummary]) -> list[str]:
    """Return what the numbers of the levels stand for."""
    rates = run.config.get("rates")
    if run.kind == "open" and isinstance(rates, list):
        return [f"{rates[level.concurrency - 1]:g} requests/s" for level in levels]
    return ["all traffic"] * len(levels) if run.kind == "classes" else ["the trace"] * len(levels)


def _cards(levels: Sequence[LevelSummary], names: Sequence[str]) -> Markup:
    last, name = levels[-1], names[-1]
    ttft = last.ttft_ms
    return tag(
        "dl",
        card(number(last.effective_tok_s), "Effective tok/s", name),
        card(milliseconds(ttft.p50 if ttft else None), "TTFT p50", f"{name}; from when a request was due"),
        card(milliseconds(ttft.p95 if ttft else None), "TTFT p95", name),
        card(percent(100 * last.failed / last.requests if last.requests else None), "Failed", f"of {last.requests}"),
        class_="cards",
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
