"""`skep bench matrix`: configurations against concurrencies, as the write-ups' tables."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skep.bench.loaded import load_run
from skep.bench.matrix import Cell, Config, parse_matrix, run_matrix
from skep.bench.sweep import SweepPlan, run_sweep
from skep.cli.benching import (
    MAX_CONCURRENCY,
    Target,
    maker_for,
    meter_for,
    positive_seconds,
    run_measuring,
    toml_of,
    workload_of,
)
from skep.cli.liveview import live_view
from skep.cli.output import note, print_json, print_table
from skep.cli.results import existing, write_whole
from skep.cli.sweep import share_of, sweep_json
from skep.errors import EngineError, UserError
from skep.host.facts import read_host
from skep.places import user_paths
from skep.records import Run, SweepSummary
from skep.report.tables import (
    Entry,
    Table,
    advantage_table,
    baseline_table,
    contention_table,
    csv_text,
    effective_table,
    markdown,
    shown,
    speedup_table,
)
from skep.store.database import open_store

_KNOWN = (
    "config", "concurrency", "tasks", "runs", "precision", "budget", "max_tokens", "prompt_tokens", "size",
    "fixed_output", "shape", "seed", "baseline", "timeout",
)  # fmt: skip
_SUFFIXES = (".html", ".htm", ".svg", ".md", ".csv")


def run_matrix_command(file: Path, output: Path | None, *, processes: int | None = None, as_json: bool) -> None:
    document = toml_of(file)
    configs, plan = parse_matrix(document), replace(plan_of(document), processes=processes)
    baseline = document.get("baseline")
    if baseline is not None and baseline not in [config.name for config in configs]:
        raise UserError(f"baseline `{baseline}` is not among the configurations", hint="name one of them")
    if output is not None and (output.suffix not in _SUFFIXES or not output.parent.is_dir()):
        raise UserError(
            f"--output `{output}` cannot be written", hint=f"name a file that ends in {', '.join(_SUFFIXES)}"
        )
    folder = user_paths(os.environ).state / "matrix"

    cells = run_measuring(lambda: run_matrix(configs, lambda config: _measured(plan, config), _stored, folder, note))
    tables = tables_of(cells, baseline)
    if output is not None:
        _write(cells, tables, output)
    if as_json:
        print_json([_cell_json(cell) for cell in cells])
        _fail_for(cells)
        return
    for table in tables:
        note(f"\n{table.title}")
        print_table(table.columns, shown(table), right=table.columns[1:])
        for line in table.notes:
            note(line)
    for cell in cells:
        if cell.boot_s is not None:
            note(f"{cell.config.name}: answered {cell.boot_s:.1f} s after its start")
    _fail_for(cells)


def _fail_for(cells: Sequence[Cell]) -> None:
    failed = [cell for cell in cells if cell.diagnosis is not None]
    if failed:
        first = failed[0]
        what = f"{len(failed)} of {len(cells)} configurations failed: {first.config.name}: {first.diagnosis}"
        raise EngineError(what, hint="the others are in the tables, and stored")


def plan_of(document: Mapping[str, Any]) -> SweepPlan:
    unknown = next((key for key in document if key not in _KNOWN), None)
    if unknown is not None:
        raise UserError(f"`{unknown}` is not known in a matrix", hint=f"known are {', '.join(_KNOWN)}")
    levels = document.get("concurrency", [1, 2, 4])
    if (
        not isinstance(levels, list)
        or not levels
        or not all(isinstance(one, int) and 0 < one <= MAX_CONCURRENCY for one in levels)
    ):
        raise UserError(
            f"concurrency `{levels}` is not a list of numbers from 1 to {MAX_CONCURRENCY}",
            hint="write concurrency = [1, 2, 4]",
        )
    seed, fixed = document.get("seed"), document.get("fixed_output", False)
    if not isinstance(seed, int | None) or not isinstance(fixed, bool):
        wrong = "seed" if not isinstance(seed, int | None) else "fixed_output"
        raise UserError(
            f"{wrong} `{document[wrong]}` cannot be used", hint="a seed is a number, fixed_output true or false"
        )
    workload = workload_of(
        shape=str(document.get("shape", "steady")),
        size=str(document.get("size", "short")),
        prompt_tokens=_whole(document, "prompt_tokens"),
        max_tokens=_whole(document, "max_tokens") or 128,
        fixed_output=fixed,
        seed=seed if isinstance(seed, int) else random.SystemRandom().randrange(2**31),
    )
    return SweepPlan(
        concurrency=tuple(sorted(set(levels))),
        tasks=_whole(document, "tasks"),
        runs=_whole(document, "runs"),
        precision=share_of(str(document.get("precision", "3%")), "precision"),
        budget_s=positive_seconds(str(document.get("budget", "10m")), "budget", "10m"),
        workload=workload,
        timeout_s=positive_seconds(str(document.get("timeout", "15m")), "timeout", "15m"),
        kind="matrix",
    )


def tables_of(cells: Sequence[Cell], baseline: str | None) -> list[Table]:
    entries: list[Entry] = [(cell.config.name, cell.summary or cell.diagnosis or "not measured") for cell in cells]
    first = baseline or cells[0].config.name
    ordered = sorted(entries, key=lambda entry: entry[0] != first)
    tables = [effective_table(entries), contention_table(entries)]
    if any(cell.summary is not None and cell.summary.speedups is not None for cell in cells):
        tables.append(speedup_table(entries))
    if len(entries) > 1:
        tables += [baseline_table(entries, baseline=first), advantage_table(ordered)]
    return tables


async def _measured(plan: SweepPlan, config: Config) -> SweepSummary:
    endpoint = await Target(config.url or "", config.model, config.key_env).find()
    maker = await maker_for(plan.workload, endpoint)
    meter = meter_for(endpoint)
    with open_store(user_paths(os.environ).store) as store, live_view() as show:
        return await run_sweep(plan, endpoint, store, read_host(), show, maker=maker, meter=meter)


def _stored(name: str) -> SweepSummary:
    return _loaded(name)[1]


def _loaded(name: str) -> tuple[Run, SweepSummary]:
    with existing(user_paths(os.environ).store) as store:
        run, summary, _ = load_run(store, name)
    return run, summary


def _write(cells: Sequence[Cell], tables: Sequence[Table], output: Path) -> None:
    if output.suffix in (".md", ".csv"):
        write_whole(output, "\n".join(map(markdown if output.suffix == ".md" else csv_text, tables)))
    else:
        from skep.report.comparison import comparison_page, comparison_picture

        entries = [
            (replace(_loaded(cell.summary.run_id)[0], model=cell.config.name), cell.summary)
            for cell in cells
            if cell.summary is not None
        ]
        if not entries:
            raise UserError("nothing was measured, so there is no picture", hint="write .md: it has the reasons")
        text = comparison_picture(entries) if output.suffix == ".svg" else comparison_page(entries)
        write_whole(output, text)
    note(f"written to {output}")


def _cell_json(cell: Cell) -> dict[str, Any]:
    summary = sweep_json(cell.summary) if cell.summary is not None else None
    return {"config": asdict(cell.config), "summary": summary, "diagnosis": cell.diagnosis, "boot_s": cell.boot_s}


def _whole(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{key} `{value}` is not a whole number above zero", hint=f"write {key} = 8")
    return value
