"""Who works on a run. The journal knows it once the endpoint has answered; the lock knows it before that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from skep.files import holder_of
from skep.paths import Paths
from skep.swarm.records import RunState, SwarmRun

WAITS = "waits for its endpoint"


def lock_path(paths: Paths, run_id: str) -> Path:
    return paths.state / "swarm" / f"{run_id}.lock"


def as_it_stands(paths: Paths, run: SwarmRun) -> SwarmRun:
    """A run without a living session that is held by a process waits for an endpoint that has not answered it yet."""
    if run.state in (RunState.RUNNING, RunState.DONE) or holder_of(lock_path(paths, run.id)) is None:
        return run
    return replace(run, state=RunState.RUNNING, ended_at=None, error=WAITS)
