"""`skep swarm`: many tasks at once, none lost. Options to values; what each command does is in the modules beside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from skep.cli.bench_options import KeyEnv, Model
from skep.cli.serve import JsonOption

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


swarm = typer.Typer(
    no_args_is_help=True, help="Run many tasks at once on an endpoint, and lose none.", rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    app.add_typer(swarm, name="swarm")
    swarm.command(epilog="Example: skep swarm run tasks.jsonl -o results.jsonl")(run)
    swarm.command(epilog="Example: skep swarm resume --last")(resume)
    example = 'Example: skep swarm ask "What does each module do?" "src/**/*.py" -o modules.md'
    swarm.command(epilog=example)(ask)
    swarm.command(epilog="Example: skep swarm cancel last")(cancel)
    swarm.command("ls", epilog="Example: skep swarm ls --json")(list_)
    swarm.command(epilog="Example: skep swarm show last")(show)
    swarm.command(epilog="Example: skep swarm trace last task-17")(trace)
    swarm.command(epilog="Example: skep swarm results last --failed")(results)
    swarm.command(epilog="Example: skep swarm report last -o swarm.html")(report)


@swarm.callback()
def _swarm() -> None:
    pass


def run(
    tasks: Annotated[
        str | None,
        typer.Argument(metavar="TASKS", help="JSONL, plain text lines or CSV: docs/swarm.md. `-` reads stdin."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="A line a result. Default: TASKS.results.jsonl; `-` prints them."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="The output file may be there already.")] = False,
    failed_of: Annotated[
        str | None, typer.Option(metavar="RUN", help="Instead of TASKS: those that were set aside in that run.")
    ] = None,
    url: Url = None,
    model: Model = None,
    agents: Agents = None,
    template: Annotated[
        str | None, typer.Option(help='Makes a prompt of each line: "Summarise {title}: {text}", by columns or keys.')
    ] = None,
    form: Annotated[str | None, typer.Option(help="jsonl, text or csv. Default: by the file's name.")] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON schema that each answer must meet.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message, where a task has none.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="Where a task does not say.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="interactive, normal or batch, where a task does not say: for skep's gateway.")
    ] = None,
    tries: Tries = 4,
    timeout: Timeout = TEN_MINUTES,
    deadline: Deadline = TEN_MINUTES,
    stragglers: Annotated[
        bool, typer.Option("--stragglers/--no-stragglers", help="Send what takes far too long a second time.")
    ] = True,
    key_env: KeyEnv = None,
    price_kwh: Price = None,
    report_file: ReportOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, show what would be sent.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send every task, check the answers, write a result line for each; exit code 1 where some were set aside."""
    import os

    from skep.cli.bench_common import EndpointOptions
    from skep.cli.swarm_run import Intake, TaskRunOptions, run_tasks
    from skep.paths import user_paths
    from skep.swarm.default_endpoint import url_here

    intake = Intake(tasks, failed_of, template, form, schema, system, max_tokens, temperature, priority)
    wishes = TaskRunOptions(
        intake=intake,
        target=EndpointOptions(url or url_here(user_paths(os.environ), os.environ), model, key_env),
        output=output,
        overwrite=overwrite,
        agents=agents,
        tries=tries,
        timeout=timeout,
        deadline=deadline,
        stragglers=stragglers,
        price_kwh=price_kwh,
        report=report_file,
    )
    raise typer.Exit(run_tasks(wishes, dry_run=dry_run, as_json=as_json))


def resume(
    name: Annotated[str | None, typer.Argument(metavar="RUN", help="A run's id, or the beginning of one.")] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest that is not finished.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write all results to this file. Default: complete the run's own."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Of an endpoint that has moved. Default: the run's own.")] = None,
    model: Annotated[str | None, typer.Option(help="If it has another name there.")] = None,
    report_file: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was stopped or killed: only what has no result is done, the same file is completed."""
    from skep.cli.swarm_run import resume_run

    code = resume_run(name, last=last, output=output, url=url, model=model, report=report_file, as_json=as_json)
    raise typer.Exit(code)


def cancel(
    name: RunName,
    wait: Annotated[str, typer.Option(help="For the process that works on it to end.")] = "30s",
    as_json: JsonOption = False,
) -> None:
    """Stop a run, also one of another process. What is done is kept; `skep swarm resume` would go on with it."""
    from skep.cli.swarm_tables import cancel_run

    cancel_run(name, wait, as_json=as_json)


def list_(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="How many, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """The runs, newest first: how many tasks are done, set aside, left."""
    from skep.cli.swarm_tables import print_runs

    print_runs(limit, as_json=as_json)


def show(name: RunName = "last", price_kwh: Price = None, as_json: JsonOption = False) -> None:
    """A run's account: failures first, then time, tokens, energy, and what each agent did."""
    from skep.cli.swarm_tables import show_run

    show_run(name, price_kwh, as_json=as_json)


def trace(
    name: RunName,
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task's id.")],
    as_json: JsonOption = False,
) -> None:
    """All about one task: what was sent, each attempt, the answer."""
    from skep.cli.swarm_tables import show_trace

    show_trace(name, task, as_json=as_json)


def results(
    name: RunName = "last",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file. Default: stdout.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only what was set aside.")] = False,
    done: Annotated[bool, typer.Option("--done", help="Only what is done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The result lines of a run from the journal, in the order of its tasks."""
    from skep.cli.swarm_session import write_results

    write_results(name, output, failed=failed, done=done, as_json=as_json)


def report(
    name: RunName = "last",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The HTML file to write; .svg writes the picture alone.")
    ] = Path("swarm.html"),
    price_kwh: Price = None,
) -> None:
    """Write one self-contained HTML file: the account, who did what when, failures and slowest tasks."""
    from skep.cli.swarm_session import write_report

    write_report(name, output, price_kwh)


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
    url: Url = None,
    model: Model = None,
    key_env: KeyEnv = None,
    agents: Agents = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(min=50, help="Size of a piece of a file. Default: by the endpoint's context, or 1000.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=16, help="Longest answer of a task and of a merge. Default: by the context.")
    ] = None,
    tries: Tries = 4,
    timeout: Timeout = TEN_MINUTES,
    deadline: Deadline = TEN_MINUTES,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Split a goal over files, work on all parts at once, and merge the answers into one."""
    from skep.cli.bench_common import EndpointOptions, positive_seconds
    from skep.cli.swarm_run import AskOptions, run_ask
    from skep.paths import user_paths
    from skep.swarm.default_endpoint import url_here
    from skep.swarm.run_options import SwarmRunOptions

    order = SwarmRunOptions(
        agents=agents,
        tries=tries,
        timeout_s=positive_seconds(timeout, "--timeout", "10m"),
        deadline_s=positive_seconds(deadline, "--deadline", "10m"),
        key_env=key_env,
    )
    wishes = AskOptions(
        goal=goal.strip(),
        files=(*(files or ()), *(more_files or ())),
        root=root,
        by_rule=by_rule,
        plan_timeout_s=positive_seconds(plan_timeout, "--plan-timeout", "60s"),
        merge=merge,
        output=output,
        target=EndpointOptions(url or url_here(user_paths(os.environ), os.environ), model, key_env),
        chunk_tokens=chunk_tokens,
        max_tokens=max_tokens,
        order=order,
        report=report,
    )
    raise typer.Exit(run_ask(wishes, dry_run=dry_run, as_json=as_json))
