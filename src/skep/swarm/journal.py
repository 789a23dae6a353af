"""Creates a run in the store before its first task is sent, and reads it again to resume it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from skep import __version__
from skep.files import lock_holder
from skep.paths import Paths
from skep.store.database import Store
from skep.swarm.records import (
    Attempt,
    AttemptOutcome,
    ErrorKind,
    SwarmRun,
    SwarmRunOptions,
    SwarmRunState,
    Task,
    classify_error,
    run_options_json,
)
from skep.swarm.schedule import Pending
from skep.swarm.store import SwarmStore


def create_run(
    store: Store,
    tasks: Iterable[Task],
    order: SwarmRunOptions,
    *,
    url: str,
    model: str | None,
    kind: str = "map",
    name: str = "",
) -> str:
    """Store a run and return its id. Nothing is sent: `skep.swarm.runner.carry_out` does that."""
    return SwarmStore(store).begin(
        kind=kind,
        created_at=time.time(),
        name=name,
        url=url,
        model=model,
        config=run_options_json(order),
        skep_version=__version__,
        tasks=tasks,
    )


def pending_tasks(swarm: SwarmStore, run_id: str) -> list[Pending]:
    """Return the tasks without a result, in the order of the input, with their earlier attempts."""
    waiting = swarm.pending(run_id)
    if not waiting:
        return []
    made: dict[str, list[Attempt]] = {}
    for attempt in swarm.attempts(run_id):
        made.setdefault(attempt.task, []).append(attempt)
    return [_pending(task, made.get(task.id, []), first_at) for task, _, first_at in waiting]


def _pending(task: Task, attempts: Sequence[Attempt], first_at: float | None) -> Pending:
    """Restore tries. A break costs none: whether it was the task's own is not in the journal. A suspect stays one."""
    counted = (AttemptOutcome.FAILED, AttemptOutcome.REJECTED)
    mishaps = [classify_error(one.error_kind, one.status) for one in attempts if one.outcome in counted]
    breaks = mishaps.count(ErrorKind.BROKEN)
    tries = mishaps.count(ErrorKind.TRY)
    last = max((one.number for one in attempts), default=0)
    return Pending(task, attempts=last, tries=tries, breaks=breaks, first_at=first_at)


WAITS = "waits for its endpoint"


def lock_path(paths: Paths, run_id: str) -> Path:
    return paths.state / "swarm" / f"{run_id}.lock"


def as_it_stands(paths: Paths, run: SwarmRun) -> SwarmRun:
    """Return the run as running if a process holds its lock: it waits for an endpoint that has not answered."""
    if run.state in (SwarmRunState.RUNNING, SwarmRunState.DONE) or lock_holder(lock_path(paths, run.id)) is None:
        return run
    return replace(run, state=SwarmRunState.RUNNING, ended_at=None, error=WAITS)
