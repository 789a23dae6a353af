"""The report of a sweep: one page, and one picture for a README. Other reports of stored runs share its frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from skep.bench.metrics import LevelSummary, SweepSummary
from skep.report import charts, theme
from skep.report.charts import Spec, headed, panels, sized
from skep.report.columns import Column, present
from skep.report.page import html_table, render
from skep.report.svg import standalone
from skep.report.sweep_text import best_level, check_sentences, clock_figure, left_out_sentences, level_columns
from skep.store.records import Request, RunState, StoredRun
from skep.units import UNKNOWN, known, milliseconds, moment, number, percent, seconds, times

NO_GAIN = 1.05
MOST_BARS = 120
_BAR_PX = 13
_LOWEST_PX, _TALLEST_PX = 90, 470
TITLES = {"open": "arrivals at a rate", "classes": "a mix of traffic", "replay": "a recorded trace"}
# Of levels, by name: caption, and the keys of its columns.
_TABLES = {
    "levels": """All levels of the sweep: concurrency requests failed effective_tok_s spread plateau_tok_s task_tok_s
        task_with_ttft_tok_s contention_pct ttft_p50_ms ttft_p95_ms ttft_p99_ms tpot_p50_ms tpot_p95_ms engine_tok_s
        wall_s counted notes""",
    "classes": """Levels by kind of traffic: concurrency traffic requests failed effective_tok_s task_tok_s ttft_p50_ms
        ttft_p95_ms tpot_p50_ms tpot_p95_ms total_p50_ms total_p95_ms queued_p50_ms notes""",
    "requests": """Requests by level: concurrency prompt_tokens_mean output_tokens_mean cached_prompt_share
        first_byte_p50_ms gap_p50_ms gap_p99_ms total_p50_ms total_p95_ms queued_p50_ms queued_p95_ms delivered_share
        ended failed_by""",
    "energy": "Energy by level: concurrency joules_per_token joules mean_w max_w slowed measured_by",
}
_TIMED = (
    "requests failed effective_tok_s ttft_p50_ms ttft_p95_ms ttft_p99_ms tpot_p50_ms tpot_p95_ms total_p95_ms "
    "queued_p50_ms task_tok_s"
)


def level_table(name: str, levels: Sequence[LevelSummary]) -> Markup | None:
    """Return one of the tables of levels, the best one tinted; None where nothing of it is known."""
    caption, _, keys = _TABLES[name].partition(": ")
    columns = present(level_columns(keys), levels)
    best = best_level(levels) if name == "levels" else None
    tinted = [place for place, level in enumerate(levels) if level is best]
    return html_table(caption, columns, levels, tinted) if levels and len(columns) > 1 else None


def failed_kinds(rows: Sequence[Request]) -> list[list[Request]]:
    """Return the failed requests, those of one level and kind together."""
    kinds: dict[tuple[int, str], list[Request]] = {}
    for row in rows:
        if not row.ok:
            kinds.setdefault((row.level, str(row.error_kind)), []).append(row)
    return [kinds[key] for key in sorted(kinds)]


def lead(levels: Sequence[LevelSummary]) -> str | None:
    """Return the finding in one sentence, only where all of its figures are known."""
    best, alone = best_level(levels), _alone(levels)
    if best is None or alone is None or best is alone or not best.effective_tok_s or not alone.effective_tok_s:
        return None
    gain = best.effective_tok_s / alone.effective_tok_s
    if gain < NO_GAIN:
        return (
            f"More agents at once gain nothing: {number(alone.effective_tok_s)} tok/s for one agent, "
            f"{number(best.effective_tok_s)} for {best.concurrency} agents together."
        )
    each = f"; each agent streams at {number(best.task_tok_s)} tok/s" if known(best.task_tok_s) else ""
    return (
        f"{best.concurrency} agents at once get {number(best.effective_tok_s)} tok/s together, "
        f"{number(gain)} times what one agent gets alone{each}."
    )


def _cards(summary: SweepSummary) -> list[tuple[str, str, str]]:
    levels = summary.levels
    best, alone = best_level(levels), _alone(levels)
    widest = max(levels, key=lambda level: level.concurrency, default=None)
    remark = "the best level"
    if best is None:
        measured = [level for level in levels if known(level.effective_tok_s)]
        best = max(measured, key=lambda level: level.effective_tok_s or 0.0, default=None)
        remark = "client-limited: a lower bound"
    elif summary.client_limited:
        remark = "the best level that the client did not limit"
    ttft = widest.ttft_ms if widest else None
    solo = f"; {milliseconds(alone.ttft_ms.p50)} {_at(alone)}" if alone and alone.ttft_ms and alone != widest else ""
    if known(summary.swarm_wall_s):
        gained = (times(summary.speedup), "Swarm speedup", _wall_words(summary))
    else:
        of_best, of_one = best.effective_tok_s if best else None, alone.effective_tok_s if alone else None
        gain = of_best / of_one if of_best and of_one else None
        gained = (times(gain), "Gain in tok/s", f"{_at(best)} over one agent alone")
    return [
        (number(best.effective_tok_s if best else None), "Effective tok/s", _at(best, remark)),
        gained,
        (percent(widest.contention_pct if widest else None), "Contention", _at(widest, "the largest level")),
        (milliseconds(ttft.p50 if ttft else None), "TTFT p50", _at(widest) + solo),
    ]


def _wall_words(summary: SweepSummary) -> str:
    """Both walls without a speedup mean that some of the work was not done."""
    if summary.speedup is None:
        return "not comparable: not all requests were answered"
    note = f"{seconds(summary.serial_wall_s)} serial, {seconds(summary.swarm_wall_s)} swarm"
    forms = summary.speedups
    if forms is None or not (forms.truncated_serial or forms.truncated_swarm) or forms.by_wall_whole is None:
        return note
    return f"{note}; {times(forms.by_wall_whole)} without tasks cut at the token limit"


def _alone(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    return next((level for level in levels if level.concurrency == 1), None)


def _at(level: LevelSummary | None, remark: str = "") -> str:
    if level is None:
        return UNKNOWN
    return f"at C\u00a0=\u00a0{level.concurrency}" + (f", {remark}" if remark else "")


def run_report(template: str, run: StoredRun, kind: str, name: str, **values: Any) -> str:
    """Return the report of a stored run: the template's figures between where it was made and how it was measured."""
    footer = f"skep {run.skep_version} · run {run.id} · fingerprint {run.fingerprint}"
    usual = {"about": "", "lead": None, "terms_kind": "sweep"}
    frame = {"run": run, "kind": kind, "name": name, "title": heading(run), "footer": footer}
    return render(template, **frame, **{**usual, **values})


