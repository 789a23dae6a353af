"""Stored runs as a list, and a run as a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skep.cli.output import day_and_time, note, plain, print_list
from skep.errors import UserError
from skep.paths import user_paths
from skep.report.stored import run_page, run_picture, runs_page, runs_picture
from skep.store.database import Store, open_store
from skep.store.records import StoredRun

RUN_KEYS = (
    "id", "kind", "state", "created_at", "ended_at", "model", "url", "requests", "simulated", "fingerprint", "config",
    "engine", "skep_version", "error",
)  # fmt: skip


def print_runs(limit: int, *, as_json: bool) -> None:
    columns, none_yet = "RUN|WHEN|KIND|STATE|MODEL|C|>REQUESTS|URL|NOTE", "no runs yet; `skep bench sweep` makes one"
    print_list(_runs(limit), columns, _run_cells, _run_json, as_json=as_json, none_yet=none_yet)


def write_reports(run: Sequence[str] | None, output: Path) -> None:
    """Write one run, the last one where none is named, or several side by side."""
    check_output(output)
    is_picture = output.suffix == ".svg"
    with existing() as store:
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


def _runs(limit: int) -> list[tuple[StoredRun, int]]:
    """The runs, and how many of the requests of each failed."""
    path = user_paths(os.environ).store
    if not path.exists():
        return []
    with open_store(path, read_only=True) as store:
        return [(run, sum(not row.ok for row in store.requests(run.id))) for run in store.runs(limit)]


def existing(
    none_yet: str = "there are no runs yet", hint: str = "`skep bench sweep` makes one", *, read_only: bool = True
) -> Store:
    """Open the store. Where there is none yet, raise UserError: looking makes no file."""
    path = user_paths(os.environ).store
    if not path.exists():
        raise UserError(none_yet, hint=hint)
    return open_store(path, read_only=read_only)


def _run_json(row: tuple[StoredRun, int]) -> dict[str, Any]:
    run, failed = row
    return {**{name: plain(getattr(run, name)) for name in RUN_KEYS}, "failed": failed}


def _run_cells(row: tuple[StoredRun, int]) -> list[Any]:
    run, failed = row
    levels = ",".join(str(level) for level in run.config.get("concurrency", ()))
    notes = [run.error or "", f"{failed} failed" if failed else "", "simulated" if run.simulated else ""]
    if run.config.get("to_saturation") or run.config.get("slo"):
        levels = "search"
    what = [run.kind, run.state.value, run.model, levels, run.requests, run.url]
    return [run.id, day_and_time(run.created_at), *what, ", ".join(filter(None, notes))]
