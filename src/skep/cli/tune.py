"""The commands of `skep tune`: they turn options into values and call what carries them out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from skep.cli.options import JsonOption

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
HtmlOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML page with charts.")]


def register(app: typer.Typer) -> None:
    app.add_typer(tune, name="tune")
    tune.command(epilog='Example: skep tune run qwen3.6-27b --gpu "2x rtx-3090" --simulate; `run` may be left out')(run)
    tune.command(epilog="Example: skep tune resume last")(resume)
    tune.command(epilog="Example: skep tune show last --html tuning.html")(show)
    tune.command(epilog="Example: skep tune export my-27b --tuning last")(export)
    tune.command("ls", epilog="Example: skep tune ls --json")(list_)
    tune.command("rm", epilog="Example: skep tune rm 20260801-2")(remove)


@tune.callback()
def _tune() -> None:
    from skep.cli.output import speak_plainly

    speak_plainly()


def run(
    name: Annotated[
        str, typer.Argument(metavar="PRESET|MODEL", help="A preset, a model that skep knows, a folder or a GGUF file.")
    ],
    goal: Annotated[
        str,
        typer.Option(help="effective_tok_s, task_tok_s or tok_per_joule @ agents at once; `>=300` behind it: enough."),
    ] = "effective_tok_s@4",
    slo: Annotated[str | None, typer.Option(help="Latency limits to keep: ttft=1s,tpot=50ms.")] = None,
    min_context: Annotated[
        int | None, typer.Option(min=64, help="Tokens that every slot must hold. Default: a whole task.")
    ] = None,
    budget: Annotated[str, typer.Option(help="Time for all of it; the best so far is kept when it ends.")] = "1h",
    input_tokens: Annotated[int, typer.Option(min=64, help="Tokens of each prompt.")] = 512,
    output_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of each answer; all answers have this length.")
    ] = 128,
    engine: Annotated[
        str | None,
        typer.Option(help="Engine for a model: embedded, llamacpp, vllm, sglang. Default: as `skep up` chooses."),
    ] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(help="The weights; repeat it to try several against each other.")
    ] = None,
    knobs: Annotated[str | None, typer.Option(help="Change only these knobs: slots,kv,mtp. Default: all.")] = None,
    skip: Annotated[str | None, typer.Option(help="Knobs to leave unchanged.")] = None,
    start: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="Start from this value; repeatable."),
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="Use only these GPUs: 0,1.")] = None,
    binary: Annotated[str | None, typer.Option(help="Path of the engine's program, if it is not on PATH.")] = None,
    quality: Annotated[
        str,
        typer.Option(help="Which items guard the answers (a bank as in `skep bench quality`), auto, or off."),
    ] = "auto",
    quality_items: Annotated[int | None, typer.Option(min=8, help="Number of quality items. Default: 96.")] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Pause what `skep up` serves; it is started again on any exit.")
    ] = False,
    gpu: Annotated[str | None, typer.Option(metavar="RIG", help='With --simulate: "2x rtx-3090".')] = None,
    link: Annotated[str | None, typer.Option(help="Link between its GPUs: nvlink, pcie, pcie4x8.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Tune on a simulated rig in virtual time: takes seconds, runs no model.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the prompts and of the simulation. Default: random.")
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change one knob at a time, keep what is measurably faster and answers as well, and save the best as a preset."""
    from skep.cli.tune_run import run_tuning
    from skep.cli.tune_target import TuneOptions

    wishes = TuneOptions(
        name=name, goal=goal, slo=slo, min_context=min_context, budget=budget, input_tokens=input_tokens,
        output_tokens=output_tokens, engine=engine, checkpoints=tuple(checkpoint or ()), knobs=knobs, skip=skip,
        start=tuple(start or ()), gpus=gpus, binary=binary, quality=quality, quality_items=quality_items,
        in_place=in_place, gpu=gpu, link=link, simulate=simulate, seed=seed,
    )  # fmt: skip
    raise typer.Exit(run_tuning(wishes, html=html, as_json=as_json))


def resume(
    name: TuningName = "last",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Pause what `skep up` serves; it is started again on any exit.")
    ] = False,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a tuning that was stopped or killed; only the unfinished step is measured again."""
    from skep.cli.tune_run import resume_tuning

    raise typer.Exit(resume_tuning(name, in_place=in_place, html=html, as_json=as_json))


def show(
    name: TuningName = "last",
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show each change with its figure, interval, ratio, and why it was kept or left; the progress as bars."""
    from skep.cli.tune_stored import show_tuning

    show_tuning(name, html=html, as_json=as_json)


def export(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the preset to write; `skep up NAME` serves it.")],
    tuning: Annotated[str, typer.Option(metavar="ID", help="Id of the tuning, or `last`.")] = "last",
    stage: Annotated[int | None, typer.Option(min=0, help="Export this stage instead of the best.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing preset of that name.")] = False,
) -> None:
    """Write the best configuration of a tuning as a preset of your own."""
    from skep.cli.tune_stored import export_tuning

    export_tuning(name, tuning, stage=stage, overwrite=overwrite)


def list_(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Number of tunings to list, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the tunings, newest first: model, goal, baseline and best figure."""
    from skep.cli.tune_stored import print_tunings

    print_tunings(limit, as_json=as_json)


def remove(name: TuningName) -> None:
    """Delete a tuning with its stages; keep presets made of it."""
    from skep.cli.tune_stored import remove_tuning

    remove_tuning(name)
