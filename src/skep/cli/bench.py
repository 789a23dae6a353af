"""Commands that make load: bench sweep, serial-vs-swarm, open, classes, replay. Their options, nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from skep.cli.options import EndpointOptions, JsonOption, command

bench = typer.Typer(no_args_is_help=True, help="Measure an endpoint under concurrency.", rich_markup_mode=None)

Api = Annotated[str, typer.Option(help="openai, or ollama for Ollama's own API, which tells its durations.")]
Concurrency = Annotated[str, typer.Option("--concurrency", "-c", help="Concurrent agents, one level each.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")]
PromptTokens = Annotated[
    int | None, typer.Option(min=1, help="Prompts of this many tokens, counted by the engine; instead of --size.")
]
Budget = Annotated[str, typer.Option(help="Time limit of the whole run; what is not done by then is left out.")]
Processes = Annotated[int | None, typer.Option(min=1, help="Load processes; default: one, more where needed.")]
StorePrompts = Annotated[bool, typer.Option("--prompts/--no-prompts", help="Store prompts and answers.")]


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")


@bench.callback()
def _bench() -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class BenchOptions(EndpointOptions):
    """Options of all commands that measure an endpoint."""

    LAST: ClassVar = (
        "seed", "key_env", "api", "timeout", "processes", "price", "store_prompts", "against_preset", "shape_of",
        "as_json",
    )  # fmt: skip

    seed: Annotated[int | None, typer.Option(help="Random seed of the prompts; default: a new one.")] = None
    timeout: Annotated[str, typer.Option(help="Time limit of one request.")] = "15m"
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(BenchOptions):
    """What the requests look like."""

    LAST: ClassVar = ("max_tokens", "fixed_output", "size", "prompt_tokens", "turns", "think", *BenchOptions.LAST)

    shape: str = "steady"
    max_tokens: MaxTokens = 128
    fixed_output: Annotated[bool, typer.Option("--fixed-output", help="Let every answer run to --max-tokens.")] = False
    size: Annotated[str, typer.Option(help="Prompt size: short (~45 tokens), medium (~250) or long (~1000).")] = "short"
    prompt_tokens: PromptTokens = None
    turns: int = 4
    think: str = "2s"


@dataclass(frozen=True, kw_only=True)
class SweepOptions(WorkloadOptions):
    concurrency: Concurrency = "1,2,4,8"
    to_saturation: Annotated[
        bool,
        typer.Option("--to-saturation", help="Raise the concurrency until knee and cliff are found, instead of -c."),
    ] = False
    slo: Annotated[
        str | None, typer.Option(help="Find the highest concurrency that meets these p95 limits: ttft=1s,tpot=50ms.")
    ] = None
    max_concurrency: Annotated[int, typer.Option(min=2, help="Highest concurrency of a search.")] = 256
    shape: Annotated[
        str, typer.Option(help="steady, burst, conversation, shared-prefix or prefill: docs/bench.md.")
    ] = "steady"
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks per level and run; default: three for each agent.")
    ] = None
    runs: Annotated[int | None, typer.Option(min=1, help="Number of runs of each level, instead of --precision.")] = (
        None
    )
    precision: Annotated[str, typer.Option(help="Repeat a level until its 95 % interval is within this.")] = "3%"
    budget: Budget = "10m"
    warm_up: Annotated[str, typer.Option(help="steady: until the figures are steady; quick: one batch.")] = "steady"
    turns: Annotated[int, typer.Option(min=1, help="Turns of a conversation.")] = 4
    think: Annotated[str, typer.Option(help="Mean pause of an agent between two turns.")] = "2s"
    api: Api = "openai"
    processes: Processes = None
    price: Annotated[float | None, typer.Option(min=0, help="Price of a kWh; adds the cost of a million tokens.")] = (
        None
    )
    store_prompts: StorePrompts = True
    against_preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Repeat the benchmark published with a preset and report what share of it is reached."
        ),
    ] = None
    shape_of: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, help="Use the preset's K-th published figure (see `skep presets show`)."),
    ] = None


@command(bench, "skep bench sweep --url http://127.0.0.1:8400 --concurrency 1,2,4,8", runs="sweep.run_sweep_command")
def sweep(context: typer.Context, options: SweepOptions) -> None:
    """Fresh coding tasks at each concurrency: effective tok/s, contention, TTFT, knee and cliff, with intervals."""


@dataclass(frozen=True, kw_only=True)
class SerialVsSwarmOptions(WorkloadOptions):
    LAST: ClassVar = ("prompt_tokens", *(name for name in WorkloadOptions.LAST if name != "prompt_tokens"))

    tasks: Annotated[int, typer.Option(min=1, help="Tasks, the same for both.")] = 50
    agents: Annotated[str, typer.Option(help="Compare one task at a time with this many at once.")] = "1,50"
    runs: Annotated[int, typer.Option(min=1, help="Runs of each, in turns.")] = 1
    prompt_tokens: PromptTokens = 1024
    max_tokens: MaxTokens = 512
    size: str = "short"
    api: Api = "openai"
    timeout: Annotated[str, typer.Option(help="Time limit of one request.")] = "1h"
    processes: Processes = None
    store_prompts: StorePrompts = True


@command(
    bench,
    "skep bench serial-vs-swarm --tasks 50 --agents 1,50",
    name="serial-vs-swarm",
    runs="sweep.run_swarm_command",
)
def swarm(options: SerialVsSwarmOptions) -> None:
    """The same tasks one after the other and all at once: the speedup by wall time and by tokens."""


@dataclass(frozen=True, kw_only=True)
class TimedOptions(BenchOptions):
    """Options of loads that follow a clock."""

    processes: Annotated[int, typer.Option(min=1, help="Load processes.")] = 1
    store_prompts: StorePrompts = True


@dataclass(frozen=True, kw_only=True)
class OpenOptions(TimedOptions, WorkloadOptions):
    rate: Annotated[str, typer.Option(help="Requests per second, one level each.")] = "1"
    arrivals: Annotated[str, typer.Option(help="poisson, constant, or gamma:CV such as gamma:2.0.")] = "poisson"
    duration: Annotated[str, typer.Option("--for", help="How long requests arrive at each rate.")] = "60s"
    runs: Annotated[int, typer.Option(min=1, help="Runs of each rate.")] = 1
    api: Api = "openai"


@command(
    bench,
    "skep bench open --rate 0.5,1,2 --arrivals poisson --for 60s",
    name="open",
    runs="bench_timed.run_open_command",
)
def open_loop(options: OpenOptions) -> None:
    """Requests that arrive at a rate, whatever the server does; latency counts from when each was due."""


@dataclass(frozen=True, kw_only=True)
class ClassesOptions(TimedOptions):
    mix: Annotated[Path, typer.Argument(help="A TOML file with a table [class.NAME] for each kind of traffic.")]
    duration: Annotated[str, typer.Option("--for", help="How long each run sends.")] = "60s"
    agents: Annotated[int | None, typer.Option(min=1, help="Agents in all, where classes take a share of them.")] = None
    runs: Annotated[int, typer.Option(min=1, help="Runs of the whole mix.")] = 1


@command(bench, "skep bench classes mix.toml --for 2m", runs="bench_timed.run_classes_command")
def classes(options: ClassesOptions) -> None:
    """Several kinds of traffic at once, each with its own shape and priority, reported one by one."""


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(TimedOptions):
    trace: Annotated[Path, typer.Argument(help="JSONL file: a Mooncake trace, or lines of the OpenAI batch API.")]
    speed: Annotated[float, typer.Option(help="Replay this many times faster: 2 takes half the time.")] = 1.0
    limit: Annotated[int | None, typer.Option(min=1, help="Replay only this many requests from the beginning.")] = None
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, where the trace does not say.")] = 512


@command(bench, "skep bench replay trace.jsonl --speed 2", runs="bench_timed.run_replay_command")
def replay(options: ReplayOptions) -> None:
    """Recorded traffic again: its arrival times, lengths and shared prefixes, or its own words."""
