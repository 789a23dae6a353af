"""Commands that measure and compare: bench and what is below it, runs, report. Their options, nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import click

from skep.cli.options import EndpointOptions, JsonOption, argument, command, group, implementation, option
from skep.files import OutputFile

bench = group("bench", "Measure an endpoint under concurrency.")
runs_app = group("runs", "List, report, compare and export the stored runs.", default="list")

REPORT = OutputFile("report.html")
Api = Annotated[str, option("openai, or ollama for Ollama's own API, which tells its durations.")]
Concurrency = Annotated[str, option("Concurrent agents, one level each.", "--concurrency", "-c")]
MaxTokens = Annotated[int, option("Longest answer in tokens.", "--output-tokens", min=1)]
PromptTokens = Annotated[
    int | None, option("Prompts of this many tokens, counted by the engine; instead of --size.", min=1)
]
Budget = Annotated[str, option("Time limit of the whole run; what is not done by then is left out.")]
Processes = Annotated[int | None, option("Load processes; default: one, more where needed.", min=1)]
StorePrompts = Annotated[bool, option("Store prompts and answers.", "--prompts/--no-prompts")]


@dataclass(frozen=True, kw_only=True)
class BenchOptions(EndpointOptions):
    """Options of all commands that measure an endpoint."""

    PANELS: ClassVar[dict[str, str]] = {
        "Load": "concurrency rate arrivals shape form bank items delta tasks agents duration speed limit "
        "max_tokens fixed_output size prompt_tokens turns think temperature seed",
        "Search": "to_saturation slo max_concurrency",
        "Precision and time": "runs repeats precision budget warm_up timeout",
        "Endpoint": "url model models model_b key_env api",
        "Results": "threshold price store_prompts against_preset shape_of as_json",
        "Advanced": "processes",
    }

    seed: Annotated[int | None, option("Random seed of the prompts; default: a new one.")] = None
    timeout: Annotated[str, option("Time limit of one request.")] = "15m"
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(BenchOptions):
    """What the requests look like."""

    shape: str = "steady"
    max_tokens: MaxTokens = 128
    fixed_output: Annotated[bool, option("Let every answer run to --output-tokens.", "--fixed-output")] = False
    size: Annotated[str, option("Prompt size: short (~45 tokens), medium (~250) or long (~1000).")] = "short"
    prompt_tokens: PromptTokens = None
    turns: int = 4
    think: str = "2s"


@dataclass(frozen=True, kw_only=True)
class SweepOptions(WorkloadOptions):
    concurrency: Concurrency = "1,2,4,8"
    to_saturation: Annotated[
        bool, option("Raise the concurrency until knee and cliff are found, instead of -c.", "--to-saturation")
    ] = False
    slo: Annotated[
        str | None, option("Find the highest concurrency that meets these p95 limits: ttft=1s,tpot=50ms.")
    ] = None
    max_concurrency: Annotated[int, option("Highest concurrency of a search.", "--concurrency-limit", min=2)] = 256
    shape: Annotated[str, option("steady, burst, conversation, shared-prefix or prefill: docs/measure.md.")] = "steady"
    tasks: Annotated[int | None, option("Tasks per level and run; default: three for each agent.", min=1)] = None
    runs: Annotated[int | None, option("Number of runs of each level, instead of --precision.", min=1)] = None
    precision: Annotated[str, option("Repeat a level until its 95 % interval is within this.")] = "3%"
    budget: Budget = "10m"
    warm_up: Annotated[str, option("steady: until the figures are steady; quick: one batch.")] = "steady"
    turns: Annotated[int, option("Turns of a conversation.", min=1)] = 4
    think: Annotated[str, option("Mean pause of an agent between two turns.")] = "2s"
    api: Api = "openai"
    processes: Processes = None
    price: Annotated[
        float | None, option("Price of a kWh; adds the cost of a million tokens.", "--price-kwh", min=0)
    ] = None
    store_prompts: StorePrompts = True
    against_preset: Annotated[
        str | None,
        option("Repeat the benchmark published with a preset and report what share of it is reached.", metavar="NAME"),
    ] = None
    shape_of: Annotated[
        int | None, option("Use the preset's K-th published figure (see `skep presets show`).", metavar="K", min=1)
    ] = None


@command(bench, "skep bench sweep --url http://127.0.0.1:8400 --concurrency 1,2,4,8")
def sweep(context: click.Context, options: SweepOptions) -> None:
    """Fresh coding tasks at each concurrency: effective tok/s, contention, TTFT, knee and cliff, with intervals."""
    if options.against_preset is None and options.shape_of is None:
        implementation("sweep.run_sweep_command")(options)
    else:
        implementation("against_preset.sweep")(context, options)


@dataclass(frozen=True, kw_only=True)
class SerialVsSwarmOptions(WorkloadOptions):
    tasks: Annotated[int, option("Tasks, the same for both.", min=1)] = 50
    agents: Annotated[str, option("Compare one task at a time with this many at once.", "-c", "--concurrency")] = "1,50"
    runs: Annotated[int, option("Runs of each, in turns.", min=1)] = 1
    prompt_tokens: PromptTokens = 1024
    max_tokens: MaxTokens = 512
    size: str = "short"
    api: Api = "openai"
    timeout: Annotated[str, option("Time limit of one request.")] = "1h"
    processes: Processes = None
    store_prompts: StorePrompts = True


@command(
    bench,
    "skep bench serial-vs-swarm --tasks 50 --concurrency 1,50",
    name="serial-vs-swarm",
    runs="sweep.run_swarm_command",
)
def swarm(options: SerialVsSwarmOptions) -> None:
    """The same tasks one after the other and all at once: the speedup by wall time and by tokens."""


@dataclass(frozen=True, kw_only=True)
class TimedOptions(BenchOptions):
    """Options of loads that follow a clock."""

    processes: Annotated[int, option("Load processes.", min=1)] = 1
    store_prompts: StorePrompts = True


@dataclass(frozen=True, kw_only=True)
class OpenOptions(TimedOptions, WorkloadOptions):
    rate: Annotated[str, option("Requests per second, one level each.")] = "1"
    arrivals: Annotated[str, option("poisson, constant, or gamma:CV such as gamma:2.0.")] = "poisson"
    duration: Annotated[str, option("How long requests arrive at each rate.", "--for")] = "60s"
    runs: Annotated[int, option("Runs of each rate.", min=1)] = 1
    api: Api = "openai"


@command(
    bench, "skep bench open --rate 0.5,1,2 --arrivals poisson --for 60s", name="open", runs="sweep.run_open_command"
)
def open_loop(options: OpenOptions) -> None:
    """Requests that arrive at a rate, whatever the server does; latency counts from when each was due."""


@dataclass(frozen=True, kw_only=True)
class ClassesOptions(TimedOptions):
    mix: Annotated[Path, argument("A TOML file with a table [class.NAME] for each kind of traffic.")]
    duration: Annotated[str, option("How long each run sends.", "--for")] = "60s"
    agents: Annotated[
        int | None, option("Agents in all, where classes take a share of them.", "-c", "--concurrency", min=1)
    ] = None
    runs: Annotated[int, option("Runs of the whole mix.", min=1)] = 1


@command(bench, "skep bench classes mix.toml --for 2m", runs="sweep.run_classes_command")
def classes(options: ClassesOptions) -> None:
    """Several kinds of traffic at once, each with its own shape and priority, reported one by one."""


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(TimedOptions):
    trace: Annotated[Path, argument("JSONL file: a Mooncake trace, or lines of the OpenAI batch API.")]
    speed: Annotated[float, option("Replay this many times faster: 2 takes half the time.")] = 1.0
    limit: Annotated[int | None, option("Replay only this many requests from the beginning.", min=1)] = None
    max_tokens: Annotated[
        int, option("Tokens of an answer, where the trace does not say.", "--output-tokens", min=1)
    ] = 512


@command(bench, "skep bench replay trace.jsonl --speed 2", runs="sweep.run_replay_command")
def replay(options: ReplayOptions) -> None:
    """Recorded traffic again: its arrival times, lengths and shared prefixes, or its own words."""


RunName = Annotated[str, argument("A run's id, the beginning of one, or `last` (`last~1`: the one before).")]


@command(runs_app, "skep runs --json", name="list", runs="run_list.print_runs")
def runs(
    limit: Annotated[int, option("Number of runs to list, newest first.", "-n", "--limit", min=1)] = 20,
    as_json: JsonOption = False,
) -> None:
    """Stored benchmark runs, newest first."""


@command(runs_app, "skep runs report last -o report.html", runs="run_list.write_reports")
def report(
    run: Annotated[
        tuple[str, ...], argument("A run's id, the beginning of one, or `last`; several are compared.")
    ] = (),
    output: Annotated[
        OutputFile, option("The HTML file to write; .svg writes the chart alone.", "-o", "--output")
    ] = REPORT,
) -> None:
    """Write one self-contained HTML file with the pictures and the tables of a run, or of several side by side."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    a: Annotated[str | None, argument("The earlier run; default: the last but one of the same kind as the last.")] = (
        None
    )
    b: Annotated[str | None, argument("The later run; default: the last of the same kind as A.")] = None
    threshold: Annotated[str, option("A loss beyond this ends with exit code 4.")] = "5%"
    anyway: Annotated[bool, option("Compare runs whose prompts or answers differ in length.", "--anyway")] = False
    output: Annotated[OutputFile | None, option("Also write an HTML page or .svg.", "-o", "--output")] = None
    as_json: JsonOption = False


