"""The report of a sweep: one page, and one picture for a README.

Pure: takes records, gives text. The caller writes the file. Whatever a run did not finish, simulate or measure is
said on the page, next to the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.records import LevelSummary, Request, Run, RunState, SweepSummary
from skep.report import charts, theme
from skep.report.figures import UNKNOWN, fact_list, moment, number, printable, public_url, shortened
from skep.report.headline import cards, comparable, lead
from skep.report.levels import failure_table, level_table
from skep.report.markup import Markup, banner, definitions, figure, section, tag, text, trusted
from skep.report.style import document, mark
from skep.report.svg import picture, standalone
from skep.report.terms import terms


def sweep_page(run: Run, summary: SweepSummary, rows: Sequence[Request]) -> str:
    """One HTML document that needs no other file and no network."""
    header = tag(
        "header",
        mark("concurrency sweep"),
        tag("h1", text(run.model)),
        tag("p", text(f"{public_url(run.url)} · {moment(run.created_at)}"), class_="where"),
        *_banners(run, summary),
        lead(summary.levels),
    )
    main = tag(
        "main",
        cards(summary),
        section("pictures", "What concurrency gives, and what it costs", _pictures(summary)),
        section("levels", "Every level", level_table(summary.levels)),
        failure_table(summary.levels, rows),
        section("where", "What ran where", _provenance(run)),
        section("how", "How this was measured", terms()),
    )
    footer = tag("footer", text(f"skep {run.skep_version} · run {run.id} · fingerprint {run.fingerprint}"))
    return document(f"{run.model}: skep sweep", header, main, footer)


def sweep_picture(run: Run, summary: SweepSummary) -> str:
    """One SVG document of two panels: what concurrency gives, and what it costs."""
    levels = summary.levels
    gain = charts.sized(
        charts.effective_chart(levels),
        "Effective tok/s",
        f"band: slowest to fastest repeat{_hollow(levels)}",
        400,
        330,
    )
    first = charts.sized(
        charts.ttft_chart(levels), "Time to first token", "median whole, 95th percentile dashed", 290, 100
    )
    loss = charts.sized(charts.contention_chart(levels), "Contention", "loss of per-task speed against C = 1", 290, 100)
    spec = {
        "title": _title(run),
        "hconcat": [gain, {"vconcat": [first, loss], "spacing": 130, "bounds": "flush"}],
        "spacing": 90,
        "bounds": "flush",
    }
    return standalone(spec, f"Concurrency sweep of {run.model}: effective tok/s, TTFT and contention against C")


def _title(run: Run) -> charts.Spec:
    marks = [word for word, holds in (("SIMULATED", run.simulated), ("INCOMPLETE", _incomplete(run))) if holds]
    subtitle = " · ".join([*marks, moment(run.created_at), f"skep {run.skep_version}"])
    warning = {"subtitleColor": theme.ROSE, "subtitleFontWeight": 600} if marks else {}
    name = shortened(printable(run.model), 80)
    return {"text": name, "subtitle": printable(subtitle), "fontSize": 18, "offset": 24, **warning}


def _hollow(levels: Sequence[LevelSummary]) -> str:
    return "; hollow: client-limited" if any(level.client_limited for level in levels) else ""


def _incomplete(run: Run) -> bool:
    return run.state is not RunState.DONE


def _banners(run: Run, summary: SweepSummary) -> list[Markup]:
    banners = []
    if _incomplete(run):
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


def _pictures(summary: SweepSummary) -> Markup:
    levels = summary.levels
    drawn = (
        (charts.effective_chart(levels), "Effective tok/s",
         f"Band: slowest to fastest repeat{_hollow(levels)}."),
        (charts.contention_chart(levels), "Contention", "How much slower one task streams than it does alone."),
        (charts.ttft_chart(levels), "Time to first token", "Median whole, 95th percentile dashed."),
        (charts.wall_chart(summary), "Serial against swarm", _wall_note(summary)),
    )  # fmt: skip
    return tag("div", *(_figure(spec, title, caption) for spec, title, caption in drawn), class_="charts")


def _wall_note(summary: SweepSummary) -> str:
    note = "The same tasks at C = 1 and at the largest C."
    return note if comparable(summary) else f"{note} Not comparable: requests failed."


def _figure(spec: charts.Spec | None, title: str, caption: str) -> Markup:
    if spec is None:
        return figure(tag("p", text("not measured"), class_="empty"), title, caption)
    return figure(trusted(picture(spec, title)), title, caption)


def _provenance(run: Run) -> Markup:
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
