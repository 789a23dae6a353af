"""`skep demo`: the whole path once, on this machine: pull, serve, measure, store, show, stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from skep.bench.sweep import SweepPlan
from skep.bench.tasks import Workload
from skep.cli.fetching import pull_model
from skep.cli.hive import start_detached
from skep.cli.output import note
from skep.cli.results import check_output, write_report
from skep.cli.summaries import print_summary
from skep.cli.sweep import measure_endpoint
from skep.engines.control import NotRunning, ask_down
from skep.places import Paths, user_paths
from skep.settings import EMBEDDED_MODEL, Gateway, Serve, Settings
from skep.units import format_seconds

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
    settings = Settings(gateway=replace(Gateway(), port=0, store_requests=False), serve=(Serve(slots=SLOTS),))
    alive_read, _alive_write = os.pipe()  # ends with this process, however it ends; the hive ends with it
    try:
        note(f"1/4 weights of {EMBEDDED_MODEL}")
        pull_model(EMBEDDED_MODEL, as_json=False)
        note(f"2/4 serving it: one llama.cpp replica with {SLOTS} slots behind the gateway")
        ready = start_detached(settings, paths, env, parent_fd=alive_read)
        note(f"    {ready['openai_base_url']}")
        note("3/4 the swarm benchmark: C=4 is twice the slots, so half of it waits in the gateway")
        summary = measure_endpoint(PLAN, ready["url"], EMBEDDED_MODEL)
    finally:
        _stop(paths)
        shutil.rmtree(folder, ignore_errors=True)
    print_summary(summary)
    note("4/4 the report")
    write_report(user_paths(os.environ).store, summary.run_id, output)
    took = format_seconds(time.monotonic() - began)
    note(f"done in {took}; nothing is left running. Next: `skep up -d`, your agents at its URL, `skep web` to look on")
    print(output.resolve())  # noqa: T201


def _stop(paths: Paths) -> None:
    with contextlib.suppress(NotRunning):
        ask_down(paths.socket, 0.0)
