"""The work of `skep demo`, `doctor`, `pull`, `store` and `gc`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from skep.catalog.models import find_geometry, find_pullable
from skep.cli.options import EndpointOptions, existing, run_measuring
from skep.config.settings import EMBEDDED_MODEL, GatewaySettings, Serve, Settings
from skep.errors import UserError
from skep.files import HTML, OutputFile
from skep.host.checks import CheckResult, HostFinding
from skep.host.facts import host_json, read_host
from skep.monitor.records import DAY_S
from skep.monitor.store import SeriesStore
from skep.paths import Paths, user_paths
from skep.report.terminal import byte_progress, note, print_json
from skep.store.database import Store, open_store
from skep.store.records import RunState
from skep.supervisor.control import NotRunning, ask_down, replica_key
from skep.swarm.records import SwarmRunState
from skep.swarm.store import SwarmStore, as_it_stands, lock_path
from skep.tuner.store import TuningState, TuningStore
from skep.units import format_bytes, format_seconds, parse_seconds

HUMANEVAL = "humaneval"
SAMPLES_KEPT_S = 90 * DAY_S


def pull_model(source: str, *, as_json: bool) -> None:
    from skep.quality.banks import pull_humaneval
    from skep.weights.pull import pull

    # `humaneval` is a bank of tasks, no model; its first use fetches it too.
    fetch = pull_humaneval if source == HUMANEVAL else pull
    is_source = source == HUMANEVAL or "/" in source or find_pullable(source) is not None
    if not is_source and find_geometry(source) is not None:
        from skep.deploy.resolve import checkpoint_to_pull

        source = checkpoint_to_pull(source, user_paths(os.environ))
    notes: list[str] = []

    def waiting() -> None:
        if not notes:
            notes.append("another process is fetching it; waiting")
            note(*notes)

    with byte_progress(f"fetching {source}") as progress:
        pulled = fetch(
            source, cache_dir=user_paths(os.environ).cache, progress=progress, waiting=waiting
        )
    if as_json:
        print_json({**msgspec.structs.asdict(pulled), "path": str(pulled.path)})
        return
    if pulled.already_there:
        how = "is already in the cache"
    else:
        how = "downloaded and verified"
    note(f"{pulled.name} {how}: {format_bytes(pulled.bytes)}")
    print(pulled.path)  # noqa: T201


def run_demo(output: OutputFile) -> None:
    """Serve in folders of its own, so that a running skep is not disturbed; runs go to the user's
    store.
    """
    from skep.bench.demo import DEMO_SCALE
    from skep.cli.demo_page import DEMO_MODEL, demonstrate
    from skep.cli.hive import HIVE_PROGRAM
    from skep.supervisor.hive_process import start_detached

    output = output.checked(suffixes=HTML)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="skep-demo-"))
    env = os.environ | {
        f"XDG_{name}": str(folder) for name in ("STATE_HOME", "RUNTIME_DIR", "CONFIG_HOME")
    }
    paths = user_paths(env)
    gateway = GatewaySettings(port=0, store_requests=False)
    extra = ("--preset=dual-3090", f"--time-scale={DEMO_SCALE}", "--chunk-tokens=3")
    rig = Serve(
        model=DEMO_MODEL, engine="fake", replicas=2, slots=2, context_tokens=4096, extra=extra
    )
    settings = Settings(gateway=gateway, serve=(Serve(slots=1), rig))
    # Ends with this process, however it ends; the hive ends with it.
    alive_read, _alive_write = os.pipe()
    try:
        note(
            f"1/5 starting the gateway, {EMBEDDED_MODEL} (a real model, on the CPU) and a "
            "SIMULATED 2x RTX 3090"
        )
        with byte_progress("fetching the weights") as progress:

            def show_progress(message: Mapping[str, Any]) -> None:
                if "done" in message:
                    progress(message["done"], message["total"])

            ready = start_detached(
                HIVE_PROGRAM, settings, paths, env, show_progress, parent_fd=alive_read
            )
        engines = [row["url"] for row in ready["replicas"] if row["simulated"]]
        key = replica_key(engines[0], paths)
        store = user_paths(os.environ).store
        output.write(run_measuring(lambda: demonstrate(ready["url"], engines, key, store)))
    finally:
        with contextlib.suppress(NotRunning):
            ask_down(paths.socket, 0.0)
        shutil.rmtree(folder, ignore_errors=True)
    cards = "" if read_host().gpus else ' --gpu "2x rtx-3090"'
    note(
        f"done in {format_seconds(time.monotonic() - began)}; nothing is left running",
        (
            f"next, for your own cards: `skep plan {DEMO_MODEL}{cards}`, then `skep up "
            f"{DEMO_MODEL} -d`"
        ),
        "dashboard of the SIMULATED runs: `skep web --open`, at http://127.0.0.1:8401",
        "report of the SIMULATED runs, with pictures, for a browser:",
    )
    print(output.resolve())  # noqa: T201


def run_doctor(url: str | None, key_env: str | None, model: str | None, *, as_json: bool) -> int:
    from skep.deploy.doctor import examine_here
    from skep.report.hive_text import print_findings

    if url is not None:
        about, findings = _examine_server(EndpointOptions(url=url, model=model, key_env=key_env))
    elif key_env is not None or model is not None:
        option = "--key-env" if key_env is not None else "--model"
        raise UserError(f"{option} is of a server", hint="name it with --url")
    else:
        facts, findings = examine_here(user_paths(os.environ))
        about = {"host": host_json(facts)}
    if as_json:
        print_json({"findings": msgspec.to_builtins(findings), **about})
    else:
        print_findings(findings)
    if any(finding.verdict is CheckResult.PROBLEM for finding in findings):
        return 1
    return 0


def _examine_server(options: EndpointOptions) -> tuple[dict[str, Any], list[HostFinding]]:
    """Return which model was asked, and what there is to say about it."""
    from skep.bench.endpoint import served_models
    from skep.clients.catalog import context_in
    from skep.deploy.doctor import examine_server

    async def examine() -> tuple[dict[str, Any], list[HostFinding]]:
        endpoint = await options.find()
        models = await served_models(options.address, key=options.key())
        name = str(endpoint.engine.get("engine") or "")
        context_tokens = context_in(models.get(endpoint.model, {}))
        findings = await examine_server(
            endpoint.url, endpoint.model, name, endpoint.headers, context_tokens
        )
        return {"url": endpoint.url, "model": endpoint.model}, findings

    return asyncio.run(examine())


def store_info(*, as_json: bool) -> None:
    path = user_paths(os.environ).store
    tables = [
        "runs",
        "requests",
        "swarm_runs",
        "swarm_tasks",
        "tunings",
        "tuning_stages",
        "gateway_requests",
    ]
    document: dict[str, Any] = {"path": str(path), "bytes": 0, **dict.fromkeys(tables, 0)}
    if path.exists():
        with open_store(path, read_only=True) as store:
            document["bytes"] = store.size_bytes()
            for name in tables:
                (row,) = store.read(f"SELECT count(*) FROM {name}")  # noqa: S608
                document[name] = row[0]
    if as_json:
        print_json(document)
        return
    size = format_bytes(document["bytes"])
    contents = (
        f"{document['runs']} runs, {document['requests']} requests, "
        f"{document['gateway_requests']} gateway requests"
    )
    swarm = f"{document['swarm_runs']} swarm runs, {document['swarm_tasks']} tasks"
    tuned = f"{document['tunings']} tunings, {document['tuning_stages']} stages"
    print(f"{document['path']}: {size}, {contents}, {swarm}, {tuned}")  # noqa: T201


def store_backup(to: Path, *, overwrite: bool) -> None:
    with existing("there is no store yet") as store:
        store.backup(to, overwrite=overwrite)
    note(f"copied to {to} ({format_bytes(to.stat().st_size)})")


def collect_garbage(older_than: str | None, *, dry_run: bool, as_json: bool) -> None:
    paths = user_paths(os.environ)
    if older_than is None:
        before = None
    else:
        before = time.time() - parse_seconds(older_than)
    deleted: dict[str, Any] = {
        "runs": [],
        "swarm_runs": [],
        "tunings": [],
        "gateway_requests": 0,
        "samples": 0,
    }
    freed = 0
    if paths.store.exists():
        size = paths.store.stat().st_size
        with open_store(paths.store) as store:
            deleted = _old(store, paths, before)
            if not dry_run:
                _delete(store, paths, before, deleted)
        freed = max(0, size - paths.store.stat().st_size)
    if as_json:
        print_json({"dry_run": dry_run, **deleted, "freed_bytes": freed})
        return
    counts = {kind: len(deleted[kind]) for kind in ("runs", "swarm_runs", "tunings")}
    kinds = ", ".join(
        f"{count} {kind.replace('_', ' ')}"
        for kind, count in counts.items()
        if count or kind == "runs"
    )
    summary = (
        f"{kinds}, {deleted['gateway_requests']} gateway requests "
        f"and {deleted['samples']} probe samples"
    )
    note(f"{'would delete' if dry_run else 'deleted'} {summary}: {format_bytes(freed)}")
    for name in (name for kind in counts for name in deleted[kind]):
        print(name)  # noqa: T201


def _old(store: Store, paths: Paths, before: float | None) -> dict[str, Any]:
    """Return what is to go, by kind. What is at work stays; what is measured for a tuning goes by
    its own age.

    A swarm run that stopped halfway goes only by its age, which is when it was last at work: it
    can go on."""
    since = before if before is not None else float("-inf")
    swarm = SwarmStore(store)
    old_swarm_runs = [as_it_stands(paths, run) for run in swarm.runs() if run.created_at < since]
    return {
        "runs": [
            run.id
            for run in store.runs()
            if run.state is not RunState.RUNNING and run.created_at < since
        ],
        "swarm_runs": [
            run.id
            for run in old_swarm_runs
            if run.state is not SwarmRunState.RUNNING
            and max(
                [session_row.started_at for session_row in swarm.session_rows(run.id)], default=0
            )
            < since
        ],
        "tunings": [
            tuning.id
            for tuning in TuningStore(store).tunings()
            if tuning.state is not TuningState.RUNNING and tuning.worked_at < since
        ],
        "gateway_requests": 0 if before is None else store.count_gateway_requests(before),
        "samples": 0 if before is None else SeriesStore(store).count_samples(_whole_days(before)),
    }


def _whole_days(before: float) -> float:
    """Return until when probe samples go: change detection needs those of late,
    and days go whole.
    """
    return min(before, time.time() - SAMPLES_KEPT_S) // DAY_S * DAY_S


def _delete(store: Store, paths: Paths, before: float | None, deleted: dict[str, Any]) -> None:
    if before is not None:
        deleted["gateway_requests"] = store.delete_gateway_requests(before)
        deleted["samples"] = SeriesStore(store).delete_samples(_whole_days(before))
    store.delete_runs(deleted["runs"])
    SwarmStore(store).delete(deleted["swarm_runs"])
    TuningStore(store).delete(deleted["tunings"])
    for run_id in deleted["swarm_runs"]:
        lock_path(paths, run_id).unlink(missing_ok=True)
    store.vacuum()
