"""The journal of the swarm: runs, their tasks, what was tried, and one result for each task.

Each append is one short transaction, so what a call returned from is kept even if the process is killed, and several
processes may write at once. Which state a run is in is derived, never stored. Knows no clock: times are arguments,
unix seconds. Texts and ids are kept as `storable` gives them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from sqlite3 import Connection, Row
from typing import Any, Literal

from skep.catalog.names import did_you_mean, similar_names, squeeze
from skep.errors import StoreError, UserError
from skep.store.database import Store
from skep.store.rows import insert, storable
from skep.store.writer_process import WriterProcess, free_id, is_alive, this_process
from skep.swarm.records import (
    Attempt,
    AttemptOutcome,
    Counts,
    SwarmRun,
    SwarmRunState,
    Task,
    TaskEnding,
    TaskResult,
    Why,
    task_from_json,
    task_json,
)

# Those that point at others come first: they are deleted in this order.
TABLES_OF_A_SWARM_RUN = (
    ("swarm_steps", "run_id"),
    ("swarm_attempts", "run_id"),
    ("swarm_results", "run_id"),
    ("swarm_tasks", "run_id"),
    ("swarm_facts", "run_id"),
    ("swarm_cancels", "run_id"),
    ("swarm_session_ends", "run_id"),
    ("swarm_sessions", "run_id"),
    ("swarm_runs", "id"),
)

SessionOutcome = Literal["done", "stopped", "cancelled", "failed"]

_LARGEST = 2**63 - 1

_RUN_PLAIN = ("id", "kind", "created_at", "name", "url", "model", "skep_version", "sessions", "ended_at", "error")
_RESULT_COUNTS = ("prompt_tokens", "output_tokens")
_RESULT_TEXTS = ("answer", "error_kind", "error", "finish_reason", "replica")
_RESULT_PLAIN = ("tries", "started_at", "ended_at")
_RESULT_COLUMNS = ("task", "run_id", "ending", "value", *_RESULT_PLAIN, *_RESULT_COUNTS, *_RESULT_TEXTS)
_ATTEMPT_PLAIN = ("session", "number", "agent", "started_at", "ended_at", "first_token_at", "queued_ms", "decode_ms")
_ATTEMPT_COUNTS = ("requests", "prompt_tokens", "output_tokens", "status")
_ATTEMPT_TEXTS = ("error_kind", "error", "finish_reason", "replica", "answer")
_ATTEMPT_COLUMNS = ("task", "run_id", "why", "outcome", *_ATTEMPT_PLAIN, *_ATTEMPT_COUNTS, *_ATTEMPT_TEXTS)

INSERT_RUN = "INSERT INTO swarm_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_TASK = "INSERT INTO swarm_tasks (run_id, id, stage, document) VALUES (?, ?, ?, ?)"
INSERT_NEW_TASK = f"{INSERT_TASK} ON CONFLICT (run_id, id) DO NOTHING"
INSERT_RESULT = f"{insert('swarm_results', _RESULT_COLUMNS)} ON CONFLICT (task) DO NOTHING"
INSERT_ATTEMPT = insert("swarm_attempts", _ATTEMPT_COLUMNS)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an attempt left behind, written at once or not at all."""

    attempt: Attempt | None
    result: TaskResult | None = None

    def tasks(self) -> set[str]:
        """The ids it names; one, unless somebody mixed them up."""
        return {one.task for one in (self.attempt, self.result) if one is not None}


@dataclass(frozen=True, slots=True)
class SwarmSession:
    """One process at work on a run. `ended_at` is None while it works, and of one that was killed for good."""

    number: int
    started_at: float
    ended_at: float | None
    outcome: str | None
    error: str | None
    agents: int | None  # as asked for; None: as many as the endpoint takes
    endpoint: Mapping[str, Any]
    simulated: bool
    alive: bool


def task_row(run_id: str, task: Task) -> tuple[Any, ...]:
    return run_id, storable(task.id), task.stage, document_text(task_json(task))


def task_of(row: Row) -> Task:
    """Its id is the column's: results and attempts are found by it."""
    return task_from_json(json.loads(row["document"]) | {"id": row["id"]})


