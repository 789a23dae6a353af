"""`skep calibrate` and `skep calibrations`: measure this machine's own constants, and look at those that are kept."""

from __future__ import annotations

from typing import Annotated

import typer

from skep.cli import bench_options as of
from skep.cli.serve import JsonOption

calibrations = typer.Typer(
    no_args_is_help=True, help="What `skep calibrate` found: list, show, forget.", rich_markup_mode=None
)

NameArgument = Annotated[str, typer.Argument(help="A calibration's id, the beginning of it, or `last`.")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: skep calibrate --levels 1,8 --budget 5m")(calibrate)
    app.add_typer(calibrations, name="calibrations")
    calibrations.command("list", epilog="Example: skep calibrations list --json")(list_calibrations)
    calibrations.command(epilog="Example: skep calibrations show last")(show)
    calibrations.command(epilog="Example: skep calibrations forget last")(forget)


def calibrate(
    url: Annotated[
        str | None, typer.Option(help="Base URL, with or without /v1; default: what `skep up` runs.")
    ] = None,
    model: of.Model = None,
    geometry: Annotated[
        str | None,
        typer.Option(help="The model: catalogue name, config.json or GGUF; default: by the name it is served as."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help='Its cards, such as "2x rtx-3090"; default: this machine\'s, or its CPU.')
    ] = None,
    link: Annotated[str | None, typer.Option(help="Link between the cards: nvlink, pcie, pcie4x8.")] = None,
    bandwidth: Annotated[
        float | None, typer.Option(min=0.1, help="GB/s of this machine's memory, without a GPU; default: measured.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm, sglang, llamacpp, ollama, trtllm; default: as the endpoint says.")
    ] = None,
    quant: Annotated[str | None, typer.Option(help="Format of the weights: awq, fp8, bf16, q4_k_m.")] = None,
    kv: Annotated[str | None, typer.Option(help="Type of the KV cache; default: bf16.")] = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="Tensor-parallel size; default: all cards of a replica.")
    ] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline-parallel size.")] = None,
    spec: Annotated[str | None, typer.Option(help="Speculation, such as mtp:3.")] = None,
    no_graphs: Annotated[
        bool, typer.Option("--no-graphs", help="The engine runs without CUDA graphs (eager mode).")
    ] = False,
    levels: Annotated[
        str | None,
        typer.Option(help="1 and one higher level to fit to; default: 1 and the number of slots, 8 at most."),
    ] = None,
    check: Annotated[
        str | None, typer.Option(help="Levels to measure without fitting to them; reports the error of the fit there.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=32, help="Tokens of the long prompts.")] = 1024,
    budget: Annotated[str, typer.Option(help="Time limit of the whole calibration.")] = "5m",
    key_env: of.KeyEnv = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a running endpoint for minutes and fit the planner to it; plans for this machine use what is found."""
    from skep.cli.calibrate_run import CalibrateOptions, run_calibration

    wishes = CalibrateOptions(
        url, model, geometry, gpu, link, bandwidth, engine, quant, kv, tp, pp, spec, no_graphs, levels, check,
        prompt_tokens, budget, key_env,
    )  # fmt: skip
    run_calibration(wishes, as_json=as_json)


def list_calibrations(as_json: JsonOption = False) -> None:
    """All that are kept, newest first; the newest of a kind is used."""
    from skep.cli.calibrate_run import print_calibrations

    print_calibrations(as_json=as_json)


def show(name: NameArgument = "last", as_json: JsonOption = False) -> None:
    """One of them: the factors, what was predicted and what was measured."""
    from skep.cli.calibrate_run import show_calibration

    show_calibration(name, as_json=as_json)


def forget(name: NameArgument) -> None:
    """Delete one; the next older of its kind is used again."""
    from skep.cli.calibrate_run import forget_calibration

    forget_calibration(name)
