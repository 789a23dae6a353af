"""Tasks, attempts, results and sessions as rows, and back. Knows columns; runs no statement."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from sqlite3 import Row
from typing import Any, Literal

from skep.store.rows import insert, storable
from skep.store.writers import Writer, is_alive
from skep.tasks import (
    Attempt,
    Counts,
    Ending,
    Outcome,
    Result,
    RunState,
    SwarmRun,
    Task,
    Why,
    task_from_json,
    task_json,
)

SessionOutcome = Literal["done", "stopped", "cancelled", "failed"]

_LARGEST = 2**63 - 1

_RESULT_COUNTS = ("prompt_tokens", "output_tokens")
_RESULT_TEXTS = ("answer", "error_kind", "error", "finish_reason", "replica")
_RESULT_COLUMNS = (
    "task", "run_id", "ending", "value", "tries", "started_at", "ended_at", *_RESULT_COUNTS, *_RESULT_TEXTS
)  # fmt: skip
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
    result: Result | None = None

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


def result_row(run_id: str, key: int, result: Result) -> tuple[Any, ...]:
    """Values in the order of the columns in `INSERT_RESULT`."""
    value = None if result.value is None else document_text(result.value)
    counts = (_count(getattr(result, name)) for name in _RESULT_COUNTS)
    texts = (storable(getattr(result, name)) for name in _RESULT_TEXTS)
    return (
        key, run_id, result.ending.value, value, result.tries, result.started_at, result.ended_at, *counts, *texts
    )  # fmt: skip


def result_of(row: Row) -> Result:
    values = _named(row)
    del values["run_id"]
    value = None if values["value"] is None else json.loads(values["value"])
    return Result(**values | {"ending": Ending(values["ending"]), "value": value})


def as_stored(result: Result) -> Result:
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
    return Attempt(**values | {"why": Why(values["why"]), "outcome": Outcome(values["outcome"])})


def session_of(row: Row) -> SwarmSession:
    return SwarmSession(
        number=row["number"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"],
        error=row["error"],
        agents=row["agents"],
        endpoint=json.loads(row["endpoint"]),
        simulated=bool(row["simulated"]),
        alive=_is_alive(row),
    )


def swarm_run_of(row: Row) -> SwarmRun:
    counts = Counts(row["total"], row["done"], row["failed"])
    return SwarmRun(
        id=row["id"],
        kind=row["kind"],
        created_at=row["created_at"],
        name=row["name"],
        url=row["url"],
        model=row["model"],
        config=json.loads(row["config"]),
        skep_version=row["skep_version"],
        simulated=None if row["simulated"] is None else bool(row["simulated"]),
        state=_state(row, counts),
        counts=counts,
        sessions=row["sessions"],
        ended_at=row["ended_at"],
        error=row["error"],
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


def _state(row: Row, counts: Counts) -> RunState:
    if row["sessions"] and _is_alive(row):
        return RunState.RUNNING
    if row["outcome"] == "done" and not counts.left:
        return RunState.DONE
    seen = 0 if row["opened"] is None else json.loads(row["opened"])["after_cancel"]
    asked = (row["newest_cancel"] or 0) > seen
    return RunState.CANCELLED if asked or row["outcome"] == "cancelled" else RunState.STOPPED


def _is_alive(row: Row) -> bool:
    if row["ended_at"] is not None:
        return False
    return is_alive(Writer(row["writer_pid"], row["writer_start_ticks"], row["boot_id"]))


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
