"""Commands on what was measured: runs, report, bench compare, ab, matrix, export."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from skep.cli import bench_options as of
from skep.cli.bench import bench
from skep.cli.serve import JsonOption

RunName = Annotated[str, typer.Argument(help="A run's id, the beginning of one, or `last` (`last~1`: the one before).")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: skep runs --json")(runs)
    app.command(epilog="Example: skep report last -o report.html")(report)
    bench.command(epilog="Example: skep bench compare 20261114 last --threshold 5%")(compare)
    bench.command(epilog="Example: skep bench ab http://127.0.0.1:8001 http://127.0.0.1:8002 -c 1,4,8")(ab)
    bench.command(epilog="Example: skep bench matrix rigs.toml -o rigs.html")(matrix)
    bench.command(epilog="Example: skep bench export last --format csv")(export)


def runs(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Number of runs to list, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Stored benchmark runs, newest first."""
    from skep.cli.run_list import print_runs
    from skep.paths import user_paths

    print_runs(user_paths(os.environ).store, limit, as_json=as_json)


def report(
    run: Annotated[
        list[str] | None, typer.Argument(help="A run's id, the beginning of one, or `last`; several are compared.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The HTML file to write; .svg writes the chart alone.")
    ] = Path("report.html"),
) -> None:
    """Write one self-contained HTML file with the pictures and the tables of a run, or of several side by side."""
    from skep.cli.run_list import write_comparison, write_report
    from skep.paths import user_paths

    names, store = run or ["last"], user_paths(os.environ).store
    if len(names) == 1:
        write_report(store, names[0], output)
    else:
        write_comparison(store, names, output)


def compare(
    a: Annotated[
        str | None, typer.Argument(help="The earlier run; default: the last but one of the same kind as the last.")
    ] = None,
    b: Annotated[str | None, typer.Argument(help="The later run; default: the last of the same kind as A.")] = None,
    threshold: Annotated[str, typer.Option(help="A loss beyond this ends with exit code 4.")] = "5%",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs whose prompts or answers differ in length.")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also write an HTML page or .svg.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Is B better than A? One row a level, and a verdict; exit code 4 where B is worse."""
    from skep.cli.compare import run_compare_command
    from skep.paths import user_paths

    store = user_paths(os.environ).store
    code = run_compare_command(store, (a, b), threshold=threshold, anyway=anyway, output=output, as_json=as_json)
    raise typer.Exit(code)


def ab(
    url_a: Annotated[str, typer.Argument(metavar="A", help="Base URL.")],
    url_b: Annotated[str, typer.Argument(metavar="B", help="Base URL.")],
    model: Annotated[str | None, typer.Option(help="Model name at both; default: the only one served.")] = None,
    model_b: Annotated[str | None, typer.Option(help="Model name at B, where it differs.")] = None,
    concurrency: of.Concurrency = "1,4",
    tasks: Annotated[int | None, typer.Option(min=1, help="Tasks per level and run.")] = None,
    runs_per_level: Annotated[
        int | None, typer.Option("--runs", min=2, help="Number of pairs of each level, instead of --precision.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Measure pairs until the interval of their ratio is within this.")
    ] = "3%",
    budget: of.Budget = "15m",
    threshold: Annotated[str, typer.Option(help="A loss of B beyond this ends with exit code 4.")] = "5%",
    max_tokens: of.MaxTokens = 128,
    fixed_output: of.FixedOutput = False,
    size: of.Size = "short",
    prompt_tokens: of.PromptTokens = None,
    seed: of.Seed = None,
    key_env: of.KeyEnv = None,
    timeout: of.Timeout = of.FIFTEEN_MINUTES,
    processes: of.Processes = None,
    as_json: JsonOption = False,
) -> None:
    """Two endpoints in turns on the same tasks: what the machine does meanwhile befalls both."""
    from skep.cli.bench_common import EndpointOptions, workload_of
    from skep.cli.compare import run_ab_command

    workload = workload_of(
        shape="steady",
        size=size,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        fixed_output=fixed_output,
        seed=seed,
    )
    targets = (EndpointOptions(url_a, model, key_env), EndpointOptions(url_b, model_b or model, key_env))
    limits = (concurrency, tasks, runs_per_level, precision, budget, timeout)
    code = run_ab_command(targets, workload, limits, processes=processes, threshold=threshold, as_json=as_json)
    raise typer.Exit(code)


def matrix(
    file: Annotated[Path, typer.Argument(help="A TOML file: [[config]] with a name and a url, start or run.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write an HTML page, .svg, .md or .csv.")
    ] = None,
    processes: of.Processes = None,
    as_json: JsonOption = False,
) -> None:
    """Configurations against concurrencies, measured one after the other or taken from stored runs."""
    from skep.cli.compare import run_matrix_command

    run_matrix_command(file, output, processes=processes, as_json=as_json)


def export(
    run: RunName = "last",
    form: Annotated[str, typer.Option("--format", help="csv, markdown or json.")] = "markdown",
    requests: Annotated[
        bool, typer.Option("--requests", help="Every request instead of the levels; csv or json.")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file; default: standard output.")] = None,
) -> None:
    """A run's levels, or its requests, for a spreadsheet or a README."""
    from skep.cli.run_export import run_export_command
    from skep.paths import user_paths

    run_export_command(user_paths(os.environ).store, run, form, output, requests=requests)
