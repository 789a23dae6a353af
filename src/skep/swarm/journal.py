"""Creates a run in the store before its first task is sent, finds it again, resumes and cancels it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skep import __version__
from skep.errors import EngineError, UserError
from skep.files import check_place, lock_holder
from skep.paths import Paths
from skep.store.database import Store, open_store
from skep.swarm.records import AttemptOutcome, SwarmRun, SwarmRunOptions, SwarmRunState, Task, TaskEnding, given_fields
from skep.swarm.schedule import Pending
from skep.swarm.store import SwarmStore
from skep.wire.openai import ErrorKind, classify_error


def create_run(
    store: Store, tasks: Iterable[Task], order: SwarmRunOptions, *, url: str, model: str | None, **about: str
) -> str:
    """Store a run and return its id; `about`: its kind and name. `skep.swarm.runner.carry_out` sends its tasks."""
    known: dict[str, Any] = {**about, "url": url, "model": model, "skep_version": __version__}
    return SwarmStore(store).begin(**known, config=given_fields(order), created_at=time.time(), tasks=tasks)


def pending_tasks(swarm: SwarmStore, run_id: str) -> list[Pending]:
    """Tasks without a result, in the input's order, with earlier attempts. A break costs no try; suspects stay so."""
    found = {task.id: Pending(task) for task in swarm.pending(run_id)}
    for attempt in swarm.attempts(run_id) if found else ():
        if (one := found.get(attempt.task)) is None:
            continue
        one.attempts = max(one.attempts, attempt.number)
        one.first_at = attempt.started_at if one.first_at is None else min(one.first_at, attempt.started_at)
        if attempt.outcome in (AttemptOutcome.FAILED, AttemptOutcome.REJECTED):
            mishap = classify_error(attempt.error_kind, attempt.status)
            one.tries += mishap is ErrorKind.TRY
            one.breaks += mishap is ErrorKind.BROKEN
    return [*found.values()]


WAITS = "waits for its endpoint"
NONE_YET = "there are no swarm runs yet"
MAKES_ONE = "`skep swarm run TASKS.jsonl` makes one"
LOOK_S = 0.05
PROC = Path("/proc")


def lock_path(paths: Paths, run_id: str) -> Path:
    return paths.state / "swarm" / f"{run_id}.lock"


def as_it_stands(paths: Paths, run: SwarmRun) -> SwarmRun:
    """Return the run as running if a process holds its lock: it waits for an endpoint that has not answered."""
    if run.state in (SwarmRunState.RUNNING, SwarmRunState.DONE) or lock_holder(lock_path(paths, run.id)) is None:
        return run
    return replace(run, state=SwarmRunState.RUNNING, ended_at=None, error=WAITS)


def stored_runs(paths: Paths, limit: int | None = None) -> list[SwarmRun]:
    """Return the runs as they stand, newest first; none where nothing was ever stored."""
    if not paths.store.exists():
        return []
    with open_store(paths.store, read_only=True) as store:
        return [as_it_stands(paths, run) for run in SwarmStore(store).runs(limit)]


def run_to_resume(paths: Paths, name: str | None, *, last: bool) -> SwarmRun:
    """Return the run of that name; with `last`, the newest that nobody works on, or else the newest, which says why."""
    if name is not None and last:
        raise UserError(f"`{name}` and --last name two runs", hint="leave one of them out")
    runs = stored_runs(paths)
    if not runs:
        raise UserError(NONE_YET, hint=MAKES_ONE)
    if name is not None:
        with open_store(paths.store, read_only=True) as store:
            return SwarmStore(store).run(name)
    open_ones = [run for run in runs if run.state in (SwarmRunState.STOPPED, SwarmRunState.CANCELLED)]
    if not last:
        some = ", ".join(f"`{run.id}`" for run in open_ones[:3]) or "none at the moment"
        raise UserError("no run was named", hint=f"--last takes the newest; unfinished: {some}")
    return (open_ones or runs)[0]


def failed_tasks(swarm: SwarmStore, name: str) -> list[Task]:
    """Return the tasks of a run that were set aside; UserError where there are none."""
    run = swarm.run(name)
    if run.kind != "map":
        raise UserError(f"`{run.id}` is not a run of a task file", hint="`skep swarm resume` goes on with it")
    failed = {result.task for result in swarm.results(run.id, ending=TaskEnding.FAILED)}
    if not failed:
        raise UserError(f"no task of `{run.id}` was set aside", hint="`skep swarm show` shows its tasks")
    return [task for task in swarm.tasks(run.id) if task.id in failed]


def check_output_free(paths: Paths, output: Path, source: Path | None, *, overwrite: bool) -> None:
    """UserError where results cannot be written there, or others are there already. `source`: the file of the tasks."""
    check_place(output)
    if output.exists() and not output.is_file():
        raise UserError(f"--output `{output}` is not a regular file", hint="name a file, or `-` for stdout")
    if source is not None and output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"--output `{output}` is the file with the tasks", hint="name another file with -o")
    writers = [run for run in stored_runs(paths) if run.config.get("output") == str(output)]
    if busy := next((run for run in writers if run.state is SwarmRunState.RUNNING), None):
        hint = "name another file with -o, or wait for it"
        raise UserError(f"`{busy.id}` is writing to `{output}` at this moment", hint=hint)
    if output.exists() and output.stat().st_size and not overwrite:
        goes_on = next((run for run in writers if run.state is not SwarmRunState.DONE), None)
        first = f"`skep swarm resume {goes_on.id}` goes on with it; " if goes_on else ""
        raise UserError(f"`{output}` already exists", hint=f"{first}name another file with -o, or add --overwrite")


def cancel(paths: Paths, run_id: str, wait_s: float) -> None:
    """Tell the process at work on a run to end, through the journal and (a command) by Ctrl-C; wait until it has."""
    with open_store(paths.store) as store:
        SwarmStore(store).set_cancelled(run_id, time.time())
    began, woken = time.monotonic(), False
    while (pid := lock_holder(lock_path(paths, run_id))) is not None:
        if not woken and is_command(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGINT)
        woken = True
        if time.monotonic() - began > wait_s:
            hint = f"skep told it to stop; `kill {pid}` ends it, and finished tasks are kept"
            raise EngineError(f"process {pid} still works on `{run_id}` after {wait_s:g} s", hint=hint)
        time.sleep(LOOK_S)


def resume_in_background(paths: Paths, run: SwarmRun, wait_s: float) -> None:
    """Start `skep swarm resume` as a process of its own; return once it is at work, or raise what it says instead."""
    log = paths.logs / f"swarm-{run.id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as said:
        words = [sys.executable, "-m", "skep", "swarm", "resume", run.id]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
    threading.Thread(target=process.wait, daemon=True).start()  # no zombie stays where this process goes on
    began = time.monotonic()
    while lock_holder(lock_path(paths, run.id)) is None and time.monotonic() - began < wait_s:
        if code := process.poll():
            first = next(iter(log.read_text(errors="replace").split("\n")), "").removeprefix("error: ")
            raise EngineError(f"the run was not resumed: {first or f'exit code {code}'}", hint=f"see {log}")
        if code == 0:
            return
        time.sleep(LOOK_S)


def is_command(pid: int) -> bool:
    """Return whether it is `skep swarm` and nothing else: a Ctrl-C would end an MCP server or a notebook as a whole."""
    try:
        words = [word.rpartition(b"/")[2] for word in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")]
    except OSError:
        return False
    return b"skep" in words and b"swarm" in words[words.index(b"skep") :]
