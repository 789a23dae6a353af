"""Stored runs as a list, as reports, and exported as CSV, Markdown or JSON."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skep.bench.metrics import tpot_ms
from skep.bench.records import LevelSummary, SweepSummary
from skep.bench.stored_run import JUDGED, TIMED, load_run
from skep.cli.options import existing
from skep.cli.output import check_output, day_and_time, note, picked, print_list
from skep.cli.sweep import sweep_json
from skep.errors import UserError
from skep.files import write_whole
from skep.paths import user_paths
from skep.report.stored import drawn
from skep.store.database import open_store
from skep.store.records import Request, StoredRun
from skep.store.verdicts import Verdict

RUN_KEYS = "id kind state created_at ended_at model url requests simulated fingerprint config engine skep_version error"


def print_runs(limit: int, *, as_json: bool) -> None:
    columns = "RUN|WHEN~1|KIND|STATE|MODEL|C~3|>REQUESTS~4|URL~5|NOTE~2"
    none_yet = "no runs yet; `skep bench sweep` makes one"
    print_list(_runs(limit), columns, _run_cells, _run_json, as_json=as_json, none_yet=none_yet)


def write_reports(run: Sequence[str] | None, output: Path) -> None:
    """Write one run, the last one where none is named, or several side by side."""
    check_output(output)
    with existing() as store:
        runs = [store.run(name) for name in run or ("last",)]
        text = drawn(store, runs, as_picture=output.suffix == ".svg")
    write_whole(output, text)
    what = f"{runs[0].id} ({runs[0].state.value})" if len(runs) == 1 else f"{len(runs)} runs"
    note(f"{what} written to {output}")


def _runs(limit: int) -> list[tuple[StoredRun, int]]:
    """Return the runs, and how many of the requests of each failed."""
    path = user_paths(os.environ).store
    if not path.exists():
        return []
    with open_store(path, read_only=True) as store:
        return [(run, sum(not row.ok for row in store.requests(run.id))) for run in store.runs(limit)]


def _run_json(row: tuple[StoredRun, int]) -> dict[str, Any]:
    run, failed = row
    return {**picked(run, RUN_KEYS), "failed": failed}


def _run_cells(row: tuple[StoredRun, int]) -> list[Any]:
    run, failed = row
    levels = ",".join(str(level) for level in run.config.get("concurrency", ()))
    notes = [run.error or "", f"{failed} failed" if failed else "", "simulated" if run.simulated else ""]
    if run.config.get("to_saturation") or run.config.get("slo"):
        levels = "search"
    what = [run.kind, run.state.value, run.model, levels, run.requests, run.url]
    return [run.id, day_and_time(run.created_at), *what, ", ".join(filter(None, notes))]


FORMATS = ("markdown", "csv", "json")


def run_export_command(run: str, form: str, output: Path | None, *, requests: bool) -> None:
    if form not in FORMATS:
        raise UserError(f"--format `{form}` is unknown", hint=f"choose one of {', '.join(FORMATS)}")
    if requests and form == "markdown":
        raise UserError("--requests has too many rows for Markdown", hint="add --format csv or --format json")
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise UserError(f"--output `{output}` is not a place for a file", hint="name a file in a folder that exists")
    with existing() as store:
        found, summary, rows = load_run(store, run)
        verdicts = store.verdicts(found.id)
    if found.kind in JUDGED and not requests:
        hint = f"`skep runs report {found.id}` has the figures; --requests --format csv has every request and verdict"
        raise UserError(f"run `{found.id}` ({found.kind}) is about answers, not about levels of speed", hint=hint)
    text = _requests(rows, verdicts, form) if requests else _levels(found, summary, form)
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(output, text)
        note(f"{found.id} written to {output}")


def _levels(run: StoredRun, summary: SweepSummary, form: str) -> str:
    from skep.report.tables import contention_table, level_rows, speedup_table

    if form == "json":
        return _json({"run": run.id, "model": run.model, **sweep_json(summary)})
    if form == "csv":
        return level_rows(summary).csv()
    entries: list[tuple[str, SweepSummary | str]] = [(run.model, summary)]
    tables = [_readable(run, summary)]
    if run.kind not in TIMED:
        tables.append(contention_table(entries))
    if summary.speedups is not None:
        tables.append(speedup_table(entries))
    simulated = "SIMULATED. " if run.simulated else ""
    origin = f"{simulated}{run.model}, run {run.id}, skep {run.skep_version}.\n"
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


def _requests(rows: list[Request], verdicts: list[Verdict], form: str) -> str:
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
    plain = {key: value for key, value in asdict(row).items() if key not in left_out}
    engine = {f"engine_{key}": value for key, value in asdict(row.engine).items()}
    return {**plain, **engine, "tpot_ms": tpot_ms(row), "events": len(row.arrivals_s)}


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    names = "item outcome detail keywords checker"
    return dict.fromkeys(names.split()) if verdict is None else picked(verdict, names)


def _json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"
