"""Commands that make load: bench sweep, serial-vs-swarm, open, classes, replay. Options to values, nothing more."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from skep.bench.endpoint import Endpoint
from skep.bench.open_loop import Part, TimedPlan, classes_part, open_part, replay_part, run_timed
from skep.bench.records import SweepSummary
from skep.bench.tasks import TaskMaker, Workload
from skep.bench.tokens_per_char import calibrate_on
from skep.cli import bench_common as of
from skep.cli.bench_common import Target, maker_for, meter_for, positive_seconds, run_measuring, text_of, toml_of
from skep.cli.liveview import live_view
from skep.cli.output import note, print_json
from skep.cli.serve import JsonOption
from skep.cli.summaries import print_summary
from skep.cli.sweep import fail_for, sweep_json
from skep.errors import UserError
from skep.host.facts import read_host
from skep.paths import user_paths
from skep.store.database import open_store
from skep.workload.arrivals import parse_arrivals
from skep.workload.calibration import Calibration
from skep.workload.items import workload_fingerprint
from skep.workload.mix import TrafficClass, parse_classes, with_agents
from skep.workload.traces import TraceItem, read_trace

bench = typer.Typer(no_args_is_help=True, help="Measure an endpoint under concurrency.", rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")
    bench.command(epilog="Example: skep bench sweep --url http://127.0.0.1:8400 --concurrency 1,2,4,8")(sweep)
    bench.command("serial-vs-swarm", epilog="Example: skep bench serial-vs-swarm --tasks 50 --agents 1,50")(swarm)
    bench.command("open", epilog="Example: skep bench open --rate 0.5,1,2 --arrivals poisson --for 60s")(open_loop)
    bench.command(epilog="Example: skep bench classes mix.toml --for 2m")(classes)
    bench.command(epilog="Example: skep bench replay trace.jsonl --speed 2")(replay)


@bench.callback()
def _bench() -> None:
    pass


def sweep(
    context: typer.Context,
    url: of.Url = None,
    model: of.Model = None,
    concurrency: of.Concurrency = "1,2,4,8",
    to_saturation: Annotated[
        bool, typer.Option("--to-saturation", help="Raise C until knee and cliff are found, instead of -c.")
    ] = False,
    slo: Annotated[
        str | None, typer.Option(help="Find the highest C that meets it: ttft=1s,tpot=50ms (95 in 100 requests).")
    ] = None,
    max_concurrency: Annotated[int, typer.Option(min=2, help="A search goes no further.")] = 256,
    shape: Annotated[
        str, typer.Option(help="steady, burst, conversation, shared-prefix or prefill: docs/bench.md.")
    ] = "steady",
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks per level and run; default: three for each agent.")
    ] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Exactly so many runs of each level, instead of --precision.")
    ] = None,
    precision: of.Precision = "3%",
    budget: of.Budget = "10m",
    warm_up: Annotated[
        str, typer.Option(help="steady: until figures are; quick: one batch, however it went.")
    ] = "steady",
    max_tokens: of.MaxTokens = 128,
    fixed_output: of.FixedOutput = False,
    size: of.SizeOption = "short",
    prompt_tokens: of.PromptTokens = None,
    turns: Annotated[int, typer.Option(min=1, help="Of a conversation.")] = 4,
    think: Annotated[str, typer.Option(help="Mean pause of an agent between two turns.")] = "2s",
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    api: of.Api = "openai",
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    processes: of.Processes = None,
    price: of.Price = None,
    store_prompts: of.Prompts = True,
    against_preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Rerun the shape of a preset's published figures: how much of them is had?"),
    ] = None,
    shape_of: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, help="Of its K-th figure, not of most; `skep presets show` counts them."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fresh coding tasks at each concurrency: effective tok/s, contention, TTFT, knee and cliff, with intervals."""
    from skep.cli.bench_common import Target, workload_of
    from skep.cli.sweep import SweepWishes, run_sweep_command

    wishes = SweepWishes(
        target=Target(url or of.running_url(), model, key_env, api),
        workload=workload_of(
            shape=shape,
            size=size,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            fixed_output=fixed_output,
            seed=seed,
            turns=turns,
            think=think,
        ),
        concurrency=concurrency,
        to_saturation=to_saturation,
        slo=slo,
        max_concurrency=max_concurrency,
        tasks=tasks,
        runs=runs,
        precision=precision,
        budget=budget,
        warm_up=warm_up,
        timeout=timeout,
        processes=processes,
        store_prompts=store_prompts,
    )
    if against_preset is not None:
        from skep.cli.against_preset import run_against_command

        own = of.given_options(context)
        raise typer.Exit(run_against_command(wishes, against_preset, shape_of, own, price=price, as_json=as_json))
    if shape_of is not None:
        raise UserError("--shape-of goes with --against-preset", hint="name the preset whose figure it is")
    raise typer.Exit(run_sweep_command(wishes, price=price, as_json=as_json))


