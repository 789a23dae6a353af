"""The commands of `skep swarm` and their options. `swarm_run`, `swarm_session` and `swarm_tables` carry them out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skep.cli.options import JsonOption, KeyEnv, Model

if TYPE_CHECKING:
    from skep.cli.bench_common import EndpointOptions
    from skep.swarm.run_options import SwarmRunOptions

__all__ = ["KeyEnv", "Model"]

Url = Annotated[
    str | None, typer.Option(help="Base URL, with or without /v1. Default: $SKEP_URL, else what `skep up` runs.")
]

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or `last`.")]
Agents = Annotated[
    int | None, typer.Option(min=1, help="Most agents at once. Default: as many as the endpoint has room for.")
]
Tries = Annotated[int, typer.Option(min=1, help="Attempts at a task before it is set aside with its error.")]
Timeout = Annotated[str, typer.Option(help="Time limit of one attempt at a task.")]
Deadline = Annotated[str, typer.Option(help="How long the endpoint may be down before the run gives up.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer in tokens, for tasks that set none.")]
Price = Annotated[
    float | None, typer.Option("--price", "--price-kwh", min=0, help="Price of a kWh: adds the cost of the run.")
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write the report at the end, .html or .svg.")
]
TEN_MINUTES = "10m"


swarm = typer.Typer(
    no_args_is_help=True,
    help="Run many tasks at once on an endpoint. Results are journalled as they come.",
    rich_markup_mode=None,
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
        typer.Option(
            "-o", "--output", help="Results file, one JSON line a task. Default: TASKS.results.jsonl; `-` is stdout."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")] = False,
    failed_of: Annotated[
        str | None, typer.Option(metavar="RUN", help="Instead of TASKS: run the failed tasks of that run again.")
    ] = None,
    url: Url = None,
    model: Model = None,
    agents: Agents = None,
    template: Annotated[
        str | None,
        typer.Option(help='Make a prompt from each line by its columns or keys: "Summarise {title}: {text}".'),
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="Form of TASKS: jsonl, text or csv. Default: by the file name.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON schema that each answer must meet.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message, for tasks that have none.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="Temperature, for tasks that set none.")
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(help="interactive, normal or batch, for tasks that set none. Only skep's gateway reads it."),
    ] = None,
    tries: Tries = 4,
    timeout: Timeout = TEN_MINUTES,
    deadline: Deadline = TEN_MINUTES,
    stragglers: Annotated[
        bool,
        typer.Option(
            "--stragglers/--no-stragglers", help="Send a task that takes far longer than the others a second time."
        ),
    ] = True,
    key_env: KeyEnv = None,
    price_kwh: Price = None,
    report_file: ReportOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the tasks and show what would be sent.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send every task, check the answers, write one result line a task. Exit code 1 if some were set aside."""
    from skep.cli.swarm_run import Intake, TaskRunOptions, run_tasks

    order = _run_options(
        agents=agents,
        tries=tries,
        timeout=timeout,
        deadline=deadline,
        stragglers=stragglers,
        key_env=key_env,
        priority=priority,
        max_tokens=max_tokens,
        price_kwh=price_kwh,
    )
    intake = Intake(tasks, failed_of, template, form, schema, system, max_tokens, temperature, priority)
    wishes = TaskRunOptions(
        intake=intake,
        target=_endpoint(url, model, key_env),
        order=order,
        output=output,
        overwrite=overwrite,
        report=report_file,
    )
    raise typer.Exit(run_tasks(wishes, dry_run=dry_run, as_json=as_json))


