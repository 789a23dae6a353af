"""Stored runs as a list, and a run as a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from skep.cli.output import note, print_json, print_table
from skep.errors import UserError
from skep.paths import user_paths
from skep.report.stored import run_page, run_picture, runs_page, runs_picture
from skep.store.database import Store, open_store
from skep.store.records import StoredRun


def print_runs(limit: int, *, as_json: bool) -> None:
    runs, failed = _runs(user_paths(os.environ).store, limit)
    if as_json:
        print_json([{**_run_json(run), "failed": failed[run.id]} for run in runs])
        return
    if not runs:
        note("no runs yet; `skep bench sweep` makes one")
        return
    columns = ("RUN", "WHEN", "KIND", "STATE", "MODEL", "C", "REQUESTS", "URL", "NOTE")
    print_table(columns, [_run_cells(run, failed[run.id]) for run in runs], right=("REQUESTS",))


def write_reports(run: Sequence[str] | None, output: Path) -> None:
    """Write one run, the last one where none is named, or several side by side."""
    check_output(output)
    is_picture = output.suffix == ".svg"
    with existing(user_paths(os.environ).store) as store:
        runs = [store.run(name) for name in run or ("last",)]
        if len(runs) == 1:
            text = run_picture(store, runs[0]) if is_picture else run_page(store, runs[0])
        else:
            text = runs_picture(store, runs) if is_picture else runs_page(store, runs)
    write_whole(output, text)
    what = f"{runs[0].id} ({runs[0].state.value})" if len(runs) == 1 else f"{len(runs)} runs"
    note(f"{what} written to {output}")


def check_output(output: Path) -> None:
    """Before the work, not after it."""
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else "lies in a folder that does not exist"
        raise UserError(f"--output `{output}` {what}", hint="name a file, such as report.html")
    if output.suffix not in (".html", ".htm", ".svg"):
        raise UserError(f"--output `{output}` is neither .html nor .svg", hint="name a file, such as report.html")


def write_whole(output: Path, text: str) -> None:
    """Write beside its place and move it there, so that a reader never sees half a file."""
    descriptor, draft = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).chmod(0o644)
        Path(draft).replace(output)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _runs(store_path: Path, limit: int) -> tuple[list[StoredRun], dict[str, int]]:
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


def _run_json(run: StoredRun) -> dict[str, Any]:
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


def _run_cells(run: StoredRun, failed: int) -> list[str]:
    when = datetime.fromtimestamp(run.created_at).astimezone().strftime("%Y-%m-%d %H:%M")
    levels = ",".join(str(level) for level in run.config.get("concurrency", ()))
    notes = [run.error or "", f"{failed} failed" if failed else "", "simulated" if run.simulated else ""]
    note_text = ", ".join(filter(None, notes))
    if run.config.get("to_saturation") or run.config.get("slo"):
        levels = "search"
    return [run.id, when, run.kind, run.state.value, run.model, levels, str(run.requests), run.url, note_text]
