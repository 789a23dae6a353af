"""The report of a sweep: one page, and one picture for a README.

Pure: takes records, gives text. The caller writes the file. Whatever a run did not finish, simulate or measure is
said on the page, next to the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from skep.bench.records import LevelSummary, Speedup, SweepSummary
from skep.quality.records import MixedSummary, QualitySummary
from skep.report import charts
from skep.report.charts import by_wall, headed, panels, sized, walls
from skep.report.checks import check_list, clock_section, left_out_sentences, listed
from skep.report.columns import Column, html_table
from skep.report.levels import (
    best_level,
    class_table,
    energy_table,
    failure_table,
    level_columns,
    level_table,
    request_table,
)
from skep.report.markup import (
    Markup,
    banner,
    card_list,
    definitions,
    join,
    section,
    tag,
    term_list,
    text,
    text_table,
    trusted,
    wide_figure,
)
from skep.report.style import Part, report_page
from skep.report.svg import chart_figure, picture, standalone
from skep.report.timeline import choose_timeline, timeline_caption, timeline_chart
from skep.store.records import Request, RunState, StoredRun
from skep.units import (
    UNKNOWN,
    fact_list,
    known,
    milliseconds,
    moment,
    number,
    percent,
    public_url,
    seconds,
    shortened,
    times,
)

NO_GAIN = 1.05


def lead(levels: Sequence[LevelSummary]) -> Markup | None:
    """Return the finding in one sentence, only where all of its figures are known."""
    best, alone = best_level(levels), _alone(levels)
    if best is None or alone is None or best is alone or not best.effective_tok_s or not alone.effective_tok_s:
        return None
    gain = best.effective_tok_s / alone.effective_tok_s
    if gain < NO_GAIN:
        sentence = (
            f"More agents at once gain nothing here: {number(alone.effective_tok_s)} tok/s for one alone, "
            f"{number(best.effective_tok_s)} for {best.concurrency} together"
        )
        return tag("p", text(f"{sentence}."), class_="lead")
    sentence = (
        f"{best.concurrency} agents at once get {number(best.effective_tok_s)} tok/s together, "
        f"{number(gain)} times what one agent gets alone"
    )
    if known(best.task_tok_s):
        sentence += f"; each of them streams at {number(best.task_tok_s)} tok/s"
    return tag("p", text(f"{sentence}."), class_="lead")


def cards(summary: SweepSummary) -> Markup:
    best, widest = best_level(summary.levels), _widest(summary.levels)
    remark = "the best of all levels"
    if best is None:
        best, remark = _fastest(summary.levels), "client-limited: a lower bound"
    elif summary.client_limited:
        remark = "the best of the levels that the client did not limit"
    ttft = widest.ttft_ms if widest else None
    return card_list(
        (number(best.effective_tok_s if best else None), "Effective tok/s", _at(best, remark)),
        _gain_card(summary, best),
        (percent(widest.contention_pct if widest else None), "Contention", _at(widest, "the largest level")),
        (milliseconds(ttft.p50 if ttft else None), "TTFT p50", _at(widest) + _solo_ttft(summary.levels)),
    )


def _gain_card(summary: SweepSummary, best: LevelSummary | None) -> tuple[str, str, str]:
    """Return the speedup where serial and swarm did the same tasks; else what concurrency gained in tokens a second."""
    serial, swarm = walls(summary)
    if known(serial) and known(swarm):
        return times(by_wall(summary)), "Swarm speedup", _walls(summary)
    alone = _alone(summary.levels)
    of_best, of_one = best.effective_tok_s if best else None, alone.effective_tok_s if alone else None
    gain = of_best / of_one if of_best and of_one else None
    return times(gain), "Gain in tok/s", f"{_at(best)} over one agent alone"


def comparable(summary: SweepSummary) -> bool:
    """Whether serial and swarm did the same work: both walls without a speedup mean that some of it was not done."""
    serial, swarm = walls(summary)
    return by_wall(summary) is not None or not (known(serial) and known(swarm))


def _walls(summary: SweepSummary) -> str:
    if not comparable(summary):
        return "not comparable: not all requests were answered"
    serial, swarm = walls(summary)
    note = f"{seconds(serial)} serial, {seconds(swarm)} swarm"
    forms = summary.speedups
    if forms is None or not (forms.truncated_serial or forms.truncated_swarm) or forms.by_wall_whole is None:
        return note
    return f"{note}; {times(forms.by_wall_whole)} without tasks cut at the token limit"


def _solo_ttft(levels: Sequence[LevelSummary]) -> str:
    alone = _alone(levels)
    if alone is None or alone.ttft_ms is None or alone is _widest(levels):
        return ""
    return f"; {milliseconds(alone.ttft_ms.p50)} {_at(alone)}"


def _fastest(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    measured = [level for level in levels if known(level.effective_tok_s)]
    return max(measured, key=lambda level: level.effective_tok_s or 0.0, default=None)


def _widest(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    return max(levels, key=lambda level: level.concurrency, default=None)


def _alone(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    return next((level for level in levels if level.concurrency == 1), None)


def _at(level: LevelSummary | None, remark: str = "") -> str:
    if level is None:
        return UNKNOWN
    return f"at C\u00a0=\u00a0{level.concurrency}" + (f", {remark}" if remark else "")


def speedup_part(summary: SweepSummary) -> Markup | None:
    """None where serial or swarm was not measured."""
    speedups, walls = summary.speedups, charts.wall_chart(summary)
    if walls is None:
        return None
    drawn = [chart_figure(walls, "Wall time", _wall_note(summary))]
    if speedups is not None:
        cut = speedups.truncated_serial + speedups.truncated_swarm
        note = (
            "Green: without the tasks that were cut at the token limit in either batch." if cut else "No task was cut."
        )
        drawn.append(chart_figure(charts.speedup_chart(speedups), "Speedup in each of its forms", note))
    beneath = None if speedups is None else speedup_table(speedups)
    return join([tag("div", *drawn, class_="charts"), *([beneath] if beneath else [])])


def speedup_table(speedups: Speedup) -> Markup:
    one = speedups
    batches = [
        ("Serial", 1, seconds(one.serial_wall_s), number(one.tokens_serial, digits=0), one.truncated_serial),
        ("Swarm", one.concurrency, seconds(one.swarm_wall_s), number(one.tokens_swarm, digits=0), one.truncated_swarm),
    ]
    ratios = [
        ("By wall time", _exactly(one.by_wall), _exactly(one.by_wall_whole)),
        ("By tokens (ratio of effective tok/s)", _exactly(one.by_tokens), _exactly(one.by_tokens_whole)),
    ]
    columns = ((f"{one.tasks} tasks", "left"), "C", "Wall time", "Output tokens", "Cut")
    forms = (("Speedup", "left"), "All tasks", "Without tasks cut in either batch")
    tables = [text_table("The two batches", columns, batches), text_table("The speedup", forms, ratios)]
    return join([*tables, tag("p", text(_TOKENS), class_="below")])


_TOKENS = (
    "With natural stop the two batches differ in length, and one answer that runs into the token limit can make "
    "either wall time; so the speedup is given in each form, and nothing is deleted."
)


def _exactly(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value, digits=2)}×" if value < 100 else times(value)


def _wall_note(summary: SweepSummary) -> str:
    note = "The same tasks at C = 1 and at the largest C."
    return note if comparable(summary) else f"{note} Not comparable: requests failed."


def run_report(
    run: StoredRun,
    kind: str,
    name: str,
    top: Iterable[Markup | None],
    parts: Iterable[Part],
    *,
    about: str = "",
    terms: str = "sweep",
) -> str:
    """Return the report of a stored run: `top` and `parts` between where it was made and how it was measured."""
    where = tag("p", text(f"{public_url(run.url)} · {moment(run.created_at)}{about}"), class_="where")
    last = (("where", "What ran where", provenance(run)), ("how", "How this was measured", term_list(terms)))
    footer = f"skep {run.skep_version} · run {run.id} · fingerprint {run.fingerprint}"
    return report_page(kind, heading(run), name, [where, *top], [*parts, *last], footer)


def sweep_page(run: StoredRun, summary: SweepSummary, rows: Sequence[Request]) -> str:
    """One HTML document that needs no other file and no network."""
    levels = summary.levels
    parts = (
        cards(summary),
        ("pictures", "What concurrency gives, and what it costs", _pictures(summary)),
        ("serial", "Serial against swarm", speedup_part(summary)),
        ("timeline", "One level, request by request", _timeline(levels, rows)),
        ("levels", "Every level", level_table(levels)),
        ("classes", "By kind of traffic", class_table(summary.classes)),
        ("requests", "The requests", request_table(levels)),
        failure_table(rows),
        ("energy", "Energy", energy_table(levels)),
        ("checks", "How far to trust it", check_list(summary)),
        clock_section(levels),
    )
    kind = "serial against swarm" if run.kind == "serial-vs-swarm" else "concurrency sweep"
    return run_report(run, kind, "sweep", [*run_banners(run, summary), lead(levels)], parts)


def sweep_picture(run: StoredRun, summary: SweepSummary) -> str:
    """Return one SVG document of two panels: what concurrency gives, and what it costs."""
    levels = summary.levels
    gain = sized(
        charts.effective_chart(levels, summary.turning),
        "Effective tok/s",
        f"{charts.band_caption(levels)}{_hollow(levels)}",
        400,
        330,
    )
    first = sized(charts.ttft_chart(levels, 100), "Time to first token", "p50 whole, p95 dashed, p99 dotted", 290, 100)
    loss = sized(charts.contention_chart(levels), "Contention", "loss of per-task speed against C = 1", 290, 100)
    marks = marks_of(simulated=run.simulated, broken_off=incomplete(run))
    title = headed(run.model, marks, moment(run.created_at), f"skep {run.skep_version}")
    spec = {"title": title, **panels(gain, first, loss, 130)}
    return standalone(spec, f"Concurrency sweep of {run.model}: effective tok/s, TTFT and contention against C")


def run_banners(run: StoredRun, summary: SweepSummary) -> list[Markup]:
    """Return what a reader has to know before the first figure."""
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


def judged_banners(run: StoredRun, summary: QualitySummary | MixedSummary, story: str, said: str = "") -> list[Markup]:
    """Return the same for a run whose answers were judged; `story` of a simulated one, `said`: which run it is."""
    banners = []
    if broken_off(run, summary):
        state = f"the run is {run.state.value}" if incomplete(run) else ""
        told = dict.fromkeys(part for part in (summary.incomplete, state, run.error) if part)
        why = "; ".join(shortened(part, 300) for part in told)
        banners.append(banner("incomplete", "Incomplete", f"{said}{run.requests:,} requests are stored; {why}."))
    if run.simulated or summary.simulated:
        banners.append(banner("simulated", "Simulated", f"{said}No model ran. {story}"))
    return banners


def heading(run: StoredRun) -> str:
    return f"{run.model} (simulated)" if run.simulated else run.model


def incomplete(run: StoredRun) -> bool:
    return run.state is not RunState.DONE


def broken_off(run: StoredRun, summary: QualitySummary | MixedSummary) -> bool:
    return bool(summary.incomplete) or incomplete(run)


def marks_of(*, simulated: bool, broken_off: bool) -> list[str]:
    """Return what stands in capitals above a picture."""
    return [word for word, holds in (("SIMULATED", simulated), ("INCOMPLETE", broken_off)) if holds]


def _hollow(levels: Sequence[LevelSummary]) -> str:
    return "; hollow: client-limited" if any(level.client_limited for level in levels) else ""


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


def run_facts(run: StoredRun) -> list[tuple[str, str]]:
    return [
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


def provenance(run: StoredRun) -> Markup:
    groups = (
        ("Run", run_facts(run)),
        ("Configuration", fact_list(run.config)),
        ("Engine, as the endpoint told", fact_list(run.engine)),
        ("Host of the client", fact_list(run.host)),
    )
    return tag(
        "div", *(definitions(title, facts or [(UNKNOWN, "not told")]) for title, facts in groups), class_="columns"
    )


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
        _timed_timeline(summary, names, rows),
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


def _timed_timeline(summary: SweepSummary, names: Sequence[str], rows: Sequence[Request]) -> Markup | None:
    chosen = choose_timeline(summary.levels, rows)
    if chosen is None:
        return None
    drawn = trusted(picture(timeline_chart(chosen), "Timeline of requests"))
    places = [level.concurrency for level in summary.levels]
    caption = timeline_caption(chosen, names[places.index(chosen.level)])
    return section("timeline", "Request by request", wide_figure(drawn, "Timeline", caption))