def resume(
    name: Annotated[str | None, typer.Argument(metavar="RUN", help="A run's id, or the beginning of one.")] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest run that is not finished.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write all results to this file. Default: complete the run's own."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of the endpoint, if it has moved. Default: the run's own.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model there, if it has another one.")] = None,
    report_file: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume a run that was stopped or killed. Only tasks without a result are sent; the same file is completed."""
    from skep.cli.swarm_run import resume_run

    code = resume_run(name, last=last, output=output, url=url, model=model, report=report_file, as_json=as_json)
    raise typer.Exit(code)


def cancel(
    name: RunName,
    wait: Annotated[str, typer.Option(help="How long to wait for the run's process to end.")] = "30s",
    as_json: JsonOption = False,
) -> None:
    """Stop a run, also one of another process. Results are kept, and `skep swarm resume` continues it."""
    from skep.cli.swarm_tables import cancel_run

    cancel_run(name, wait, as_json=as_json)


def list_(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="How many runs.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the runs, newest first, with their tasks done, set aside and left."""
    from skep.cli.swarm_tables import print_runs

    print_runs(limit, as_json=as_json)


def show(name: RunName = "last", price_kwh: Price = None, as_json: JsonOption = False) -> None:
    """Show one run: failures first, then time, tokens, energy, and what each agent did."""
    from skep.cli.swarm_tables import show_run

    show_run(name, price_kwh, as_json=as_json)


def trace(
    name: RunName,
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task's id.")],
    as_json: JsonOption = False,
) -> None:
    """Show one task: what was sent, each attempt, the answer."""
    from skep.cli.swarm_tables import show_trace

    show_trace(name, task, as_json=as_json)


def results(
    name: RunName = "last",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write. Default: stdout.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only tasks that were set aside.")] = False,
    done: Annotated[bool, typer.Option("--done", help="Only tasks that are done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the result lines of a run from the journal, in the order of its tasks."""
    from skep.cli.swarm_session import write_results

    write_results(name, output, failed=failed, done=done, as_json=as_json)


def report(
    name: RunName = "last",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="HTML file to write; .svg writes the chart alone.")
    ] = Path("swarm.html"),
    price_kwh: Price = None,
) -> None:
    """Write one self-contained HTML report: figures, a chart of all attempts, failures and slowest tasks."""
    from skep.cli.swarm_session import write_report

    write_report(name, output, price_kwh)


def ask(
    goal: Annotated[str, typer.Argument(metavar="GOAL", help="What to find out or do, in words.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILES", help='Files to work on: names, folders, patterns such as "docs/**/*.md".'),
    ] = None,
    more_files: Annotated[
        list[str] | None, typer.Option("--files", metavar="GLOB", help="The same as FILES. Repeatable.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder of the files. No file outside of it is read.")] = Path(),
    by_rule: Annotated[
        bool | None,
        typer.Option(
            "--by-rule/--by-model",
            help="Split by rule: every piece of the files gets the goal. Or ask the model for a plan. Default: by rule "
            "only if the model has fewer than 1B parameters.",
        ),
    ] = None,
    plan_timeout: Annotated[
        str, typer.Option(help="Time limit of the plan; after it, the goal is split by rule.")
    ] = "60s",
    merge: Annotated[
        bool | None,
        typer.Option(
            "--merge/--no-merge",
            help="Have the model merge the answers, or print them one after the other. Default: merge, unless the goal "
            "was split by rule and the model has fewer than 1B parameters.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show how the goal is split, and exit.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the answer. Default: stdout.")] = None,
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
    from skep.cli.bench_common import positive_seconds
    from skep.cli.swarm_run import AskOptions, run_ask

    wishes = AskOptions(
        goal=goal.strip(),
        files=(*(files or ()), *(more_files or ())),
        root=root,
        by_rule=by_rule,
        plan_timeout_s=positive_seconds(plan_timeout, "--plan-timeout", "60s"),
        merge=merge,
        output=output,
        target=_endpoint(url, model, key_env),
        chunk_tokens=chunk_tokens,
        max_tokens=max_tokens,
        order=_run_options(agents=agents, tries=tries, timeout=timeout, deadline=deadline, key_env=key_env),
        report=report,
    )
    raise typer.Exit(run_ask(wishes, dry_run=dry_run, as_json=as_json))


def _endpoint(url: str | None, model: str | None, key_env: str | None) -> EndpointOptions:
    from skep.cli.bench_common import EndpointOptions
    from skep.paths import user_paths
    from skep.swarm.default_endpoint import url_here

    return EndpointOptions(url or url_here(user_paths(os.environ), os.environ), model, key_env)


def _run_options(*, timeout: str, deadline: str, **known: Any) -> SwarmRunOptions:
    from skep.cli.bench_common import positive_seconds
    from skep.swarm.run_options import SwarmRunOptions

    timeout_s = positive_seconds(timeout, "--timeout", TEN_MINUTES)
    return SwarmRunOptions(
        timeout_s=timeout_s, deadline_s=positive_seconds(deadline, "--deadline", TEN_MINUTES), **known
    )
