"""The loads of `skep bench`: sweep, serial-vs-swarm and open."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, get_args

from msgspec import to_builtins
from msgspec.structs import replace

from skep.bench.agent_figures import AgentsSummary
from skep.bench.endpoint import Endpoint
from skep.bench.metrics import SweepSummary
from skep.bench.open_loop import OpenPlan, run_open
from skep.bench.published import published_shares
from skep.bench.session import OnProgress, SessionProgress
from skep.bench.stored_run import kept_words, load_run
from skep.bench.sweep import MOST_AGENTS, SweepPlan, run_sweep
from skep.bench.tasks import Shape, TaskMaker, Workload, calibrate_on
from skep.cli.bench import (
    ABOptions,
    OpenOptions,
    SerialVsSwarmOptions,
    SweepOptions,
    WorkloadOptions,
)
from skep.cli.options import EndpointOptions, Interrupted, existing, run_measuring
from skep.config.presets import find_preset, presets_folder
from skep.errors import EndpointError, UserError
from skep.host.facts import read_host
from skep.host.power import PowerMeter, open_meter
from skep.paths import LOOPBACK, user_paths
from skep.report.liveview import LevelLines, level_frame, progress_view
from skep.report.sweep_text import (
    cut_answers,
    failure_reasons,
    headline,
    print_summary,
    published_words,
    shortfalls,
)
from skep.report.terminal import note, print_json
from skep.stats.slo import SloLimits
from skep.store.database import open_store
from skep.units import one_line, parse_int_list, parse_positive_seconds, parse_seconds, parse_share

MOST_TASKS = 100_000
AUTO = "auto"
QUICK_TOKENS = 128  # of an answer, at most
MOST_RATE = 2000.0
NEEDS_LENGTHS = ("conversation", "shared-prefix")


def plan_of(options: SweepOptions) -> SweepPlan:
    finds_knee = options.concurrency.strip() == AUTO
    if finds_knee:
        levels: tuple[int, ...] = (1,)
    else:
        levels = levels_of(options.concurrency, "--concurrency")
    if options.tasks is not None and options.tasks > MOST_TASKS:
        raise UserError(
            f"--tasks {options.tasks} is too large",
            hint=f"at most {MOST_TASKS:,} per run of a level",
        )
    if options.warm_up not in ("steady", "quick"):
        raise UserError(f"--warm-up `{options.warm_up}` is unknown", hint="choose steady or quick")
    if options.tasks is not None and options.tasks < levels[-1]:
        hint = f"use --tasks {levels[-1]} or more, or a smaller --concurrency"
        raise UserError(f"--tasks {options.tasks} cannot keep {levels[-1]} agents busy", hint=hint)
    plan = sweep_plan(
        options,
        levels,
        finds_knee=finds_knee,
        precision=parse_share(options.precision, "--precision"),
        budget_s=parse_positive_seconds(options.budget, "--budget", "10m"),
        quick_warm_up=options.quick or options.warm_up == "quick",
        quick=options.quick,
        slo=SloLimits.parse(options.slo) if options.slo else None,
        keep_text=options.store_prompts,
    )
    if not options.quick:
        return plan
    short = replace(plan.workload, max_tokens=min(QUICK_TOKENS, plan.workload.max_tokens))
    return replace(plan, workload=short)


def sweep_plan(
    options: SweepOptions | SerialVsSwarmOptions | ABOptions,
    levels: Sequence[int],
    **settings: Any,
) -> SweepPlan:
    """Return the plan of these levels with the options that all of these commands have."""
    return SweepPlan(
        concurrency=tuple(levels),
        tasks=options.tasks,
        runs=options.runs,
        workload=workload_of(options),
        timeout_s=parse_positive_seconds(options.timeout, "--timeout", "15m"),
        **settings,
    )


def levels_of(text: str, option: str) -> tuple[int, ...]:
    levels = parse_int_list(text, name=option)
    if levels[-1] > MOST_AGENTS:
        raise UserError(
            f"{option} {levels[-1]} is too large", hint=f"one client goes up to {MOST_AGENTS}"
        )
    return levels


def run_sweep_command(options: SweepOptions) -> None:
    """Raise EndpointError where requests failed: the exit code is 1."""
    plan = plan_of(options)
    summary = measure(plan, partial(endpoint_of, options), as_json=options.as_json)
    note(*shortfalls(plan, summary), *cut_answers(plan, summary), *_of_published(summary))
    show(summary, price=options.price, as_json=options.as_json)


def _of_published(summary: SweepSummary) -> list[str]:
    """Return the share of the published figures where a deployment of skep serves a preset; else
    nothing.
    """
    paths = user_paths(os.environ)
    with open_store(paths.store, read_only=True) as store:
        name = store.run(summary.run_id).engine.get("preset")
    try:
        if isinstance(name, str):
            preset = find_preset(name, presets_folder(paths))
        else:
            preset = None
    except UserError as error:  # its file was changed since the start
        return [f"no share of published figures: {one_line(error.message)}"]
    if preset is not None:
        shares = published_shares(preset.published, summary)
    else:
        shares = []
    if preset is None or not shares:
        return []
    return [published_words(preset.name, shares, simulated=summary.simulated)]


def run_swarm_command(options: SerialVsSwarmOptions) -> None:
    levels = levels_of(options.agents, "--concurrency")
    tasks = options.tasks
    if levels[0] != 1 or len(levels) < 2:
        hint = "write it as --concurrency 1,50"
        raise UserError(f"--concurrency `{options.agents}` needs 1 and another number", hint=hint)
    if tasks > MOST_TASKS:
        raise UserError(f"--tasks {tasks} is too large", hint=f"at most {MOST_TASKS:,}")
    if tasks < levels[-1]:
        raise UserError(
            f"--tasks {tasks} cannot keep {levels[-1]} agents busy",
            hint=f"use --tasks {levels[-1]}",
        )
    if options.sample is not None and options.sample > tasks:
        raise UserError(
            f"--sample {options.sample} is more than --tasks {tasks}",
            hint="leave it out to run them all",
        )
    sample = options.sample if options.sample != tasks else None
    settings = {
        "budget_s": None,
        "serial_sample": sample,
        "same_tasks": True,
        "keep_text": options.store_prompts,
        "kind": "serial-vs-swarm",
    }
    plan = sweep_plan(options, levels, **settings)
    summary = measure(plan, partial(endpoint_of, options), as_json=options.as_json)
    show(summary, as_json=options.as_json)


def show(
    summary: SweepSummary,
    *,
    as_json: bool,
    price: float | None = None,
    title: str = "C",
    names: Sequence[str] = (),
) -> None:
    """Print the run and raise where requests failed."""
    if as_json:
        print_json(to_builtins(summary))
    else:
        print_summary(summary, price=price, title=title, names=names)
        note(
            f"stored as run {summary.run_id}; `skep runs report {summary.run_id}` writes "
            "the report"
        )
    fail_for(summary)


def fail_for(summary: SweepSummary | AgentsSummary) -> None:
    """By the rows themselves: a failed request is never lost between two figures."""
    with open_store(user_paths(os.environ).store, read_only=True) as store:
        rows = [row for row in store.requests(summary.run_id) if row.level]
    failed = [row for row in rows if not row.ok]
    if failed:
        message = f"{len(failed)} of {len(rows)} requests failed: {failure_reasons(failed)}"
        raise EndpointError(
            message, hint="docs/errors.md says what each kind means; the rows are in the store"
        )


OpenEndpoint = Callable[[], AbstractAsyncContextManager[Endpoint]]


@asynccontextmanager
async def endpoint_of(options: EndpointOptions) -> AsyncIterator[Endpoint]:
    yield await options.find()


def measure(plan: SweepPlan, opened: OpenEndpoint, *, as_json: bool = False) -> SweepSummary:
    """`opened`: the endpoint, for as long as it is measured.

    On Ctrl-C, print what there is of the run, unless `as_json`, and raise Interrupted.
    """
    latest_progress = deque([SessionProgress()], maxlen=1)

    async def run() -> SweepSummary:
        async with opened() as endpoint:
            return await _sweep_endpoint(plan, endpoint, latest_progress.append)

    try:
        return run_measuring(run)
    except Interrupted:
        raise _interrupted(latest_progress[0], as_json=as_json) from None


def _interrupted(now: SessionProgress, *, as_json: bool) -> Interrupted:
    """Print what was measured, as the pages show it, and return the error that says so."""
    if not now.run_id:
        return Interrupted("interrupted before anything was measured", hint=None)
    with existing() as store:
        summary = load_run(store, now.run_id)[1]
    where = f"at C={now.level}" if now.level else "while it warmed up"
    if not summary.levels:
        return Interrupted(f"interrupted {where}", hint=kept_words(summary))
    if not as_json:
        print_summary(summary)
    draws = f"`skep runs report {now.run_id}` draws them"
    return Interrupted(f"interrupted {where}", hint=f"{kept_words(summary)}: {draws}")


async def _sweep_endpoint(plan: SweepPlan, endpoint: Endpoint, watch: OnProgress) -> SweepSummary:
    note(headline(plan, endpoint))
    maker = await maker_for(plan.workload, endpoint)
    meter = meter_for(endpoint)
    with open_store(user_paths(os.environ).store) as store, level_view() as show:

        def told(progress: SessionProgress) -> None:
            watch(progress)
            show(progress)

        host = read_host()
        summary = await run_sweep(plan, endpoint, store, host, told, maker=maker, meter=meter)
        # A deployment of skep tells what it is: plans can rest on its figures.
        if endpoint.engine.get("setup"):
            from skep.bench.calibration import calibration_from_sweep

            rows = [row for row in store.requests(summary.run_id) if row.level]
            as_run = replace(
                plan, concurrency=tuple(level.concurrency for level in summary.levels)
            )
            if (
                calibration := calibration_from_sweep(as_run, endpoint, summary, rows, host)
            ) is not None:
                store.append_calibration(calibration)
        return summary


def run_open_command(options: OpenOptions) -> None:
    plan = OpenPlan(
        rates=rates_of(options.rate),
        arrivals=options.arrivals,
        for_s=parse_positive_seconds(options.duration, "--for", "60s"),
        runs=options.runs,
        workload=workload_of(options),
        timeout_s=parse_positive_seconds(options.timeout, "--timeout", "15m"),
        keep_text=options.store_prompts,
    )
    names = [f"{rate:g}" for rate in plan.rates]

    async def run() -> SweepSummary:
        endpoint = await options.find()
        description = (
            f"{', '.join(names)} requests per second, {plan.arrivals}, {plan.for_s:g} s each"
        )
        note(f"{endpoint.model} at {endpoint.url}: {description}; seed {plan.workload.seed}")
        maker = await maker_for(plan.workload, endpoint)
        meter = meter_for(endpoint)
        with open_store(user_paths(os.environ).store) as store, level_view() as progress:
            return await run_open(plan, endpoint, store, read_host(), maker, progress, meter=meter)

    show(run_measuring(run), as_json=options.as_json, title="rate /s", names=names)


def rates_of(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate <= MOST_RATE for rate in rates):
        hint = f"write it as --rate 0.5,1,2; at most {MOST_RATE:g}"
        raise UserError(f"--rate `{text}` is not a list of requests per second", hint=hint)
    return rates


# Shared by the commands that measure


async def maker_for(workload: Workload, endpoint: Endpoint, *, salt: str = "") -> TaskMaker:
    """Lengths are measured on the engine where the workload is given in its tokens."""
    if workload.prompt_tokens is None and workload.shape not in NEEDS_LENGTHS:
        return TaskMaker(workload, salt=salt)
    words = await calibrate_on(endpoint, workload.prompt_tokens, workload.seed)
    if words.worst is not None:
        miss = f", within {100 * words.worst:.1f} % on {words.samples} samples"
    else:
        miss = ""
    if words.overhead_tokens >= 1:
        template = f", {words.overhead_tokens:.0f} of the chat template"
    else:
        template = ""
    note(f"{words.chars_per_token:.2f} characters per token{template}{miss}")
    return TaskMaker(workload, words, salt=salt)


def meter_for(endpoint: Endpoint) -> PowerMeter | None:
    """This machine's GPUs, if they are the ones that serve."""
    if endpoint.origin.host in LOOPBACK:
        return open_meter()
    return None


def workload_of(options: WorkloadOptions) -> Workload:
    if options.shape not in get_args(Shape):
        raise UserError(
            f"--shape `{options.shape}` is unknown",
            hint=f"choose one of {', '.join(get_args(Shape))}",
        )
    return Workload(
        shape=options.shape,  # type: ignore[arg-type]
        prompt_tokens=options.prompt_tokens,
        max_tokens=options.max_tokens,
        fixed_output=options.fixed_output,
        seed=seed_of(options.seed),
        turns=options.turns,
        think_s=parse_seconds(options.think),
    )


def seed_of(seed: int | None) -> int:
    if seed is None:
        return random.SystemRandom().randrange(2**31)
    return seed


def level_view() -> AbstractContextManager[Callable[[SessionProgress], None]]:
    """Return the levels so far and what happens now; a line for each run of a level where there is
    no terminal.
    """
    return progress_view(LevelLines(), level_frame)
