"""`skep swarm ask`: a goal, split into tasks, worked on at once, put together. Options to values, nothing more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from skep.cli import swarm_options as of
from skep.cli.serve import JsonOption
from skep.cli.swarm import swarm


def register(app: typer.Typer) -> None:  # noqa: ARG001 - its commands are those of `skep swarm`
    example = 'Example: skep swarm ask "What does each module do?" --files "src/**/*.py" -o modules.md'
    swarm.command(epilog=example)(ask)


def ask(
    goal: Annotated[str | None, typer.Argument(metavar="GOAL", help="In words. With --plan: the plan's own.")] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help='Files it is about, under --root, in quotes: "docs/**/*.md". Repeatable.'),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="No file outside of it is read. Default: this folder.")] = None,
    tools: Annotated[
        str, typer.Option(help="What agents may use: files (under --root), code (in the sandbox), both, or none.")
    ] = "none",
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Print the plan, to edit it, and leave.")] = False,
    by_rule: Annotated[
        bool | None,
        typer.Option(
            "--by-rule/--by-model",
            help="Plan without a model: the goal goes to every piece of the files. Default: only where the model has "
            "fewer than 1B parameters.",
        ),
    ] = None,
    plan_timeout: Annotated[str, typer.Option(help="After it, the plan is made by rule.")] = "60s",
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Carry out this plan: JSON or TOML.")] = None,
    edit: Annotated[bool, typer.Option("--edit", help="Open the plan in $EDITOR before it runs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it runs.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The answer's file. Default: stdout.")] = None,
    url: of.Url = None,
    model: of.Model = None,
    key_env: of.KeyEnv = None,
    orchestrator_url: Annotated[
        str | None, typer.Option(help="Another endpoint, which plans and merges; the agents stay at --url.")
    ] = None,
    orchestrator_model: Annotated[str | None, typer.Option(help="Its model, or another one at --url.")] = None,
    orchestrator_key_env: Annotated[str | None, typer.Option(help="Environment variable with its API key.")] = None,
    agents: of.Agents = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(min=50, help="Size of a piece of a file. Default: by the endpoint's context, or 1000.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=16, help="Longest answer of an agent and of a merge. Default: by the context.")
    ] = None,
    tries: of.Tries = 4,
    timeout: of.Timeout = of.TEN_MINUTES,
    deadline: of.Deadline = of.TEN_MINUTES,
    report: of.ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Split a goal into tasks that stand alone, let agents work on them at once, and merge what they find."""
    from skep.cli.benching import Target
    from skep.cli.swarm_asking import AskWishes, run_ask
    from skep.places import user_paths
    from skep.swarm.here import url_here

    own = url or url_here(user_paths(os.environ), os.environ)
    other = None
    if orchestrator_url or orchestrator_model:
        other_key = orchestrator_key_env or (None if orchestrator_url else key_env)
        other = Target(orchestrator_url or own, orchestrator_model, other_key)
    wishes = AskWishes(
        goal=goal,
        files=tuple(files or ()),
        root=root or Path(),
        tools=tools,
        plan=plan,
        by_rule=by_rule,
        plan_timeout=plan_timeout,
        edit=edit,
        yes=yes,
        output=output,
        target=Target(own, model, key_env),
        orchestrator=other,
        agents=agents,
        chunk_tokens=chunk_tokens,
        max_tokens=max_tokens,
        tries=tries,
        timeout=timeout,
        deadline=deadline,
        report=report,
    )
    raise typer.Exit(run_ask(wishes, plan_only=plan_only, as_json=as_json))
