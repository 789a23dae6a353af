"""The loads of `skep bench`: sweep and serial-vs-swarm, and open, classes and replay, which follow a clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from skep.bench.endpoint import Endpoint
from skep.bench.open_loop import LevelRun, TimedPlan, classes_part, open_part, replay_part, run_timed
from skep.bench.records import LevelSummary, Promise, Speedup, SweepSummary
from skep.bench.summary import cost_per_million_tokens
from skep.bench.sweep import SweepPlan, run_sweep
from skep.bench.tasks import TaskMaker, Workload
from skep.bench.tokens_per_char import calibrate_on
from skep.cli.bench import ClassesOptions, OpenOptions, ReplayOptions, SerialVsSwarmOptions, SweepOptions, TimedOptions
from skep.cli.bench_common import (
    MAX_CONCURRENCY,
    level_view,
    maker_for,
    meter_for,
    positive_seconds,
    run_measuring,
    seed_of,
    text_of,
    toml_of,
    workload_of,
)
from skep.cli.options import EndpointOptions
from skep.cli.output import note, plain, print_json
from skep.errors import EndpointError, UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.report import levels as said
from skep.report.columns import Column, print_records
from skep.report.levels import level_columns, runs_text
from skep.stats.slo import SloLimits
from skep.store.database import open_store
from skep.store.records import Request
from skep.units import format_seconds, number, parse_int_list
from skep.workload.arrivals import parse_arrivals
from skep.workload.calibration import TokenCalibration
from skep.workload.items import workload_fingerprint
from skep.workload.mix import TrafficClass, parse_classes, with_agents
from skep.workload.traces import read_trace

# The rank behind a key: in a narrow terminal the highest goes first.
LEVEL_KEYS = (
    "effective_tok_s spread~1 plateau_tok_s~7 task_tok_s~1 contention_pct~2 ttft_p50_ms ttft_p95_ms~5 tpot_p50_ms~4 "
    "engine_tok_s~8 cached_prompt_share~9 counted~6 wall_s~6 failed joules_per_token~3"
)
CLASS_KEYS = (
    "traffic requests ttft_p50_ms ttft_p95_ms~2 tpot_p50_ms~1 total_p95_ms~2 task_tok_s~1 queued_p50_ms~3 failed"
)


def print_summary(
    summary: SweepSummary, *, price: float | None = None, title: str = "C", names: Sequence[str] = ()
) -> None:
    """`title` and `names` of the levels, where they are no concurrencies."""
    print_levels(summary.levels, price=price, title=title, names=names)
    if summary.classes:
        print_records(level_columns(CLASS_KEYS), summary.classes)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    note(*remarks(summary, names))


def print_levels(
    levels: Sequence[LevelSummary], *, price: float | None = None, title: str = "C", names: Sequence[str] = ()
) -> None:
    def name(level: LevelSummary) -> str:
        shown = names[level.concurrency - 1] if names else str(level.concurrency)
        return f"{shown}{'*' if level.client_limited else ''}"

    columns = [replace(one, optional=True) for one in level_columns(LEVEL_KEYS)]
    if price is not None:
        columns.append(
            Column("cost", "cost per M", partial(_cost, price), partial(number, digits=2), "", 3, optional=True)
        )
    print_records([Column[LevelSummary]("concurrency", title, name), *columns], levels)


def remarks(summary: SweepSummary, names: Sequence[str] = ()) -> list[str]:
    """`names` of the levels, where they are no concurrencies."""
    titles = [names[level.concurrency - 1] for level in summary.levels] if names else []
    found = said.left_out_sentences(summary.levels, titles)
    if summary.speedups is not None:
        found.extend(_speedup(summary.speedups))
    if summary.promise is not None:
        found.append(_promise(summary.promise))
    if summary.turning is not None and len(summary.levels) > 2 and said.has_curve(summary.levels):
        found.append(said.turning_sentence(summary.turning))
    if summary.drift is not None and not summary.drift.contains(1.0):
        found.append(f"warning: {said.drift_sentence(summary)}")
    for level in summary.levels:
        if level.energy is not None and level.energy.throttled:
            found.append(f"C={level.concurrency}: the GPU was slowed down: {', '.join(level.energy.throttled)}")
        found.extend(
            f"C={level.concurrency}: {one.clock.value} is {said.clock_figure(one.clock, one.client)} by the client and "
            f"{said.clock_figure(one.clock, one.engine)} by the engine: {one.cause}"
            for one in level.clocks
        )
    if summary.client_limited:
        late_ms = max((level.late_ms for level in summary.levels if level.late_ms is not None), default=None)
        why = "" if late_ms is None else f"; load began up to {late_ms:,.0f} ms late"
        found.append(f"warning: the client was the limit at some level (marked *{why}); its figures are a lower bound")
    return found


def _speedup(found: Speedup) -> list[str]:
    first = (
        f"one after the other {format_seconds(found.serial_wall_s)}, {found.concurrency} at once "
        f"{format_seconds(found.swarm_wall_s)}: {found.by_wall:.2f}x by wall time, "
        f"{number(found.by_tokens, digits=2)}x by tokens ({found.tokens_serial:,} and {found.tokens_swarm:,})"
    )
    cut = found.truncated_serial + found.truncated_swarm
    if not cut:
        return [first]
    told = f"{found.truncated_serial} and {found.truncated_swarm} answers ran into the token limit"
    if found.by_wall_whole is None:
        return [first, f"{told}: none is left without them"]
    whole = f"{found.by_wall_whole:.2f}x by wall time, {number(found.by_tokens_whole, digits=2)}x by tokens"
    return [first, f"{told}; without them {whole}"]


def _promise(found: Promise) -> str:
    if found.highest_met is None:
        return f"{found.limits} is not kept, not even by one agent alone"
    failed = f"; not at C={found.lowest_failed}" if found.lowest_failed is not None else "; no level failed"
    if found.safe != found.highest_met:
        return f"{found.limits} is kept up to C={found.safe or 'none'}, and once more at C={found.highest_met}{failed}"
    return f"{found.limits} is kept up to C={found.safe}{failed}"


def _cost(price: float, level: LevelSummary) -> float | None:
    joules = level.energy.joules_per_token if level.energy else None
    return None if joules is None else cost_per_million_tokens(joules, price)


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


def run_sweep_command(options: SweepOptions) -> None:
    """Raise EndpointError where requests failed: the exit code is 1."""
    plan = plan_of(options)
    summary = measure(plan, options)
    note(*shortfalls(plan, summary))
    show(summary, price=options.price, as_json=options.as_json)


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
    levels, tasks = levels_of(options.agents, "--concurrency"), options.tasks
    if levels[0] != 1 or len(levels) < 2:
        raise UserError(
            f"--concurrency `{options.agents}` needs 1 and another number", hint="write it as --concurrency 1,50"
        )
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
        note(f"stored as run {summary.run_id}; `skep runs report {summary.run_id}` writes the pictures")
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
    with open_store(user_paths(os.environ).store) as store, level_view() as progress:
        return await run_sweep(plan, endpoint, store, read_host(), progress, maker=maker, meter=meter)


def sweep_json(summary: SweepSummary) -> dict[str, Any]:
    """Return the documented form: docs/json.md."""
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


MOST_RATE = 2000.0


def run_open_command(options: OpenOptions) -> None:
    rates, arrivals, workload = rates_of(options.rate), options.arrivals, workload_of(options)
    parse_arrivals(arrivals)
    for_s = positive_seconds(options.duration, "--for", "60s")
    config = {**asdict(workload), "rates": rates, "arrivals": arrivals, "for_s": for_s, "runs": options.runs}
    names = [f"{one:g}" for one in rates]

    async def run() -> SweepSummary:
        endpoint = await options.find()
        note(
            f"{endpoint.model} at {endpoint.url}: {', '.join(names)} requests a second, "
            f"{arrivals}, {for_s:g} s each; seed {workload.seed}"
        )
        maker = await maker_for(workload, endpoint)
        parts = [
            open_part(maker, place, repeat, rate=one, arrivals=arrivals, for_s=for_s)
            for repeat in range(options.runs)
            for place, one in enumerate(rates, start=1)
        ]
        return await _measure_timed("open", config, options, parts, endpoint, maker)

    show(run_measuring(run), as_json=options.as_json, title="rate /s", names=names)


def run_classes_command(options: ClassesOptions) -> None:
    classes, runs, seed = read_mix(options.mix, options.agents), options.runs, seed_of(options.seed)
    for_s = positive_seconds(options.duration, "--for", "60s")
    config = {"classes": [asdict(one) for one in classes], "for_s": for_s, "runs": runs, "seed": seed}

    async def run() -> SweepSummary:
        endpoint = await options.find()
        names = ", ".join(f"{one.name} ({one.shape}, {one.priority})" for one in classes)
        note(f"{endpoint.model} at {endpoint.url}: {names}; {for_s:g} s, {runs} times; seed {seed}")
        calibration = await calibrate_on(endpoint, None, seed)
        parts = [classes_part(classes, calibration, repeat, seed=seed, for_s=for_s) for repeat in range(runs)]
        maker = TaskMaker(Workload(seed=seed), calibration)
        return await _measure_timed("classes", config, options, parts, endpoint, maker)

    show(run_measuring(run), as_json=options.as_json, title="traffic", names=("all",))


def run_replay_command(options: ReplayOptions) -> None:
    items = read_trace(text_of(options.trace).splitlines(), speed=options.speed, limit=options.limit)
    seed = seed_of(options.seed)
    name, speed, max_tokens = options.trace.name, options.speed, options.max_tokens
    config = {"trace": name, "requests": len(items), "speed": speed, "max_tokens": max_tokens, "seed": seed}

    async def run() -> SweepSummary:
        endpoint = await options.find()
        timed = f" over {items[-1].at_s:,.0f} s" if items[-1].at_s is not None else ", 16 at a time"
        note(f"{endpoint.model} at {endpoint.url}: {len(items)} requests of {name}{timed}; seed {seed}")
        needs = any(item.blocks for item in items)
        calibration = await calibrate_on(endpoint, None, seed) if needs else TokenCalibration()
        part = replay_part(items, calibration, seed=seed, default_tokens=max_tokens)
        maker = TaskMaker(Workload(seed=seed), calibration)
        return await _measure_timed("replay", config, options, [part], endpoint, maker)

    show(run_measuring(run), as_json=options.as_json, title="traffic", names=("all",))


def rates_of(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate <= MOST_RATE for rate in rates):
        hint = f"write it as --rate 0.5,1,2; at most {MOST_RATE:g}"
        raise UserError(f"--rate `{text}` is not a list of requests per second", hint=hint)
    return rates


def read_mix(path: Path, agents: int | None) -> tuple[TrafficClass, ...]:
    table = toml_of(path).get("class")
    if not isinstance(table, dict):
        raise UserError(f"`{path}` has no table [class.NAME]", hint="docs/bench.md has an example")
    classes = parse_classes(table)
    if agents is None and any(one.share is not None for one in classes):
        raise UserError(f"`{path}` gives shares of agents", hint="say how many there are in all with --concurrency")
    return classes if agents is None else with_agents(classes, agents)


async def _measure_timed(
    kind: str,
    config: dict[str, Any],
    options: TimedOptions,
    parts: Sequence[LevelRun],
    endpoint: Endpoint,
    maker: TaskMaker,
) -> SweepSummary:
    what = {key: str(value) for key, value in config.items() if key != "seed"}
    fingerprint = workload_fingerprint({"kind": kind, "model": endpoint.model, **what})[:16]
    timeout_s = positive_seconds(options.timeout, "--timeout", "15m")
    plan = TimedPlan(kind, config, fingerprint, timeout_s, options.store_prompts, options.processes)
    with open_store(user_paths(os.environ).store) as store, level_view() as progress:
        meter = meter_for(endpoint)
        return await run_timed(plan, parts, endpoint, store, read_host(), maker, progress, meter=meter)
