"""Commands that measure and compare: bench and what is below it, runs, report.

Only their options are here: what a command does is in the module that its `runs` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from skep.cli.options import EndpointOptions, JsonOption, argument, command, group, option
from skep.files import OutputFile

bench = group("bench", "Measure an endpoint under load.")
runs_app = group("runs", "List, report, compare and export stored benchmark runs.", default="list")

REPORT = OutputFile("report.html")
Api = Annotated[str, option("API: openai, or ollama for Ollama's own, which reports durations.")]
Concurrency = Annotated[
    str, option("Numbers of concurrent agents to measure, such as 1,2,4.", "--concurrency", "-c")
]
SweptLevels = Annotated[
    str,
    option(
        (
            "Numbers of concurrent agents to measure, such as 1,2,4; auto doubles until two "
            "levels past the knee."
        ),
        "--concurrency",
        "-c",
    ),
]
MaxTokens = Annotated[
    int,
    option(
        "Maximum answer length in tokens; most answers end before it.", "--output-tokens", min=1
    ),
]
PromptTokens = Annotated[
    int | None, option("Prompt length in tokens, counted by the engine (default: ~45).", min=1)
]
Budget = Annotated[str, option("Time limit of the whole run; what does not fit is left out.")]
StorePrompts = Annotated[
    bool, option("Store prompts and answers (default: --prompts).", "--prompts/--no-prompts")
]


@dataclass(frozen=True, kw_only=True)
class BenchOptions(EndpointOptions):
    """Options of all commands that measure an endpoint."""

    PANELS: ClassVar[dict[str, str]] = {
        "Load": "concurrency levels rate arrivals shape bank items delta tasks sample agents "
        "trace from_log sessions turns_at_most pause_scale context duration "
        "max_tokens fixed_output prompt_tokens turns think temperature seed",
        "Precision and time": "runs repeats precision budget quick warm_up timeout",
        "Endpoint": "url model models model_b key_env api kv",
        "Results": "slo threshold price store_prompts as_json",
    }

    seed: Annotated[int | None, option("Random seed for the prompts (default: random).")] = None
    timeout: Annotated[str, option("Time limit of one request.")] = "15m"
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(BenchOptions):
    """What the requests look like."""

    shape: str = "steady"
    max_tokens: MaxTokens = 1024
    fixed_output: Annotated[bool, option("Make every answer --output-tokens long.")] = False
    prompt_tokens: PromptTokens = None
    turns: int = 4
    think: str = "2s"


@dataclass(frozen=True, kw_only=True)
class SweepOptions(WorkloadOptions):
    concurrency: SweptLevels = "1,2,4,8"
    slo: Annotated[
        str | None, option("Say which of the levels meet p95 limits, such as ttft=1s,tpot=50ms.")
    ] = None
    shape: Annotated[str, option("Load shape: steady, burst, conversation or shared-prefix.")] = (
        "steady"
    )
    tasks: Annotated[
        int | None, option("Tasks per level and run (default: 3 per agent, at least 6).", min=1)
    ] = None
    runs: Annotated[
        int | None, option("Number of runs per level (instead of --precision).", min=1)
    ] = None
    precision: Annotated[
        str, option("Repeat a level until the 95 % interval of tok/s is within this.")
    ] = "3%"
    budget: Budget = "10m"
    quick: Annotated[
        bool,
        option("A first look: cut answers at 128 tokens and warm up once; the result says so."),
    ] = False
    warm_up: Annotated[
        str, option("Warm up until figures are steady (steady) or with one batch (quick).")
    ] = "steady"
    turns: Annotated[int, option("Turns per conversation, with --shape conversation.", min=1)] = 4
    think: Annotated[str, option("Mean pause between two turns of a conversation.")] = "2s"
    api: Api = "openai"
    price: Annotated[
        float | None, option("Price of a kWh; adds cost per million tokens.", "--price-kwh", min=0)
    ] = None
    store_prompts: StorePrompts = True


@command(
    bench,
    "skep bench sweep --url http://127.0.0.1:8400 --concurrency 1,2,4,8",
    runs="sweep.run_sweep_command",
)
def sweep(options: SweepOptions) -> None:
    """Send coding tasks at each concurrency; report tok/s and TTFT with intervals, and knee and
    cliff.
    """


@dataclass(frozen=True, kw_only=True)
class SerialVsSwarmOptions(WorkloadOptions):
    tasks: Annotated[int, option("Number of tasks, the same for both.", min=1)] = 50
    sample: Annotated[
        int | None,
        option(
            "Run only N of the tasks one at a time and scale their time, with an interval.", min=3
        ),
    ] = None
    agents: Annotated[
        str, option("Compare one task at a time with N at once: 1,N.", "-c", "--concurrency")
    ] = "1,50"
    runs: Annotated[int, option("Number of runs of each, in turns.", min=1)] = 1
    prompt_tokens: Annotated[
        int | None, option("Prompt length in tokens, counted by the engine.", min=1)
    ] = 1024
    api: Api = "openai"
    timeout: Annotated[str, option("Time limit of one request.")] = "1h"
    store_prompts: StorePrompts = True


@command(
    bench,
    "skep bench serial-vs-swarm --tasks 50 --sample 10 --concurrency 1,50",
    name="serial-vs-swarm",
    runs="sweep.run_swarm_command",
)
def swarm(options: SerialVsSwarmOptions) -> None:
    """Run the same tasks one at a time and all at once; report the speedup by wall time and by
    tokens.
    """


@dataclass(frozen=True, kw_only=True)
class OpenOptions(WorkloadOptions):
    rate: Annotated[
        str, option("Request rates to measure, in requests per second, such as 0.5,1,2.")
    ] = "1"
    arrivals: Annotated[str, option("Arrival times: poisson or constant.")] = "poisson"
    duration: Annotated[str, option("How long to send requests at each rate.", "--for")] = "60s"
    runs: Annotated[int, option("Number of runs per rate.", min=1)] = 1
    api: Api = "openai"
    store_prompts: StorePrompts = True


@command(
    bench,
    "skep bench open --rate 0.5,1,2 --arrivals poisson --for 60s",
    name="open",
    runs="sweep.run_open_command",
)
def open_loop(options: OpenOptions) -> None:
    """Send requests at a fixed rate, even to a server that falls behind. Latency counts from each
    due time.
    """


@dataclass(frozen=True, kw_only=True)
class AgentsOptions(BenchOptions):
    concurrency: Annotated[
        str,
        option(
            "Numbers of sessions held at once, such as 1,2,4; auto doubles until two levels past "
            "the cliff.",
            "--concurrency",
            "-c",
        ),
    ] = "1,2,4,8"
    shape: Annotated[str, option("Shape of the sessions: coding or small.")] = "coding"
    trace: Annotated[
        Path | None,
        option("Replay the sessions of a JSONL trace instead, Mooncake's or AIPerf's."),
    ] = None
    from_log: Annotated[
        str | None,
        option("Replay the sessions of this box instead, such as 7d: those of the last week."),
    ] = None
    sessions: Annotated[
        int | None,
        option("Sessions per level and run (default: 2 per place, at least 4).", min=1),
    ] = None
    runs: Annotated[int, option("Number of runs per level, in turns.", min=1)] = 1
    turns_at_most: Annotated[
        int | None, option("Cut every session after so many turns, for a first look.", min=2)
    ] = None
    pause_scale: Annotated[
        float, option("Factor on the pauses in which tools run; 0 leaves them out.", min=0)
    ] = 1.0
    context: Annotated[
        int | None,
        option("Context in which sessions are held (default: what the endpoint tells).", min=256),
    ] = None


@command(
    bench, "skep bench agents --shape coding -c 1,2,4,8", runs="agents_run.run_agents_command"
)
def agents(options: AgentsOptions) -> None:
    """Hold N sessions of coding agents at once; report turns a minute, cache hits and the session
    cliff.
    """


RunName = Annotated[
    str, argument("ID of a run, the start of an ID, or `last` (`last~1` is the run before it).")
]


@command(runs_app, "skep runs --json", name="list", runs="run_list.print_runs")
def runs(
    limit: Annotated[
        int, option("Number of runs to list, newest first.", "-n", "--limit", min=1)
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List stored benchmark runs, newest first."""


