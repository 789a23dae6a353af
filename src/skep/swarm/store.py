"""The journal of the swarm: runs, their tasks, what was tried, and one result for each task.

Each append is one short transaction, so what a call returned from is kept even if the process is
killed, and several processes may write at once. Which state a run is in is derived, never stored.
Knows no clock: times are arguments, unix seconds. Texts and ids are kept as `storable` gives them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from skep import __version__
from skep.catalog.names import did_you_mean, similar_names, squeeze
from skep.engines.base import GATEWAY_KEY
from skep.errors import EngineError, StoreError, UserError
from skep.files import check_place, lock_holder, open_log
from skep.paths import Paths
from skep.store.database import Store, open_store
from skep.store.rows import (
    NamedRows,
    as_stored,
    document_text,
    free_id,
    insert,
    queries,
    read,
    storable,
    this_process,
    writes_on,
)
from skep.swarm.records import (
    Attempt,
    Counts,
    Recorded,
    SwarmRun,
    SwarmRunOptions,
    SwarmRunState,
    Task,
    TaskEnding,
    TaskResult,
)

SessionOutcome = Literal["done", "stopped", "cancelled", "failed"]


class SwarmSession(msgspec.Struct, frozen=True):
    """One process at work on a run.

    `ended_at` is None while it works, and of one that was killed for good.
    """

    number: int
    started_at: float
    ended_at: float | None
    outcome: str | None
    error: str | None
    agents: int | None  # as asked for; None: as many as the endpoint takes
    endpoint: Mapping[str, Any]
    simulated: bool
    alive: bool


def _swarm_runs(rows: Sequence[Row]) -> list[SwarmRun]:
    return read(rows, SwarmRun, "swarm run", state=_state, counts=_counts_of)


def _counts_of(row: Row) -> Counts:
    return read([row], Counts)[0]


def _state(row: Row) -> SwarmRunState:
    if row["sessions"] and _is_alive(row):
        return SwarmRunState.RUNNING
    if row["outcome"] == "done" and not _counts_of(row).left:
        return SwarmRunState.DONE
    if row["opened"] is None:
        last_seen_cancel = 0
    else:
        last_seen_cancel = json.loads(row["opened"])["after_cancel"]
    is_cancelled = (row["newest_cancel"] or 0) > last_seen_cancel
    if is_cancelled or row["outcome"] == "cancelled":
        return SwarmRunState.CANCELLED
    return SwarmRunState.STOPPED


def _is_alive(row: Row) -> bool:
    return row["ended_at"] is None and writes_on(row)


def _query(name: str) -> str:
    return queries("skep.swarm")[name]


_RUNS = NamedRows(
    "swarm_runs",
    _query("runs"),
    "swarm run",
    lists="`skep swarm list` lists them all",
    makes="`skep swarm run TASKS.jsonl` makes one",
    parts=(
        "swarm_steps",
        "swarm_attempts",
        "swarm_results",
        "swarm_tasks",
        "swarm_facts",
        "swarm_cancels",
        "swarm_session_ends",
        "swarm_sessions",
    ),
    newest_first="{0}.rowid DESC",  # in the order they were made: clocks are set back
)
_TASKS = "SELECT id, document FROM swarm_tasks WHERE run_id = ? {of} ORDER BY key"
_OPEN = "AND NOT EXISTS (SELECT 1 FROM swarm_results WHERE task = key)"
_FACTS = (
    "SELECT session, name, at, fact FROM swarm_facts WHERE run_id = ?1 AND (?2 IS NULL OR name "
    "= ?2) ORDER BY id"
)
_NEWEST_CANCEL = "SELECT coalesce(max(id), 0) FROM swarm_cancels WHERE run_id = ?"


class SwarmStore:
    """Reads and appends the journal. What was appended is final; a task has one result or none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(
        self,
        *,
        created_at: float,
        config: Mapping[str, Any],
        tasks: Iterable[Task],
        **about: str | None,
    ) -> str:
        """Store a run with all its tasks, or nothing, and return its id.

        `about`: url, model, skep_version; kind and name, if it has some.
        """
        columns = {
            "kind": "map",
            "name": "",
            **about,
            "created_at": created_at,
            "config": document_text(config),
        }
        with self._store.transaction() as connection:
            run_id = free_id(connection, created_at)
            insert(connection, "swarm_runs", id=run_id, **columns)
            _insert_tasks(connection, run_id, tasks)
        return run_id

    def add_tasks(self, run_id: str, tasks: Sequence[Task]) -> int:
        """Add tasks, and return how many were new.

        Those whose id is there already stay as they are: a resumed run makes them again.
        """
        with self._store.transaction(run_id) as connection:
            return _insert_tasks(
                connection, run_id, tasks, clash="ON CONFLICT (run_id, id) DO NOTHING"
            )

    def open_session(
        self,
        run_id: str,
        *,
        at: float,
        agents: int | None,
        endpoint: Mapping[str, Any],
        simulated: bool,
        after_cancel: int | None = None,
    ) -> int:
        """Return the new session's number, from 1.

        A cancel later than `after_cancel` is meant for it; None: later than now.
        """
        columns = {
            "started_at": at,
            "agents": agents,
            "endpoint": document_text(endpoint),
            "simulated": simulated,
        }
        with self._store.transaction(run_id) as connection:
            last = "SELECT coalesce(max(number), 0) FROM swarm_sessions WHERE run_id = ?"
            number = int(connection.execute(last, (run_id,)).fetchone()[0]) + 1
            insert(
                connection,
                "swarm_sessions",
                this_process(),
                run_id=run_id,
                number=number,
                **columns,
            )
            if after_cancel is None:
                after_cancel = connection.execute(_NEWEST_CANCEL, (run_id,)).fetchone()[0]
            fact = {"after_cancel": after_cancel}
            insert(
                connection,
                "swarm_facts",
                run_id=run_id,
                session=number,
                name="opened",
                at=at,
                fact=fact,
            )
        return number

    def close_session(
        self,
        run_id: str,
        session: int,
        *,
        at: float,
        outcome: SessionOutcome,
        error: str | None = None,
    ) -> None:
        with self._store.transaction(run_id) as connection:
            ended = {"ended_at": at, "outcome": outcome, "error": error}
            insert(connection, "swarm_session_ends", run_id=run_id, number=session, **ended)

    def record(self, run_id: str, rows: Sequence[Recorded]) -> list[TaskResult]:
        """Write all rows or none, and return the results that were written, as `results` has them.

        The first result of a task stays.
        """
        if not rows:
            return []
        written: list[TaskResult] = []
        with self._store.transaction(run_id) as connection:
            keys: dict[str, int] = {}  # what the tables call the tasks
            for name in {
                record.task
                for row in rows
                for record in (row.attempt, row.result)
                if record is not None
            }:
                sql = "SELECT key FROM swarm_tasks WHERE run_id = ? AND id = ?"
                if (
                    task_row := connection.execute(sql, (run_id, storable(name))).fetchone()
                ) is None:
                    raise StoreError(f"run `{run_id}` has no task `{name}`")
                keys[name] = task_row[0]
            for attempt in (row.attempt for row in rows if row.attempt is not None):
                insert(
                    connection, "swarm_attempts", attempt, run_id=run_id, task=keys[attempt.task]
                )
            first = "ON CONFLICT (task) DO NOTHING"
            for result in (row.result for row in rows if row.result is not None):
                of = {"run_id": run_id, "task": keys[result.task]}
                if insert(connection, "swarm_results", result, first, **of).rowcount == 1:
                    written.append(as_stored(result))
        return written

    def run(self, name: str) -> SwarmRun:
        """Return a run by its id, by the beginning of it, or by "last"."""
        return _swarm_runs([_RUNS.find(self._store, name)])[0]

    def runs(self, limit: int | None = None) -> list[SwarmRun]:
        """Return the runs, newest first."""
        return _swarm_runs(_RUNS.newest(self._store, limit))

    def tasks(self, run_id: str) -> list[Task]:
        """Return all tasks in the order of the input."""
        return self._tasks(run_id)

    def task(self, run_id: str, task_id: str) -> Task:
        if tasks := self._tasks(run_id, "AND id = ?", storable(task_id)):
            return tasks[0]
        ids_by_squeezed = {squeeze(task.id): task.id for task in self._tasks(run_id)}
        hint = did_you_mean(
            similar_names(task_id, ids_by_squeezed), f"`skep swarm show {run_id}` lists them"
        )
        raise UserError(f"run `{run_id}` has no task `{task_id}`", hint=hint)

    def pending(self, run_id: str) -> list[Task]:
        """Return the tasks without a result, in the order of the input."""
        return self._tasks(run_id, _OPEN)

    def _tasks(self, run_id: str, of: str = "", *values: object) -> list[Task]:
        """Return tasks with the ids of the column, by which results and attempts are found.

        `tools` of an earlier version are ignored.
        """
        rows = self._store.read(_TASKS.format(of=of), run_id, *values)
        return [
            msgspec.convert(json.loads(row["document"]) | {"id": row["id"]}, Task) for row in rows
        ]

    def results(
        self, run_id: str, *, offset: int = 0, limit: int | None = None, ending: str | None = None
    ) -> list[TaskResult]:
        """Return the results in the order of the input."""
        row_limit = -1 if limit is None else limit
        if ending is None:
            sql = _query("results").format(of="")
            rows = self._store.read(sql, run_id, row_limit, offset)
        else:
            sql = _query("results").format(of="AND ending = ?")
            rows = self._store.read(sql, run_id, ending, row_limit, offset)
        return read(rows, TaskResult, "task")

    def result(self, run_id: str, task_id: str) -> TaskResult | None:
        rows = self._store.read(
            _query("results").format(of="AND swarm_tasks.id = ?"), run_id, storable(task_id), 1, 0
        )
        if rows:
            return read(rows, TaskResult, "task")[0]
        return None

    def settled_since(self, run_id: str, at: float) -> tuple[int, int | None]:
        """Return how many results came since then, and their output tokens: counted where they
        lie, as there may be thousands."""
        sql = (
            "SELECT count(*), sum(output_tokens) FROM swarm_results WHERE run_id = ? AND "
            "ended_at >= ?"
        )
        ((results, tokens),) = self._store.read(sql, run_id, at)
        return results, tokens

    def attempts(self, run_id: str, task_id: str | None = None) -> list[Attempt]:
        """Return the attempts by the time they began."""
        return read(self._store.read(_query("attempts"), run_id, storable(task_id)), Attempt)

    def append_fact(
        self, run_id: str, session: int, name: str, at: float, fact: Mapping[str, Any]
    ) -> None:
        with self._store.transaction(run_id) as connection:
            text = document_text(fact)
            insert(
                connection,
                "swarm_facts",
                run_id=run_id,
                session=session,
                name=name,
                at=at,
                fact=text,
            )

    def facts(
        self, run_id: str, name: str | None = None
    ) -> list[tuple[int, str, float, dict[str, Any]]]:
        """Return session, name, time and content of facts, in the order they were appended."""
        rows = self._store.read(_FACTS, run_id, name)
        return [(row["session"], row["name"], row["at"], json.loads(row["fact"])) for row in rows]

    def session_rows(self, run_id: str) -> list[SwarmSession]:
        return read(
            self._store.read(_query("sessions"), run_id),
            SwarmSession,
            "swarm run",
            alive=_is_alive,
        )

    def set_cancelled(self, run_id: str, at: float) -> None:
        """Record that somebody cancels a run; the process at work sees it in `newest_cancel`."""
        with self._store.transaction(run_id) as connection:
            insert(connection, "swarm_cancels", run_id=run_id, at=at)

    def newest_cancel(self, run_id: str) -> int:
        """Return the number of the newest cancel, which grows; 0: the run was never cancelled."""
        return int(self._store.read(_NEWEST_CANCEL, run_id)[0][0])

    def delete(self, ids: Iterable[str]) -> int:
        """Delete runs, and return how many there were.

        UserError for one that a process works on; then all of them stay.
        """
        return _RUNS.delete(self._store, ids, _check_stopped)


