"""The report of a sweep: one page, and one picture for a README.

Pure: takes records, gives text. The caller writes the file. Whatever a run did not finish, simulate or measure is
said on the page, next to the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.records import LevelSummary, Request, Run, RunState, SweepSummary
from skep.report import charts, theme
from skep.report.checks import check_list, clock_section
from skep.report.figures import UNKNOWN, fact_list, known, moment, number, printable, public_url, shortened
from skep.report.headline import cards, lead
from skep.report.levels import class_table, energy_table, failure_table, level_table, request_table
from skep.report.marks import Spec, sized
from skep.report.markup import Markup, banner, definitions, section, tag, text, trusted, wide_figure
from skep.report.speedups import speedup_part
from skep.report.style import document, mark
from skep.report.svg import chart_figure, picture, standalone
from skep.report.terms import terms
from skep.report.timeline import choose_timeline, timeline_caption, timeline_chart


def sweep_page(run: Run, summary: SweepSummary, rows: Sequence[Request]) -> str:
    """One HTML document that needs no other file and no network."""
    levels = summary.levels
    header = tag(
        "header",
        mark(_KINDS.get(run.kind, "concurrency sweep")),
        tag("h1", text(heading(run))),
        tag("p", text(f"{public_url(run.url)} · {moment(run.created_at)}"), class_="where"),
        *run_banners(run, summary),
        lead(levels),
    )
    main = tag(
        "main",
        cards(summary),
        section("pictures", "What concurrency gives, and what it costs", _pictures(summary)),
        _optional("serial", "Serial against swarm", speedup_part(summary)),
        _optional("timeline", "One level, request by request", _timeline(levels, rows)),
        section("levels", "Every level", level_table(levels)),
        _optional("classes", "By kind of traffic", class_table(summary.classes)),
        _optional("requests", "The requests", request_table(levels)),
        failure_table(rows),
        _optional("energy", "Energy", energy_table(levels)),
        _optional("checks", "How far to trust it", check_list(summary)),
        clock_section(levels),
        section("where", "What ran where", provenance(run)),
        section("how", "How this was measured", terms()),
    )
    footer = tag("footer", text(f"skep {run.skep_version} · run {run.id} · fingerprint {run.fingerprint}"))
    return document(f"{heading(run)}: skep sweep", header, main, footer)


def sweep_picture(run: Run, summary: SweepSummary) -> str:
    """One SVG document of two panels: what concurrency gives, and what it costs."""
    levels = summary.levels
    gain = sized(
        charts.effective_chart(levels, summary.turning),
        "Effective tok/s",
        f"{charts.band_caption(levels)}{_hollow(levels)}",
        400,
        330,
    )
    first = sized(charts.ttft_chart(levels), "Time to first token", "p50 whole, p95 dashed, p99 dotted", 290, 100)
    loss = sized(charts.contention_chart(levels), "Contention", "loss of per-task speed against C = 1", 290, 100)
    spec = {
        "title": _title(run),
        "hconcat": [gain, {"vconcat": [first, loss], "spacing": 130, "bounds": "flush"}],
        "spacing": 90,
        "bounds": "flush",
    }
    return standalone(spec, f"Concurrency sweep of {run.model}: effective tok/s, TTFT and contention against C")


def run_banners(run: Run, summary: SweepSummary) -> list[Markup]:
    """What a reader has to know before the first figure."""
    banners = []
    if incomplete(run):
        why = f" Error: {shortened(run.error, 300)}" if run.error else ""
        stored = (
            f"This run is {run.state.value}; {run.requests} requests are stored, levels broken off are left out.{why}"
        )
        banners.append(banner("incomplete", "Incomplete", stored))
    if run.simulated:
        story = "No model ran. The figures are a prediction, served in real time over the real protocol."
        banners.append(banner("simulated", "Simulated", story))
    if summary.client_limited:
        bound = "At the flagged levels the load generator may have set the pace: read them as lower bounds."
        banners.append(banner("limited", "Client-limited", bound))
    return banners


def heading(run: Run) -> str:
    return f"{run.model} (simulated)" if run.simulated else run.model


def incomplete(run: Run) -> bool:
    return run.state is not RunState.DONE


_KINDS = {"serial-vs-swarm": "serial against swarm"}


def _title(run: Run) -> Spec:
    marks = [word for word, holds in (("SIMULATED", run.simulated), ("INCOMPLETE", incomplete(run))) if holds]
    subtitle = " · ".join([*marks, moment(run.created_at), f"skep {run.skep_version}"])
    warning = {"subtitleColor": theme.ROSE, "subtitleFontWeight": 600} if marks else {}
    name = shortened(printable(run.model), 80)
    return {"text": name, "subtitle": printable(subtitle), "fontSize": 18, "offset": 24, **warning}


def _hollow(levels: Sequence[LevelSummary]) -> str:
    return "; hollow: client-limited" if any(level.client_limited for level in levels) else ""


def _optional(anchor: str, title: str, body: Markup | None) -> Markup | None:
    return section(anchor, title, body) if body else None


def _pictures(summary: SweepSummary) -> Markup:
    levels = summary.levels
    drawn = (
        (charts.effective_chart(levels, summary.turning), "Effective tok/s", _effective_caption(summary)),
        (charts.contention_chart(levels), "Contention", "How much slower one task streams than it does alone."),
        (charts.ttft_chart(levels), "Time to first token",
         "Median whole, 95th percentile dashed, 99th dotted."),
        (charts.tpot_chart(levels), "Time per output token", "Median whole, 95th percentile dashed."),
    )  # fmt: skip
    return tag("div", *(chart_figure(spec, title, caption) for spec, title, caption in drawn), class_="charts")


def _effective_caption(summary: SweepSummary) -> str:
    levels = summary.levels
    caption = f"{charts.band_caption(levels)}{_hollow(levels)}"
    if any(known(level.plateau_tok_s) for level in levels):
        caption += "; dotted: the plateau, while at least 95 % of C were in flight"
    shaded = summary.turning is not None and (summary.turning.knee_bracket or summary.turning.cliff_bracket)
    return f"{caption[0].upper()}{caption[1:]}{'; grey: where it turns' if shaded else ''}."


def _timeline(levels: Sequence[LevelSummary], rows: Sequence[Request]) -> Markup | None:
    timeline = choose_timeline(levels, rows)
    if timeline is None:
        return None
    title = f"C = {timeline.level}"
    drawing = trusted(picture(timeline_chart(timeline), f"Timeline of the requests at {title}"))
    return wide_figure(drawing, f"The requests at {title}", timeline_caption(timeline))


def provenance(run: Run) -> Markup:
    what = [
        ("model", run.model),
        ("url", public_url(run.url)),
        ("run", run.id),
        ("kind", run.kind),
        ("state", run.state.value),
        ("simulated", "yes" if run.simulated else "no"),
        ("began", moment(run.created_at)),
        ("ended", moment(run.ended_at)),
        ("requests stored", number(run.requests, digits=0)),
        ("skep", run.skep_version),
        ("fingerprint", run.fingerprint),
    ]
    groups = (
        ("Run", what),
        ("Configuration", fact_list(run.config)),
        ("Engine, as the endpoint told", fact_list(run.engine)),
        ("Host of the client", fact_list(run.host)),
    )
    return tag(
        "div", *(definitions(title, facts or [(UNKNOWN, "not told")]) for title, facts in groups), class_="columns"
    )