@command(runs_app, "skep runs report last -o report.html", runs="run_list.write_reports")
def report(
    run: Annotated[
        tuple[str, ...],
        argument(
            "ID of a run, the start of an ID, or `last`; several are compared (default: last)."
        ),
    ] = (),
    output: Annotated[OutputFile, option("HTML file to write.", "-o", "--output")] = REPORT,
) -> None:
    """Write a self-contained HTML report of one run, or of several side by side."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    a: Annotated[
        str | None, argument("Earlier run (default: the one before the last, of the same kind).")
    ] = None
    b: Annotated[
        str | None, argument("Later run (default: the last one of the same kind as A).")
    ] = None
    threshold: Annotated[str, option("Exit with code 4 if B is worse by more than this.")] = "5%"
    anyway: Annotated[bool, option("Compare even if lengths or sessions differ.")] = False
    as_json: JsonOption = False


@command(
    runs_app, "skep runs compare 20261114 last --threshold 5%", runs="compare.run_compare_command"
)
def compare(options: CompareOptions) -> None:
    """Compare run B with run A level by level and print a verdict. Exit code 4 if B is worse."""


@dataclass(frozen=True, kw_only=True)
class ABOptions(WorkloadOptions):
    url: None = None
    url_a: Annotated[str, argument("Base URL of endpoint A.", metavar="A")]
    url_b: Annotated[str, argument("Base URL of endpoint B.", metavar="B")]
    model: Annotated[
        str | None, option("Model name at both (default: the only model served).")
    ] = None
    model_b: Annotated[str | None, option("Model name at B, if it differs.")] = None
    concurrency: Concurrency = "1,4"
    tasks: Annotated[
        int | None, option("Tasks per level and run (default: 3 per agent, at least 6).", min=1)
    ] = None
    runs: Annotated[
        int | None, option("Pairs of runs per level (instead of --precision).", min=2)
    ] = None
    precision: Annotated[
        str, option("Repeat pairs of runs until the interval of their ratio is within this.")
    ] = "3%"
    budget: Budget = "15m"
    threshold: Annotated[str, option("Exit with code 4 if B is worse by more than this.")] = "5%"


@command(
    bench,
    "skep bench ab http://127.0.0.1:8001 http://127.0.0.1:8002 -c 1,4,8",
    runs="compare.run_ab_command",
)
def ab(options: ABOptions) -> None:
    """Measure two endpoints in turns on the same tasks, so that disturbances affect both alike."""


@command(runs_app, "skep runs export last --format csv", runs="run_list.run_export_command")
def export(
    run: RunName = "last",
    form: Annotated[str, option("Output format: csv, markdown or json.", "--format")] = "markdown",
    requests: Annotated[
        bool, option("Export every request instead of the levels; csv or json.")
    ] = False,
    answers: Annotated[bool, option("Add prompts and answers to --requests.")] = False,
    output: Annotated[
        OutputFile | None, option("File to write (default: stdout).", "-o", "--output")
    ] = None,
) -> None:
    """Export the levels or the requests of a run for a spreadsheet or a README.

    Of `bench mixed`, JSON has every answer with its verdict, CSV a row for each task at each
    level."""


@dataclass(frozen=True, kw_only=True)
class MixedOptions(BenchOptions):
    repeats: Annotated[int, option("Number of runs per level, in turns.", min=1, max=1000)] = 3
    levels: Annotated[
        str,
        option(
            "Levels, of 1, 2, 3 and 5: the primary task with 0, 1, 2 or 4 side tasks.",
            "-c",
            "--concurrency",
        ),
    ] = "1,2,3,5"
    models: Annotated[
        str | None,
        option("Models to measure one after the other and compare, such as A,B; skep loads each."),
    ] = None


@command(
    bench, "skep bench mixed --models gpt-oss-20b,qwen3-coder", runs="mixed_run.run_mixed_command"
)
def mixed(options: MixedOptions) -> None:
    """Measure a coding conversation with side tasks beside it. Every answer is executed to judge
    it.

    With --models, the models of one `skep up` are loaded one at a time, measured and compared.
    """


@dataclass(frozen=True, kw_only=True)
class QualityOptions(BenchOptions):
    bank: Annotated[
        str,
        option(
            "Questions: humaneval, drills, drills:1 (easy) to drills:5, a JSONL file; tools: "
            "tasks with tools after 2K, 32K and 128K of context, tools:2k to tools:128k after "
            "one of these."
        ),
    ] = "drills"
    concurrency: Concurrency = "1,4,8"
    delta: Annotated[
        str | None,
        option(
            "Smallest loss that matters, in percentage points: 3 is from 60 % to 57 % (default: "
            "3, with tools 5)."
        ),
    ] = None
    items: Annotated[
        int | None, option("Number of questions to ask (default: as many as needed).", min=1)
    ] = None
    repeats: Annotated[int, option("Times each question is asked at each concurrency.", min=1)] = 1
    max_tokens: Annotated[
        int | None,
        option(
            "Maximum answer length in tokens, for reasoning models (default: per question).",
            "--output-tokens",
            min=1,
        ),
    ] = None
    temperature: Annotated[
        float, option("Sampling temperature; 0 is greedy.", min=0.0, max=2.0)
    ] = 0.0
    kv: Annotated[
        str | None,
        option("KV type that is served with, such as fp8, where the endpoint does not tell it."),
    ] = None


@command(
    bench,
    "skep bench quality --bank drills:1 --concurrency 1,4,8",
    runs="quality_run.run_quality_command",
)
def quality(options: QualityOptions) -> None:
    """Test whether answers at concurrency N are as good as at 1, and bound the loss. Answers are
    executed.
    """


@dataclass(frozen=True, kw_only=True)
class PresetsOptions(SweepOptions):
    PANELS: ClassVar[dict[str, str]] = {
        "Load": "concurrency shape tasks max_tokens fixed_output prompt_tokens turns think seed",
        "Precision and time": "runs precision budget quick warm_up timeout",
        "Results": "slo output store_prompts as_json",
        "Simulation": "simulate gpu",
    }

    url: None = None
    model: None = None
    key_env: None = None
    api: str = "openai"
    price: None = None
    presets: Annotated[
        tuple[str, ...], argument("Presets from `skep presets`.", metavar="PRESET")
    ] = ()
    simulate: Annotated[
        bool,
        option(
            "Simulate each preset's rig at the speed the planner predicts; needs no weights "
            "and no GPU."
        ),
    ] = False
    gpu: Annotated[
        str | None,
        option(
            'Simulate all presets on these GPUs instead, such as "2x rtx-4090".', metavar="RIG"
        ),
    ] = None
    concurrency: SweptLevels = "1,2,3,4"
    budget: Annotated[
        str, option("Time limit of each preset's measurement; what does not fit is left out.")
    ] = "10m"
    output: Annotated[OutputFile, option("HTML file with the pictures.", "-o", "--output")] = (
        REPORT
    )


@command(
    bench,
    "skep bench presets qwen3-coder-30b-a3b-3090 qwen2.5-coder-32b-3090 -c 1,2,3,4 --simulate",
    name="presets",
    runs="preset_sweep.run_presets_command",
)
def presets_sweep(options: PresetsOptions) -> None:
    """Start, measure and stop each preset; print one table of all. One that breaks is a row with
    its diagnosis.
    """