def sweep_page(run: StoredRun, summary: SweepSummary, rows: Sequence[Request]) -> str:
    levels = summary.levels
    drawn = (
        (charts.effective_chart(levels, summary.turning), "Effective tok/s", _effective_caption(summary)),
        (charts.contention_chart(levels), "Contention", "How much slower a task streams than alone."),
        (charts.ttft_chart(levels), "Time to first token", "Median solid, p95 dashed, p99 dotted."),
        (charts.tpot_chart(levels), "Time per output token", "Median solid, p95 dashed."),
    )
    return run_report(
        "sweep_page.html",
        run,
        "serial against swarm" if run.kind == "serial-vs-swarm" else "concurrency sweep",
        "sweep",
        summary=summary,
        lead=lead(levels),
        figures=_cards(summary),
        drawn=drawn,
        walls=charts.wall_chart(summary),
        comparable=summary.speedup is not None,
        forms=charts.speedup_chart(summary.speedups),
        timeline=choose_timeline(levels, rows),
        client_limited=any(level.client_limited for level in levels),
        tables={name: level_table(name, levels) for name in ("levels", "requests", "energy")}
        | {"classes": level_table("classes", sorted(summary.classes, key=lambda level: level.concurrency))},
        failures=failed_kinds(rows),
        checks=check_sentences(summary),
        clocks=[level for level in levels if known(level.engine_tok_s) or level.clocks],
        clock_figure=clock_figure,
    )


def sweep_picture(run: StoredRun, summary: SweepSummary) -> str:
    """Return one SVG document of two panels: what concurrency gives, and what it costs."""
    levels = summary.levels
    gain = sized(charts.effective_chart(levels, summary.turning), "Effective tok/s", _band(levels), 400, 330)
    first = sized(charts.ttft_chart(levels, 100), "Time to first token", "p50 solid, p95 dashed, p99 dotted", 290, 100)
    loss = sized(charts.contention_chart(levels), "Contention", "loss of per-task speed compared with C = 1", 290, 100)
    title = headed(run.model, marks_of(run), moment(run.created_at), f"skep {run.skep_version}")
    spec = {"title": title, **panels(gain, first, loss, 130)}
    return standalone(spec, f"Concurrency sweep of {run.model}: effective tok/s, TTFT and contention against C")


def heading(run: StoredRun) -> str:
    return f"{run.model} (simulated)" if run.simulated else run.model


def marks_of(run: StoredRun, incomplete: str = "") -> list[str]:
    """Return what stands in capitals above a picture. `incomplete`: why a run that is done was cut short."""
    marks = {"SIMULATED": run.simulated, "INCOMPLETE": incomplete or run.state is not RunState.DONE}
    return [word for word, holds in marks.items() if holds]


def _band(levels: Sequence[LevelSummary]) -> str:
    hollow = "; hollow: client-limited" if any(level.client_limited for level in levels) else ""
    return f"{charts.band_caption(levels)}{hollow}"


def _effective_caption(summary: SweepSummary) -> str:
    levels, caption = summary.levels, _band(summary.levels)
    if any(known(level.plateau_tok_s) for level in levels):
        caption += "; dotted: the plateau, with at least 95 % of C in flight"
    shaded = summary.turning is not None and (summary.turning.knee_bracket or summary.turning.cliff_bracket)
    return f"{caption[0].upper()}{caption[1:]}{'; grey: bracket of knee or cliff' if shaded else ''}."


