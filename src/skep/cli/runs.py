"""Commands on what was measured: runs, report, bench compare, ab, matrix, export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from skep.cli.bench import Budget, Concurrency, Processes, WorkloadOptions, bench
from skep.cli.options import JsonOption, argument, command, option

RunName = Annotated[str, argument("A run's id, the beginning of one, or `last` (`last~1`: the one before).")]


def register(app: typer.Typer) -> None:
    command(app, "skep runs --json", runs="run_list.print_runs")(runs)
    command(app, "skep report last -o report.html", runs="run_list.write_reports")(report)


def runs(
    limit: Annotated[int, option("Number of runs to list, newest first.", "-n", "--limit", min=1)] = 20,
    as_json: JsonOption = False,
) -> None:
    """Stored benchmark runs, newest first."""


def report(
    run: Annotated[
        list[str] | None, argument("A run's id, the beginning of one, or `last`; several are compared.")
    ] = None,
    output: Annotated[Path, option("The HTML file to write; .svg writes the chart alone.", "-o", "--output")] = Path(
        "report.html"
    ),
) -> None:
    """Write one self-contained HTML file with the pictures and the tables of a run, or of several side by side."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    a: Annotated[str | None, argument("The earlier run; default: the last but one of the same kind as the last.")] = (
        None
    )
    b: Annotated[str | None, argument("The later run; default: the last of the same kind as A.")] = None
    threshold: Annotated[str, option("A loss beyond this ends with exit code 4.")] = "5%"
    anyway: Annotated[bool, option("Compare runs whose prompts or answers differ in length.", "--anyway")] = False
    output: Annotated[Path | None, option("Also write an HTML page or .svg.", "-o", "--output")] = None
    as_json: JsonOption = False


@command(bench, "skep bench compare 20261114 last --threshold 5%", runs="compare.run_compare_command")
def compare(options: CompareOptions) -> None:
    """Is B better than A? One row a level, and a verdict; exit code 4 where B is worse."""


@dataclass(frozen=True, kw_only=True)
class ABOptions(WorkloadOptions):
    url: None = None
    url_a: Annotated[str, argument("Base URL.", metavar="A")]
    url_b: Annotated[str, argument("Base URL.", metavar="B")]
    model: Annotated[str | None, option("Model name at both; default: the only one served.")] = None
    model_b: Annotated[str | None, option("Model name at B, where it differs.")] = None
    concurrency: Concurrency = "1,4"
    tasks: Annotated[int | None, option("Tasks per level and run.", min=1)] = None
    runs: Annotated[int | None, option("Number of pairs of each level, instead of --precision.", min=2)] = None
    precision: Annotated[str, option("Measure pairs until the interval of their ratio is within this.")] = "3%"
    budget: Budget = "15m"
    threshold: Annotated[str, option("A loss of B beyond this ends with exit code 4.")] = "5%"
    processes: Processes = None


@command(bench, "skep bench ab http://127.0.0.1:8001 http://127.0.0.1:8002 -c 1,4,8", runs="compare.run_ab_command")
def ab(options: ABOptions) -> None:
    """Two endpoints in turns on the same tasks: what the machine does meanwhile befalls both."""


@command(bench, "skep bench matrix rigs.toml -o rigs.html", runs="compare.run_matrix_command")
def matrix(
    file: Annotated[Path, argument("A TOML file: [[config]] with a name and a url, start or run.")],
    output: Annotated[Path | None, option("Also write an HTML page, .svg, .md or .csv.", "-o", "--output")] = None,
    processes: Processes = None,
    as_json: JsonOption = False,
) -> None:
    """Configurations against concurrencies, measured one after the other or taken from stored runs."""


@command(bench, "skep bench export last --format csv", runs="run_export.run_export_command")
def export(
    run: RunName = "last",
    form: Annotated[str, option("csv, markdown or json.", "--format")] = "markdown",
    requests: Annotated[bool, option("Every request instead of the levels; csv or json.", "--requests")] = False,
    output: Annotated[Path | None, option("A file; default: standard output.", "-o", "--output")] = None,
) -> None:
    """A run's levels, or its requests, for a spreadsheet or a README."""
