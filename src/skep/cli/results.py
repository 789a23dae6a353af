"""Stored runs as a list, and a run as a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from skep.bench.imports import levels_from_json
from skep.bench.limits import Limits
from skep.bench.metrics import complete_rows
from skep.bench.summary import summarise
from skep.cli.output import note, print_json, print_table
from skep.errors import UserError
from skep.records import Request, Run, RunState, SweepSummary
from skep.stats.turning import LevelPoint, find_turning
from skep.store.database import Store, open_store
from skep.store.rows import LevelFact
from skep.verdicts import MixedSummary, Verdict

IMPORTED = "imported"
TIMED = ("open", "classes", "replay")  # their levels are no concurrencies
MIXED, QUALITY = "mixed", "quality"
JUDGED = (MIXED, QUALITY)  # their answers have verdicts


def print_runs(store_path: Path, limit: int, *, as_json: bool) -> None:
    runs, failed = _runs(store_path, limit)
    if as_json:
        print_json([{**_run_json(run), "failed": failed[run.id]} for run in runs])
        return
    if not runs:
        note("no runs yet; `skep bench sweep` makes one")
        return
    columns = ("RUN", "WHEN", "KIND", "STATE", "MODEL", "C", "REQUESTS", "URL", "NOTE")
    print_table(columns, [_run_cells(run, failed[run.id]) for run in runs], right=("REQUESTS",))


def write_report(store_path: Path, name: str, output: Path) -> None:
    """Written beside its place and moved there, so that a reader never sees half a file."""
    check_output(output)
    is_picture = output.suffix == ".svg"
    with existing(store_path) as store:
        run = store.run(name)
        text = _judged(store, [run], picture=is_picture) if run.kind in JUDGED else _measured(store, run, is_picture)
    write_whole(output, text)
    note(f"{run.id} ({run.state.value}) written to {output}")


def _measured(store: Store, run: Run, is_picture: bool) -> str:
    _, summary, rows = load_run(store, run.id)
    if not summary.levels:
        raise _nothing(run)
    return _drawn(run, summary, rows, picture=is_picture)


def _nothing(run: Run) -> UserError:
    return UserError(f"run `{run.id}` has no measured requests", hint="`skep runs` lists the others")


def _drawn(run: Run, summary: SweepSummary, rows: list[Request], *, picture: bool) -> str:
    from skep.report.sweep import sweep_page, sweep_picture
    from skep.report.timed import timed_page

    if run.kind in TIMED:
        if picture:
            raise UserError(f"run `{run.id}` ({run.kind}) has no curve over C to draw", hint="write .html instead")
        return timed_page(run, summary, rows)
    return sweep_picture(run, summary) if picture else sweep_page(run, summary, rows)


def _judged(store: Store, runs: Sequence[Run], *, picture: bool) -> str:
    """Of runs of one kind: mixed ones side by side, or one quality run."""
    return (
        _quality(store, runs[0], picture=picture) if runs[0].kind == QUALITY else _mixed(store, runs, picture=picture)
    )


def _mixed(store: Store, runs: Sequence[Run], *, picture: bool) -> str:
    from skep.quality.mixed_axes import with_solo_speeds
    from skep.report.mixed import mixed_page, mixed_picture

    verdicts = {run.id: store.verdicts(run.id) for run in runs}
    summaries = with_solo_speeds([_mixed_summary(store, run, verdicts[run.id]) for run in runs])
    entries = list(zip(runs, summaries, strict=True))
    for run, summary in entries:
        if not summary.levels:
            raise _nothing(run)
    return mixed_picture(entries) if picture else mixed_page(entries, verdicts)


def _mixed_summary(store: Store, run: Run, verdicts: Sequence[Verdict]) -> MixedSummary:
    from skep.quality.mixed_figures import mixed_summary

    why = "" if run.state is RunState.DONE else run.error or f"the run is {run.state.value}"
    form, rows = str(run.config.get("form", "published")), store.requests(run.id)
    return mixed_summary(run.id, run.model, form, rows, verdicts, simulated=run.simulated, incomplete=why)


def _quality(store: Store, run: Run, *, picture: bool) -> str:
    from skep.quality.trial_figures import summary_of_run
    from skep.report.quality import quality_page, quality_picture

    rows, verdicts = store.requests(run.id), store.verdicts(run.id)
    if not any(row.level for row in rows):
        raise _nothing(run)
    summary = summary_of_run(run, rows, verdicts, store.level_facts(run.id), store.items(run.id))
    return quality_picture(run, summary) if picture else quality_page(run, summary)


def write_comparison(store_path: Path, names: Sequence[str], output: Path) -> None:
    check_output(output)
    is_picture = output.suffix == ".svg"
    with existing(store_path) as store:
        runs = [store.run(name) for name in names]
        check_drawn_together(runs)
        if runs[0].kind == MIXED:
            text = _judged(store, runs, picture=is_picture)
        else:
            text = _compared([load_run(store, run.id)[:2] for run in runs], picture=is_picture)
    write_whole(output, text)
    note(f"{len(runs)} runs written to {output}")


def _compared(entries: Sequence[tuple[Run, SweepSummary]], *, picture: bool) -> str:
    from skep.report.comparison import comparison_page, comparison_picture

    return comparison_picture(entries) if picture else comparison_page(entries)


def check_drawn_together(runs: Sequence[Run]) -> None:
    """Judged runs have their own pictures: mixed ones stand beside each other, quality runs alone."""
    odd = next(
        (run for run in runs if run.kind != runs[0].kind and (run.kind in JUDGED or runs[0].kind in JUDGED)), None
    )
    if odd is not None:
        what = f"`{runs[0].id}` is of the kind {runs[0].kind}, `{odd.id}` {odd.kind}"
        raise UserError(f"{what}: they have no picture in common", hint="report runs of one kind, or one at a time")
    if runs[0].kind == QUALITY:
        what = f"`{runs[0].id}` and `{runs[1].id}` are quality runs, which have no common picture"
        raise UserError(what, hint=f"`skep report {runs[0].id}` draws one")


def check_output(output: Path) -> None:
    """Before the work, not after it."""
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else "lies in a folder that does not exist"
        raise UserError(f"--output `{output}` {what}", hint="name a file, such as report.html")
    if output.suffix not in (".html", ".htm", ".svg"):
        raise UserError(f"--output `{output}` is neither .html nor .svg", hint="name a file, such as report.html")


def write_whole(output: Path, text: str) -> None:
    descriptor, draft = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).chmod(0o644)
        Path(draft).replace(output)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def load_run(store: Store, name: str) -> tuple[Run, SweepSummary, list[Request]]:
    run = store.run(name)
    rows, facts = store.requests(run.id), store.level_facts(run.id)
    if run.kind == IMPORTED:
        return run, _imported(run, facts), rows
    samples = store.client_samples(run.id)
    if run.state is not RunState.DONE:
        whole = complete_rows(rows, {(sample.level, sample.repeat) for sample in samples})
        rows = whole if any(row.level for row in whole) else rows
    promised = run.config.get("slo")
    slo = Limits.parse(promised) if isinstance(promised, str) else None
    closed, simulated = run.kind not in TIMED, run.simulated
    return run, summarise(run.id, rows, samples, facts, closed=closed, slo=slo, simulated=simulated), rows


def _imported(run: Run, facts: Sequence[LevelFact]) -> SweepSummary:
    levels = levels_from_json([fact.fact for fact in facts if fact.name == "summary"])
    points = [
        LevelPoint(level.concurrency, (level.effective_tok_s,)) for level in levels if level.effective_tok_s is not None
    ]
    turning = find_turning(points) if len(points) > 1 else None
    return SweepSummary(run.id, tuple(levels), None, None, None, client_limited=False, turning=turning)


def _runs(store_path: Path, limit: int) -> tuple[list[Run], dict[str, int]]:
    """The runs, and how many of the requests of each failed."""
    if not store_path.exists():
        return [], {}
    with open_store(store_path, read_only=True) as store:
        runs = store.runs(limit)
        return runs, {run.id: sum(not row.ok for row in store.requests(run.id)) for run in runs}


def existing(store_path: Path) -> Store:
    if not store_path.exists():
        raise UserError("there are no runs yet", hint="`skep bench sweep` makes one")
    return open_store(store_path, read_only=True)


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "kind": run.kind,
        "state": run.state.value,
        "created_at": run.created_at,
        "ended_at": run.ended_at,
        "model": run.model,
        "url": run.url,
        "requests": run.requests,
        "simulated": run.simulated,
        "fingerprint": run.fingerprint,
        "config": dict(run.config),
        "engine": dict(run.engine),
        "skep_version": run.skep_version,
        "error": run.error,
    }


def _run_cells(run: Run, failed: int) -> list[str]:
    when = datetime.fromtimestamp(run.created_at).astimezone().strftime("%Y-%m-%d %H:%M")
    levels = ",".join(str(level) for level in run.config.get("concurrency", ()))
    notes = [run.error or "", f"{failed} failed" if failed else "", "simulated" if run.simulated else ""]
    note_text = ", ".join(filter(None, notes))
    if run.config.get("to_saturation") or run.config.get("slo"):
        levels = "search"
    return [run.id, when, run.kind, run.state.value, run.model, levels, str(run.requests), run.url, note_text]
