"""A run carried out before somebody's eyes: the live view, Ctrl-C, and what is said when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Self, TypeVar

from skep.cli.bench_common import Interrupted, Target, run_measuring
from skep.cli.output import note, print_json
from skep.cli.swarm_places import journal, opened
from skep.cli.swarm_results import write_report
from skep.cli.swarm_view import live_view
from skep.cli.swarm_words import summary_lines
from skep.errors import SkepError
from skep.places import Paths
from skep.store.swarm import SwarmStore
from skep.swarm.accounts.account import account_json, account_of
from skep.swarm.orders import order_from_json
from skep.swarm.output import result_line
from skep.swarm.running import carry_out
from skep.tasks import Result, RunState, Task

T = TypeVar("T")
LAST_WORDS_S = 1.0


class Stopped(SkepError):
    exit_code = 130


def carry_out_here(
    paths: Paths,
    run_id: str,
    *,
    key: str | None,
    target: Target | None = None,
    output: Path | None = None,
    report: Path | None = None,
    as_json: bool = False,
    echo: bool = False,
) -> int:
    """0 when every task is done, 1 where some were set aside. `echo`: print each result line.

    `target`, `output`: of a run that is resumed, where it goes on and where its results go.
    """
    with journal() as swarm:
        run = swarm.run(run_id)
        after_cancel = None if target is None else swarm.newest_cancel(run_id)
        printer = Printer(swarm.tasks(run_id) if echo else ())
    deadline_s = order_from_json(run.config).deadline_s
    tasks = "1 task" if run.counts.left == 1 else f"{run.counts.left} tasks"
    url, model = (run.url, run.model) if target is None else (target.url, target.model)
    note(f"{run.id}: {tasks} for {url}; Ctrl-C stops it, and nothing is lost")
    plain = echo and sys.stdout.isatty()  # the lines would run through the picture
    try:
        with printer, live_view(f"{run.id}  {run.name}  {url}", deadline_s, plain=plain) as watch:
            carried = partial(carry_out, paths, run_id, url=url, model=model, output=output, after_cancel=after_cancel)
            followed = partial(carried, key=key, watch=watch, on_result=printer.take)
            state = run_measuring(lambda: printer.followed(followed))
    except Interrupted:
        printer.complain(run_id)
        raise _stopped(run_id) from None
    except SkepError as error:
        if "skep swarm" not in (error.hint or ""):
            error.hint = "; ".join(filter(None, (error.hint, f"then `skep swarm resume {run_id}` goes on")))
        raise
    if state is not RunState.DONE and _left(run_id):
        raise _stopped(run_id)
    return end_of(run_id, output=output, report=report, as_json=as_json)


def end_of(run_id: str, *, output: Path | None, report: Path | None, as_json: bool) -> int:
    """What is said of a run that has ended. `output`: where its results are; None: where the run was told."""
    with opened() as store:
        swarm = SwarmStore(store)
        run = swarm.run(run_id)
        account = account_of(swarm, run, now=time.time())
    file = order_from_json(run.config).output if output is None else str(output)
    for line in summary_lines(account, file):
        note(line)
    if report is not None:
        write_report(run_id, report, None)
    if as_json:
        print_json({**account_json(account), "output": file})
    return 1 if run.counts.failed else 0


def _left(run_id: str) -> int:
    with journal() as swarm:
        return swarm.counts(run_id).left


def _stopped(run_id: str) -> Stopped:
    with journal() as swarm:
        run = swarm.run(run_id)
    ended = run.counts.done + run.counts.failed
    what = "cancelled" if run.state is RunState.CANCELLED else "stopped"
    if run.state is RunState.DONE:
        return Stopped(f"{what}: every task has its result", hint=f"`skep swarm show {run_id}` has the account")
    return Stopped(
        f"{what}: {ended} of {run.counts.total} tasks have their result, and keep it",
        hint=f"resume with `skep swarm resume {run_id}`",
    )


class Printer:
    """Result lines on stdout in a thread of its own: a reader that is slow does not hold up the swarm.

    One that leaves ends the run: nobody is there for the rest. What was recorded is in the journal all the same.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = Thread(target=self._print, daemon=True)
        self._leave: Callable[[], object] = lambda: None
        self._gone: OSError | None = None

    def __enter__(self) -> Self:
        if self._tasks:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """To the last line; after an end before time, no longer than a moment."""
        self._lines.put(None)
        if self._tasks:
            self._thread.join(None if kind is None else LAST_WORDS_S)

    def take(self, result: Result) -> None:
        if task := self._tasks.get(result.task):
            self._lines.put(result_line(task, result))

    async def followed(self, work: Callable[[], Awaitable[T]]) -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._leave = lambda: loop.call_soon_threadsafe(task.cancel)
        return await work()

    def complain(self, run_id: str) -> None:
        """What went wrong with stdout is the word that counts."""
        if self._gone is not None:
            note(f"nobody reads the results on; `skep swarm resume {run_id}` goes on with the rest")
            raise self._gone

    def _print(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                sys.stdout.write(f"{line.rstrip()}\n")
                sys.stdout.flush()
            except OSError as error:
                self._gone = error
                with contextlib.suppress(RuntimeError):  # it has ended by itself
                    self._leave()
                return
