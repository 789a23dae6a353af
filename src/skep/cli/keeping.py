"""`skep store` and `skep gc`: what is kept, a copy of it, and what goes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skep.cli.output import note, print_json
from skep.errors import UserError
from skep.places import Paths, user_paths
from skep.records import Run, RunState
from skep.store.database import Store, open_store
from skep.store.swarm import SwarmStore
from skep.store.tunings import TuningState, TuningStore
from skep.swarm.locks import as_it_stands, lock_path
from skep.tasks import RunState as SwarmState
from skep.units import format_bytes, parse_seconds


def store_info(*, as_json: bool) -> None:
    path = user_paths(os.environ).store
    if not path.exists():
        names = ("runs", "requests", "swarm_runs", "swarm_tasks", "tunings", "tuning_stages", "gateway_requests")
        counts = dict.fromkeys(names, 0)
        document: dict[str, Any] = {"path": str(path), "bytes": 0, **counts}
    else:
        with open_store(path, read_only=True) as store:
            runs, swarm_runs = store.runs(), SwarmStore(store).runs()
            tunings, stages = TuningStore(store).count()
            document = {
                "path": str(path),
                "bytes": store.size_bytes(),
                "runs": len(runs),
                "requests": sum(run.requests for run in runs),
                "swarm_runs": len(swarm_runs),
                "swarm_tasks": sum(run.counts.total for run in swarm_runs),
                "tunings": tunings,
                "tuning_stages": stages,
                "gateway_requests": store.count_gateway_requests(),
            }
    if as_json:
        print_json(document)
        return
    size = format_bytes(document["bytes"])
    kept = f"{document['runs']} runs, {document['requests']} requests, {document['gateway_requests']} gateway requests"
    swarm = f"{document['swarm_runs']} swarm runs, {document['swarm_tasks']} tasks"
    tuned = f"{document['tunings']} tunings, {document['tuning_stages']} stages"
    print(f"{document['path']}: {size}, {kept}, {swarm}, {tuned}")  # noqa: T201


def store_backup(to: Path, *, overwrite: bool) -> None:
    path = user_paths(os.environ).store
    if not path.exists():
        raise UserError("there is no store yet", hint="`skep bench sweep` makes one")
    with open_store(path, read_only=True) as store:
        store.backup(to, overwrite=overwrite)
    note(f"copied to {to} ({format_bytes(to.stat().st_size)})")


def collect_garbage(older_than: str | None, *, incomplete: bool, dry_run: bool, as_json: bool) -> None:
    paths = user_paths(os.environ)
    age_s = None if older_than is None else parse_seconds(older_than)
    files = _old_logs(paths)
    before = paths.store.stat().st_size if paths.store.exists() else 0
    doomed: list[Run] = []
    swarm_runs: list[str] = []
    tunings: list[str] = []
    gateway_rows = 0
    if paths.store.exists():
        with open_store(paths.store) as store:
            doomed = _doomed(store, age_s, incomplete=incomplete)
            swarm_runs = _old_swarm_runs(store, paths, age_s)
            tunings = _old_tunings(store, age_s)
            gateway_rows = _old_gateway_rows(store, age_s, dry_run=dry_run)
            if not dry_run:
                store.delete_runs([run.id for run in doomed])
                SwarmStore(store).delete(swarm_runs)
                TuningStore(store).delete(tunings)
                for run_id in swarm_runs:
                    lock_path(paths, run_id).unlink(missing_ok=True)
                store.vacuum()
    freed = sum(file.stat().st_size for file in files)
    if not dry_run:
        for file in files:
            file.unlink(missing_ok=True)
        freed += max(0, before - (paths.store.stat().st_size if paths.store.exists() else 0))
    gone = {"runs": [run.id for run in doomed], "swarm_runs": swarm_runs, "tunings": tunings}
    _report(gone, gateway_rows, files, freed, dry_run=dry_run, as_json=as_json)


def _doomed(store: Store, age_s: float | None, *, incomplete: bool) -> list[Run]:
    """A run that is being written is never deleted."""
    now = time.time()
    return [
        run
        for run in store.runs()
        if run.state is not RunState.RUNNING
        and ((age_s is not None and now - run.created_at > age_s) or (incomplete and run.state is RunState.INCOMPLETE))
    ]


def _old_swarm_runs(store: Store, paths: Paths, age_s: float | None) -> list[str]:
    """By when they were last at work. One that stopped halfway goes only by its age: it has answers, and can go on."""
    if age_s is None:
        return []
    old = time.time() - age_s
    swarm = SwarmStore(store)
    known = (as_it_stands(paths, run) for run in swarm.runs() if run.created_at < old)
    idle = [run for run in known if run.state is not SwarmState.RUNNING]
    return [run.id for run in idle if max([one.started_at for one in swarm.session_rows(run.id)], default=0) < old]


def _old_tunings(store: Store, age_s: float | None) -> list[str]:
    """By when they were last at work, as swarm runs. The runs that were measured for them go by their own age."""
    if age_s is None:
        return []
    old = time.time() - age_s
    kept = (one for one in TuningStore(store).tunings() if one.state is not TuningState.RUNNING)
    return [one.id for one in kept if one.worked_at < old]


def _old_gateway_rows(store: Store, age_s: float | None, *, dry_run: bool) -> int:
    """How many went, or would go."""
    if age_s is None:
        return 0
    before = time.time() - age_s
    return store.count_gateway_requests(before) if dry_run else store.delete_gateway_requests(before)


def _old_logs(paths: Paths) -> list[Path]:
    return sorted(paths.logs.glob("*.log.[0-9]*")) if paths.logs.is_dir() else []


def _report(
    gone: Mapping[str, list[str]],
    gateway_rows: int,
    files: list[Path],
    freed: int,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        names = [str(file) for file in files]
        rest = {"gateway_requests": gateway_rows, "files": names, "freed_bytes": freed}
        print_json({"dry_run": dry_run, **gone, **rest})
        return
    verb = "would delete" if dry_run else "deleted"
    swarm = f"{len(gone['swarm_runs'])} swarm runs, " if gone["swarm_runs"] else ""
    tuned = f"{len(gone['tunings'])} tunings, " if gone["tunings"] else ""
    what = f"{len(gone['runs'])} runs, {swarm}{tuned}{gateway_rows} gateway requests and {len(files)} old logs"
    note(f"{verb} {what}: {format_bytes(freed)}")
    for names in gone.values():
        for name in names:
            print(name)  # noqa: T201
