"""Commands that make load: bench sweep, serial-vs-swarm, open, classes, replay. Options to values, nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skep.cli import bench_options as of
from skep.cli.serve import JsonOption
from skep.errors import UserError

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
        bool,
        typer.Option("--to-saturation", help="Raise the concurrency until knee and cliff are found, instead of -c."),
    ] = False,
    slo: Annotated[
        str | None, typer.Option(help="Find the highest concurrency that meets these p95 limits: ttft=1s,tpot=50ms.")
    ] = None,
    max_concurrency: Annotated[int, typer.Option(min=2, help="Highest concurrency of a search.")] = 256,
    shape: Annotated[
        str, typer.Option(help="steady, burst, conversation, shared-prefix or prefill: docs/bench.md.")
    ] = "steady",
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks per level and run; default: three for each agent.")
    ] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Number of runs of each level, instead of --precision.")
    ] = None,
    precision: of.Precision = "3%",
    budget: of.Budget = "10m",
    warm_up: Annotated[str, typer.Option(help="steady: until the figures are steady; quick: one batch.")] = "steady",
    max_tokens: of.MaxTokens = 128,
    fixed_output: of.FixedOutput = False,
    size: of.Size = "short",
    prompt_tokens: of.PromptTokens = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a conversation.")] = 4,
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
        typer.Option(
            metavar="NAME", help="Repeat the benchmark published with a preset and report what share of it is reached."
        ),
    ] = None,
    shape_of: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, help="Use the preset's K-th published figure (see `skep presets show`)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fresh coding tasks at each concurrency: effective tok/s, contention, TTFT, knee and cliff, with intervals."""
    from skep.cli.bench_common import EndpointOptions, workload_of
    from skep.cli.sweep import SweepOptions, run_sweep_command

    wishes = SweepOptions(
        target=EndpointOptions(url or of.running_url(), model, key_env, api),
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
    tasks: Annotated[int, typer.Option(min=1, help="Tasks, the same for both.")] = 50,
    agents: Annotated[str, typer.Option(help="Compare one task at a time with this many at once.")] = "1,50",
    runs: Annotated[int, typer.Option(min=1, help="Runs of each, in turns.")] = 1,
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
    from skep.cli.bench_common import EndpointOptions, workload_of
    from skep.cli.sweep import run_swarm_command

    workload = workload_of(
        shape="steady",
        size="short",
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        fixed_output=fixed_output,
        seed=seed,
    )
    target = EndpointOptions(url or of.running_url(), model, key_env, api)
    limits = (timeout, processes, store_prompts)
    raise typer.Exit(run_swarm_command(target, workload, agents, tasks, runs, limits, as_json=as_json))


def open_loop(
    url: of.Url = None,
    model: of.Model = None,
    rate: Annotated[str, typer.Option(help="Requests per second, one level each.")] = "1",
    arrivals: Annotated[str, typer.Option(help="poisson, constant, or gamma:CV such as gamma:2.0.")] = "poisson",
    duration: Annotated[str, typer.Option("--for", help="How long requests arrive at each rate.")] = "60s",
    runs: Annotated[int, typer.Option(min=1, help="Runs of each rate.")] = 1,
    max_tokens: of.MaxTokens = 128,
    fixed_output: of.FixedOutput = False,
    size: of.Size = "short",
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
    from skep.cli.bench_common import EndpointOptions, workload_of
    from skep.cli.bench_timed import BenchOutputOptions, run_open_command

    workload = workload_of(
        shape="steady",
        size=size,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        fixed_output=fixed_output,
        seed=seed,
    )
    target = EndpointOptions(url or of.running_url(), model, key_env, api)
    schedule = (rate, arrivals, duration, runs)
    how = BenchOutputOptions(as_json=as_json, keep_text=store_prompts, processes=processes)
    raise typer.Exit(run_open_command(target, workload, schedule, timeout, how))


def classes(
    mix: Annotated[Path, typer.Argument(help="A TOML file with a table [class.NAME] for each kind of traffic.")],
    url: of.Url = None,
    model: of.Model = None,
    duration: Annotated[str, typer.Option("--for", help="How long each run sends.")] = "60s",
    agents: Annotated[
        int | None, typer.Option(min=1, help="Agents in all, where classes take a share of them.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of the whole mix.")] = 1,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    processes: of.TimedProcesses = 1,
    store_prompts: of.Prompts = True,
    as_json: JsonOption = False,
) -> None:
    """Several kinds of traffic at once, each with its own shape and priority, reported one by one."""
    from skep.cli.bench_common import EndpointOptions
    from skep.cli.bench_timed import BenchOutputOptions, run_classes_command

    target = EndpointOptions(url or of.running_url(), model, key_env)
    schedule = (duration, agents, runs, seed)
    how = BenchOutputOptions(as_json=as_json, keep_text=store_prompts, processes=processes)
    raise typer.Exit(run_classes_command(target, mix, schedule, timeout, how))


def replay(
    trace: Annotated[Path, typer.Argument(help="JSONL file: a Mooncake trace, or lines of the OpenAI batch API.")],
    url: of.Url = None,
    model: of.Model = None,
    speed: Annotated[float, typer.Option(help="Replay this many times faster: 2 takes half the time.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only this many requests from the beginning.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, where the trace does not say.")] = 512,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    processes: of.TimedProcesses = 1,
    store_prompts: of.Prompts = True,
    as_json: JsonOption = False,
) -> None:
    """Recorded traffic again: its arrival times, lengths and shared prefixes, or its own words."""
    from skep.cli.bench_common import EndpointOptions
    from skep.cli.bench_timed import BenchOutputOptions, run_replay_command

    target = EndpointOptions(url or of.running_url(), model, key_env)
    wanted = (speed, limit, max_tokens, seed)
    how = BenchOutputOptions(as_json=as_json, keep_text=store_prompts, processes=processes)
    raise typer.Exit(run_replay_command(target, trace, wanted, timeout, how))