def result_row(run_id: str, key: int, result: TaskResult) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_RESULT`."""
    value = None if result.value is None else document_text(result.value)
    plain = (getattr(result, name) for name in _RESULT_PLAIN)
    counts = (_count(getattr(result, name)) for name in _RESULT_COUNTS)
    texts = (storable(getattr(result, name)) for name in _RESULT_TEXTS)
    return (key, run_id, result.ending.value, value, *plain, *counts, *texts)


def result_of(row: Row) -> TaskResult:
    values = _named(row)
    del values["run_id"]
    value = None if values["value"] is None else json.loads(values["value"])
    return TaskResult(**values | {"ending": TaskEnding(values["ending"]), "value": value})


def as_stored(result: TaskResult) -> TaskResult:
    """What `result_of` gives back once it was written."""
    counts: dict[str, Any] = {name: _count(getattr(result, name)) for name in _RESULT_COUNTS}
    texts: dict[str, Any] = {name: storable(getattr(result, name)) for name in ("task", *_RESULT_TEXTS)}
    value = None if result.value is None else json.loads(document_text(result.value))
    return replace(result, value=value, **counts, **texts)


def attempt_row(run_id: str, key: int, attempt: Attempt) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_ATTEMPT`."""
    plain = (getattr(attempt, name) for name in _ATTEMPT_PLAIN)
    counts = (_count(getattr(attempt, name)) for name in _ATTEMPT_COUNTS)
    texts = (storable(getattr(attempt, name)) for name in _ATTEMPT_TEXTS)
    return (key, run_id, attempt.why.value, attempt.outcome.value, *plain, *counts, *texts)


def attempt_of(row: Row) -> Attempt:
    values = _named(row)
    del values["run_id"], values["id"]
    return Attempt(**values | {"why": Why(values["why"]), "outcome": AttemptOutcome(values["outcome"])})


def session_of(row: Row) -> SwarmSession:
    plain = {name: row[name] for name in ("number", "started_at", "ended_at", "outcome", "error", "agents")}
    return SwarmSession(
        **plain, endpoint=json.loads(row["endpoint"]), simulated=bool(row["simulated"]), alive=_is_alive(row)
    )


def swarm_run_of(row: Row) -> SwarmRun:
    counts = Counts(row["total"], row["done"], row["failed"])
    return SwarmRun(
        **{name: row[name] for name in _RUN_PLAIN},
        config=json.loads(row["config"]),
        simulated=None if row["simulated"] is None else bool(row["simulated"]),
        state=_state(row, counts),
        counts=counts,
    )


def document_text(value: Any) -> str:
    """JSON in ASCII, so that any string survives, and in its own order: a schema's says what is written first.

    What is no number becomes null, and what is nested too deeply is left out: a result is not lost over either.
    """
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)
    except RecursionError:
        return "null"


def _state(row: Row, counts: Counts) -> SwarmRunState:
    if row["sessions"] and _is_alive(row):
        return SwarmRunState.RUNNING
    if row["outcome"] == "done" and not counts.left:
        return SwarmRunState.DONE
    seen = 0 if row["opened"] is None else json.loads(row["opened"])["after_cancel"]
    asked = (row["newest_cancel"] or 0) > seen
    return SwarmRunState.CANCELLED if asked or row["outcome"] == "cancelled" else SwarmRunState.STOPPED


def _is_alive(row: Row) -> bool:
    if row["ended_at"] is not None:
        return False
    return is_alive(WriterProcess(row["writer_pid"], row["writer_start_ticks"], row["boot_id"]))


def _count(value: int | None) -> int | None:
    """Endpoints say what they like; what has no place in the column is not known."""
    return value if value is None or abs(value) <= _LARGEST else None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _named(row: Row) -> dict[str, Any]:
    """All at once: a row looks each name up from the beginning."""
    return dict(zip(row.keys(), row, strict=True))


__all__ = ["Recorded", "SessionOutcome", "SwarmSession", "SwarmStore"]

_COUNTS = """
    (SELECT count(*) FROM swarm_tasks WHERE run_id = {run}) AS total,
    (SELECT count(*) FROM swarm_results WHERE run_id = {run} AND ending = 'done') AS done,
    (SELECT count(*) FROM swarm_results WHERE run_id = {run} AND ending = 'failed') AS failed
"""
# A run's last session is the one that counts; one that was ever simulated stays so.
_RUNS = f"""
SELECT swarm_runs.*, {_COUNTS.format(run="swarm_runs.id")},
    (SELECT max(simulated) FROM swarm_sessions WHERE run_id = swarm_runs.id) AS simulated,
    (SELECT max(id) FROM swarm_cancels WHERE run_id = swarm_runs.id) AS newest_cancel,
    (SELECT fact FROM swarm_facts WHERE run_id = swarm_runs.id AND name = 'opened' AND session = last.number) AS opened,
    coalesce(last.number, 0) AS sessions, last.started_at, last.writer_pid, last.writer_start_ticks, last.boot_id,
    ends.ended_at, ends.outcome, ends.error
