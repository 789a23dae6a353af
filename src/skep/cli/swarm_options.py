"""Options that several commands of `skep swarm` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skep.cli.bench_common import KeyEnv, Model

__all__ = ["KeyEnv", "Model"]

Url = Annotated[
    str | None, typer.Option(help="Base URL, with or without /v1. Default: $SKEP_URL, else what `skep up` runs.")
]

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or `last`.")]
Agents = Annotated[
    int | None, typer.Option(min=1, help="At most so many at once. Default: as many as the endpoint has room for.")
]
Tries = Annotated[int, typer.Option(min=1, help="A task that fails so often is set aside with its error.")]
Timeout = Annotated[str, typer.Option(help="For one attempt at a task.")]
Deadline = Annotated[str, typer.Option(help="The endpoint may be down for so long before the run is given up.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer, where a task does not say.")]
Price = Annotated[float | None, typer.Option("--price", "--price-kwh", min=0, help="Of a kWh: adds what the run cost.")]
ReportOption = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write the report at the end, .html or .svg.")
]
TEN_MINUTES = "10m"
