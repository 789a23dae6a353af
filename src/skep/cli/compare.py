"""`skep runs compare` and `ab`: is B an improvement?"""

from __future__ import annotations

import os

from msgspec.structs import replace

from skep.bench.agent_compare import AgentsSide, load_side
from skep.bench.compare import (
    ABResult,
    ComparedRun,
    check_kinds,
    check_lengths,
    chosen_runs,
    compare,
    differing,
    regressions,
    run_ab,
)
from skep.bench.session import SessionProgress
from skep.bench.stored_run import AGENTS, MIXED, QUALITY, load_run
from skep.cli.bench import ABOptions, CompareOptions
from skep.cli.options import EndpointOptions, existing, run_measuring
from skep.cli.sweep import level_view, levels_of, maker_for, sweep_plan
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.quality.mixed_compare import MixedSide, load_mixed
from skep.report.columns import print_records
from skep.report.tables import CompareResult, comparison_columns, group_by_level
from skep.report.terminal import note, print_json
from skep.store.database import Store, open_store
from skep.store.records import StoredRun
from skep.units import parse_positive_seconds, parse_share

MOST_DIFFERENCES = 12  # that a warning names


def run_compare_command(options: CompareOptions) -> int:
    """Return the exit code: 4 where B is worse by more than the threshold."""
    allowed = parse_share(options.threshold, "--threshold")
    with existing() as store:
        a, b = chosen_runs(store, options.a, options.b)
        run_a = store.run(a)
        run_b = store.run(b)
        if run_a.kind == run_b.kind == QUALITY:
            return compare_trial_runs(store, run_a, run_b, as_json=options.as_json)
        check_kinds(run_a, run_b)
        if run_a.kind == AGENTS:
            return compare_agent_runs(load_side(store, run_a), load_side(store, run_b), options)
        run_a, summary_a, rows_a = load_run(store, a)
        run_b, summary_b, rows_b = load_run(store, b)
        if run_a.kind == MIXED:
            return compare_mixed_runs(
                (load_mixed(store, run_a), load_mixed(store, run_b)), allowed, options
            )
    if not options.anyway:
        check_lengths(run_a, run_b)
    sides = ComparedRun(summary_a, rows_a), ComparedRun(summary_b, rows_b)
    comparison = compare(*sides)
    if not comparison:
        hint = "measure both with the same --concurrency"
        raise UserError(f"`{run_a.id}` and `{run_b.id}` have no level in common", hint=hint)
    warn_of(run_a, run_b)
    outcome = CompareResult(comparison, regressions(*sides, allowed), allowed)
    return tell(outcome, (run_a.id, run_b.id), as_json=options.as_json)


def warn_of(a: StoredRun, b: StoredRun) -> None:
    """Say what differs between two runs, and which of them are simulated."""
    differ = [f"{key} {of_a} and {of_b}" for key, (of_a, of_b) in differing((a, b)).items()]
    if differ:
        note(f"warning: these settings differ: {'; '.join(differ[:MOST_DIFFERENCES])}")
    note(*(f"SIMULATED: no model ran in {run.id}" for run in (a, b) if run.simulated))


def compare_trial_runs(store: Store, a: StoredRun, b: StoredRun, *, as_json: bool) -> int:
    """Print whether B answers the same items as well as A. Return the exit code of a trial."""
    from skep.quality.trial_compare import compare_trials, load_trial
    from skep.report.trial_comparison import (
        comparison_exit_code,
        print_trial_comparison,
        trial_comparison_json,
    )

    comparison = compare_trials(load_trial(store, a), load_trial(store, b))
    if not comparison.levels:
        hint = "measure both with the same --concurrency"
        raise UserError(f"`{a.id}` and `{b.id}` have no level in common", hint=hint)
    warn_of(a, b)
    if as_json:
        print_json(trial_comparison_json(comparison))
    else:
        print_trial_comparison(comparison)
    return comparison_exit_code(comparison)


def compare_agent_runs(a: AgentsSide, b: AgentsSide, options: CompareOptions) -> int:
    """Print turns a minute, session times, first tokens and hits. Return the exit code.

    Raises UserError where the two played other sessions, or no level is in both.
    """
    from skep.report.agents_comparison import judged_agents

    allowed = parse_share(options.threshold, "--threshold")
    judged = judged_agents(a, b, allowed, anyway=options.anyway)
    if judged.compared.unlike and not options.anyway:
        raise UserError(
            f"`{a.run.id}` and `{b.run.id}` played other sessions: {judged.compared.unlike}",
            hint="measure both with the same load and --seed, or add --anyway to go on",
        )
    if not judged.compared.comparisons:
        hint = "measure both with the same --concurrency"
        raise UserError(f"`{a.run.id}` and `{b.run.id}` have no level in common", hint=hint)
    warn_of(a.run, b.run)
    if options.as_json:
        print_json(judged.document())
    else:
        judged.print()
    return judged.result.exit_code


def compare_mixed_runs(
    sides: tuple[MixedSide, MixedSide], allowed: float, options: CompareOptions
) -> int:
    """Print tables with a column a model and which does the work better. Return the exit code."""
    from skep.report.mixed_comparison import judged_comparison, print_comparison

    a, b = sides
    judged = judged_comparison(a, b, allowed)
    if not judged.compared.found:
        hint = "measure both with the same --concurrency"
        raise UserError(f"`{a.run.id}` and `{b.run.id}` have no level in common", hint=hint)
    note(*(f"SIMULATED: no model ran in {side.run.id}" for side in sides if side.run.simulated))
    if options.as_json:
        print_json(judged.document())
    else:
        print_comparison(sides, judged)
    return judged.outcome.exit_code


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
        a, b = [
            await EndpointOptions(url=url, model=model, key_env=options.key_env).find()
            for url, model in sides
        ]
        where = f"A {a.model} at {a.url}, B {b.model} at {b.url}"
        note(f"{where}: C={options.concurrency} in turns; seed {workload.seed}")
        makers = (await maker_for(workload, a, salt="a"), await maker_for(workload, b, salt="b"))
        with open_store(user_paths(os.environ).store) as store, level_view() as show:

            def show_side(name: str, progress: SessionProgress) -> None:
                show(replace(progress, label=f"{name} C={progress.level}"))

            return await run_ab(plan, (a, b), store, read_host(), makers, show_side)

    duel = run_measuring(run)
    outcome = CompareResult(
        duel.comparisons, regressions(duel.a, duel.b, allowed, paired=True), allowed
    )
    return tell(outcome, (duel.a.summary.run_id, duel.b.summary.run_id), as_json=options.as_json)


def tell(outcome: CompareResult, runs: tuple[str, str], *, as_json: bool) -> int:
    """The exit code."""
    a, b = runs
    if as_json:
        print_json(outcome.document(a, b))
        return outcome.exit_code
    note(
        f"A is run {a}, B is run {b}; B / A with its 95 % interval; = not distinguishable, "
        "? not comparable"
    )
    print_records(comparison_columns(), group_by_level(outcome.comparisons))
    note(*outcome.remarks())
    print(outcome.words)  # noqa: T201
    return outcome.exit_code
