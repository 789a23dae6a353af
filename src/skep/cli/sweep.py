"""`skep bench sweep` and `serial-vs-swarm`: options to a plan, a run with a live view, a table or JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import typer

from skep.bench.endpoint import Endpoint
from skep.bench.records import SweepSummary
from skep.bench.sweep import SweepPlan, run_sweep
from skep.cli.bench import SerialVsSwarmOptions, SweepOptions
from skep.cli.bench_common import MAX_CONCURRENCY, maker_for, meter_for, positive_seconds, run_measuring, workload_of
from skep.cli.liveview import live_view
from skep.cli.options import EndpointOptions
from skep.cli.output import note, plain, print_json
from skep.cli.summaries import print_summary
from skep.errors import EndpointError, UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.report.levels import runs_text
from skep.stats.slo import SloLimits
from skep.store.database import open_store
from skep.store.records import Request
from skep.units import format_seconds, parse_int_list

MOST_TASKS = 100_000


def plan_of(options: SweepOptions) -> SweepPlan:
    levels = levels_of(options.concurrency, "--concurrency")
    if options.tasks is not None and options.tasks > MOST_TASKS:
        raise UserError(f"--tasks {options.tasks} is too large", hint=f"at most {MOST_TASKS:,} a run of a level")
    if options.warm_up not in ("steady", "quick"):
        raise UserError(f"--warm-up `{options.warm_up}` is unknown", hint="choose steady or quick")
    if options.to_saturation and options.slo:
        raise UserError("--to-saturation and --slo are two different searches", hint="choose one of them")
    if options.tasks is not None and options.tasks < levels[-1] and not (options.to_saturation or options.slo):
        hint = f"use --tasks {levels[-1]} or more, or a smaller --concurrency"
        raise UserError(f"--tasks {options.tasks} cannot keep {levels[-1]} agents busy", hint=hint)
    return SweepPlan(
        concurrency=levels,
        tasks=options.tasks,
        runs=options.runs,
        precision=share_of(options.precision, "--precision"),
        budget_s=positive_seconds(options.budget, "--budget", "10m"),
        workload=workload_of(options),
        quick_warm_up=options.warm_up == "quick",
        to_saturation=options.to_saturation,
        slo=SloLimits.parse(options.slo) if options.slo else None,
        max_concurrency=min(options.max_concurrency, MAX_CONCURRENCY),
        timeout_s=positive_seconds(options.timeout, "--timeout", "15m"),
        keep_text=options.store_prompts,
        processes=options.processes,
    )


def levels_of(text: str, option: str) -> tuple[int, ...]:
    levels = parse_int_list(text, name=option)
    if levels[-1] > MAX_CONCURRENCY:
        raise UserError(f"{option} {levels[-1]} is too large", hint=f"one client goes up to {MAX_CONCURRENCY}")
    return levels


def share_of(text: str, option: str) -> float:
    """ "3%" or "0.03"."""
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UserError(f"{option} `{text}` is not a share", hint="write it as 3%")
    return share


def run_sweep_command(context: typer.Context, options: SweepOptions) -> None:
    """Raise EndpointError where requests failed: the exit code is 1."""
    if options.against_preset is not None:
        from skep.cli.against_preset import run_against_command

        run_against_command(options, options.against_preset, given_options(context))
        return
    if options.shape_of is not None:
        raise UserError("--shape-of goes with --against-preset", hint="name the preset whose figure it is")
    plan = plan_of(options)
    summary = measure(plan, options)
    for line in shortfalls(plan, summary):
        note(line)
    show(summary, price=options.price, as_json=options.as_json)


def given_options(context: typer.Context) -> frozenset[str]:
    """Those that the user wrote, by the names of their parameters."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def shortfalls(plan: SweepPlan, summary: SweepSummary) -> list[str]:
    """Describe what the budget left undone."""
    if plan.runs is not None or plan.searches:
        return []
    measured = {level.concurrency: level for level in summary.levels}
    found = []
    missing = [str(level) for level in plan.concurrency if level not in measured]
    if missing:
        found.append(f"the budget ended before C={', '.join(missing)} was measured; a longer --budget will")
    for concurrency, level in measured.items():
        known = level.effective_interval
        if known is None:
            found.append(f"C={concurrency} has {runs_text(level)} runs that count: an interval needs three")
        elif known.upper_width > plan.precision:
            found.append(f"C={concurrency} is known to ± {100 * known.upper_width:.1f} % only")
    return found


