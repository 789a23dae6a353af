"""The commands of `skep swarm` and their options.

`swarm_run` and `swarm_session` carry them out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from skep.cli.options import EndpointOptions, JsonOption, argument, command, group, option
from skep.files import OutputFile
from skep.paths import user_paths

RunName = Annotated[str, argument("ID of a run, the start of an ID, or `last`.", metavar="RUN")]
SWARM_REPORT = OutputFile("swarm.html")


swarm = group(
    "swarm", "Run many tasks at once on an endpoint. Every result is stored as it arrives."
)


@dataclass(frozen=True, kw_only=True)
class SwarmOptions(EndpointOptions):
    """Options of the commands that start a run."""

    url: Annotated[
        str | None,
        option(
            "Base URL, with or without /v1 (default: $SKEP_URL, else the gateway of `skep up`)."
        ),
    ] = None
    agents: Annotated[
        int | None,
        option(
            "Maximum concurrent agents (default: as many as the endpoint has room for).",
            "-c",
            "--concurrency",
            min=1,
        ),
    ] = None
    tries: Annotated[int, option("Attempts per task before it fails with its error.", min=1)] = 4
    timeout: Annotated[str, option("Time limit of one attempt.")] = "10m"
    deadline: Annotated[
        str, option("How long the endpoint may be down before the run gives up.")
    ] = "10m"
    as_json: JsonOption = False

    @cached_property
    def address(self) -> str:
        from skep.swarm.address import url_here

        return self.url or url_here(user_paths(os.environ), os.environ)


@dataclass(frozen=True, kw_only=True)
class TaskRunOptions(SwarmOptions):
    """The options of `skep swarm run`: where the tasks come from, and what those that do not say
    take.
    """

    PANELS: ClassVar[dict[str, str]] = {
        "Tasks": "output overwrite failed_of template schema system max_tokens temperature",
        "Endpoint": "url model key_env",
        "Running": "agents priority tries timeout deadline dry_run",
        "Results": "as_json",
    }

    tasks: Annotated[
        str | None,
        argument(
            "Task file: JSONL, CSV or text lines (docs/swarm.md); `-` reads stdin.",
            metavar="TASKS",
        ),
    ] = None
    output: Annotated[
        str | None,
        option(
            "Results file, one JSON line per task; `-`: stdout "
            "(default: tasks.results.jsonl for tasks.jsonl, else TASKS.results.jsonl).",
            "-o",
            "--output",
        ),
    ] = None
    overwrite: Annotated[bool, option("Replace the results file if it exists.")] = False
    failed_of: Annotated[
        str | None, option("Instead of TASKS, rerun the failed tasks of a run.", metavar="RUN")
    ] = None
    template: Annotated[
        str | None,
        option('Build each prompt from columns or keys of a line: "Summarise {title}: {text}".'),
    ] = None
    schema: Annotated[
        Path | None, option("JSON Schema that every answer must match.", metavar="FILE")
    ] = None
    system: Annotated[str | None, option("System message for tasks that have none.")] = None
    max_tokens: Annotated[
        int | None, option("Maximum answer length in tokens for tasks that set none.", min=1)
    ] = None
    temperature: Annotated[
        float | None, option("Sampling temperature for tasks that set none.", min=0, max=2)
    ] = None
    priority: Annotated[
        str | None,
        option(
            "Class of all requests: interactive, normal or batch; only skep's gateway uses it."
        ),
    ] = None
    dry_run: Annotated[
        bool, option("Check the tasks and show what would be sent; send nothing.")
    ] = False


@command(swarm, "skep swarm run tasks.jsonl -o results.jsonl", runs="swarm_run.run_tasks")
def run(options: TaskRunOptions) -> None:
    """Send every task, check the answers and write one result per task. Exit code 1 if any
    failed.
    """


@command(swarm, "skep swarm resume --last", runs="swarm_run.resume_run")
def resume(
    name: Annotated[
        str | None, argument("ID of a run, or the start of an ID.", metavar="RUN")
    ] = None,
    last: Annotated[bool, option("Resume the newest unfinished run.")] = False,
    url: Annotated[str | None, option("New URL of the endpoint (default: the run's own).")] = None,
    model: Annotated[str | None, option("New name of the model (default: the run's own).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a run that was stopped or killed. Only tasks without a result are sent."""


@dataclass(frozen=True, kw_only=True)
class AskOptions(SwarmOptions):
    PANELS: ClassVar[dict[str, str]] = {
        "Splitting and merging": "by_model merge chunk_tokens max_tokens",
        "Endpoint": "url model key_env",
        "Running": "agents tries timeout deadline dry_run",
        "Results": "output as_json",
    }

    goal: Annotated[str, argument("What to find out or do, in plain words.")]
    files: Annotated[
        tuple[str, ...],
        argument(
            'Files, folders or patterns to work on, such as "docs/**/*.md" (default: the '
            "model plans the tasks)."
        ),
    ] = ()
    by_model: Annotated[
        bool,
        option(
            (
                "Let the model plan the split, within --timeout (default: give each piece of "
                "the files the whole goal)."
            ),
            "--by-model/--by-rule",
        ),
    ] = False
    merge: Annotated[
        bool,
        option(
            "Let the model merge the answers, or print them one after the other.",
            "--merge/--no-merge",
        ),
    ] = True
    dry_run: Annotated[bool, option("Show how the goal is split; send no task.")] = False
    output: Annotated[
        OutputFile | None, option("File for the answer (default: stdout).", "-o", "--output")
    ] = None
    chunk_tokens: Annotated[
        int | None,
        option(
            "Size of a piece of a file in tokens (default: from the context, else 1000).", min=50
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        option("Maximum tokens of an answer or a merge (default: from the context).", min=16),
    ] = None


@command(
    swarm,
    'skep swarm ask "What does each module do?" "src/**/*.py" -o modules.md',
    runs="swarm_run.run_ask",
)
def ask(options: AskOptions) -> None:
    """Split a goal over files, or let the model plan it, work on all parts at once and merge the
    answers into one.
    """


@command(swarm, "skep swarm cancel last", runs="swarm_session.cancel_run")
def cancel(name: RunName, as_json: JsonOption = False) -> None:
    """Stop a run, even one of another process. Results stay, and `skep swarm resume` continues
    it.
    """


@command(swarm, "skep swarm list --json", name="list", runs="swarm_session.print_runs")
def list_(
    limit: Annotated[
        int, option("Number of runs to list, newest first.", "-n", "--limit", min=1)
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first, with the tasks done, failed and left."""


@command(swarm, "skep swarm show last", runs="swarm_session.show_run")
def show(
    name: RunName = "last",
    last: Annotated[bool, option("Show the newest run, as without a name.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run: failures first, then time, tokens and errors."""


@command(swarm, "skep swarm trace last task-17", runs="swarm_session.show_trace")
def trace(
    name: RunName,
    task_id: Annotated[str, argument("ID of a task.", metavar="TASK")],
    as_json: JsonOption = False,
) -> None:
    """Show one task of a run: the request, each attempt and the answer."""


@command(swarm, "skep swarm results last --failed", runs="swarm_session.print_results")
def results(
    name: RunName = "last", failed: Annotated[bool, option("Only tasks that failed.")] = False
) -> None:
    """Print the results of a run, one JSON line per task, in the order of the tasks."""


@command(swarm, "skep swarm report last -o swarm.html", runs="swarm_session.write_report")
def report(
    name: RunName = "last",
    output: Annotated[OutputFile, option("HTML file to write.", "-o", "--output")] = SWARM_REPORT,
) -> None:
    """Write a self-contained HTML report: figures, chart of all attempts, failures."""
