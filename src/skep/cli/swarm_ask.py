"""`skep swarm ask`: a goal split over files, worked on at once, put together. Options to values, nothing more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from skep.cli import swarm_options as of
from skep.cli.serve import JsonOption
from skep.cli.swarm import swarm


def register(app: typer.Typer) -> None:  # noqa: ARG001 - its commands are those of `skep swarm`
    example = 'Example: skep swarm ask "What does each module do?" "src/**/*.py" -o modules.md'
    swarm.command(epilog=example)(ask)


def ask(
    goal: Annotated[str, typer.Argument(metavar="GOAL", help="In words.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILES", help='What it is about: files, folders, patterns such as "docs/**/*.md".'),
    ] = None,
    more_files: Annotated[
        list[str] | None, typer.Option("--files", metavar="GLOB", help="The same as FILES. Repeatable.")
    ] = None,
    root: Annotated[Path, typer.Option(help="No file outside of it is read.")] = Path(),
    by_rule: Annotated[
        bool | None,
        typer.Option(
            "--by-rule/--by-model",
            help="Split without a model: the goal goes to every piece of the files. Default: only where the model has "
            "fewer than 1B parameters.",
        ),
    ] = None,
    plan_timeout: Annotated[str, typer.Option(help="After it, the goal is split by rule.")] = "60s",
    merge: Annotated[
        bool | None,
        typer.Option(
            "--merge/--no-merge",
            help="Have the model put the answers together; else they stand one after the other. Default: merge, but "
            "not where it is split by rule and the model has fewer than 1B parameters.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show how the goal is split, and leave.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The answer's file. Default: stdout.")] = None,
    url: of.Url = None,
    model: of.Model = None,
    key_env: of.KeyEnv = None,
    agents: of.Agents = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(min=50, help="Size of a piece of a file. Default: by the endpoint's context, or 1000.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=16, help="Longest answer of a task and of a merge. Default: by the context.")
    ] = None,
    tries: of.Tries = 4,
    timeout: of.Timeout = of.TEN_MINUTES,
    deadline: of.Deadline = of.TEN_MINUTES,
    report: of.ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Split a goal over files, work on all parts at once, and merge the answers into one."""
    from skep.cli.bench_common import Target, positive_seconds
    from skep.cli.swarm_asking import AskWishes, run_ask
    from skep.places import user_paths
    from skep.swarm.here import url_here
    from skep.swarm.orders import Order

    order = Order(
        agents=agents,
        tries=tries,
        timeout_s=positive_seconds(timeout, "--timeout", "10m"),
        deadline_s=positive_seconds(deadline, "--deadline", "10m"),
        key_env=key_env,
    )
    wishes = AskWishes(
        goal=goal.strip(),
        files=(*(files or ()), *(more_files or ())),
        root=root,
        by_rule=by_rule,
        plan_timeout_s=positive_seconds(plan_timeout, "--plan-timeout", "60s"),
        merge=merge,
        output=output,
        target=Target(url or url_here(user_paths(os.environ), os.environ), model, key_env),
        chunk_tokens=chunk_tokens,
        max_tokens=max_tokens,
        order=order,
        report=report,
    )
    raise typer.Exit(run_ask(wishes, dry_run=dry_run, as_json=as_json))