@command(runs_app, "skep runs compare 20261114 last --threshold 5%", runs="compare.run_compare_command")
def compare(options: CompareOptions) -> None:
    """Is B better than A? One row a level, and a verdict; exit code 4 where B is worse."""


@dataclass(frozen=True, kw_only=True)
class ABOptions(WorkloadOptions):
    url: None = None
    url_a: Annotated[str, argument("Base URL.", metavar="A")]
    url_b: Annotated[str, argument("Base URL.", metavar="B")]
    model: Annotated[str | None, option("Model name at both; default: the only one served.")] = None
    model_b: Annotated[str | None, option("Model name at B, where it differs.")] = None
    concurrency: Concurrency = "1,4"
    tasks: Annotated[int | None, option("Tasks per level and run.", min=1)] = None
    runs: Annotated[int | None, option("Number of pairs of each level, instead of --precision.", min=2)] = None
    precision: Annotated[str, option("Measure pairs until the interval of their ratio is within this.")] = "3%"
    budget: Budget = "15m"
    threshold: Annotated[str, option("A loss of B beyond this ends with exit code 4.")] = "5%"
    processes: Processes = None


@command(bench, "skep bench ab http://127.0.0.1:8001 http://127.0.0.1:8002 -c 1,4,8", runs="compare.run_ab_command")
def ab(options: ABOptions) -> None:
    """Two endpoints in turns on the same tasks: what the machine does meanwhile befalls both."""


