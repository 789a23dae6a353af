"""The commands of `skep tune` and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from skep.cli.options import JsonOption, argument, command, group, option
from skep.files import OutputFile

tune = group(
    "tune",
    (
        "Find the fastest configuration of a model on this machine step by step; every step is "
        "measured."
    ),
    default="run",
)

TuningName = Annotated[
    str, argument("ID of a tuning, the start of an ID, or `last`.", metavar="ID")
]
InPlaceOption = Annotated[
    bool, option("Pause the deployment of `skep up`; restart it on any exit.", "--in-place")
]


@dataclass(frozen=True)
class TuneOptions:
    """The options of `skep tune run`, as they were typed; a tuning that is resumed has them from
    its store.
    """

    PANELS: ClassVar[dict[str, str]] = {
        "Goal": "goal load slo min_context input_tokens output_tokens budget",
        "Model and engine": "engine checkpoint binary gpus in_place",
        "Search": "begin knobs skip allow seed",
        "Quality": "quality",
        "Simulation": "simulate gpu link",
    }

    name: Annotated[
        str,
        argument("Preset, model name, checkpoint folder or GGUF file.", metavar="PRESET|MODEL"),
    ]
    goal: Annotated[
        str | None,
        option(
            "effective_tok_s or task_tok_s @ concurrency, or turns_min @ sessions at once "
            "(default: effective_tok_s@4, of sessions turns_min@4)."
        ),
    ] = None
    load: Annotated[
        str | None,
        option(
            "What agents send: sessions (coding or small), or single requests (task) (default: "
            "task, for turns_min the sessions that the context has room for)."
        ),
    ] = None
    slo: Annotated[str | None, option("Latency limits to meet, such as ttft=1s,tpot=50ms.")] = None
    min_context: Annotated[
        int | None,
        option(
            "Minimum context per slot in tokens (default: one task; a plan's for sessions).",
            min=64,
        ),
    ] = None
    budget: Annotated[str, option("Time limit; the best configuration found by then is kept.")] = (
        "1h"
    )
    input_tokens: Annotated[int, option("Prompt length in tokens.", "--prompt-tokens", min=64)] = (
        512
    )
    output_tokens: Annotated[
        int, option("Answer length in tokens; every answer has this length.", min=1)
    ] = 128
    engine: Annotated[
        str | None,
        option(
            "Engine to tune: embedded, llamacpp, vllm or sglang (default: as `skep up` chooses)."
        ),
    ] = None
    checkpoint: Annotated[
        str | None, option("Weights to load, if not those that the name stands for.")
    ] = None
    knobs: Annotated[
        str | None, option("Change only these knobs, such as slots,kv,mtp (default: all).")
    ] = None
    skip: Annotated[str | None, option("Do not change these knobs, such as kv,mtp.")] = None
    allow: Annotated[
        str | None,
        option("What else may be changed for turns_min: power-limit, by nvidia-smi -pl."),
    ] = None
    begin: Annotated[
        str,
        option(
            "Configuration to start from: plan (the planner's choice) or safe (certain to start).",
            "--from",
        ),
    ] = "plan"
    gpus: Annotated[str | None, option("Use only these GPUs of this machine, such as 0,1.")] = None
    binary: Annotated[
        str | None, option("Path of the engine's program, if it is not on PATH.")
    ] = None
    quality: Annotated[
        str, option("Questions that reject configurations with worse answers: auto or off.")
    ] = "auto"
    in_place: InPlaceOption = False
    gpu: Annotated[
        str | None, option('GPUs to simulate, such as "2x rtx-3090".', metavar="RIG")
    ] = None
    link: Annotated[
        str | None, option("Link between the simulated GPUs: nvlink, pcie, pcie4x8.")
    ] = None
    simulate: Annotated[bool, option("Tune a simulated machine in seconds; loads no model.")] = (
        False
    )
    seed: Annotated[
        int | None, option("Random seed for prompts and simulation (default: random).")
    ] = None


@command(tune, 'skep tune qwen3.6-27b --gpu "2x rtx-3090" --simulate', runs="tune_run.run_tuning")
def run(options: TuneOptions, as_json: JsonOption = False) -> None:
    """Change one knob at a time, keep what is faster without worse answers, and save the best as a
    preset.
    """


@command(tune, "skep tune resume last", runs="tune_run.resume_tuning")
def resume(
    name: TuningName = "last", in_place: InPlaceOption = False, as_json: JsonOption = False
) -> None:
    """Continue a tuning that was stopped or killed; only the unfinished step is measured again."""


@command(tune, "skep tune show last --html tuning.html", runs="tune_run.show_tuning")
def show(
    name: TuningName = "last",
    html: Annotated[
        OutputFile | None,
        option("Also write an HTML page with charts to this file.", metavar="FILE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every step with its figure, interval and ratio, and why it was kept or rejected."""


@command(tune, "skep tune export my-27b --tuning last", runs="tune_run.export_tuning")
def export(
    name: Annotated[
        str, argument("Name of the preset to write; `skep up NAME` serves it.", metavar="NAME")
    ],
    tuning: Annotated[str, option("ID of the tuning, or `last`.", metavar="ID")] = "last",
    overwrite: Annotated[bool, option("Replace an existing preset with this name.")] = False,
) -> None:
    """Save the best configuration of a tuning as a preset."""


@command(tune, "skep tune list --json", name="list", runs="tune_run.print_tunings")
def list_(
    limit: Annotated[
        int, option("Number of tunings to list, newest first.", "-n", "--limit", min=1)
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List tunings, newest first, with model, goal, baseline and best figure."""


@command(tune, "skep tune remove 20260801-2", name="remove", runs="tune_run.remove_tuning")
def remove(name: TuningName) -> None:
    """Delete a tuning and its steps. Presets made from it stay."""