def timed_page(run: StoredRun, summary: SweepSummary, rows: Sequence[Request]) -> str:
    levels, classes = summary.levels, summary.classes
    names = level_names(run, levels)

    def table(first: str, name: Callable[[LevelSummary], str], levels: Sequence[LevelSummary]) -> Markup:
        figures = [replace(one, group=None, optional=False) for one in level_columns(_TIMED)]
        return html_table(f"Figures by {first}", [Column(first, first, name), *figures], levels)

    timeline = choose_timeline(levels, rows)
    return run_report(
        "timed_page.html",
        run,
        TITLES[run.kind],
        run.kind,
        summary=summary,
        last=levels[-1],
        last_name=names[-1],
        sent=table("load", lambda level: names[levels.index(level)], levels),
        left_out=left_out_sentences(levels, names),
        classes=table("class", lambda level: level.traffic, classes) if classes else None,
        timeline=timeline,
        level_name=timeline and names[[level.concurrency for level in levels].index(timeline.level)],
        failures=failed_kinds(rows),
        energy=level_table("energy", levels),
        clocks=[level for level in levels if known(level.engine_tok_s) or level.clocks],
        clock_figure=clock_figure,
    )


def level_names(run: StoredRun, levels: Sequence[LevelSummary]) -> list[str]:
    """Return what the numbers of the levels stand for."""
    rates = run.config.get("rates")
    if run.kind == "open" and isinstance(rates, list):
        return [f"{rates[level.concurrency - 1]:g} requests/s" for level in levels]
    return ["all traffic" if run.kind == "classes" else "the trace"] * len(levels)


class Timeline(msgspec.Struct, frozen=True):
    """One level, request by request: `rows` of one of its runs, by start; `left_out` came after the last drawn."""

    level: int
    repeat: int
    client_limited: bool
    rows: tuple[Request, ...]
    left_out: int

    def caption(self, name: str | None = None) -> str:
        """`name` of the level, where it is no concurrency."""
        failed, drawn = sum(not row.ok for row in self.rows), len(self.rows)
        of = f"{name or f'C = {self.level}'}, run {self.repeat + 1}: each bar is one request"
        told = f"{of}. Light: waiting for the first token; dark: streaming"
        told += f"; rose: failed ({failed} of those drawn)." if failed else "."
        if self.left_out:
            told += f" The first {drawn} of {drawn + self.left_out} requests are drawn."
        return told + (" The client limited every level, including this one." if self.client_limited else "")

    def chart(self) -> Spec:
        """Return one bar a request, the earliest on top: waiting faint, streaming strong, failed in rose."""
        origin = min(row.due_s for row in self.rows)
        bars: list[Spec] = [
            {"place": place, "from": round(begin - origin, 4), "to": round(end - origin, 4), "colour": colour}
            for place, row in enumerate(self.rows)
            for begin, end, colour in _bars(row)
        ]
        least = (max((bar["to"] for bar in bars), default=0.0) or 1.0) / 700  # what is too short to see is still there
        for bar in bars:
            bar["to"] = max(bar["to"], bar["from"] + least)
        height = min(max(_BAR_PX * len(self.rows), _LOWEST_PX), _TALLEST_PX) + 60
        return charts.drawing("timeline", {"requests": bars}, height=height, end=max(bar["to"] for bar in bars))


def choose_timeline(levels: Sequence[LevelSummary], rows: Sequence[Request]) -> Timeline | None:
    """The first run of the largest level that the client did not limit, or of the largest where it limited all."""
    stored = {row.level for row in rows}
    candidates = [level for level in levels if level.concurrency in stored]
    if not candidates:
        return None
    level = max(candidates, key=lambda level: (not level.client_limited, level.concurrency))
    kept = {one.repeat for one in level.counted} or {row.repeat for row in rows}
    timed = [row for row in rows if row.level == level.concurrency and known(row.due_s) and known(row.ended_s)]
    of_level = [row for row in timed if row.repeat in kept]
    if not of_level:
        return None
    repeat = min(row.repeat for row in of_level)
    batch = sorted((row for row in of_level if row.repeat == repeat), key=lambda row: (row.due_s, row.index))
    drawn = tuple(batch[:MOST_BARS])
    return Timeline(level.concurrency, repeat, level.client_limited, drawn, len(batch) - len(drawn))


def _bars(row: Request) -> list[tuple[float, float, str]]:
    """Return begin, end and colour of what is drawn of a request."""
    if not row.ok:
        return [(row.due_s, row.ended_s, theme.ROSE)]
    if row.first_token_s is None:
        return [(row.due_s, row.ended_s, theme.PALE)]
    last = row.ended_s if row.last_token_s is None else row.last_token_s
    return [(row.due_s, row.first_token_s, theme.PALE), (row.first_token_s, last, theme.SKY)]
