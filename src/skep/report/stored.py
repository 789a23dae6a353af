"""Stored runs as pages and pictures, for `skep runs report` and the dashboard: which report draws which kind of run."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from skep.bench.metrics import LevelSummary, SweepSummary, tpot_ms
from skep.bench.stored_run import MIXED, QUALITY, TIMED, check_drawn_together, load_run, nothing_measured
from skep.errors import UserError
from skep.quality.mixed_figures import MixedSummary
from skep.quality.trial_figures import QualitySummary
from skep.report.terminal import picked
from skep.store.database import Store
from skep.store.records import Request, RunState, StoredRun
from skep.store.verdicts import Verdict


def drawn(store: Store, runs: Sequence[StoredRun], *, as_picture: bool) -> str:
    """Return the page or the picture of a run, or of several of kinds that can stand beside each other."""
    if len(runs) > 1:
        check_drawn_together(runs)
    if runs[0].kind == MIXED:
        from skep.report.mixed import mixed_page, mixed_picture

        entries, verdicts = _mixed_entries(store, runs)
        return mixed_picture(entries) if as_picture else mixed_page(entries, verdicts)
    if runs[0].kind == QUALITY:
        from skep.report.quality import quality_page, quality_picture

        return (quality_picture if as_picture else quality_page)(runs[0], quality_of(store, runs[0]))
    if len(runs) > 1:
        from skep.report.comparison import comparison_page, comparison_picture

        summaries = [(run, load_run(store, run.id)[1]) for run in runs]
        return comparison_picture(summaries) if as_picture else comparison_page(summaries)
    from skep.report.sweep import sweep_page, sweep_picture, timed_page

    run = runs[0]
    if as_picture and run.kind in TIMED:
        raise UserError(f"run `{run.id}` ({run.kind}) has no curve over C to draw", hint="write .html instead")
    _, summary, rows = load_run(store, run.id)
    if not summary.levels:
        raise nothing_measured(run)
    if as_picture:
        return sweep_picture(run, summary)
    return (timed_page if run.kind in TIMED else sweep_page)(run, summary, rows)


def quality_of(store: Store, run: StoredRun) -> QualitySummary:
    from skep.quality.trial_figures import summary_of_run

    rows = store.requests(run.id)
    if not any(row.level for row in rows):
        raise nothing_measured(run)
    return summary_of_run(run, rows, store.verdicts(run.id), store.level_facts(run.id), store.items(run.id))


def mixed_of(store: Store, run: StoredRun) -> MixedSummary:
    return _mixed_entries(store, [run])[0][0][1]


def _mixed_entries(
    store: Store, runs: Sequence[StoredRun]
) -> tuple[list[tuple[StoredRun, MixedSummary]], dict[str, list[Verdict]]]:
    from skep.quality.mixed_figures import mixed_summary, side_by_side

    verdicts = {run.id: store.verdicts(run.id) for run in runs}
    summaries = []
    for run in runs:
        why = "" if run.state is RunState.DONE else run.error or f"the run is {run.state.value}"
        form, rows = str(run.config.get("form", "published")), store.requests(run.id)
        made = mixed_summary(run.id, run.model, form, rows, verdicts[run.id], simulated=run.simulated, incomplete=why)
        if not made.levels:
            raise nothing_measured(run)
        summaries.append(made)
    return list(zip(runs, side_by_side(summaries), strict=True)), verdicts


def levels_text(run: StoredRun, summary: SweepSummary, form: str) -> str:
    from skep.report.tables import contention_table, level_rows, speedup_table

    if form == "json":
        return _json({"run": run.id, "model": run.model, **msgspec.to_builtins(summary)})
    if form == "csv":
        return level_rows(summary).csv()
    entries: list[tuple[str, SweepSummary | str]] = [(run.model, summary)]
    tables = [_readable(run, summary)]
    if run.kind not in TIMED:
        tables.append(contention_table(entries))
    if summary.speedups is not None:
        tables.append(speedup_table(entries))
    origin = f"{'SIMULATED. ' if run.simulated else ''}{run.model}, run {run.id}, skep {run.skep_version}.\n"
    return "\n".join([origin, *(table.markdown() for table in tables)])


def _readable(run: StoredRun, summary: SweepSummary) -> Any:
    """Return the level table of a README: what fits beside each other. Classes of traffic follow the whole."""
    from skep.report.columns import Column
    from skep.report.levels import left_out_sentences, level_columns
    from skep.report.sweep import level_names
    from skep.report.tables import Table

    figures = level_columns(
        "effective_tok_s spread plateau_tok_s task_tok_s contention_pct ttft_p50_ms ttft_p95_ms tpot_p50_ms counted "
        "requests failed"
    )
    if run.kind not in TIMED:
        left_out = tuple(left_out_sentences(summary.levels))
        return Table("Levels", [*level_columns("concurrency"), *figures], summary.levels, left_out)
    titles = level_names(run, summary.levels)
    levels = [*summary.levels, *summary.classes]
    names = [*titles, *(level.traffic for level in summary.classes)]
    load: Column[LevelSummary] = Column("load", "load", lambda level: names[levels.index(level)], right=False)
    return Table("Levels", [load, *figures], levels, tuple(left_out_sentences(summary.levels, titles)))


def requests_text(rows: list[Request], verdicts: list[Verdict], form: str) -> str:
    known = {(one.level, one.repeat, one.index): one for one in verdicts}
    records = [_record(row) for row in rows]
    if known:
        found = (known.get((row.level, row.repeat, row.index)) for row in rows)
        records = [{**record, **_verdict(one)} for record, one in zip(records, found, strict=True)]
    if form == "json":
        return _json(records)
    out = io.StringIO()
    names = [*_record(Request(0, 0, 0, "", 0.0, 0.0)), *(_verdict(None) if known else ())]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _record(row: Request) -> dict[str, Any]:
    """Without the texts and the arrivals, which are long; they are in the store."""
    left_out = ("arrivals_s", "prompt", "answer", "reasoning", "engine")
    plain = {key: value for key, value in msgspec.to_builtins(row).items() if key not in left_out}
    engine = {f"engine_{key}": value for key, value in msgspec.to_builtins(row.engine).items()}
    return {**plain, **engine, "tpot_ms": tpot_ms(row), "events": len(row.arrivals_s)}


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    names = "item outcome detail keywords checker"
    return dict.fromkeys(names.split()) if verdict is None else picked(verdict, names)


def _json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"
