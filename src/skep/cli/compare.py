"""`skep runs compare` and `ab`: is B an improvement?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from skep.bench.compare import ABResult, ComparedRun, check_kinds, compare, is_higher_better, loss, regressions, run_ab
from skep.bench.matrix import MatrixConfig, MatrixResult, parse_matrix, run_matrix
from skep.bench.records import Comparison, SweepSummary
from skep.bench.session import SessionProgress
from skep.bench.stored_run import JUDGED, OF_A_TUNING, load_run
from skep.bench.sweep import SweepPlan
from skep.cli.bench import ABOptions, CompareOptions, WorkloadOptions
from skep.cli.bench_common import (
    MAX_CONCURRENCY,
    level_view,
    maker_for,
    positive_seconds,
    run_measuring,
    toml_of,
    workload_of,
)
from skep.cli.options import EndpointOptions, existing
from skep.cli.output import check_output, note, print_json
from skep.cli.sweep import levels_of, share_of, sweep_endpoint, sweep_json
from skep.errors import EngineError, Regression, UserError
from skep.files import write_whole
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.report.columns import Column, print_records
from skep.report.tables import (
    Entry,
    Table,
    advantage_table,
    baseline_table,
    contention_table,
    effective_table,
    speedup_table,
)
from skep.stats.versus import Judgement
from skep.store.database import Store, open_store
from skep.store.records import RunState, StoredRun

WORKLOAD = (
    "shape", "size", "prompt_tokens", "max_tokens", "fixed_output", "temperature", "turns", "think_s", "tasks", "rates",
    "arrivals", "for_s", "classes", "trace", "speed",
)  # fmt: skip
LENGTHS = ("size", "prompt_tokens", "max_tokens", "fixed_output", "classes", "trace")
OWN_LENGTHS = ("prefill", "shared-prefix")  # shapes whose prompts are longer than others'
SHOWN = {"effective tok/s": "tok/s", "TTFT p50": "TTFT p50", "TTFT p95": "TTFT p95", "TPOT p50": "TPOT p50"}
_RANKS = {"TTFT p50": 1, "TPOT p50": 2, "TTFT p95": 3}  # in a narrow terminal the last goes first
MARKS = {Judgement.BETTER: "better", Judgement.WORSE: "worse", Judgement.SAME: "=", Judgement.UNKNOWN: "?"}


def run_compare_command(options: CompareOptions) -> int:
    """Return the exit code: 4 where B is worse by more than the threshold."""
    allowed = share_of(options.threshold, "--threshold")
    if options.output is not None:
        check_output(options.output)
    with existing() as store:
        a, b = chosen_runs(store, options.a, options.b)
        run_a, summary_a, rows_a = load_run(store, a)
        run_b, summary_b, rows_b = load_run(store, b)
    check_kinds(run_a, run_b)
    if not options.anyway:
        check_lengths(run_a, run_b)
    sides = ComparedRun(summary_a, rows_a), ComparedRun(summary_b, rows_b)
    found = compare(*sides)
    if not found:
        raise UserError(
            f"`{run_a.id}` and `{run_b.id}` have no level in common", hint="measure both with the same --concurrency"
        )
    note(*(f"warning: {line}" for line in differences(run_a, run_b)))
    outcome = CompareResult(found, regressions(*sides, allowed), allowed)
    if options.output is not None:
        write_page([(run_a, summary_a), (run_b, summary_b)], options.output, found, outcome.words)
    return tell(outcome, (run_a.id, run_b.id), as_json=options.as_json)


def chosen_runs(store: Store, a: str | None, b: str | None) -> tuple[str, str]:
    """Fill in missing names: the last run of the same kind, or the one before it."""
    if a is not None and b is not None:
        return a, b
    whole = [run for run in store.runs() if run.state is RunState.DONE]
    measured = [run for run in whole if run.kind not in (*JUDGED, *OF_A_TUNING)]
    if not measured:
        raise UserError("there are no runs to compare", hint="`skep bench sweep` makes one")
    first = measured[0] if a is None else store.run(a)
    others = [run for run in measured if run.kind == first.kind and run.id != first.id]
    if not others:
        what = f"there is no other run of the kind {first.kind} to compare `{first.id}` with"
        raise UserError(what, hint="measure once more, or name both runs: `skep runs` lists them")
    older, newer = sorted((first, others[0]), key=lambda run: run.created_at)
    return older.id, newer.id


def check_lengths(a: StoredRun, b: StoredRun) -> None:
    """Longer prompts or answers are other work: their speeds say nothing about each other."""
    lengths = [key for key in LENGTHS if _is_recorded(a, key) and _is_recorded(b, key)]
    if _setting(a, "shape") in OWN_LENGTHS or _setting(b, "shape") in OWN_LENGTHS:
        lengths.append("shape")
    differing = [key for key in lengths if _setting(a, key) != _setting(b, key)]
    if differing:
        told = ", ".join(f"{key} {_shown(_setting(a, key))} and {_shown(_setting(b, key))}" for key in differing)
        raise UserError(
            f"the lengths differ: {told}", hint="measure both with the same lengths, or add --anyway to go on"
        )


def run_ab_command(options: ABOptions) -> int:
    """Return the exit code: 4 where B is worse by more than the threshold."""
    allowed, workload = share_of(options.threshold, "--threshold"), workload_of(options)
    plan = SweepPlan(
        concurrency=levels_of(options.concurrency, "--concurrency"),
        tasks=options.tasks,
        runs=options.runs,
        precision=share_of(options.precision, "--precision"),
        budget_s=positive_seconds(options.budget, "--budget", "15m"),
        workload=workload,
        timeout_s=positive_seconds(options.timeout, "--timeout", "15m"),
        processes=options.processes,
    )

    async def run() -> ABResult:
        sides = (options.url_a, options.model), (options.url_b, options.model_b or options.model)
        a, b = [await EndpointOptions(url=url, model=model, key_env=options.key_env).find() for url, model in sides]
        levels = f"C={options.concurrency} in turns"
        note(f"A {a.model} at {a.url}, B {b.model} at {b.url}: {levels}; seed {workload.seed}")
        makers = (await maker_for(workload, a, salt="a"), await maker_for(workload, b, salt="b"))
        with open_store(user_paths(os.environ).store) as store, level_view() as show:

            def show_side(name: str, progress: SessionProgress) -> None:
                show(replace(progress, label=f"{name} C={progress.level}"))

            return await run_ab(plan, (a, b), store, read_host(), makers, show_side)

    duel = run_measuring(run)
    outcome = CompareResult(duel.comparisons, regressions(duel.a, duel.b, allowed, paired=True), allowed)
    return tell(outcome, (duel.a.summary.run_id, duel.b.summary.run_id), as_json=options.as_json)


@dataclass(frozen=True, slots=True)
class CompareResult:
    """A comparison with its verdict. `worse`: the regressions, beyond `allowed`."""

    found: Sequence[Comparison]
    worse: Sequence[Comparison]
    allowed: float

    @property
    def verdict(self) -> str:
        if self.worse:
            return "regression"
        return (
            "no regression" if any(one.judgement is not Judgement.UNKNOWN for one in self.found) else "not comparable"
        )

    @property
    def words(self) -> str:
        beyond = f"{100 * self.allowed:g} %"
        match self.verdict:
            case "regression":
                told = [f"{_name(one)} ({100 * loss(one):.1f} % worse)" for one in self.worse[:3]]
                more = [f"and {len(self.worse) - 3} more"] if len(self.worse) > 3 else []
                return f"REGRESSION: B is worse than A by more than {beyond}: {', '.join([*told, *more])}"
            case "no regression":
                return f"no regression beyond {beyond} is shown"
            case _:
                return "no verdict: no figure of the two runs can be compared"

    def remarks(self) -> list[str]:
        """Return why a single `worse` is no regression, what the table has no room for, and what was not compared."""
        counted = {(one.concurrency, one.metric) for one in self.worse}
        found = []
        for one in self.found:
            judged = one.judgement in (Judgement.BETTER, Judgement.WORSE)
            if judged and one.metric not in SHOWN:
                found.append(f"{_name(one)}, B / A: {_ratio_cell(one)}")
            if one.judgement is Judgement.WORSE and (one.concurrency, one.metric) not in counted:
                found.append(self._no_regression(one))
        reasons = dict.fromkeys(one.why for one in self.found if one.judgement is Judgement.UNKNOWN and one.why)
        for why in reasons:
            levels = dict.fromkeys(f"C={one.concurrency}" for one in self.found if one.why == why)
            found.append(f"{' and '.join(levels)} not compared: {why}")
        return found

    def _no_regression(self, one: Comparison) -> str:
        size, beyond = f"{100 * loss(one):.1f} %", f"{100 * self.allowed:g} %"
        if loss(one) <= self.allowed:
            return f"{_name(one)} is {size} worse, within the threshold of {beyond}"
        return (
            f"{_name(one)} is worse by itself, by {size}, and no regression: of figures that did not change one in "
            f"twenty looks better or worse by chance, so it must hold at 95 % over all {len(self.found)} together; "
            "more runs decide"
        )


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
    print_records(_level_columns(), _by_level(outcome.found))
    note(*outcome.remarks())
    print(outcome.words)  # noqa: T201
    return code


def _by_level(found: Sequence[Comparison]) -> list[dict[str, Comparison]]:
    levels: dict[int, dict[str, Comparison]] = {}
    for one in found:
        levels.setdefault(one.concurrency, {})[one.metric] = one
    return list(levels.values())


def _level_columns() -> list[Column[dict[str, Comparison]]]:
    """Return the columns of a level's comparisons, by metric."""

    def ratio(metric: str, title: str) -> Column[dict[str, Comparison]]:
        return Column(
            metric, f"{title} B/A", lambda of: _ratio_cell(of[metric]), rank=_RANKS.get(metric, 0), right=False
        )

    speed = "effective tok/s"
    return [
        Column("concurrency", "C", lambda of: of[speed].concurrency),
        Column("a", "A tok/s", lambda of: of[speed].a),
        Column("b", "B tok/s", lambda of: of[speed].b),
        *(ratio(metric, title) for metric, title in SHOWN.items()),
    ]