FROM swarm_runs
LEFT JOIN swarm_sessions AS last ON last.run_id = swarm_runs.id
    AND last.number = (SELECT max(number) FROM swarm_sessions WHERE run_id = swarm_runs.id)
LEFT JOIN swarm_session_ends AS ends ON ends.run_id = last.run_id AND ends.number = last.number
"""  # noqa: S608
_NEWEST_FIRST = " ORDER BY swarm_runs.rowid DESC LIMIT ?"  # in the order they were made: clocks are set back
_TASKS = "SELECT id, document FROM swarm_tasks WHERE run_id = ?1 AND (?2 IS NULL OR stage = ?2) ORDER BY key"
_IDS = "SELECT id FROM swarm_tasks WHERE run_id = ? ORDER BY key"
_TASK = "SELECT id, document FROM swarm_tasks WHERE run_id = ? AND id = ?"
_PENDING = """
SELECT id, document,
    (SELECT count(*) FROM swarm_attempts WHERE task = key AND outcome IN ('failed', 'rejected')) AS tries,
    (SELECT min(started_at) FROM swarm_attempts WHERE task = key) AS started_at
FROM swarm_tasks
WHERE run_id = ? AND NOT EXISTS (SELECT 1 FROM swarm_results WHERE task = key)
ORDER BY key
"""
# Two columns are named `task`; the second, which is the task's id, is the one that is read.
_RESULTS = """
SELECT swarm_results.*, swarm_tasks.id AS task
FROM swarm_results JOIN swarm_tasks ON swarm_tasks.key = swarm_results.task
WHERE swarm_results.run_id = ?1 AND (?2 IS NULL OR stage = ?2) AND (?3 IS NULL OR ending = ?3)
ORDER BY swarm_results.task LIMIT ?4 OFFSET ?5
"""
_RESULT = """
SELECT swarm_results.*, swarm_tasks.id AS task
FROM swarm_tasks JOIN swarm_results ON swarm_results.task = swarm_tasks.key
WHERE swarm_tasks.run_id = ? AND swarm_tasks.id = ?
"""
_ATTEMPTS = """
SELECT swarm_attempts.*, swarm_tasks.id AS task
FROM swarm_attempts JOIN swarm_tasks ON swarm_tasks.key = swarm_attempts.task
WHERE swarm_attempts.run_id = ?1 AND (?2 IS NULL OR swarm_tasks.id = ?2) ORDER BY started_at, swarm_attempts.id
"""
_FACTS = """
SELECT session, name, at, fact FROM swarm_facts WHERE run_id = ?1 AND (?2 IS NULL OR name = ?2) ORDER BY id
"""
_SESSIONS = """
SELECT swarm_sessions.*, ends.ended_at, ends.outcome, ends.error
FROM swarm_sessions LEFT JOIN swarm_session_ends AS ends
    ON ends.run_id = swarm_sessions.run_id AND ends.number = swarm_sessions.number
