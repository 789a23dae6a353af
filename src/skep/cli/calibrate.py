"""`skep calibrate` and `skep calibrations`: measure this machine's own constants, and look at those that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import typer

from skep.cli.options import EndpointOptions, JsonOption, argument, command, group, option, running_url

calibrations = group("What `skep calibrate` found: list, show, forget.")

NameArgument = Annotated[str, argument("A calibration's id, the beginning of it, or `last`.")]


def register(app: typer.Typer) -> None:
    command(app, "skep calibrate --levels 1,8 --budget 5m", runs="calibrate_run.run_calibration")(calibrate)
    app.add_typer(calibrations, name="calibrations")


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(EndpointOptions):
    LAST: ClassVar[str] = "key_env as_json"

    geometry: Annotated[
        str | None, option("The model: catalogue name, config.json or GGUF; default: by the name it is served as.")
    ] = None
    gpu: Annotated[str | None, option('Its cards, such as "2x rtx-3090"; default: this machine\'s, or its CPU.')] = None
    link: Annotated[str | None, option("Link between the cards: nvlink, pcie, pcie4x8.")] = None
    bandwidth: Annotated[
        float | None, option("GB/s of this machine's memory, without a GPU; default: measured.", min=0.1)
    ] = None
    engine: Annotated[str | None, option("vllm, sglang, llamacpp, ollama, trtllm; default: as the endpoint says.")] = (
        None
    )
    quant: Annotated[str | None, option("Format of the weights: awq, fp8, bf16, q4_k_m.")] = None
    kv: Annotated[str | None, option("Type of the KV cache; default: bf16.")] = None
    tp: Annotated[int | None, option("Tensor-parallel size; default: all cards of a replica.", min=1)] = None
    pp: Annotated[int | None, option("Pipeline-parallel size.", min=1)] = None
    spec: Annotated[str | None, option("Speculation, such as mtp:3.")] = None
    no_graphs: Annotated[bool, option("The engine runs without CUDA graphs (eager mode).", "--no-graphs")] = False
    levels: Annotated[
        str | None, option("1 and one higher level to fit to; default: 1 and the number of slots, 8 at most.")
    ] = None
    check: Annotated[
        str | None, option("Levels to measure without fitting to them; reports the error of the fit there.")
    ] = None
    prompt_tokens: Annotated[int, option("Tokens of the long prompts.", min=32)] = 1024
    budget: Annotated[str, option("Time limit of the whole calibration.")] = "5m"
    as_json: JsonOption = False

    @cached_property
    def address(self) -> str:
        """Without a hive there is nothing to calibrate: an error."""
        return self.url or running_url(None)


def calibrate(options: CalibrateOptions) -> None:
    """Measure a running endpoint for minutes and fit the planner to it; plans for this machine use what is found."""


@command(calibrations, "skep calibrations list --json", name="list", runs="calibrate_run.print_calibrations")
def list_calibrations(as_json: JsonOption = False) -> None:
    """All that are kept, newest first; the newest of a kind is used."""


@command(calibrations, "skep calibrations show last", runs="calibrate_run.show_calibration")
def show(name: NameArgument = "last", as_json: JsonOption = False) -> None:
    """One of them: the factors, what was predicted and what was measured."""


@command(calibrations, "skep calibrations forget last", runs="calibrate_run.forget_calibration")
def forget(name: NameArgument) -> None:
    """Delete one; the next older of its kind is used again."""