def _check_stopped(row: Row) -> None:
    if _state(row) is SwarmRunState.RUNNING:
        raise UserError(
            f"a process is working on run `{row['id']}`",
            hint=f"`skep swarm cancel {row['id']}` stops it",
        )


def _insert_tasks(
    connection: Connection, run_id: str, tasks: Iterable[Task], clash: str = ""
) -> int:
    """Store tasks, and return how many were new."""
    new = 0
    for task in tasks:
        columns = {
            "id": task.id,
            "stage": task.stage,
            "document": document_text(msgspec.to_builtins(task)),
        }
        new += insert(connection, "swarm_tasks", None, clash, run_id=run_id, **columns).rowcount
    return new


def create_run(
    store: Store,
    tasks: Iterable[Task],
    order: SwarmRunOptions,
    *,
    url: str,
    model: str | None,
    **about: str,
) -> str:
    """Store a run and return its id; `about`: its kind and name.

    `skep.swarm.runner.carry_out` sends its tasks.
    """
    columns: dict[str, Any] = {**about, "url": url, "model": model, "skep_version": __version__}
    return SwarmStore(store).begin(
        **columns, config=msgspec.to_builtins(order), created_at=time.time(), tasks=tasks
    )


WAITS_FOR_ENDPOINT = "waits for its endpoint"
NONE_YET = "there are no swarm runs yet"
MAKES_ONE = "`skep swarm run TASKS.jsonl` makes one"
LOOK_S = 0.05


