"""Commands that judge answers: bench mixed, quality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from skep.cli.bench import BenchOptions, Concurrency, bench
from skep.cli.options import command


def register(_app: typer.Typer) -> None:
    """Importing this adds its commands to `skep bench`."""


@dataclass(frozen=True, kw_only=True)
class MixedOptions(BenchOptions):
    model: None = None
    models: Annotated[
        tuple[str, ...],
        typer.Option("--model", help="Model name; default: the only one served there. Several are compared."),
    ] = ()
    form: Annotated[
        str, typer.Option(help="published: each side task once; sustained: again and again until the primary ends.")
    ] = "published"
    repeats: Annotated[int, typer.Option(min=1, help="Runs of every level, in turns.")] = 3
    levels: Annotated[
        str, typer.Option(help="Any of 1, 2, 3 and 5: the primary task with 0, 1, 2 or 4 side tasks.")
    ] = "1,2,3,5"


@command(bench, "skep bench mixed --form sustained --repeats 5", runs="quality_run.run_mixed_command")
def mixed(options: MixedOptions) -> None:
    """A coding conversation with side tasks beside it; every answer is executed, not grepped."""


@dataclass(frozen=True, kw_only=True)
class QualityOptions(BenchOptions):
    bank: Annotated[
        str, typer.Option(help="humaneval, drills, drills:1 (easy) to drills:5, or a JSONL file: docs/quality.md.")
    ] = "drills"
    concurrency: Concurrency = "1,4,8"
    delta: Annotated[str, typer.Option(help="The smallest loss that matters, in points: 3 is from 60 % to 57 %.")] = "3"
    items: Annotated[
        int | None, typer.Option(min=1, help="Number of items of the bank; default: as many as needed.")
    ] = None
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of every item in every arm.")] = 1
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Longest answer in tokens, instead of each item's own limit; for models that reason."),
    ] = None
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Sampling temperature; 0 is greedy.")] = 0.0
    budget: Annotated[
        str | None, typer.Option(help="Time limit of the whole run; what is not done by then is left out.")
    ] = None


@command(bench, "skep bench quality --bank drills:1 --concurrency 1,4,8", runs="quality_run.run_quality_command")
def quality(options: QualityOptions) -> None:
    """Are answers as good at C=N as at C=1? The same items in both, judged by execution, with a bound on the loss."""
