"""`skep calibrate`: measure this machine's own constants, and look at those that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from skep.cli.options import EndpointOptions, JsonOption, argument, command, group, option, running_url

calibrations = group("calibrate", "Fit the planner to a running endpoint, and look at what was found.", default="run")

NameArgument = Annotated[str, argument("A calibration's id, the beginning of it, or `last`.")]


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(EndpointOptions):
    PANELS: ClassVar[dict[str, str]] = {
        "What runs there": "geometry gpu link bandwidth engine quant kv tp pp spec no_graphs",
        "Measurement": "levels check prompt_tokens budget",
        "Endpoint": "url model key_env",
    }

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
        str | None,
        option(
            "1 and one higher level to fit to; default: 1 and the number of slots, 8 at most.", "-c", "--concurrency"
        ),
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


@command(calibrations, "skep calibrate --concurrency 1,8 --budget 5m", name="run", runs="calibrate_run.run_calibration")
def calibrate(options: CalibrateOptions) -> None:
    """Measure a running endpoint for minutes and fit the planner to it; plans for this machine use what is found."""


@command(calibrations, "skep calibrate list --json", name="list", runs="calibrate_run.print_calibrations")
def list_calibrations(as_json: JsonOption = False) -> None:
    """All that are kept, newest first; the newest of a kind is used."""


@command(calibrations, "skep calibrate show last", runs="calibrate_run.show_calibration")
def show(name: NameArgument = "last", as_json: JsonOption = False) -> None:
    """One of them: the factors, what was predicted and what was measured."""


@command(calibrations, "skep calibrate remove last", name="remove", runs="calibrate_run.forget_calibration")
def forget(name: NameArgument) -> None:
    """Delete one; the next older of its kind is used again."""


@command(calibrations, "skep calibrate validate published_points.csv --json", runs="calibrate_run.validate")
def validate(
    points: Annotated[
        Path,
        argument("CSV table with one measurement a row; docs/accuracy.md names the columns.", metavar="POINTS.csv"),
    ],
    as_json: JsonOption = False,
) -> None:
    """Predict every row of a table and say how far off the planner is.

    A row is predicted with constants that were never fitted on its source. Rows that lack a fact are listed with it.
    """