def swarm(
    url: of.Url = None,
    model: of.Model = None,
    tasks: Annotated[int, typer.Option(min=1, help="The same ones for both.")] = 50,
    agents: Annotated[str, typer.Option(help="One after the other, and so many at once.")] = "1,50",
    runs: Annotated[int, typer.Option(min=1, help="Of both, in turns.")] = 1,
    prompt_tokens: of.PromptTokens = 1024,
    max_tokens: of.MaxTokens = 512,
    fixed_output: of.FixedOutput = False,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    api: of.Api = "openai",
    timeout: of.Timeout = "1h",
    processes: of.Processes = None,
    store_prompts: of.Prompts = True,
    as_json: JsonOption = False,
) -> None:
    """The same tasks one after the other and all at once: the speedup by wall time and by tokens."""
    from skep.cli.bench_common import Target, workload_of
    from skep.cli.sweep import run_swarm_command

    workload = workload_of(
        shape="steady",
        size="short",
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        fixed_output=fixed_output,
        seed=seed,
    )
    target = Target(url or of.running_url(), model, key_env, api)
    limits = (timeout, processes, store_prompts)
    raise typer.Exit(run_swarm_command(target, workload, agents, tasks, runs, limits, as_json=as_json))


def open_loop(
    url: of.Url = None,
    model: of.Model = None,
    rate: Annotated[str, typer.Option(help="Requests a second, one level each.")] = "1",
    arrivals: Annotated[str, typer.Option(help="poisson, constant, or gamma:CV such as gamma:2.0.")] = "poisson",
    duration: Annotated[str, typer.Option("--for", help="Time of arrivals at each rate.")] = "60s",
    runs: Annotated[int, typer.Option(min=1, help="Of each rate.")] = 1,
    max_tokens: of.MaxTokens = 128,
    fixed_output: of.FixedOutput = False,
    size: of.SizeOption = "short",
    prompt_tokens: of.PromptTokens = None,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    api: of.Api = "openai",
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    processes: of.TimedProcesses = 1,
    store_prompts: of.Prompts = True,
    as_json: JsonOption = False,
) -> None:
    """Requests that arrive at a rate, whatever the server does; latency counts from when each was due."""
    from skep.cli.bench_common import Target, workload_of

    workload = workload_of(
        shape="steady",
        size=size,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        fixed_output=fixed_output,
        seed=seed,
    )
    target = Target(url or of.running_url(), model, key_env, api)
    schedule = (rate, arrivals, duration, runs)
    how = Telling(as_json=as_json, keep_text=store_prompts, processes=processes)
    raise typer.Exit(run_open_command(target, workload, schedule, timeout, how))


def classes(
    mix: Annotated[Path, typer.Argument(help="A TOML file with a table [class.NAME] for each kind of traffic.")],
    url: of.Url = None,
    model: of.Model = None,
    duration: Annotated[str, typer.Option("--for", help="How long each run sends.")] = "60s",
    agents: Annotated[int | None, typer.Option(min=1, help="In all, where classes have a share of them.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Of the whole mix.")] = 1,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    processes: of.TimedProcesses = 1,
    store_prompts: of.Prompts = True,
    as_json: JsonOption = False,
) -> None:
    """Several kinds of traffic at once, each with its own shape and priority, reported one by one."""
    from skep.cli.bench_common import Target

    target = Target(url or of.running_url(), model, key_env)
    schedule = (duration, agents, runs, seed)
    how = Telling(as_json=as_json, keep_text=store_prompts, processes=processes)
    raise typer.Exit(run_classes_command(target, mix, schedule, timeout, how))


def replay(
    trace: Annotated[Path, typer.Argument(help="JSONL: Mooncake's traces, or lines of the OpenAI batch API.")],
    url: of.Url = None,
    model: of.Model = None,
    speed: Annotated[float, typer.Option(help="2 replays in half the time.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many from the beginning.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Where the trace does not say.")] = 512,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    processes: of.TimedProcesses = 1,
    store_prompts: of.Prompts = True,
    as_json: JsonOption = False,
) -> None:
    """Recorded traffic again: its arrival times, lengths and shared prefixes, or its own words."""
    from skep.cli.bench_common import Target

    target = Target(url or of.running_url(), model, key_env)
    wanted = (speed, limit, max_tokens, seed)
    how = Telling(as_json=as_json, keep_text=store_prompts, processes=processes)
    raise typer.Exit(run_replay_command(target, trace, wanted, timeout, how))


MOST_RATE = 2000.0


@dataclass(frozen=True, slots=True)
class Telling:
    """What is kept and shown, and how many processes make the load."""

    as_json: bool
    keep_text: bool
    processes: int = 1


def run_open_command(
    target: Target,
    workload: Workload,
    schedule: tuple[str, str, str, int],
    timeout: str,
    how: Telling,
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
    target: Target,
    mix: Path,
    schedule: tuple[str, int | None, int, int | None],
    timeout: str,
    how: Telling,
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
    target: Target,
    trace: Path,
    wanted: tuple[float, int | None, int, int | None],
    timeout: str,
    how: Telling,
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
        calibration = await calibrate_on(endpoint, None, seed) if needs else Calibration()
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


def _plan(kind: str, config: dict[str, Any], endpoint: Endpoint, timeout: str, how: Telling) -> TimedPlan:
    what = {key: str(value) for key, value in config.items() if key != "seed"}
    fingerprint = workload_fingerprint({"kind": kind, "model": endpoint.model, **what})[:16]
    timeout_s = positive_seconds(timeout, "--timeout", "15m")
    return TimedPlan(kind, config, fingerprint, timeout_s, how.keep_text, how.processes)


async def _measured(plan: TimedPlan, parts: Sequence[Part], endpoint: Endpoint, maker: TaskMaker) -> SweepSummary:
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