def _ratio_cell(one: Comparison) -> str:
    if one.ratio is None:
        return MARKS[one.judgement]
    return f"{one.ratio.estimate:.2f} ({one.ratio.low:.2f}..{one.ratio.high:.2f}) {MARKS[one.judgement]}"


def _name(one: Comparison) -> str:
    return f"{one.metric} at C={one.concurrency}"


def differences(a: StoredRun, b: StoredRun) -> list[str]:
    """Return what makes the two runs hard to compare."""
    found = []
    if a.kind != b.kind:
        found.append(f"one is of the kind {a.kind}, the other {b.kind}")
    changed = [key for key in WORKLOAD if _setting(a, key) != _setting(b, key)]
    if changed:
        found.append(f"the workloads differ in {', '.join(changed)}")
    if a.simulated != b.simulated:
        found.append("one of the two is simulated")
    if a.model != b.model:
        found.append(f"the models differ: {a.model} and {b.model}")
    if a.host.get("cpu_model") != b.host.get("cpu_model") or a.host.get("gpus") != b.host.get("gpus"):
        found.append("they were measured from different machines")
    return found


def _setting(run: StoredRun, key: str) -> Any:
    inner = run.config.get("workload")
    return inner[key] if isinstance(inner, dict) and key in inner else run.config.get(key)


