"""The commands of `skep tune` and their options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from skep.cli.options import JsonOption, command
from skep.cli.output import speak_plainly

HELP = ("-h", "--help")


class ModelFirst(TyperGroup):
    """`skep tune MODEL ...` is `skep tune run MODEL ...`: a first word that is no command is what to tune."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in HELP:
            args = ["run", *args]
        return super().parse_args(ctx, args)


tune = typer.Typer(
    cls=ModelFirst,
    no_args_is_help=True,
    help="Find the fastest configuration of a model on this machine, from a safe start; every step is measured.",
    epilog='Example: skep tune smollm2-135m --goal "effective_tok_s@4" --budget 30m',
    rich_markup_mode=None,
)

TuningName = Annotated[str, typer.Argument(metavar="ID", help="A tuning's id, the beginning of one, or `last`.")]
InPlaceOption = Annotated[
    bool, typer.Option("--in-place", help="Pause what `skep up` serves; it is started again on any exit.")
]
HtmlOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML page with charts.")]


def register(app: typer.Typer) -> None:
    app.add_typer(tune, name="tune")


@tune.callback()
def _tune() -> None:
    speak_plainly()


@dataclass(frozen=True)
class TuneOptions:
    """The options of `skep tune run`, as they were typed; a tuning that is resumed has them from its store."""

    name: Annotated[
        str, typer.Argument(metavar="PRESET|MODEL", help="A preset, a model that skep knows, a folder or a GGUF file.")
    ]
    goal: Annotated[
        str,
        typer.Option(help="effective_tok_s, task_tok_s or tok_per_joule @ agents at once; `>=300` behind it: enough."),
    ] = "effective_tok_s@4"
    slo: Annotated[str | None, typer.Option(help="Latency limits to keep: ttft=1s,tpot=50ms.")] = None
    min_context: Annotated[
        int | None, typer.Option(min=64, help="Tokens that every slot must hold. Default: a whole task.")
    ] = None
    budget: Annotated[str, typer.Option(help="Time for all of it; the best so far is kept when it ends.")] = "1h"
    input_tokens: Annotated[int, typer.Option(min=64, help="Tokens of each prompt.")] = 512
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer; all answers have this length.")] = (
        128
    )
    engine: Annotated[
        str | None,
        typer.Option(help="Engine for a model: embedded, llamacpp, vllm, sglang. Default: as `skep up` chooses."),
    ] = None
    checkpoints: Annotated[
        tuple[str, ...],
        typer.Option("--checkpoint", help="The weights; repeat it to try several against each other."),
    ] = ()
    knobs: Annotated[str | None, typer.Option(help="Change only these knobs: slots,kv,mtp. Default: all.")] = None
    skip: Annotated[str | None, typer.Option(help="Knobs to leave unchanged.")] = None
    start: Annotated[
        tuple[str, ...], typer.Option("--set", metavar="KNOB=VALUE", help="Start from this value; repeatable.")
    ] = ()
    gpus: Annotated[str | None, typer.Option(help="Use only these GPUs: 0,1.")] = None
    binary: Annotated[str | None, typer.Option(help="Path of the engine's program, if it is not on PATH.")] = None
    quality: Annotated[
        str,
        typer.Option(help="Which items guard the answers (a bank as in `skep bench quality`), auto, or off."),
    ] = "auto"
    quality_items: Annotated[int | None, typer.Option(min=8, help="Number of quality items. Default: 96.")] = None
    in_place: InPlaceOption = False
    gpu: Annotated[str | None, typer.Option(metavar="RIG", help='With --simulate: "2x rtx-3090".')] = None
    link: Annotated[str | None, typer.Option(help="Link between its GPUs: nvlink, pcie, pcie4x8.")] = None
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Tune on a simulated rig in virtual time: takes seconds, runs no model.")
    ] = False
    seed: Annotated[int | None, typer.Option(help="Seed of the prompts and of the simulation. Default: random.")] = None
    bandwidth: float | None = None  # of a CPU's memory, measured when the tuning began


@command(
    tune,
    'skep tune run qwen3.6-27b --gpu "2x rtx-3090" --simulate; `run` may be left out',
    runs="tune_run.run_tuning",
)
def run(options: TuneOptions, html: HtmlOption = None, as_json: JsonOption = False) -> None:
    """Change one knob at a time, keep what is measurably faster and answers as well, and save the best as a preset."""


@command(tune, "skep tune resume last", runs="tune_run.resume_tuning")
def resume(
    name: TuningName = "last",
    in_place: InPlaceOption = False,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a tuning that was stopped or killed; only the unfinished step is measured again."""


@command(tune, "skep tune show last --html tuning.html", runs="tune_stored.show_tuning")
def show(name: TuningName = "last", html: HtmlOption = None, as_json: JsonOption = False) -> None:
    """Show each change with its figure, interval, ratio, and why it was kept or left; the progress as bars."""


@command(tune, "skep tune export my-27b --tuning last", runs="tune_stored.export_tuning")
def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the preset to write; `skep up NAME` serves it.")],
    tuning: Annotated[str, typer.Option(metavar="ID", help="Id of the tuning, or `last`.")] = "last",
    stage: Annotated[int | None, typer.Option(min=0, help="Export this stage instead of the best.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing preset of that name.")] = False,
) -> None:
    """Write the best configuration of a tuning as a preset of your own."""


@command(tune, "skep tune ls --json", name="ls", runs="tune_stored.print_tunings")
def list_(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Number of tunings to list, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the tunings, newest first: model, goal, baseline and best figure."""


@command(tune, "skep tune rm 20260801-2", name="rm", runs="tune_stored.remove_tuning")
def remove(name: TuningName) -> None:
    """Delete a tuning with its stages; keep presets made of it."""