@command(bench, "skep bench matrix rigs.toml -o rigs.html", runs="compare.run_matrix_command")
def matrix(
    file: Annotated[Path, argument("A TOML file: [[config]] with a name and a url, start or run.")],
    output: Annotated[OutputFile | None, option("Also write a page, .svg, .md or .csv.", "-o", "--output")] = None,
    processes: Processes = None,
    as_json: JsonOption = False,
) -> None:
    """Configurations against concurrencies, measured one after the other or taken from stored runs."""


@command(runs_app, "skep runs export last --format csv", runs="run_list.run_export_command")
def export(
    run: RunName = "last",
    form: Annotated[str, option("csv, markdown or json.", "--format")] = "markdown",
    requests: Annotated[bool, option("Every request instead of the levels; csv or json.", "--requests")] = False,
    output: Annotated[OutputFile | None, option("A file; default: standard output.", "-o", "--output")] = None,
) -> None:
    """A run's levels, or its requests, for a spreadsheet or a README."""


@dataclass(frozen=True, kw_only=True)
class MixedOptions(BenchOptions):
    model: None = None
    models: Annotated[
        tuple[str, ...], option("Model name; default: the only one served there. Several are compared.", "--model")
    ] = ()
    form: Annotated[
        str, option("published: each side task once; sustained: again and again until the primary ends.")
    ] = "published"
    repeats: Annotated[int, option("Runs of every level, in turns.", min=1)] = 3
    levels: Annotated[
        str, option("Any of 1, 2, 3 and 5: the primary task with 0, 1, 2 or 4 side tasks.", "-c", "--concurrency")
    ] = "1,2,3,5"


@command(bench, "skep bench mixed --form sustained --repeats 5", runs="quality_run.run_mixed_command")
def mixed(options: MixedOptions) -> None:
    """A coding conversation with side tasks beside it; every answer is executed, not grepped."""


@dataclass(frozen=True, kw_only=True)
class QualityOptions(BenchOptions):
    bank: Annotated[
        str, option("humaneval, drills, drills:1 (easy) to drills:5, or a JSONL file: docs/quality.md.")
    ] = "drills"
    concurrency: Concurrency = "1,4,8"
    delta: Annotated[str, option("The smallest loss that matters, in points: 3 is from 60 % to 57 %.")] = "3"
    items: Annotated[int | None, option("Number of items of the bank; default: as many as needed.", min=1)] = None
    repeats: Annotated[int, option("Repeats of every item in every arm.", min=1)] = 1
    max_tokens: Annotated[
        int | None,
        option("Longest answer, instead of each item's own limit; for models that reason.", "--output-tokens", min=1),
    ] = None
    temperature: Annotated[float, option("Sampling temperature; 0 is greedy.", min=0.0, max=2.0)] = 0.0
    budget: Annotated[str | None, option("Time limit of the whole run; what is not done by then is left out.")] = None


@command(bench, "skep bench quality --bank drills:1 --concurrency 1,4,8", runs="quality_run.run_quality_command")
def quality(options: QualityOptions) -> None:
    """Are answers as good at C=N as at C=1? The same items in both, judged by execution, with a bound on the loss."""
