"""`skep bench open`, `classes` and `replay`: loads that follow a clock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.open_loop import LevelRun, TimedPlan, classes_part, open_part, replay_part, run_timed
from skep.bench.records import SweepSummary
from skep.bench.tasks import TaskMaker, Workload
from skep.bench.tokens_per_char import calibrate_on
from skep.cli.bench import ClassesOptions, OpenOptions, ReplayOptions, TimedOptions
from skep.cli.bench_common import (
    maker_for,
    meter_for,
    positive_seconds,
    run_measuring,
    seed_of,
    text_of,
    toml_of,
    workload_of,
)
from skep.cli.liveview import live_view
from skep.cli.output import note
from skep.cli.sweep import show
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.store.database import open_store
from skep.workload.arrivals import parse_arrivals
from skep.workload.calibration import TokenCalibration
from skep.workload.items import workload_fingerprint
from skep.workload.mix import TrafficClass, parse_classes, with_agents
from skep.workload.traces import TraceItem, read_trace

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
        return await _measured("open", config, options, parts, endpoint, maker)

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
        return await _measured("classes", config, options, parts, endpoint, maker)

    show(run_measuring(run), as_json=options.as_json, title="traffic", names=("all",))


def run_replay_command(options: ReplayOptions) -> None:
    items, seed = read_items(options.trace, options.speed, options.limit), seed_of(options.seed)
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
        return await _measured("replay", config, options, [part], endpoint, maker)

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
        raise UserError(f"`{path}` gives shares of agents", hint="say how many there are in all with --agents")
    return classes if agents is None else with_agents(classes, agents)


def read_items(path: Path, speed: float, limit: int | None) -> tuple[TraceItem, ...]:
    return read_trace(text_of(path).splitlines(), speed=speed, limit=limit)


async def _measured(
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
    with open_store(user_paths(os.environ).store) as store, live_view() as progress:
        meter = meter_for(endpoint)
        return await run_timed(plan, parts, endpoint, store, read_host(), maker, progress, meter=meter)
