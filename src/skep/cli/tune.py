"""The commands of `skep tune` and their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from skep.cli.options import JsonOption, argument, command, group, option
from skep.files import OutputFile

tune = group(
    "tune",
    "Find the fastest configuration of a model on this machine, from the plan on; every step is measured.",
    default="run",
)

TuningName = Annotated[str, argument("A tuning's id, the beginning of one, or `last`.", metavar="ID")]
InPlaceOption = Annotated[bool, option("Pause what `skep up` serves; it is started again on any exit.", "--in-place")]
HtmlOption = Annotated[OutputFile | None, option("Also write an HTML page with charts.", metavar="FILE")]


@dataclass(frozen=True)
class TuneOptions:
    """The options of `skep tune run`, as they were typed; a tuning that is resumed has them from its store."""

    PANELS: ClassVar[dict[str, str]] = {
        "Goal": "goal slo min_context input_tokens output_tokens budget",
        "Model and engine": "engine checkpoints binary gpus in_place",
        "Search": "begin knobs skip start seed",
        "Quality": "quality quality_items",
        "Simulation": "simulate gpu link",
    }

    name: Annotated[
        str, argument("A preset, a model that skep knows, a folder or a GGUF file.", metavar="PRESET|MODEL")
    ]
    goal: Annotated[
        str, option("effective_tok_s, task_tok_s or tok_per_joule @ agents at once; `>=300` behind it: enough.")
    ] = "effective_tok_s@4"
    slo: Annotated[str | None, option("Latency limits to keep: ttft=1s,tpot=50ms.")] = None
    min_context: Annotated[int | None, option("Tokens that every slot must hold. Default: a whole task.", min=64)] = (
        None
    )
    budget: Annotated[str, option("Time for all of it; the best so far is kept when it ends.")] = "1h"
    input_tokens: Annotated[int, option("Tokens of each prompt.", "--prompt-tokens", min=64)] = 512
    output_tokens: Annotated[int, option("Tokens of each answer; all answers have this length.", min=1)] = 128
    engine: Annotated[
        str | None, option("Engine for a model: embedded, llamacpp, vllm, sglang. Default: as `skep up` chooses.")
    ] = None
    checkpoints: Annotated[
        tuple[str, ...], option("The weights; repeat it to try several against each other.", "--checkpoint")
    ] = ()
    knobs: Annotated[str | None, option("Change only these knobs: slots,kv,mtp. Default: all.")] = None
    skip: Annotated[str | None, option("Knobs to leave unchanged.")] = None
    begin: Annotated[
        str, option("Where it begins: `plan`, at what the planner recommends, or `safe`, from below.", "--from")
    ] = "plan"
    start: Annotated[tuple[str, ...], option("Start from this value; repeatable.", "--set", metavar="KNOB=VALUE")] = ()
    gpus: Annotated[str | None, option("Use only these GPUs: 0,1.")] = None
    binary: Annotated[str | None, option("Path of the engine's program, if it is not on PATH.")] = None
    quality: Annotated[
        str, option("Which items guard the answers (a bank as in `skep bench quality`), auto, or off.")
    ] = "auto"
    quality_items: Annotated[int | None, option("Number of quality items. Default: 96.", min=8)] = None
    in_place: InPlaceOption = False
    gpu: Annotated[str | None, option('With --simulate: "2x rtx-3090".', metavar="RIG")] = None
    link: Annotated[str | None, option("Link between its GPUs: nvlink, pcie, pcie4x8.")] = None
    simulate: Annotated[
        bool, option("Tune on a simulated rig in virtual time: takes seconds, runs no model.", "--simulate")
    ] = False
    seed: Annotated[int | None, option("Seed of the prompts and of the simulation. Default: random.")] = None


@command(tune, 'skep tune qwen3.6-27b --gpu "2x rtx-3090" --simulate', runs="tune_run.run_tuning")
def run(options: TuneOptions, html: HtmlOption = None, as_json: JsonOption = False) -> None:
    """Change one knob at a time, keep what is measurably faster and answers as well, and save the best as a preset."""


@command(tune, "skep tune resume last", runs="tune_run.resume_tuning")
def resume(
    name: TuningName = "last", in_place: InPlaceOption = False, html: HtmlOption = None, as_json: JsonOption = False
) -> None:
    """Continue a tuning that was stopped or killed; only the unfinished step is measured again."""


@command(tune, "skep tune show last --html tuning.html", runs="tune_run.show_tuning")
def show(name: TuningName = "last", html: HtmlOption = None, as_json: JsonOption = False) -> None:
    """Show each change with its figure, interval, ratio, and why it was kept or left; the progress as bars."""


@command(tune, "skep tune export my-27b --tuning last", runs="tune_run.export_tuning")
def export(
    name: Annotated[str, argument("Name of the preset to write; `skep up NAME` serves it.", metavar="NAME")],
    tuning: Annotated[str, option("Id of the tuning, or `last`.", metavar="ID")] = "last",
    stage: Annotated[int | None, option("Export this stage instead of the best.", min=0)] = None,
    overwrite: Annotated[bool, option("Replace an existing preset of that name.", "--overwrite")] = False,
) -> None:
    """Write the best configuration of a tuning as a preset of your own."""


@command(tune, "skep tune list --json", name="list", runs="tune_run.print_tunings")
def list_(
    limit: Annotated[int, option("Number of tunings to list, newest first.", "-n", "--limit", min=1)] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the tunings, newest first: model, goal, baseline and best figure."""


@command(tune, "skep tune remove 20260801-2", name="remove", runs="tune_run.remove_tuning")
def remove(name: TuningName) -> None:
    """Delete a tuning with its stages; keep presets made of it."""