def lock_path(paths: Paths, run_id: str) -> Path:
    return paths.state / "swarm" / f"{run_id}.lock"


def as_it_stands(paths: Paths, run: SwarmRun) -> SwarmRun:
    """Return the run as running if a process holds its lock: it waits for an endpoint that has not
    answered.
    """
    if (
        run.state in (SwarmRunState.RUNNING, SwarmRunState.DONE)
        or lock_holder(lock_path(paths, run.id)) is None
    ):
        return run
    return replace(run, state=SwarmRunState.RUNNING, ended_at=None, error=WAITS_FOR_ENDPOINT)


def stored_runs(paths: Paths, limit: int | None = None) -> list[SwarmRun]:
    """Return the runs as they stand, newest first; none where nothing was ever stored."""
    if not paths.store.exists():
        return []
    with open_store(paths.store, read_only=True) as store:
        return [as_it_stands(paths, run) for run in SwarmStore(store).runs(limit)]


def run_to_resume(paths: Paths, name: str | None, *, last: bool) -> SwarmRun:
    """Return the run of that name; with `last`, the newest that nobody works on, or else the
    newest, which says why.
    """
    if (name is None) is not last:
        raise UserError(
            "name one run, or --last for the newest unfinished one",
            hint="`skep swarm list` lists all",
        )
    runs = stored_runs(paths)
    if not runs:
        raise UserError(NONE_YET, hint=MAKES_ONE)
    if name is not None:
        with open_store(paths.store, read_only=True) as store:
            return SwarmStore(store).run(name)
    return next(
        (run for run in runs if run.state in (SwarmRunState.STOPPED, SwarmRunState.CANCELLED)),
        runs[0],
    )