def _is_recorded(run: StoredRun, key: str) -> bool:
    inner = run.config.get("workload")
    return key in run.config or (isinstance(inner, dict) and key in inner)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "not set" if value is None else "on" if value else "off"
    return str(value) if isinstance(value, int | float | str) else "those of its own"


def write_page(
    entries: list[tuple[StoredRun, SweepSummary]], output: Path, found: Sequence[Comparison] = (), verdict: str = ""
) -> None:
    from skep.report.comparison import comparison_page, comparison_picture

    is_picture = output.suffix == ".svg"
    write_whole(output, comparison_picture(entries) if is_picture else comparison_page(entries, found, verdict=verdict))
    note(f"written to {output}")


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
        print_records(table.columns, table.records)
        note(*table.notes)
    for cell in cells:
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
    load = WorkloadOptions(
        shape=str(document.get("shape", "steady")),
        size=str(document.get("size", "short")),
        prompt_tokens=_whole(document, "prompt_tokens"),
        max_tokens=_whole(document, "max_tokens") or 128,
        fixed_output=fixed,
        seed=seed,
    )
    return SweepPlan(
        concurrency=tuple(sorted(set(levels))),
        tasks=_whole(document, "tasks"),
        runs=_whole(document, "runs"),
        precision=share_of(str(document.get("precision", "3%")), "precision"),
        budget_s=positive_seconds(str(document.get("budget", "10m")), "budget", "10m"),
        workload=workload_of(load),
        timeout_s=positive_seconds(str(document.get("timeout", "15m")), "timeout", "15m"),
        kind="matrix",
    )


def tables_of(cells: Sequence[MatrixResult], baseline: str | None) -> list[Table]:
    entries: list[Entry] = [(cell.config.name, cell.summary or cell.diagnosis or "not measured") for cell in cells]
    first = baseline or cells[0].config.name
    ordered = sorted(entries, key=lambda entry: entry[0] != first)
    tables = [effective_table(entries), contention_table(entries)]
    if any(cell.summary is not None and cell.summary.speedups is not None for cell in cells):
        tables.append(speedup_table(entries))
    if len(entries) > 1:
        tables += [baseline_table(entries, baseline=first), advantage_table(ordered)]
    return tables


async def _measured(plan: SweepPlan, config: MatrixConfig) -> SweepSummary:
    return await sweep_endpoint(plan, EndpointOptions(url=config.url, model=config.model, key_env=config.key_env))


def _stored(name: str) -> SweepSummary:
    with existing() as store:
        return load_run(store, name)[1]


def _write(cells: Sequence[MatrixResult], tables: Sequence[Table], output: Path) -> None:
    if output.suffix in (".md", ".csv"):
        write_whole(output, "\n".join(one.markdown() if output.suffix == ".md" else one.csv() for one in tables))
        note(f"written to {output}")
        return
    measured = [(cell.config.name, cell.summary) for cell in cells if cell.summary is not None]
    if not measured:
        raise UserError("nothing was measured, so there is no picture", hint="write .md: it has the reasons")
    with existing() as store:
        entries = [(replace(store.run(summary.run_id), model=name), summary) for name, summary in measured]
    write_page(entries, output)


def _cell_json(cell: MatrixResult) -> dict[str, Any]:
    summary = sweep_json(cell.summary) if cell.summary is not None else None
    return {"config": asdict(cell.config), "summary": summary, "diagnosis": cell.diagnosis, "boot_s": cell.boot_s}


def _whole(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{key} `{value}` is not a whole number above zero", hint=f"write {key} = 8")
    return value