def run_swarm_command(options: SerialVsSwarmOptions) -> None:
    levels, tasks = levels_of(options.agents, "--agents"), options.tasks
    if levels[0] != 1 or len(levels) < 2:
        raise UserError(f"--agents `{options.agents}` needs 1 and another number", hint="write it as --agents 1,50")
    if tasks > MOST_TASKS:
        raise UserError(f"--tasks {tasks} is too large", hint=f"at most {MOST_TASKS:,}")
    if tasks < levels[-1]:
        raise UserError(f"--tasks {tasks} cannot keep {levels[-1]} agents busy", hint=f"use --tasks {levels[-1]}")
    plan = SweepPlan(
        concurrency=levels,
        tasks=tasks,
        runs=options.runs,
        budget_s=None,
        workload=workload_of(options),
        same_tasks=True,
        timeout_s=positive_seconds(options.timeout, "--timeout", "1h"),
        keep_text=options.store_prompts,
        processes=options.processes,
        kind="serial-vs-swarm",
    )
    show(measure(plan, options), as_json=options.as_json)


def show(
    summary: SweepSummary,
    *,
    as_json: bool,
    price: float | None = None,
    title: str = "C",
    names: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Print the run and raise where requests failed. `more`: for its document; `then`: prints behind its table."""
    if as_json:
        print_json({**sweep_json(summary), **(more or {})})
    else:
        print_summary(summary, price=price, title=title, names=names)
        then()
        note(f"stored as run {summary.run_id}; `skep report {summary.run_id}` writes the pictures")
    fail_for(summary)


def fail_for(summary: SweepSummary) -> None:
    """By the rows themselves: a failed request is never lost between two figures."""
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        rows = [row for row in store.requests(summary.run_id) if row.level]
    failed = [row for row in rows if not row.ok]
    if failed:
        what = f"{len(failed)} of {len(rows)} requests failed: {_reasons(failed)}"
        raise EndpointError(what, hint="docs/errors.md says what each kind means; the rows are in the store")


def measure(plan: SweepPlan, target: EndpointOptions) -> SweepSummary:
    return run_measuring(lambda: sweep_endpoint(plan, target, say=note))


async def sweep_endpoint(
    plan: SweepPlan, target: EndpointOptions, say: Callable[[str], None] = lambda _: None
) -> SweepSummary:
    endpoint = await target.find()
    say(headline(plan, endpoint))
    maker, meter = await maker_for(plan.workload, endpoint), meter_for(endpoint)
    with open_store(user_paths(os.environ).store) as store, live_view() as progress:
        return await run_sweep(plan, endpoint, store, read_host(), progress, maker=maker, meter=meter)


def sweep_json(summary: SweepSummary) -> dict[str, Any]:
    """The documented form: docs/json.md."""
    return cast("dict[str, Any]", plain(asdict(summary)))


def headline(plan: SweepPlan, endpoint: Endpoint) -> str:
    load = plan.workload
    if plan.to_saturation:
        what = f"to saturation, C up to {plan.max_concurrency}"
    elif plan.slo is not None:
        what = f"the highest C with {plan.slo}, up to {plan.max_concurrency}"
    else:
        what = f"C={','.join(map(str, plan.concurrency))}"
    often = f"each level until ± {100 * plan.precision:g} %"
    if plan.searches:
        often = "levels as the search needs them"
    elif plan.runs:
        often = f"{plan.runs} run{'s' if plan.runs > 1 else ''} a level"
    budget = f", {format_seconds(plan.budget_s)} at most" if plan.budget_s and not plan.runs else ""
    lengths = f"{load.prompt_tokens} tokens in, " if load.prompt_tokens else ""
    simulated = " (simulated)" if endpoint.simulated else ""
    return (
        f"{endpoint.model}{simulated} at {endpoint.url}: {what}; {load.shape}, {lengths}up to {load.max_tokens} out; "
        f"{often}{budget}; seed {load.seed}"
    )


def _reasons(rows: Sequence[Request]) -> str:
    """ "3x http_500 (out of memory), 1x timeout": each kind once, with the first message."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row.error_kind or "", []).append(row.error or "")
    return ", ".join(f"{len(texts)}x {kind} ({texts[0]})" for kind, texts in kinds.items())
