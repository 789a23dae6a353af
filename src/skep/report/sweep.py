"""The report of a sweep: one page, and one picture for a README. Other reports of stored runs share its frame."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from skep.bench.metrics import LevelSummary, SweepSummary
from skep.bench.stored_run import TIMED
from skep.report import charts, theme
from skep.report.charts import Spec, headed, panels, sized
from skep.report.columns import Column, present
from skep.report.page import html_table, render
from skep.report.svg import standalone
from skep.report.sweep_text import best_level, check_sentences, clock_figure, left_out_sentences, level_columns
from skep.store.records import Request, RunState, StoredRun
from skep.units import known, moment

MOST_BARS = 120
_BAR_PX = 13
_LOWEST_PX, _TALLEST_PX = 90, 470
TITLES = {"serial-vs-swarm": "serial against swarm", "open": "arrivals at a rate"}
# Of levels, by name: caption, and the keys of its columns.
_TABLES = {
    "levels": """All levels of the sweep: concurrency requests failed effective_tok_s spread plateau_tok_s task_tok_s
        task_with_ttft_tok_s contention_pct ttft_p50_ms ttft_p95_ms ttft_p99_ms tpot_p50_ms tpot_p95_ms engine_tok_s
        wall_s counted notes""",
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


def run_report(template: str, run: StoredRun, kind: str, name: str, **values: Any) -> str:
    """Return the report of a stored run: the template's figures between where it was made and how it was measured."""
    footer = f"skep {run.skep_version} · run {run.id} · fingerprint {run.fingerprint}"
    usual = {"about": "", "terms_kind": "sweep"}
    frame = {"run": run, "kind": kind, "name": name, "title": heading(run), "footer": footer}
    return render(template, **frame, **{**usual, **values})


def sweep_page(run: StoredRun, summary: SweepSummary, rows: Sequence[Request]) -> str:
    """Of levels of concurrency, or of rates."""
    levels, timed = summary.levels, run.kind in TIMED
    timeline = choose_timeline(levels, rows)
    return run_report(
        "timed_page.html" if timed else "sweep_page.html",
        run,
        TITLES.get(run.kind, "concurrency sweep"),
        run.kind if timed else "sweep",
        summary=summary,
        best=best_level(levels),
        checks=check_sentences(summary),
        left_out=left_out_sentences(levels, partial(level_name, run)),
        draw=charts,
        timeline=timeline,
        level_name=partial(level_name, run),
        level_table=level_table,
        rate_table=partial(rate_table, run),
        rows=rows,
        clock_figure=clock_figure,
    )


def sweep_picture(run: StoredRun, summary: SweepSummary) -> str:
    """Return one SVG document of two panels: what concurrency gives, and what it costs."""
    levels = summary.levels
    gain = sized(
        charts.effective_chart(levels, summary.turning), "Effective tok/s", charts.band_caption(levels), 400, 330
    )
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


def rate_table(run: StoredRun, levels: Sequence[LevelSummary]) -> Markup:
    figures = [replace(one, group=None, optional=False) for one in level_columns(_TIMED)]
    return html_table("Figures by load", [name_column(run), *figures], levels)


def name_column(run: StoredRun) -> Column[LevelSummary]:
    return Column("load", "load", lambda level: level_name(run, level.concurrency), right=False)


def level_name(run: StoredRun, level: int) -> str:
    """Return what the number of a level stands for."""
    rates = run.config.get("rates")
    if run.kind == "open" and isinstance(rates, list):
        return f"{rates[level - 1]:g} requests/s"
    return "all traffic" if run.kind in TIMED else f"C={level}"


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
