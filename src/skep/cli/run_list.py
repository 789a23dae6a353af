"""Stored runs as a list, as reports, and exported as CSV, Markdown or JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import to_builtins

from skep.bench.agent_figures import SessionsAtBest, sessions_at_best
from skep.bench.metrics import SweepSummary
from skep.bench.stored_run import AGENTS, MIXED, QUALITY, load_agents, load_run
from skep.cli.options import existing
from skep.errors import UserError
from skep.files import HTML, OutputFile
from skep.paths import user_paths
from skep.quality.mixed_compare import load_mixed
from skep.report.agents import best_words
from skep.report.stored import drawn
from skep.report.tables import levels_text, requests_text
from skep.report.terminal import day_and_time, note, picked, print_list, print_table
from skep.store.database import Store, read_store
from skep.store.records import StoredRun

RUN_KEYS = (
    "id kind state created_at ended_at model url requests simulated fingerprint config engine "
    "skep_version error"
)


def print_runs(limit: int, *, as_json: bool) -> None:
    columns = "RUN|WHEN~1|KIND|STATE|MODEL|C~3|>REQUESTS~4|URL~5|NOTE~2"
    none_yet = "no runs yet; `skep bench sweep` makes one"
    print_list(
        _runs(limit),
        partial(print_table, columns, _run_cells),
        _run_document,
        as_json=as_json,
        none_yet=none_yet,
    )


def write_reports(run: Sequence[str], output: OutputFile) -> None:
    """Write one run, the last one where none is named, or several side by side."""
    with existing() as store:
        runs = [store.run(name) for name in run or ("last",)]
        output = output.checked(*(run.id for run in runs), suffixes=HTML)
        text = drawn(store, runs)
    output.write(text, *(run.id for run in runs))
    if len(runs) == 1:
        latest = f"{runs[0].id} ({runs[0].state.value})"
    else:
        latest = f"{len(runs)} runs"
    note(f"{latest} written to {output}")


class ListedRun(msgspec.Struct, frozen=True):
    """A run, how many of its requests failed, and of sessions what they got."""

    run: StoredRun
    failed: int
    sessions: SessionsAtBest | None = None


def _runs(limit: int) -> list[ListedRun]:
    with read_store(user_paths(os.environ).store) as store:
        return [_listed(store, run) for run in store.runs(limit)]


def _listed(store: Store, run: StoredRun) -> ListedRun:
    failed = sum(not row.ok for row in store.requests(run.id))
    if run.kind != AGENTS:
        return ListedRun(run, failed)
    _, summary = load_agents(store, run.id)
    return ListedRun(run, failed, sessions_at_best(summary))


def _run_document(listed: ListedRun) -> dict[str, Any]:
    sessions = to_builtins(listed.sessions)
    return {**picked(listed.run, RUN_KEYS), "failed": listed.failed, "sessions": sessions}


def _run_cells(listed: ListedRun) -> list[Any]:
    run = listed.run
    levels = ",".join(str(level) for level in run.config.get("concurrency", ()))
    notes = [
        run.error or "",
        f"{listed.failed} failed" if listed.failed else "",
        "simulated" if run.simulated else "",
        best_words(listed.sessions) if listed.sessions is not None else "",
    ]
    if run.config.get("max_concurrency") and (
        run.config.get("to_saturation") or run.config.get("slo")
    ):
        levels = "search"  # in old stores
    if run.config.get("finds_knee") or run.config.get("finds_cliff"):
        levels = "auto"
    facts = [run.kind, run.state.value, run.model, levels, run.requests, run.url]
    return [run.id, day_and_time(run.created_at), *facts, ", ".join(filter(None, notes))]


FORMATS = ("markdown", "csv", "json")


def run_export_command(
    run: str, form: str, output: OutputFile | None, *, requests: bool, answers: bool
) -> None:
    if form not in FORMATS:
        raise UserError(
            f"--format `{form}` is unknown", hint=f"choose one of {', '.join(FORMATS)}"
        )
    if requests and form == "markdown":
        raise UserError(
            "--requests has too many rows for Markdown", hint="add --format csv or --format json"
        )
    if answers and not requests:
        raise UserError(
            "--answers belongs to --requests", hint="add --requests --format csv or --format json"
        )
    if output is not None:
        output.checked()
    with existing() as store:
        stored_run, summary, rows = load_run(store, run)
        if requests:
            verdicts = store.verdicts(stored_run.id)
            text = requests_text(rows, verdicts, form, with_texts=answers)
        else:
            text = _figures_text(store, stored_run, summary, form)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write(text)
        note(f"{stored_run.id} written to {output}")


def _figures_text(store: Store, run: StoredRun, summary: SweepSummary, form: str) -> str:
    """Return the figures of a run, as its kind has them. Raises UserError where it has none."""
    if run.kind == QUALITY:
        hint = (
            f"`skep runs report {run.id}` has the figures; "
            "--requests --format csv has every request and verdict"
        )
        raise UserError(f"run `{run.id}` ({run.kind}) measures answers, not speed", hint=hint)
    if run.kind == MIXED:
        from skep.report.mixed import mixed_text

        return mixed_text(load_mixed(store, run), form)
    if run.kind == AGENTS:
        from skep.report.agents import agents_text

        _, agents = load_agents(store, run.id)
        return agents_text(run, agents, form)
    return levels_text(run, summary, form)
