"""Commands that measure and show: bench sweep, runs, report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from skep.cli.serve import JsonOption

bench = typer.Typer(no_args_is_help=True, help="Measure an endpoint under concurrency.", rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")
    bench.command(epilog="Example: skep bench sweep --url http://127.0.0.1:8400 --concurrency 1,2,4,8")(sweep)
    app.command(epilog="Example: skep runs --json")(runs)
    app.command(epilog="Example: skep report last -o report.html")(report)


@bench.callback()
def _bench() -> None:
    pass


def sweep(
    url: Annotated[str, typer.Option(help="Base URL, with or without /v1.")] = "http://127.0.0.1:8400",
    model: Annotated[str | None, typer.Option(help="Default: the only one that is served there.")] = None,
    concurrency: Annotated[
        str, typer.Option("--concurrency", "-c", help="Agents at once, one level each.")
    ] = "1,2,4,8",
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks per level and run; default: twice the largest C.")
    ] = None,
    runs_per_level: Annotated[
        int, typer.Option("--runs", min=1, help="Runs of each level; two or more show the spread.")
    ] = 2,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 128,
    fixed_output: Annotated[
        bool, typer.Option("--fixed-output", help="Let every answer go on to --max-tokens.")
    ] = False,
    size: Annotated[
        str, typer.Option(help="Prompt size: short (~45 tokens), medium (~250) or long (~1000).")
    ] = "short",
    seed: Annotated[int | None, typer.Option(help="Repeat the same prompts; default: fresh ones.")] = None,
    key_env: Annotated[str | None, typer.Option(help="Environment variable with the endpoint's API key.")] = None,
    timeout: Annotated[str, typer.Option(help="For one request.")] = "15m",
    store_prompts: Annotated[bool, typer.Option("--prompts/--no-prompts", help="Store prompts and answers.")] = True,
    as_json: JsonOption = False,
) -> None:
    """The same number of fresh coding tasks at each concurrency: effective tok/s, contention, TTFT, speedup."""
    from skep.cli.sweep import SweepWishes, run_sweep_command

    wishes = SweepWishes(
        url=url,
        model=model,
        concurrency=concurrency,
        tasks=tasks,
        runs=runs_per_level,
        max_tokens=max_tokens,
        fixed_output=fixed_output,
        size=size,
        seed=seed,
        key_env=key_env,
        timeout=timeout,
        store_prompts=store_prompts,
    )
    raise typer.Exit(run_sweep_command(wishes, as_json=as_json))


def runs(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="How many, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Stored benchmark runs, newest first."""
    from skep.cli.results import print_runs
    from skep.settings import user_paths

    print_runs(user_paths(os.environ).store, limit, as_json=as_json)


def report(
    run: Annotated[str, typer.Argument(help="A run's id, the beginning of one, or `last`.")] = "last",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The HTML file to write; .svg writes the picture alone.")
    ] = Path("report.html"),
) -> None:
    """Write one self-contained HTML file with the pictures and the table of a run."""
    from skep.cli.results import write_report
    from skep.settings import user_paths

    write_report(user_paths(os.environ).store, run, output)
