"""`skep bench open`, `classes` and `replay`: loads that follow a clock."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.open_loop import LevelRun, TimedPlan, classes_part, open_part, replay_part, run_timed
from skep.bench.records import SweepSummary
from skep.bench.tasks import TaskMaker, Workload
from skep.bench.tokens_per_char import calibrate_on
from skep.cli.bench_common import (
    EndpointOptions,
    maker_for,
    meter_for,
    positive_seconds,
    run_measuring,
    text_of,
    toml_of,
)
from skep.cli.liveview import live_view
from skep.cli.output import note, print_json
from skep.cli.summaries import print_summary
from skep.cli.sweep import fail_for, sweep_json
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


@dataclass(frozen=True, slots=True)
class BenchOutputOptions:
    """Options of a timed run: what is stored and shown, and the number of load processes."""

    as_json: bool
    keep_text: bool
    processes: int = 1


def run_open_command(
    target: EndpointOptions,
    workload: Workload,
    schedule: tuple[str, str, str, int],
    timeout: str,
    how: BenchOutputOptions,
) -> int:
    rate, arrivals, duration, runs = schedule
    rates = rates_of(rate)
    parse_arrivals(arrivals)
    for_s = positive_seconds(duration, "--for", "60s")
    config = {**asdict(workload), "rates": rates, "arrivals": arrivals, "for_s": for_s, "runs": runs}

    async def run() -> SweepSummary:
        endpoint = await target.find()
        note(
            f"{endpoint.model} at {endpoint.url}: {', '.join(f'{one:g}' for one in rates)} requests a second, "
            f"{arrivals}, {for_s:g} s each; seed {workload.seed}"
        )
        maker = await maker_for(workload, endpoint)
        parts = [
            open_part(maker, place, repeat, rate=one, arrivals=arrivals, for_s=for_s)
            for repeat in range(runs)
            for place, one in enumerate(rates, start=1)
        ]
        return await _measured(_plan("open", config, endpoint, timeout, how), parts, endpoint, maker)

    summary = run_measuring(run)
    return _show(summary, as_json=how.as_json, title="rate /s", names=[f"{one:g}" for one in rates])


def run_classes_command(
    target: EndpointOptions,
    mix: Path,
    schedule: tuple[str, int | None, int, int | None],
    timeout: str,
    how: BenchOutputOptions,
) -> int:
    duration, agents, runs, seed = schedule
    classes = read_mix(mix, agents)
    for_s = positive_seconds(duration, "--for", "60s")
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    config = {"classes": [asdict(one) for one in classes], "for_s": for_s, "runs": runs, "seed": seed}

    async def run() -> SweepSummary:
        endpoint = await target.find()
        names = ", ".join(f"{one.name} ({one.shape}, {one.priority})" for one in classes)
        note(f"{endpoint.model} at {endpoint.url}: {names}; {for_s:g} s, {runs} times; seed {seed}")
        calibration = await calibrate_on(endpoint, None, seed)
        parts = [classes_part(classes, calibration, repeat, seed=seed, for_s=for_s) for repeat in range(runs)]
        maker = TaskMaker(Workload(seed=seed), calibration)
        return await _measured(_plan("classes", config, endpoint, timeout, how), parts, endpoint, maker)

    summary = run_measuring(run)
    return _show(summary, as_json=how.as_json)


def run_replay_command(
    target: EndpointOptions,
    trace: Path,
    wanted: tuple[float, int | None, int, int | None],
    timeout: str,
    how: BenchOutputOptions,
) -> int:
    speed, limit, max_tokens, seed = wanted
    items = read_items(trace, speed, limit)
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    config = {"trace": trace.name, "requests": len(items), "speed": speed, "max_tokens": max_tokens, "seed": seed}

    async def run() -> SweepSummary:
        endpoint = await target.find()
        timed = f" over {items[-1].at_s:,.0f} s" if items[-1].at_s is not None else ", 16 at a time"
        note(f"{endpoint.model} at {endpoint.url}: {len(items)} requests of {trace.name}{timed}; seed {seed}")
        needs = any(item.blocks for item in items)
        calibration = await calibrate_on(endpoint, None, seed) if needs else TokenCalibration()
        part = replay_part(items, calibration, seed=seed, default_tokens=max_tokens)
        maker = TaskMaker(Workload(seed=seed), calibration)
        return await _measured(_plan("replay", config, endpoint, timeout, how), [part], endpoint, maker)

    summary = run_measuring(run)
    return _show(summary, as_json=how.as_json)


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


def _plan(kind: str, config: dict[str, Any], endpoint: Endpoint, timeout: str, how: BenchOutputOptions) -> TimedPlan:
    what = {key: str(value) for key, value in config.items() if key != "seed"}
    fingerprint = workload_fingerprint({"kind": kind, "model": endpoint.model, **what})[:16]
    timeout_s = positive_seconds(timeout, "--timeout", "15m")
    return TimedPlan(kind, config, fingerprint, timeout_s, how.keep_text, how.processes)


async def _measured(plan: TimedPlan, parts: Sequence[LevelRun], endpoint: Endpoint, maker: TaskMaker) -> SweepSummary:
    with open_store(user_paths(os.environ).store) as store, live_view() as show:
        meter = meter_for(endpoint)
        return await run_timed(plan, parts, endpoint, store, read_host(), maker, show, meter=meter)


def _show(summary: SweepSummary, *, as_json: bool, title: str = "traffic", names: Sequence[str] = ("all",)) -> int:
    if as_json:
        print_json(sweep_json(summary))
    else:
        print_summary(summary, title=title, names=names)
        note(f"stored as run {summary.run_id}; `skep report {summary.run_id}` writes the pictures")
    fail_for(summary)
    return 0