WHERE swarm_sessions.run_id = ? ORDER BY swarm_sessions.number
"""
_INSERT_FACT = "INSERT INTO swarm_facts (run_id, session, name, at, fact) VALUES (?, ?, ?, ?, ?)"
_NEWEST_CANCEL = "SELECT coalesce(max(id), 0) FROM swarm_cancels WHERE run_id = ?"
_INSERT_SESSION = "INSERT INTO swarm_sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class SwarmStore:
    """Over an open store. What was appended is final; a task has one result or none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<SwarmStore {self._store.path}>"

    def begin(
        self,
        *,
        kind: str,
        created_at: float,
        name: str,
        url: str,
        model: str | None,
        config: Mapping[str, Any],
        skep_version: str,
        tasks: Iterable[Task],
    ) -> str:
        """The run with all its tasks, or nothing. Nobody works on it before a session is opened."""
        known = (kind, created_at, storable(name), url, storable(model), document_text(config), skep_version)
        wanted = list(tasks)
        _check_ids(wanted)
        with self._store.transaction() as connection:
            run_id = free_id(connection, created_at)
            connection.execute(INSERT_RUN, (run_id, *known))
            connection.executemany(INSERT_TASK, [task_row(run_id, task) for task in wanted])
        return run_id

    def add_tasks(self, run_id: str, tasks: Sequence[Task]) -> int:
        """Those whose id is there already stay as they are: a resumed run makes them again. How many were new."""
        rows = [task_row(run_id, task) for task in tasks]
        with self._store.transaction(run_id) as connection:
            return connection.executemany(INSERT_NEW_TASK, rows).rowcount if rows else 0

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
        """Its number, from 1. This process is its writer.

        `after_cancel`: of `newest_cancel`, when the session was asked for; a later one is meant for it. None: now.
        """
        writer = this_process()
        known = (at, agents, document_text(endpoint), simulated, writer.pid, writer.start_ticks, writer.boot_id)
        with self._store.transaction(run_id) as connection:
            last = "SELECT coalesce(max(number), 0) FROM swarm_sessions WHERE run_id = ?"
            number = int(connection.execute(last, (run_id,)).fetchone()[0]) + 1
            connection.execute(_INSERT_SESSION, (run_id, number, *known))
            if after_cancel is None:
                after_cancel = connection.execute(_NEWEST_CANCEL, (run_id,)).fetchone()[0]
            opened = document_text({"after_cancel": after_cancel})
            connection.execute(_INSERT_FACT, (run_id, number, "opened", at, opened))
        return number

    def close_session(
        self, run_id: str, session: int, *, at: float, outcome: SessionOutcome, error: str | None = None
    ) -> None:
        with self._store.transaction(run_id) as connection:
            values = (run_id, session, at, outcome, storable(error))
            connection.execute("INSERT INTO swarm_session_ends VALUES (?, ?, ?, ?, ?)", values)

    def record(self, run_id: str, rows: Sequence[Recorded]) -> list[TaskResult]:
        """All of them or none. The first result of a task stays; those that were written now, as `results` has them."""
        written: list[TaskResult] = []
        if not rows:
            return written
        with self._store.transaction(run_id) as connection:
            keys = _keys(connection, run_id, rows)
            attempts = [attempt_row(run_id, keys[a.task], a) for row in rows if (a := row.attempt) is not None]
            connection.executemany(INSERT_ATTEMPT, attempts)
            for result in (row.result for row in rows if row.result is not None):
                values = result_row(run_id, keys[result.task], result)
                if connection.execute(INSERT_RESULT, values).rowcount == 1:
                    written.append(as_stored(result))
        return written

    def run(self, name: str) -> SwarmRun:
        """By its id, by the beginning of it, or "last"."""
        if name == "last":
            return self._last()
        matches = self._store.read(_RUNS + "WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id LIMIT 6", storable(name))
        found = [row for row in matches if row["id"] == name] or matches
        if len(found) == 1 and name:
            return swarm_run_of(found[0])
        raise _unclear(name, [row["id"] for row in found] if name else [], [run.id for run in self.runs(3)])

    def runs(self, limit: int | None = None) -> list[SwarmRun]:
        """Newest first."""
        return [swarm_run_of(row) for row in self._store.read(_RUNS + _NEWEST_FIRST, -1 if limit is None else limit)]

    def counts(self, run_id: str) -> Counts:
        (row,) = self._store.read(f"SELECT {_COUNTS.format(run='?1')}", run_id)
        return Counts(row["total"], row["done"], row["failed"])

    def tasks(self, run_id: str, *, stage: int | None = None) -> list[Task]:
        """In the order of the input."""
        return [task_of(row) for row in self._store.read(_TASKS, run_id, stage)]

    def task(self, run_id: str, task_id: str) -> Task:
        rows = self._store.read(_TASK, run_id, storable(task_id))
        if rows:
            return task_of(rows[0])
        known = {squeeze(name): name for (name,) in self._store.read(_IDS, run_id)}
        hint = did_you_mean(similar_names(task_id, known), f"`skep swarm show {run_id}` lists them")
        raise UserError(f"run `{run_id}` has no task `{task_id}`", hint=hint)

    def pending(self, run_id: str) -> list[tuple[Task, int, float | None]]:
        """Those without a result, in the order of the input: the tries that count, and when the first began."""
        return [(task_of(row), row["tries"], row["started_at"]) for row in self._store.read(_PENDING, run_id)]

    def results(
        self,
        run_id: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        stage: int | None = None,
        ending: TaskEnding | None = None,
    ) -> list[TaskResult]:
        """In the order of the input."""
        wanted = (stage, None if ending is None else ending.value, -1 if limit is None else limit, offset)
        return [result_of(row) for row in self._store.read(_RESULTS, run_id, *wanted)]

    def result(self, run_id: str, task_id: str) -> TaskResult | None:
        rows = self._store.read(_RESULT, run_id, storable(task_id))
        return result_of(rows[0]) if rows else None

    def attempts(self, run_id: str, task_id: str | None = None) -> list[Attempt]:
        """By the time they began."""
        return [attempt_of(row) for row in self._store.read(_ATTEMPTS, run_id, storable(task_id))]

    def append_fact(self, run_id: str, session: int, name: str, at: float, fact: Mapping[str, Any]) -> None:
        with self._store.transaction(run_id) as connection:
            connection.execute(_INSERT_FACT, (run_id, session, name, at, document_text(fact)))

    def facts(self, run_id: str, name: str | None = None) -> list[tuple[int, str, float, dict[str, Any]]]:
        """Session, name, time and fact, in the order they were appended."""
        rows = self._store.read(_FACTS, run_id, name)
        return [(row["session"], row["name"], row["at"], json.loads(row["fact"])) for row in rows]

    def session_rows(self, run_id: str) -> list[SwarmSession]:
        return [session_of(row) for row in self._store.read(_SESSIONS, run_id)]

    def set_cancelled(self, run_id: str, at: float) -> None:
        """Asked for from outside; who works on the run sees it with `cancelled_after`."""
        with self._store.transaction(run_id) as connection:
            connection.execute("INSERT INTO swarm_cancels (run_id, at) VALUES (?, ?)", (run_id, at))

    def newest_cancel(self, run_id: str) -> int:
        """Its number, which grows; 0: it was never cancelled."""
        return int(self._store.read(_NEWEST_CANCEL, run_id)[0][0])

    def cancelled_after(self, run_id: str, cancel: int) -> bool:
        """Whether another cancel came after this one of `newest_cancel`."""
        return self.newest_cancel(run_id) > cancel

    def delete(self, ids: Iterable[str]) -> int:
        """How many there were to delete. A run that somebody works on stays, and the others with it."""
        with self._store.transaction() as connection:
            connection.executemany("INSERT INTO deleting VALUES (?)", [(run_id,) for run_id in sorted(set(ids))])
            doomed = connection.execute(_RUNS + "JOIN deleting ON deleting.run_id = swarm_runs.id").fetchall()
            for run in map(swarm_run_of, doomed):
                if run.state is SwarmRunState.RUNNING:
                    hint = f"`skep swarm cancel {run.id}` stops it"
                    raise UserError(f"a process is at work on run `{run.id}`", hint=hint)
            for table, key in TABLES_OF_A_SWARM_RUN:
                connection.execute(f"DELETE FROM {table} WHERE {key} IN (SELECT run_id FROM deleting)")  # noqa: S608
            connection.execute("DELETE FROM deleting")
        return len(doomed)

    def _last(self) -> SwarmRun:
        newest = self.runs(1)
        if not newest:
            raise UserError("there are no swarm runs yet", hint="`skep swarm run TASKS.jsonl` makes one")
        return newest[0]


def _check_ids(tasks: Iterable[Task]) -> None:
    seen: set[str | None] = set()
    for task in tasks:
        name = storable(task.id)
        if name in seen:
            raise StoreError(f"two tasks have the id `{name}`")
        seen.add(name)


def _keys(connection: Connection, run_id: str, rows: Iterable[Recorded]) -> dict[str, int]:
    """What the tables call the tasks that are named here."""
    keys: dict[str, int] = {}
    for name in set().union(*(row.tasks() for row in rows)):
        sql = "SELECT key FROM swarm_tasks WHERE run_id = ? AND id = ?"
        found: Row | None = connection.execute(sql, (run_id, storable(name))).fetchone()
        if found is None:
            raise StoreError(f"run `{run_id}` has no task `{name}`")
        keys[name] = found[0]
    return keys


def _unclear(name: str, candidates: list[str], newest: list[str]) -> UserError:
    hint = "`skep swarm ls` lists them all"
    if candidates:
        return UserError(f"swarm run `{name}` could be {' or '.join(f'`{c}`' for c in candidates)}", hint=hint)
    known = f"; the newest are {', '.join(f'`{n}`' for n in newest)}" if newest else "; there are none yet"
    return UserError(f"there is no swarm run `{name}`{known}", hint=hint)
