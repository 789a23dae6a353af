"""Commands that judge answers: bench mixed, quality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from skep.cli.bench import BenchOptions, Concurrency, bench
from skep.cli.options import command, option


def register(_app: typer.Typer) -> None:
    """Importing this adds its commands to `skep bench`."""


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
    levels: Annotated[str, option("Any of 1, 2, 3 and 5: the primary task with 0, 1, 2 or 4 side tasks.")] = "1,2,3,5"


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
        int | None, option("Longest answer in tokens, instead of each item's own limit; for models that reason.", min=1)
    ] = None
    temperature: Annotated[float, option("Sampling temperature; 0 is greedy.", min=0.0, max=2.0)] = 0.0
    budget: Annotated[str | None, option("Time limit of the whole run; what is not done by then is left out.")] = None


@command(bench, "skep bench quality --bank drills:1 --concurrency 1,4,8", runs="quality_run.run_quality_command")
def quality(options: QualityOptions) -> None:
    """Are answers as good at C=N as at C=1? The same items in both, judged by execution, with a bound on the loss."""
