"""Swarm runs: one in the foreground with its live view and summary; stored ones as lists, tables
and reports.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import msgspec

from skep.cli.options import EndpointOptions, Interrupted, existing, run_measuring
from skep.errors import SkepError, UserError
from skep.files import OutputFile
from skep.paths import user_paths
from skep.report.columns import documents
from skep.report.liveview import cleaned, progress_view
from skep.report.swarm import (
    ATTEMPTS,
    FAILURES,
    RUNS,
    SHOWN_FAILURES,
    end_lines,
    frame,
    print_capitals,
    result_lines,
    run_lines,
    swarm_page,
    task_lines,
)
from skep.report.terminal import note, print_json, print_list
from skep.swarm.progress import SwarmProgress, SwarmProgressLines
from skep.swarm.records import SwarmRun, SwarmRunState, TaskEnding
from skep.swarm.results_file import result_line
from skep.swarm.runner import carry_out
from skep.swarm.store import MAKES_ONE, NONE_YET, SwarmStore, as_it_stands, cancel, stored_runs
from skep.swarm.summary import account_json, run_json, story_of


@contextmanager
def journal() -> Iterator[SwarmStore]:
    with existing(NONE_YET, MAKES_ONE) as store:
        yield SwarmStore(store)


def print_runs(limit: int, *, as_json: bool) -> None:
    runs = stored_runs(user_paths(os.environ), limit)
    none_yet = f"{NONE_YET}; {MAKES_ONE}"
    print_list(runs, partial(print_capitals, RUNS), run_json, as_json=as_json, none_yet=none_yet)


def show_run(name: str, *, last: bool, as_json: bool) -> None:
    if last and name != "last":
        raise UserError(
            "name one run, or --last for the newest", hint="`skep swarm list` lists all"
        )
    with journal() as swarm:
        run = as_it_stands(user_paths(os.environ), swarm.run(name))
        story = story_of(swarm, run, now=time.time())
    failures = [result for result in story.results if result.ending is TaskEnding.FAILED]
    if as_json:
        document = {
            "account": account_json(story.account),
            "failures": documents(FAILURES, failures),
        }
        print_json({**run_json(run), **document})
        return
    if failures:
        print_capitals(FAILURES, failures[:SHOWN_FAILURES])
        if len(failures) > SHOWN_FAILURES:
            hidden = len(failures) - SHOWN_FAILURES
            note(f"and {hidden} more: `skep swarm results {run.id} --failed` lists them all")
        print()  # noqa: T201
    for title, text in run_lines(story):
        print(f"{title:<11}  {text}")  # noqa: T201
    if run.state in (SwarmRunState.STOPPED, SwarmRunState.CANCELLED):
        note(f"`skep swarm resume {run.id}` continues it")
    elif failures:
        note(
            f"`skep swarm trace {run.id} TASK` shows one task, `skep swarm run --failed-of "
            f"{run.id}` runs them again"
        )


def show_trace(name: str, task_id: str, *, as_json: bool) -> None:
    with journal() as swarm:
        run = swarm.run(name)
        task = swarm.task(run.id, task_id)
        result = swarm.result(run.id, task.id)
        attempts = swarm.attempts(run.id, task.id)
    if as_json:
        document = {
            "result": msgspec.to_builtins(result),
            "attempts": msgspec.to_builtins(attempts),
        }
        print_json({"run": run.id, "task": msgspec.to_builtins(task), **document})
        return
    print(*task_lines(task), "", sep="\n")  # noqa: T201
    if attempts:
        print_capitals(ATTEMPTS, attempts)
    else:
        print("not tried yet")  # noqa: T201
    print("", *result_lines(result), sep="\n")  # noqa: T201


def cancel_run(name: str, *, as_json: bool) -> None:
    paths = user_paths(os.environ)
    with journal() as swarm:
        run = swarm.run(name)
        if run.state is not SwarmRunState.DONE:
            cancel(paths, run.id)
        ended = swarm.run(run.id)
    counts = f"{ended.counts.done} done, {ended.counts.failed} failed, {ended.counts.left} left"
    is_done = run.state is SwarmRunState.DONE
    if is_done:
        state = "already finished"
    else:
        state = f"cancelled, `skep swarm resume {run.id}` continues it"
    note(f"{run.id} is {state}: {counts}")
    if as_json:
        print_json(run_json(ended))


def print_results(name: str, *, failed: bool) -> None:
    with journal() as swarm:
        run = swarm.run(name)
        tasks = {task.id: task for task in swarm.tasks(run.id)}
        for result in swarm.results(run.id, ending=TaskEnding.FAILED if failed else None):
            print(result_line(tasks[result.task], result))  # noqa: T201


def write_report(name: str, output: OutputFile) -> None:
    with journal() as swarm:
        run = swarm.run(name)
        output = output.checked(run.id)
        story = story_of(swarm, run, now=time.time())
    output.write(swarm_page(story), run.id)
    note(f"{run.id} ({run.state.value}) written to {output}")


def live_view(
    title: str, deadline_s: float
) -> AbstractContextManager[Callable[[SwarmProgress], None]]:
    """Show what it is told."""
    return progress_view(
        _line_writer(deadline_s), lambda progress, page: frame(progress, page, title, deadline_s)
    )


def _line_writer(deadline_s: float) -> Callable[[SwarmProgress], None]:
    ticker = SwarmProgressLines(deadline_s)

    def take(progress: SwarmProgress) -> None:
        for line in ticker.take(progress):
            # Nobody reads on: the work is worth more than the story of it.
            with contextlib.suppress(OSError):
                note(cleaned(line))

    return take


def carry_out_here(
    run_id: str, *, key: str | None, target: EndpointOptions | None = None, as_json: bool = False
) -> int:
    """0 when every task is done, 1 where some failed. `target`: of a run that is resumed, where it
    goes on.
    """
    run = _read(run_id)
    deadline_s = run.options.deadline_s
    remaining = run.counts.left
    url, model = (run.url, run.model) if target is None else (target.address, target.model)
    if remaining:
        note(
            f"{run.id}: {remaining} task{'' if remaining == 1 else 's'} for {url}; "
            "Ctrl-C stops it, and its results are kept"
        )
    carry_out_run = partial(
        carry_out, user_paths(os.environ), run_id, url=url, model=model, key=key
    )
    try:
        with live_view(f"{run.id}  {run.name}  {url}", deadline_s) as watch:
            state = run_measuring(lambda: carry_out_run(watch=watch))
    except Interrupted:
        raise _stopped(run_id) from None
    except SkepError as error:
        if "skep swarm" not in (error.hint or ""):
            error.hint = "; ".join(
                filter(None, (error.hint, f"then `skep swarm resume {run_id}` continues"))
            )
        raise
    if state is not SwarmRunState.DONE and _read(run_id).counts.left:
        raise _stopped(run_id)
    return _end(run_id, as_json=as_json)


def _end(run_id: str, *, as_json: bool) -> int:
    """Tell what came of a run. Without a results file, the results are printed."""
    with journal() as swarm:
        run = swarm.run(run_id)
        account = story_of(swarm, run, now=time.time()).account
    file = run.config.get("output")
    note(*end_lines(account, file))
    if as_json:
        print_json({**account_json(account), "output": file})
    elif file is None and run.kind == "map":
        print_results(run_id, failed=False)
    return 1 if run.counts.failed else 0


def _read(run_id: str) -> SwarmRun:
    with journal() as swarm:
        return swarm.run(run_id)


def _stopped(run_id: str) -> Interrupted:
    run = _read(run_id)
    ended = run.counts.done + run.counts.failed
    if run.state is SwarmRunState.CANCELLED:
        state = "cancelled"
    else:
        state = "stopped"
    message = f"{state}: {ended} of {run.counts.total} tasks have their result, and keep it"
    return Interrupted(message, hint=f"resume with `skep swarm resume {run_id}`")
