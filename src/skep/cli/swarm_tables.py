"""`skep swarm list`, `show`, `trace` and `cancel`: the journal, and its runs, tasks and attempts as tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import msgspec

from skep.cli.options import existing
from skep.cli.output import note, print_json
from skep.paths import user_paths
from skep.report.columns import Column, documents, print_records
from skep.report.swarm import (
    AGENTS,
    ATTEMPTS,
    FAILURES,
    REPLICAS,
    RUNS,
    named_replicas,
    one_line,
    result_lines,
    run_lines,
    task_lines,
)
from skep.swarm.journal import MAKES_ONE, NONE_YET, as_it_stands, cancel, stored_runs
from skep.swarm.records import SwarmRunState, TaskEnding, given_fields
from skep.swarm.store import SwarmStore
from skep.swarm.summary import SwarmStory, account_json, run_json, story_of
from skep.units import parse_seconds

__all__ = ["cancel_run", "journal", "one_line", "print_runs", "show_run", "show_trace"]

Record = TypeVar("Record")
SHOWN_FAILURES = 20
SHOWN_AGENTS = 16


@contextmanager
def journal(*, read_only: bool = True) -> Iterator[SwarmStore]:
    with existing(NONE_YET, MAKES_ONE, read_only=read_only) as store:
        yield SwarmStore(store)


def _print(columns: Sequence[Column[Record]], records: Sequence[Record]) -> None:
    print_records([replace(one, title=one.title.upper()) for one in columns], records)


def print_runs(limit: int, *, as_json: bool) -> None:
    runs = stored_runs(user_paths(os.environ), limit)
    if as_json:
        print_json([run_json(run) for run in runs])
    elif runs:
        _print(RUNS, runs)
    else:
        note(f"{NONE_YET}; {MAKES_ONE}")


def show_run(name: str, price_kwh: float | None, *, as_json: bool) -> None:
    with journal() as swarm:
        run = as_it_stands(user_paths(os.environ), swarm.run(name))
        story = story_of(swarm, run, now=time.time(), price_kwh=price_kwh)
    failures = [one for one in story.results if one.ending is TaskEnding.FAILED]
    if as_json:
        told = {"account": account_json(story.account), "failures": documents(FAILURES, failures)}
        print_json({**run_json(run), **told})
        return
    if failures:
        _print(FAILURES, failures[:SHOWN_FAILURES])
        if len(failures) > SHOWN_FAILURES:
            more = len(failures) - SHOWN_FAILURES
            note(f"and {more} more: `skep swarm results {run.id} --failed` has them all")
        print()  # noqa: T201
    for title, text in run_lines(story):
        print(f"{title:<11}  {text}")  # noqa: T201
    _show_agents(story)
    if replicas := named_replicas(story.account):
        print()  # noqa: T201
        _print(REPLICAS, replicas)
    if run.state in (SwarmRunState.STOPPED, SwarmRunState.CANCELLED):
        note(f"`skep swarm resume {run.id}` goes on with it")
    elif failures:
        note(f"`skep swarm trace {run.id} TASK` tells all about one, `skep swarm run --failed-of {run.id}` tries again")


def _show_agents(story: SwarmStory) -> None:
    """Those that did least are the ones to look at: where they are too many, the first and the last."""
    agents, half = story.account.by_agent, SHOWN_AGENTS // 2
    shown = agents if len(agents) <= SHOWN_AGENTS else (*agents[:half], *agents[-half:])
    if shown:
        print()  # noqa: T201
        _print(AGENTS, shown)
    if len(shown) < len(agents):
        note(f"{len(agents) - len(shown)} agents between them are left out: --json has them all")


def show_trace(name: str, task_id: str, *, as_json: bool) -> None:
    with journal() as swarm:
        run = swarm.run(name)
        task = swarm.task(run.id, task_id)
        result = swarm.result(run.id, task.id)
        attempts = swarm.attempts(run.id, task.id)
    if as_json:
        told = {"result": msgspec.to_builtins(result), "attempts": msgspec.to_builtins(attempts)}
        print_json({"run": run.id, "task": given_fields(task), **told})
        return
    print(*task_lines(task), "", sep="\n")  # noqa: T201
    if attempts:
        _print(ATTEMPTS, attempts)
    else:
        print("not tried yet")  # noqa: T201
    print("", *result_lines(result), sep="\n")  # noqa: T201


def cancel_run(name: str, wait: str, *, as_json: bool) -> None:
    wait_s, paths = parse_seconds(wait), user_paths(os.environ)
    with journal() as swarm:
        run = swarm.run(name)
        if run.state is not SwarmRunState.DONE:
            cancel(paths, run.id, wait_s)
        ended = swarm.run(run.id)
    counts = f"{ended.counts.done} done, {ended.counts.failed} set aside, {ended.counts.left} left"
    if run.state is SwarmRunState.DONE:
        note(f"{run.id} is finished already: {counts}")
    else:
        note(f"{run.id} is cancelled: {counts}; `skep swarm resume {run.id}` would go on with it")
    if as_json:
        print_json(run_json(ended))