def failed_tasks(swarm: SwarmStore, name: str) -> list[Task]:
    """Return the tasks of a run that failed; UserError where there are none."""
    run = swarm.run(name)
    if run.kind != "map":
        raise UserError(
            f"`{run.id}` is not a run of a task file", hint="`skep swarm resume` goes on with it"
        )
    failed = {result.task for result in swarm.results(run.id, ending=TaskEnding.FAILED)}
    if not failed:
        raise UserError(f"no task of `{run.id}` failed", hint="`skep swarm show` shows its tasks")
    return [task for task in swarm.tasks(run.id) if task.id in failed]


def check_output_free(paths: Paths, output: Path, source: Path | None, *, overwrite: bool) -> None:
    """Raise UserError where results cannot be written there, or others are there already.

    `source`: the file of the tasks.
    """
    check_place(output)
    if output.exists() and not output.is_file():
        raise UserError(
            f"--output `{output}` is not a regular file", hint="name a file, or `-` for stdout"
        )
    if source is not None and output.exists() and source.exists() and output.samefile(source):
        raise UserError(
            f"--output `{output}` is the file with the tasks", hint="name another file with -o"
        )
    writers = [run for run in stored_runs(paths) if run.config.get("output") == str(output)]
    if output.exists() and output.stat().st_size and not overwrite:
        hint = "name another file with -o, or add --overwrite"
        unfinished = [run for run in writers if run.state is not SwarmRunState.DONE]
        if unfinished:
            hint = f"`skep swarm resume {unfinished[0].id}` goes on with it; {hint}"
        raise UserError(f"`{output}` already exists", hint=hint)


