"""The commands of `skep swarm` and their options. `swarm_run`, `swarm_session` and `swarm_tables` carry them out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from skep.cli.options import EndpointOptions, JsonOption, argument, command, group, option
from skep.files import OutputFile
from skep.paths import user_paths

RunName = Annotated[str, argument("A run's id, the beginning of one, or `last`.", metavar="RUN")]
Price = Annotated[float | None, option("Price of a kWh: adds the cost of the run.", "--price-kwh", min=0)]
SWARM_REPORT = OutputFile("swarm.html")
ReportOption = Annotated[
    OutputFile | None, option("Also write the report at the end, .html or .svg.", "--report", metavar="FILE")
]


swarm = group("swarm", "Run many tasks at once on an endpoint. Results are journalled as they come.")


@dataclass(frozen=True, kw_only=True)
class SwarmOptions(EndpointOptions):
    """Options of the commands that start a run."""

    url: Annotated[
        str | None, option("Base URL, with or without /v1. Default: $SKEP_URL, else what `skep up` runs.")
    ] = None
    agents: Annotated[
        int | None,
        option("Most agents at once. Default: as many as the endpoint has room for.", "-c", "--concurrency", min=1),
    ] = None
    tries: Annotated[int, option("Attempts at a task before it is set aside with its error.", min=1)] = 4
    timeout: Annotated[str, option("Time limit of one attempt at a task.")] = "10m"
    deadline: Annotated[str, option("How long the endpoint may be down before the run gives up.")] = "10m"
    report: ReportOption = None
    as_json: JsonOption = False

    @cached_property
    def address(self) -> str:
        from skep.swarm.client import url_here

        return self.url or url_here(user_paths(os.environ), os.environ)


@dataclass(frozen=True, kw_only=True)
class TaskRunOptions(SwarmOptions):
    """The options of `skep swarm run`: where the tasks come from, and what those that do not say take."""

    PANELS: ClassVar[dict[str, str]] = {
        "Tasks": "output overwrite failed_of template form schema system max_tokens temperature priority",
        "Endpoint": "url model key_env",
        "Running": "agents tries timeout deadline stragglers dry_run",
        "Results": "price_kwh report as_json",
    }

    tasks: Annotated[
        str | None, argument("JSONL, plain text lines or CSV: docs/swarm.md. `-` reads stdin.", metavar="TASKS")
    ] = None
    output: Annotated[
        str | None,
        option("Results file, one JSON line a task. Default: TASKS.results.jsonl; `-` is stdout.", "-o", "--output"),
    ] = None
    overwrite: Annotated[bool, option("Replace the output file and the report if they exist.", "--overwrite")] = False
    failed_of: Annotated[
        str | None, option("Instead of TASKS: run the failed tasks of that run again.", metavar="RUN")
    ] = None
    template: Annotated[
        str | None, option('Make a prompt from each line by its columns or keys: "Summarise {title}: {text}".')
    ] = None
    form: Annotated[str | None, option("Form of TASKS: jsonl, text or csv. Default: by the file name.")] = None
    schema: Annotated[Path | None, option("A JSON schema that each answer must meet.", metavar="FILE")] = None
    system: Annotated[str | None, option("System message, for tasks that have none.")] = None
    max_tokens: Annotated[int | None, option("Longest answer in tokens, for tasks that set none.", min=1)] = None
    temperature: Annotated[float | None, option("Temperature, for tasks that set none.", min=0, max=2)] = None
    priority: Annotated[
        str | None, option("interactive, normal or batch, for tasks that set none. Only skep's gateway reads it.")
    ] = None
    stragglers: Annotated[
        bool, option("Send a task that takes far longer than the others a second time.", "--stragglers/--no-stragglers")
    ] = True
    price_kwh: Price = None
    dry_run: Annotated[bool, option("Check the tasks and show what would be sent.", "--dry-run")] = False


@command(swarm, "skep swarm run tasks.jsonl -o results.jsonl", runs="swarm_run.run_tasks")
def run(options: TaskRunOptions) -> None:
    """Send every task, check the answers, write one result line a task. Exit code 1 if some were set aside."""


@command(swarm, "skep swarm resume --last", runs="swarm_run.resume_run")
def resume(
    name: Annotated[str | None, argument("A run's id, or the beginning of one.", metavar="RUN")] = None,
    last: Annotated[bool, option("The newest run that is not finished.", "--last")] = False,
    output: Annotated[
        Path | None, option("Write all results to this file. Default: complete the run's own.", "-o", "--output")
    ] = None,
    url: Annotated[str | None, option("URL of the endpoint, if it has moved. Default: the run's own.")] = None,
    model: Annotated[str | None, option("Name of the model there, if it has another one.")] = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume a run that was stopped or killed. Only tasks without a result are sent; the same file is completed."""


