"""`skep runs compare` and `ab`: is B an improvement?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.compare import (
    ABResult,
    ComparedRun,
    check_kinds,
    check_lengths,
    chosen_runs,
    compare,
    differences,
    is_higher_better,
    regressions,
    run_ab,
)
from skep.bench.matrix import MatrixConfig, MatrixResult, parse_matrix, run_matrix
from skep.bench.metrics import Comparison, SweepSummary
from skep.bench.session import SessionProgress
from skep.bench.stored_run import load_run
from skep.bench.sweep import SweepPlan
from skep.cli.bench import ABOptions, CompareOptions, SweepOptions
from skep.cli.options import EndpointOptions, existing, run_measuring
from skep.cli.sweep import MAX_CONCURRENCY, level_view, levels_of, maker_for, sweep_endpoint, sweep_plan
from skep.errors import EngineError, Regression, UserError
from skep.files import PAGES, OutputFile, read_user_toml
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.report.columns import print_records
from skep.report.tables import CompareResult, Table, comparison_columns, group_by_level, matrix_tables
from skep.report.terminal import note, print_json
from skep.store.database import open_store
from skep.store.records import StoredRun
from skep.units import parse_positive_seconds, parse_share
from skep.workload.items import Demand, field_faults, whole_number


def run_compare_command(options: CompareOptions) -> int:
    """Return the exit code: 4 where B is worse by more than the threshold."""
    allowed = parse_share(options.threshold, "--threshold")
    with existing() as store:
        a, b = chosen_runs(store, options.a, options.b)
        run_a, summary_a, rows_a = load_run(store, a)
        run_b, summary_b, rows_b = load_run(store, b)
    if options.output is not None:
        options.output.checked(run_a.id, run_b.id, suffixes=PAGES)
    check_kinds(run_a, run_b)
    if not options.anyway:
        check_lengths(run_a, run_b)
    sides = ComparedRun(summary_a, rows_a), ComparedRun(summary_b, rows_b)
    found = compare(*sides)
    if not found:
        hint = "measure both with the same --concurrency"
        raise UserError(f"`{run_a.id}` and `{run_b.id}` have no level in common", hint=hint)
    note(*(f"warning: {line}" for line in differences(run_a, run_b)))
    note(*(f"SIMULATED: no model ran in {one.id}" for one in (run_a, run_b) if one.simulated))
    outcome = CompareResult(found, regressions(*sides, allowed), allowed)
    if options.output is not None:
        write_page([(run_a, summary_a), (run_b, summary_b)], options.output, found, outcome.words)
    return tell(outcome, (run_a.id, run_b.id), as_json=options.as_json)


def run_ab_command(options: ABOptions) -> int:
    """Return the exit code: 4 where B is worse by more than the threshold."""
    allowed = parse_share(options.threshold, "--threshold")
    precision = parse_share(options.precision, "--precision")
    budget_s = parse_positive_seconds(options.budget, "--budget", "15m")
    levels = levels_of(options.concurrency, "--concurrency")
    plan = sweep_plan(options, levels, precision=precision, budget_s=budget_s)
    workload = plan.workload

    async def run() -> ABResult:
        sides = (options.url_a, options.model), (options.url_b, options.model_b or options.model)
        a, b = [await EndpointOptions(url=url, model=model, key_env=options.key_env).find() for url, model in sides]
        where = f"A {a.model} at {a.url}, B {b.model} at {b.url}"
        note(f"{where}: C={options.concurrency} in turns; seed {workload.seed}")
        makers = (await maker_for(workload, a, salt="a"), await maker_for(workload, b, salt="b"))
        with open_store(user_paths(os.environ).store) as store, level_view() as show:

            def show_side(name: str, progress: SessionProgress) -> None:
                show(replace(progress, label=f"{name} C={progress.level}"))

            return await run_ab(plan, (a, b), store, read_host(), makers, show_side)

    duel = run_measuring(run)
    outcome = CompareResult(duel.comparisons, regressions(duel.a, duel.b, allowed, paired=True), allowed)
    return tell(outcome, (duel.a.summary.run_id, duel.b.summary.run_id), as_json=options.as_json)


def tell(outcome: CompareResult, runs: tuple[str, str], *, as_json: bool) -> int:
    """The exit code."""
    a, b = runs
    code = Regression.exit_code if outcome.worse else 0
    if as_json:
        document = {
            "a": a,
            "b": b,
            "threshold": outcome.allowed,
            "comparisons": [
                {**msgspec.to_builtins(one), "higher_is_better": is_higher_better(one.metric)} for one in outcome.found
            ],
            "regressions": len(outcome.worse),
            "verdict": outcome.verdict,
            "verdict_in_words": outcome.words,
        }
        print_json(document)
        return code
    note(f"A is run {a}, B is run {b}; B / A with its 95 % interval; = not distinguishable, ? not comparable")
    print_records(comparison_columns(), group_by_level(outcome.found))
    note(*outcome.remarks())
    print(outcome.words)  # noqa: T201
    return code


def write_page(
    runs: list[tuple[StoredRun, SweepSummary]], output: OutputFile, found: Sequence[Comparison] = (), verdict: str = ""
) -> None:
    from skep.report.comparison import comparison_page, comparison_picture

    is_picture = output.suffix == ".svg"
    page = comparison_picture(runs) if is_picture else comparison_page(runs, found, verdict=verdict)
    output.write(page, *(run.id for run, _ in runs))
    note(f"written to {output}")


_LEVEL = whole_number(1, MAX_CONCURRENCY)[1]
_TEXTS = ("precision", "budget", "size", "shape", "timeout")
_LOAD: Mapping[str, Demand] = {
    **dict.fromkeys(_TEXTS, ("text", lambda value: isinstance(value, str | int | float))),
    **dict.fromkeys(("tasks", "runs", "max_tokens", "prompt_tokens"), whole_number(1)),
    "seed": whole_number(0),
    "fixed_output": ("true or false", lambda value: isinstance(value, bool)),
    "concurrency": (
        f"a list such as [1, 2, 4], of numbers up to {MAX_CONCURRENCY}",
        lambda value: isinstance(value, list) and bool(value) and all(map(_LEVEL, value)),
    ),
}


def run_matrix_command(file: Path, output: OutputFile | None, *, processes: int | None = None, as_json: bool) -> None:
    document = read_user_toml(file)
    configs, plan = parse_matrix(document), replace(plan_of(document), processes=processes)
    baseline = document.get("baseline")
    if baseline is not None and baseline not in [config.name for config in configs]:
        raise UserError(f"baseline `{baseline}` is not among the configurations", hint="name one of them")
    if output is not None:
        output.checked(suffixes=(*PAGES, ".md", ".csv"))
    folder = user_paths(os.environ).state / "matrix"

    async def measured(config: MatrixConfig) -> SweepSummary:
        return await sweep_endpoint(plan, EndpointOptions(url=config.url, model=config.model, key_env=config.key_env))

    def stored(name: str) -> SweepSummary:
        with existing() as store:
            return load_run(store, name)[1]

    cells = run_measuring(lambda: run_matrix(configs, measured, stored, folder, note))
    tables = matrix_tables(cells, baseline)
    if output is not None:
        _write(cells, tables, output)
    if as_json:
        print_json(msgspec.to_builtins(cells))
    for table in () if as_json else tables:
        note(f"\n{table.title}")
        print_records(table.columns, table.records)
        note(*table.notes)
    for cell in () if as_json else cells:
        if cell.boot_s is not None:
            note(f"{cell.config.name}: answered {cell.boot_s:.1f} s after its start")
    _fail_for(cells)


def _fail_for(cells: Sequence[MatrixResult]) -> None:
    failed = [cell for cell in cells if cell.diagnosis is not None]
    if failed:
        first = failed[0]
        what = f"{len(failed)} of {len(cells)} configurations failed: {first.config.name}: {first.diagnosis}"
        raise EngineError(what, hint="the others are in the tables, and stored")


def plan_of(document: Mapping[str, Any]) -> SweepPlan:
    """Return the plan of a matrix file. Its keys are the options of `skep bench sweep`, with the same defaults."""
    given = {key: value for key, value in document.items() if key not in ("config", "baseline")}
    if (fault := next(field_faults(given, {}, _LOAD), None)) is not None:
        raise UserError(f"the matrix: {fault}", hint="docs/measure.md has an example")
    given |= {key: str(given[key]) for key in _TEXTS if key in given}
    precision = parse_share(given.pop("precision", "3%"), "precision")
    budget_s = parse_positive_seconds(given.pop("budget", "10m"), "budget", "10m")
    levels = sorted(set(given.pop("concurrency", (1, 2, 4))))
    return sweep_plan(SweepOptions(**given), levels, precision=precision, budget_s=budget_s, kind="matrix")


def _write(cells: Sequence[MatrixResult], tables: Sequence[Table], output: OutputFile) -> None:
    if output.suffix in (".md", ".csv"):
        output.write("\n".join(one.markdown() if output.suffix == ".md" else one.csv() for one in tables))
        note(f"written to {output}")
        return
    measured = [(cell.config.name, cell.summary) for cell in cells if cell.summary is not None]
    if not measured:
        raise UserError("nothing was measured, so there is no chart", hint="write .md: it has the reasons")
    with existing() as store:
        entries = [(replace(store.run(summary.run_id), model=name), summary) for name, summary in measured]
    write_page(entries, output)
