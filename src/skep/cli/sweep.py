"""`skep bench sweep` and `serial-vs-swarm`: wishes to a plan, a run with a live view, a table or JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.records import SweepSummary
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import Workload
from skep.cli.bench_common import (
    MAX_CONCURRENCY,
    EndpointOptions,
    maker_for,
    meter_for,
    positive_seconds,
    run_measuring,
)
from skep.cli.liveview import live_view
from skep.cli.output import note, print_json
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


@dataclass(frozen=True, slots=True)
class SweepOptions:
    target: EndpointOptions
    workload: Workload
    concurrency: str
    to_saturation: bool
    slo: str | None
    max_concurrency: int
    tasks: int | None
    runs: int | None
    precision: str
    budget: str
    warm_up: str
    timeout: str
    processes: int | None
    store_prompts: bool


def plan_of(wishes: SweepOptions) -> SweepPlan:
    levels = levels_of(wishes.concurrency, "--concurrency")
    if wishes.tasks is not None and wishes.tasks > MOST_TASKS:
        raise UserError(f"--tasks {wishes.tasks} is too large", hint=f"at most {MOST_TASKS:,} a run of a level")
    if wishes.warm_up not in ("steady", "quick"):
        raise UserError(f"--warm-up `{wishes.warm_up}` is unknown", hint="choose steady or quick")
    if wishes.to_saturation and wishes.slo:
        raise UserError("--to-saturation and --slo are two different searches", hint="choose one of them")
    if wishes.tasks is not None and wishes.tasks < levels[-1] and not (wishes.to_saturation or wishes.slo):
        hint = f"use --tasks {levels[-1]} or more, or a smaller --concurrency"
        raise UserError(f"--tasks {wishes.tasks} cannot keep {levels[-1]} agents busy", hint=hint)
    return SweepPlan(
        concurrency=levels,
        tasks=wishes.tasks,
        runs=wishes.runs,
        precision=share_of(wishes.precision, "--precision"),
        budget_s=positive_seconds(wishes.budget, "--budget", "10m"),
        workload=wishes.workload,
        quick_warm_up=wishes.warm_up == "quick",
        to_saturation=wishes.to_saturation,
        slo=SloLimits.parse(wishes.slo) if wishes.slo else None,
        max_concurrency=min(wishes.max_concurrency, MAX_CONCURRENCY),
        timeout_s=positive_seconds(wishes.timeout, "--timeout", "15m"),
        keep_text=wishes.store_prompts,
        processes=wishes.processes,
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


def run_sweep_command(wishes: SweepOptions, *, price: float | None, as_json: bool) -> int:
    """0 when every request was answered, 1 when some failed."""
    plan = plan_of(wishes)
    summary = measure(plan, wishes.target)
    for line in shortfalls(plan, summary):
        note(line)
    return show(summary, price=price, as_json=as_json)


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


def run_swarm_command(
    target: EndpointOptions,
    workload: Workload,
    agents: str,
    tasks: int,
    runs: int,
    limits: tuple[str, int | None, bool],
    *,
    as_json: bool,
) -> int:
    levels = levels_of(agents, "--agents")
    if levels[0] != 1 or len(levels) < 2:
        raise UserError(f"--agents `{agents}` needs 1 and another number", hint="write it as --agents 1,50")
    if tasks > MOST_TASKS:
        raise UserError(f"--tasks {tasks} is too large", hint=f"at most {MOST_TASKS:,}")
    if tasks < levels[-1]:
        raise UserError(f"--tasks {tasks} cannot keep {levels[-1]} agents busy", hint=f"use --tasks {levels[-1]}")
    timeout, processes, keep_text = limits
    plan = SweepPlan(
        concurrency=levels,
        tasks=tasks,
        runs=runs,
        budget_s=None,
        workload=workload,
        same_tasks=True,
        timeout_s=positive_seconds(timeout, "--timeout", "1h"),
        keep_text=keep_text,
        processes=processes,
        kind="serial-vs-swarm",
    )
    return show(measure(plan, target), price=None, as_json=as_json)


def show(summary: SweepSummary, *, price: float | None, as_json: bool) -> int:
    if as_json:
        print_json(sweep_json(summary))
    else:
        print_summary(summary, price=price)
        note(f"stored as run {summary.run_id}; `skep report {summary.run_id}` writes the pictures")
    fail_for(summary)
    return 0


def fail_for(summary: SweepSummary) -> None:
    """By the rows themselves: a failed request is never lost between two figures."""
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        rows = [row for row in store.requests(summary.run_id) if row.level]
    failed = [row for row in rows if not row.ok]
    if failed:
        what = f"{len(failed)} of {len(rows)} requests failed: {_reasons(failed)}"
        raise EndpointError(what, hint="docs/errors.md says what each kind means; the rows are in the store")


def measure(plan: SweepPlan, target: EndpointOptions) -> SweepSummary:
    async def run() -> SweepSummary:
        endpoint = await target.find()
        note(headline(plan, endpoint))
        maker = await maker_for(plan.workload, endpoint)
        meter = meter_for(endpoint)
        with open_store(user_paths(os.environ).store) as store, live_view() as progress:
            return await run_sweep(plan, endpoint, store, read_host(), progress, maker=maker, meter=meter)

    return run_measuring(run)


def measure_endpoint(plan: SweepPlan, url: str, model: str | None) -> SweepSummary:
    return measure(plan, EndpointOptions(url, model))


def sweep_json(summary: SweepSummary) -> dict[str, Any]:
    """The documented form: docs/json.md."""
    document: dict[str, Any] = _plain(asdict(summary))
    return document


def _plain(value: Any) -> Any:
    """Tuples and enums as JSON knows them."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return getattr(value, "value", value)


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