@dataclass(frozen=True, kw_only=True)
class AskOptions(SwarmOptions):
    PANELS: ClassVar[dict[str, str]] = {
        "Splitting and merging": "more_files root by_rule plan_timeout merge chunk_tokens max_tokens",
        "Endpoint": "url model key_env",
        "Running": "agents tries timeout deadline dry_run",
        "Results": "output report as_json",
    }

    goal: Annotated[str, argument("What to find out or do, in words.")]
    files: Annotated[
        tuple[str, ...], argument('Files to work on: names, folders, patterns such as "docs/**/*.md".')
    ] = ()
    more_files: Annotated[tuple[str, ...], option("The same as FILES. Repeatable.", "--files", metavar="GLOB")] = ()
    root: Annotated[Path, option("Folder of the files. No file outside of it is read.")] = Path()
    by_rule: Annotated[
        bool | None,
        option(
            "Split by rule: every piece of the files gets the goal. Or ask the model for a plan. Default: by rule "
            "only if the model has fewer than 1B parameters.",
            "--by-rule/--by-model",
        ),
    ] = None
    plan_timeout: Annotated[str, option("Time limit of the plan; after it, the goal is split by rule.")] = "60s"
    merge: Annotated[
        bool | None,
        option(
            "Have the model merge the answers, or print them one after the other. Default: merge, unless the goal "
            "was split by rule and the model has fewer than 1B parameters.",
            "--merge/--no-merge",
        ),
    ] = None
    dry_run: Annotated[bool, option("Show how the goal is split, and exit.", "--dry-run")] = False
    output: Annotated[OutputFile | None, option("File for the answer. Default: stdout.", "-o", "--output")] = None
    chunk_tokens: Annotated[
        int | None, option("Size of a piece of a file. Default: by the endpoint's context, or 1000.", min=50)
    ] = None
    max_tokens: Annotated[
        int | None, option("Longest answer of a task and of a merge. Default: by the context.", min=16)
    ] = None


@command(swarm, 'skep swarm ask "What does each module do?" "src/**/*.py" -o modules.md', runs="swarm_run.run_ask")
def ask(options: AskOptions) -> None:
    """Split a goal over files, work on all parts at once, and merge the answers into one."""


@command(swarm, "skep swarm cancel last", runs="swarm_session.cancel_run")
def cancel(
    name: RunName,
    wait: Annotated[str, option("How long to wait for the run's process to end.")] = "30s",
    as_json: JsonOption = False,
) -> None:
    """Stop a run, also one of another process. Results are kept, and `skep swarm resume` continues it."""


@command(swarm, "skep swarm list --json", name="list", runs="swarm_session.print_runs")
def list_(
    limit: Annotated[int, option("How many runs.", "-n", "--limit", min=1)] = 20, as_json: JsonOption = False
) -> None:
    """List the runs, newest first, with their tasks done, set aside and left."""


@command(swarm, "skep swarm show last", runs="swarm_session.show_run")
def show(name: RunName = "last", price_kwh: Price = None, as_json: JsonOption = False) -> None:
    """Show one run: failures first, then time, tokens, energy, and what each agent did."""


@command(swarm, "skep swarm trace last task-17", runs="swarm_session.show_trace")
def trace(
    name: RunName, task_id: Annotated[str, argument("A task's id.", metavar="TASK")], as_json: JsonOption = False
) -> None:
    """Show one task: what was sent, each attempt, the answer."""


@command(swarm, "skep swarm results last --failed", runs="swarm_session.write_results")
def results(
    name: RunName = "last",
    output: Annotated[OutputFile | None, option("File to write. Default: stdout.", "-o", "--output")] = None,
    failed: Annotated[bool, option("Only tasks that were set aside.", "--failed")] = False,
    done: Annotated[bool, option("Only tasks that are done.", "--done")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the result lines of a run from the journal, in the order of its tasks."""


@command(swarm, "skep swarm report last -o swarm.html", runs="swarm_session.write_report")
def report(
    name: RunName = "last",
    output: Annotated[
        OutputFile, option("HTML file to write; .svg writes the chart alone.", "-o", "--output")
    ] = SWARM_REPORT,
    price_kwh: Price = None,
) -> None:
    """Write one self-contained HTML report: figures, a chart of all attempts, failures and slowest tasks."""
