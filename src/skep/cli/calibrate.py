"""`skep calibrate`: measure this machine's own constants, and look at those that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from skep.cli.options import (
    EndpointOptions,
    JsonOption,
    argument,
    command,
    group,
    option,
    running_url,
)

calibrations = group(
    "calibrate",
    "Fit the planner to a running endpoint; list and check calibrations.",
    default="run",
)

NameArgument = Annotated[str, argument("ID of a calibration, the start of an ID, or `last`.")]


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(EndpointOptions):
    PANELS: ClassVar[dict[str, str]] = {
        "What the endpoint runs": "geometry gpu link engine quant kv tp pp spec no_graphs",
        "Measurement": "levels prompt_tokens budget",
        "Endpoint": "url model key_env",
    }

    geometry: Annotated[
        str | None,
        option(
            "Model: catalog name, config.json or GGUF file (default: by the name it is served as)."
        ),
    ] = None
    gpu: Annotated[
        str | None, option('GPUs, such as "2x rtx-3090" (default: this machine\'s GPUs or CPU).')
    ] = None
    link: Annotated[str | None, option("Link between the GPUs: nvlink, pcie or pcie4x8.")] = None
    engine: Annotated[
        str | None, option("vllm, sglang, llamacpp, ollama (default: ask the endpoint).")
    ] = None
    quant: Annotated[str | None, option("Weight format: awq, fp8, bf16, q4_k_m.")] = None
    kv: Annotated[str | None, option("KV cache type (default: bf16).")] = None
    tp: Annotated[
        int | None, option("Tensor-parallel size (default: all GPUs of a replica).", min=1)
    ] = None
    pp: Annotated[int | None, option("Pipeline-parallel size.", min=1)] = None
    spec: Annotated[str | None, option("Speculative decoding, such as mtp:3.")] = None
    no_graphs: Annotated[bool, option("The engine runs without CUDA graphs (eager mode).")] = False
    levels: Annotated[
        str | None,
        option(
            "Levels to fit to: 1 and a higher one: 1,8 (default: 1 and the slots, at most 8).",
            "-c",
            "--concurrency",
        ),
    ] = None
    prompt_tokens: Annotated[int, option("Length of the long prompts in tokens.", min=32)] = 1024
    budget: Annotated[str, option("Time limit of the whole calibration.")] = "5m"
    as_json: JsonOption = False

    @cached_property
    def address(self) -> str:
        """Without a hive there is nothing to calibrate: an error."""
        return self.url or running_url(None)


@command(
    calibrations,
    "skep calibrate --concurrency 1,8 --budget 5m",
    name="run",
    runs="calibrate_run.run_calibration",
)
def calibrate(options: CalibrateOptions) -> None:
    """Measure a running endpoint for minutes and fit the planner to it. Plans for this machine use
    the fit.
    """


@command(
    calibrations,
    "skep calibrate list --json",
    name="list",
    runs="calibrate_run.print_calibrations",
)
def list_calibrations(as_json: JsonOption = False) -> None:
    """List calibrations, newest first. Plans use the newest of each kind."""


@command(calibrations, "skep calibrate show last", runs="calibrate_run.show_calibration")
def show(name: NameArgument = "last", as_json: JsonOption = False) -> None:
    """Show the factors of a calibration, with predicted and measured figures."""


@command(
    calibrations,
    "skep calibrate remove last",
    name="remove",
    runs="calibrate_run.forget_calibration",
)
def forget(name: NameArgument) -> None:
    """Delete a calibration. Plans then use the next older one of its kind."""


@command(
    calibrations,
    "skep calibrate validate published_points.csv --json",
    runs="calibrate_run.validate",
)
def validate(
    points: Annotated[
        Path,
        argument(
            "CSV table with one measurement per row; docs/accuracy.md names the columns.",
            metavar="POINTS.csv",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Predict every row of a table of measurements and report how far off the planner is.

    Rows are predicted as `skep plan` does, also those its constants were fitted to. Rows that lack
    a fact are listed."""
