"""`skep swarm run`, `resume` and `ask`: checks the input, stores the run in the journal, and
starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from msgspec import to_builtins
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.cli.options import EndpointOptions, Interrupted, run_measuring
from skep.cli.swarm import AskOptions, SwarmOptions, TaskRunOptions
from skep.cli.swarm_session import carry_out_here, journal
from skep.errors import EndpointError, UserError
from skep.files import write_whole
from skep.paths import user_paths
from skep.report.swarm import split_lines
from skep.report.terminal import day_and_time, note, print_json
from skep.store.database import open_store
from skep.swarm.ask_files import Sources, find_sources
from skep.swarm.ask_merging import answer_of, ask_document, plan_document
from skep.swarm.ask_split import MOST_PLANNED_TASKS, GoalSplit, plan_goal, split_goal
from skep.swarm.records import SwarmRunOptions, SwarmRunState, Task
from skep.swarm.results_file import ResultsFile
from skep.swarm.store import check_output_free, create_run, failed_tasks, run_to_resume
from skep.swarm.task_file import read_schema, read_tasks
from skep.units import one_line, parse_positive_seconds

T = TypeVar("T")
LONGEST_NAME = 80


def tasks_of(options: TaskRunOptions) -> list[Task]:
    if options.schema is None:
        schema = None
    else:
        schema = read_schema(options.schema)
    if options.failed_of is not None:
        return _failed_tasks(options, options.failed_of, schema)
    if options.tasks is None:
        raise UserError(
            "there are no tasks", hint="name a file of tasks, or `-` for stdin: docs/swarm.md"
        )
    defaults = _taken(options, "template system max_tokens temperature")
    return read_tasks(options.tasks, schema=schema, **defaults)


def _failed_tasks(options: TaskRunOptions, name: str, schema: dict[str, Any] | None) -> list[Task]:
    """As they were, but for what is asked for otherwise this time."""
    if beside := [
        name
        for name, value in _taken(options, "tasks template system").items()
        if value is not None
    ]:
        source = "TASKS" if beside[0] == "tasks" else f"--{beside[0]}"
        raise UserError(
            f"{source} does not go with --failed-of", hint="those tasks are already stored"
        )
    with journal() as swarm:
        tasks = failed_tasks(swarm, name)
    overrides = {"schema": schema, **_taken(options, "max_tokens temperature")}
    changed = {name: value for name, value in overrides.items() if value is not None}
    return [replace(task, **changed) for task in tasks]


def output_path(options: TaskRunOptions, source: Path | None) -> Path | None:
    """Return the results file; None is stdout.

    `tasks.jsonl` has `tasks.results.jsonl`. Any other file keeps its ending,
    `tasks.csv.results.jsonl`, so that task files of one name do not meet in one results file."""
    if options.output == "-":
        return None
    if options.output is not None:
        return Path(options.output).absolute()
    if source is None:
        return None
    stem = source.stem if source.suffix == ".jsonl" else source.name
    return source.absolute().with_name(f"{stem}.results.jsonl")


def _order_of(options: SwarmOptions, **settings: Any) -> SwarmRunOptions:
    settings["timeout_s"] = parse_positive_seconds(options.timeout, "--timeout", "10m")
    settings["deadline_s"] = parse_positive_seconds(options.deadline, "--deadline", "10m")
    return SwarmRunOptions(**_taken(options, "agents tries key_env"), **settings)


def _taken(options: SwarmOptions, names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names.split()}


def _before_sending(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return run_measuring(work)
    except Interrupted:
        raise Interrupted("stopped before anything was sent", hint=None) from None


def run_tasks(options: TaskRunOptions) -> int:
    """Send the tasks once all that can be wrong has been checked; return the exit status."""
    paths = user_paths(os.environ)
    as_json = options.as_json
    if options.tasks in (None, "-"):
        source = None
    else:
        source = Path(str(options.tasks))
    output = output_path(options, source)
    if options.priority not in (None, "interactive", "normal", "batch"):
        raise UserError(
            f"--priority `{options.priority}` is unknown",
            hint="choose interactive, normal or batch",
        )
    limits = _taken(options, "priority max_tokens")
    order = _order_of(options, **limits, output=None if output is None else str(output))
    key = options.key()
    if as_json and output is None and not options.dry_run:
        raise UserError(
            "--json and the results would both go to stdout",
            hint="name a file for the results with -o",
        )
    tasks = tasks_of(options)
    if output is not None:
        check_output_free(paths, output, source, overwrite=options.overwrite)
    endpoint, down = _before_sending(lambda: _found(options))
    if options.dry_run:
        _show_dry(options, tasks, output, endpoint, down)
        return 0
    name = "stdin" if source is None else source.name
    if options.failed_of is not None:
        name = f"failed of {options.failed_of}"
    with open_store(paths.store) as store:
        if endpoint is not None:
            model: str | None = endpoint.model
        else:
            model = options.model
        run_id = create_run(store, tasks, order, url=options.address, model=model, name=name)
    if output is not None:
        with closing(ResultsFile(output, run_id)) as file:
            # --overwrite: the old lines go when the new run is in the journal, not before
            file.clear()
    return carry_out_here(run_id, key=key, as_json=as_json)


def resume_run(
    name: str | None, *, last: bool, url: str | None, model: str | None, as_json: bool
) -> int:
    """`url`, `model`: of an endpoint that has moved. A run that has ended sends nothing; its file
    is made whole.
    """
    run = run_to_resume(user_paths(os.environ), name, last=last)
    counts = run.counts
    file = run.config.get("output")
    if run.state is SwarmRunState.DONE:
        note(f"{run.id} has ended already: {counts.done} tasks done, {counts.failed} failed")
    else:
        results = f", results in {file}" if file is not None else ""
        remaining = f"{counts.left} of {counts.total} tasks left"
        note(f"{run.id} of {day_and_time(run.created_at)}, {run.name}: {remaining}{results}")
    target = EndpointOptions(url=url or run.url, model=model, key_env=run.config.get("key_env"))
    key = target.key() if counts.left else None
    code = carry_out_here(run.id, target=target, key=key, as_json=as_json and run.kind == "map")
    if run.kind == "ask":
        give_answer(run.id, as_json=as_json)
    return code


async def _found(options: SwarmOptions) -> tuple[Endpoint | None, str | None]:
    """Return the endpoint, or why it does not answer: it will be waited for. UserError: it does
    not serve the model.
    """
    try:
        return await options.find(), None
    except EndpointError as error:
        return None, error.message


def _show_dry(
    options: TaskRunOptions,
    tasks: list[Task],
    output: Path | None,
    endpoint: Endpoint | None,
    down: str | None,
) -> None:
    document = {
        "tasks": len(tasks),
        "first": to_builtins(tasks[0]),
        "output": None if output is None else str(output),
        "url": options.address,
        "model": options.model if endpoint is None else endpoint.model,
        "endpoint": None if endpoint is None else dict(endpoint.engine),
        "error": down,
    }
    if options.as_json:
        print_json(document)
        return
    note(
        f"{len(tasks)} tasks would go to {options.address}, their results to "
        f"{output or 'stdout'}; nothing was sent"
    )
    if endpoint is None:
        note(f"it does not answer now: {down}")
    else:
        slots = endpoint.engine.get("slots")
        note(
            f"it serves {endpoint.model}"
            + (f" with {slots} slots" if slots is not None else " and reports no slots")
        )
    note("the first task:")
    print_json(document["first"])


async def _split(
    options: AskOptions, goal: str, sources: Sources | None, timeout_s: float
) -> tuple[GoalSplit, str | None]:
    """Split the goal into tasks, by the model or by rule; return the model's name with them."""
    if sources is None:
        endpoint = await options.find()
        task_limit = MOST_PLANNED_TASKS
        if options.agents is not None:
            task_limit = min(options.agents, MOST_PLANNED_TASKS)
        split = await plan_goal(
            goal,
            endpoint,
            max_tasks=task_limit,
            max_tokens=options.max_tokens,
            timeout_s=timeout_s,
            say=note,
        )
        return split, endpoint.model
    if options.by_model:
        target: Endpoint | None = await options.find()
    else:
        target, down = await _found(options)
        if down is not None:
            note(f"{down}; skep waits for it")
    split_options = _taken(options, "by_model chunk_tokens max_tokens")
    split = await split_goal(goal, sources, target, **split_options, timeout_s=timeout_s, say=note)
    return split, options.model if target is None else target.model