def cancel(paths: Paths, run_id: str, wait_s: float = 30.0) -> None:
    """Tell the process at work on a run to end, and wait until it has: it looks into the journal
    every second.
    """
    with open_store(paths.store) as store:
        SwarmStore(store).set_cancelled(run_id, time.time())
    began = time.monotonic()
    while (pid := lock_holder(lock_path(paths, run_id))) is not None:
        if time.monotonic() - began > wait_s:
            hint = f"skep told it to stop; `kill {pid}` ends it, and finished tasks are kept"
            raise EngineError(
                f"process {pid} still works on `{run_id}` after {wait_s:g} s", hint=hint
            )
        time.sleep(LOOK_S)


# Names of environment variables that hold what nobody else may know.
_SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS|HOOK)$", re.IGNORECASE)


def run_environment(env: Mapping[str, str], key_env: str | None) -> dict[str, str]:
    """Return the environment without keys but the run's own and that of skep's gateway."""
    kept_names = {GATEWAY_KEY, key_env}
    return {
        name: value
        for name, value in env.items()
        if name in kept_names or not _SECRET_NAME.search(name)
    }


def resume_in_background(
    paths: Paths, run: SwarmRun, wait_s: float, env: Mapping[str, str] = os.environ
) -> None:
    """Start `skep swarm resume` as a process of its own, which outlives this one; return once it
    is at work, or raise what it says instead. `-P`: nothing is imported from this process's
    folder, which may hold anything."""
    words = [sys.executable, "-P", "-m", "skep", "swarm", "resume", run.id]
    env = run_environment(env, run.config.get("key_env"))
    with open_log(_log_of(paths, run.id), empty=True) as log_file:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    # So that no zombie stays while this process goes on.
    threading.Thread(target=process.wait, daemon=True).start()
    began = time.monotonic()
    while lock_holder(lock_path(paths, run.id)) is None and time.monotonic() - began < wait_s:
        if code := process.poll():
            why = last_error(paths, run.id) or f"exit code {code}"
            log = _log_of(paths, run.id)
            raise EngineError(f"the run was not resumed: {why}", hint=f"see {log}")
        if code == 0:
            return
        time.sleep(LOOK_S)


def last_error(paths: Paths, run_id: str) -> str | None:
    """Return the error that a run's process in the background ended with; None: it logged none."""
    try:
        log = _log_of(paths, run_id).read_text(errors="replace")
    except OSError:
        return None
    messages = re.findall(r"^error: (.*)", log, re.MULTILINE)
    if not messages:
        return None
    return str(messages[-1])


def _log_of(paths: Paths, run_id: str) -> Path:
    return paths.logs / f"swarm-{run_id}.log"
