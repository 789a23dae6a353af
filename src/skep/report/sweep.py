"""The report of a sweep: one page, and one picture for a README.

Other reports of stored runs share its frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from markupsafe import Markup
from msgspec.structs import replace

from skep.bench.metrics import LevelSummary, SweepSummary
from skep.bench.stored_run import TIMED_KINDS
from skep.report import charts
from skep.report.columns import Column, present
from skep.report.page import html_table, render
from skep.report.sweep_text import (
    best_level,
    check_sentences,
    clock_figure,
    left_out_sentences,
    level_columns,
)
from skep.store.records import Request, StoredRun

TITLES = {"serial-vs-swarm": "serial against swarm", "open": "arrivals at a rate"}
# Of levels, by name: caption, and the keys of its columns.
_TABLES = {
    "levels": """All levels of the sweep: concurrency requests failed effective_tok_s spread
        plateau_tok_s task_tok_s contention_pct ttft_p50_ms ttft_p95_ms ttft_p99_ms
        tpot_p50_ms tpot_p95_ms engine_tok_s wall_s counted notes""",
    "requests": """Requests by level: concurrency prompt_tokens_mean output_tokens_mean
        cached_prompt_share prompt_tok_s combined_tok_s gap_p50_ms gap_p99_ms
        total_p50_ms total_p95_ms queued_p50_ms queued_p95_ms delivered_share ended failed_by""",
    "energy": (
        "Energy by level: concurrency joules_per_token joules mean_w max_w slowed measured_by"
    ),
}
_TIMED = (
    "requests failed effective_tok_s ttft_p50_ms ttft_p95_ms ttft_p99_ms tpot_p50_ms "
    "tpot_p95_ms total_p95_ms "
    "queued_p50_ms task_tok_s"
)


def level_table(name: str, levels: Sequence[LevelSummary]) -> Markup | None:
    """Return one of the tables of levels, the best one tinted;
    None where nothing of it is known.
    """
    caption, _, keys = _TABLES[name].partition(": ")
    columns = present(level_columns(keys), levels)
    best = best_level(levels) if name == "levels" else None
    tinted = [place for place, level in enumerate(levels) if level is best]
    if levels and len(columns) > 1:
        return html_table(caption, columns, levels, tinted)
    return None


def run_report(template: str, run: StoredRun, kind: str, name: str, **values: Any) -> str:
    """Return the report of a stored run: the template's figures between where it was made and how
    it was measured.
    """
    footer = f"skep {run.skep_version} · run {run.id} · fingerprint {run.fingerprint}"
    usual = {"about": "", "terms_kind": "sweep"}
    frame = {"run": run, "kind": kind, "name": name, "title": heading(run), "footer": footer}
    return render(template, **frame, **{**usual, **values})


def sweep_page(run: StoredRun, summary: SweepSummary, rows: Sequence[Request]) -> str:
    """Return the report of a run whose levels are numbers of agents, or rates."""
    levels = summary.levels
    timed = run.kind in TIMED_KINDS
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
        level_name=partial(level_name, run),
        level_table=level_table,
        rate_table=partial(rate_table, run),
        rows=rows,
        clock_figure=clock_figure,
    )


def heading(run: StoredRun) -> str:
    if run.simulated:
        return f"{run.model} (simulated)"
    return run.model


def rate_table(run: StoredRun, levels: Sequence[LevelSummary]) -> Markup:
    figures = [
        replace(level_column, group=None, optional=False) for level_column in level_columns(_TIMED)
    ]
    return html_table("Figures by load", [name_column(run), *figures], levels)


def name_column(run: StoredRun) -> Column[LevelSummary]:
    return Column("load", "load", lambda level: level_name(run, level.concurrency), right=False)


def level_name(run: StoredRun, level: int) -> str:
    """Return what the number of a level stands for."""
    rates = run.config.get("rates")
    if run.kind == "open" and isinstance(rates, list):
        return f"{rates[level - 1]:g} requests/s"
    if run.kind in TIMED_KINDS:
        return "all traffic"
    return f"C={level}"