def run_ask(options: AskOptions) -> int:
    """Carry out a goal once all that can be wrong has been checked; return the exit status."""
    goal = options.goal.strip()
    order = _order_of(options)
    if options.output is not None:
        options.output.checked()
    if not goal:
        raise UserError(
            "the goal is empty", hint='skep swarm ask "Summarise each file" "docs/*.md"'
        )
    if not options.files and options.chunk_tokens is not None:
        raise UserError(
            "--chunk-tokens cuts files, and no files are named", hint="leave it out, or name files"
        )
    key = options.key()
    if options.files:
        sources = find_sources(Path(), options.files, outside=True)
    else:
        sources = None
    left_out = () if sources is None else sources.left_out
    note(*(f"left out of {len(left_out)}: {name} ({why})" for name, why in left_out[:5]))
    split, model = _before_sending(lambda: _split(options, goal, sources, order.timeout_s))
    note(*split_lines(split, merge=options.merge))
    plan = plan_document(goal, split, merge=options.merge)
    if options.dry_run:
        if options.as_json:
            print_json(plan)
        return 0
    if options.output is None:
        answer = None
    else:
        answer = str(options.output.absolute())
    order = replace(order, ask=ask_document(plan, split.sizes, answer))
    tasks = [part.task(split.sizes) for part in split.parts]
    name = one_line(goal, LONGEST_NAME)
    with open_store(user_paths(os.environ).store) as store:
        run_id = create_run(
            store, tasks, order, url=options.address, model=model, kind="ask", name=name
        )
    code = carry_out_here(run_id, key=key)
    give_answer(run_id, as_json=options.as_json)
    return code


def give_answer(run_id: str, *, as_json: bool) -> None:
    """To the file it was asked for in, or to stdout."""
    with journal() as swarm:
        run = swarm.run(run_id)
        answer = answer_of(run, swarm.results(run.id))
    ask = run.config["ask"]
    text = answer.with_notes().rstrip() + "\n"
    if ask.get("answer"):
        write_whole(Path(ask["answer"]), text)
        note(f"the answer is in {ask['answer']}")
    if as_json:
        counts = {"tasks": run.counts.total, "done": run.counts.done, "failed": run.counts.failed}
        document = {"answer": answer.text, "notes": answer.notes, "complete": answer.complete}
        print_json(
            {
                "run": run.id,
                "goal": ask.get("goal"),
                **document,
                **counts,
                "output": ask.get("answer"),
            }
        )
    elif not ask.get("answer"):
        sys.stdout.write(text)
        sys.stdout.flush()
