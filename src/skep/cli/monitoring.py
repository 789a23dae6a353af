"""`skep monitor run` and `skep monitor probe`: the loop, and one probe by hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from skep.cli.monitor_words import NOTHING_YET, loop_pid, series_if_any, series_to_read, series_to_write
from skep.cli.output import note, number, print_json, print_table
from skep.errors import EndpointError, SkepError
from skep.series import Probe, ProbeOutcome, Sample

ANOTHER_RUNS_S = 30.0  # between two looks whether the other loop is gone
END_S = 5.0
READY_LOOK_S = 0.5
ASK_S = 5.0


def run_loop(config: Path | None, *, once: bool, quiet: bool, parent_fd: int | None) -> None:
    from skep.configfile import find_config, load_settings
    from skep.places import user_paths
    from skep.wiring import run_monitor

    paths = user_paths(os.environ)
    settings = load_settings(find_config(config, paths), paths, os.environ)
    if parent_fd is not None:
        if not _alone(parent_fd) or not when_ready(parent_fd, _phase):
            return
        _end_with(parent_fd)
    with series_if_any() as series:
        watched = series.targets() if series else []
    say = _say(quiet=quiet)
    if loop_pid() is None:  # another one is refused below, and has not begun
        say(f"monitor.begins targets={len(watched)} pid={os.getpid()}")
    if not watched and parent_fd is None:
        note(f"no target is watched yet; {NOTHING_YET}, also while this runs")
    run_monitor(settings.monitor, paths, say, env=os.environ, once=once)
    say("monitor.ends")


def _alone(parent_fd: int) -> bool:
    """Wait while somebody else runs the loop: that is no failure. False: the parent has gone meanwhile."""
    while loop_pid() is not None:
        if select.select([parent_fd], [], [], ANOTHER_RUNS_S)[0]:
            return False
    return True


def when_ready(parent_fd: int, phase: Callable[[], str | None]) -> bool:
    """Wait until the hive beside it serves: models that are being loaded are not down. False: the parent has gone."""
    while phase() == "starting":
        if select.select([parent_fd], [], [], READY_LOOK_S)[0]:
            return False
    return True


def _phase() -> str | None:
    """Of the hive; None where it cannot be asked, which is no reason to wait."""
    from skep.engines.control import ask, socket_of
    from skep.places import user_paths

    paths = user_paths(os.environ)
    try:
        return str(ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=ASK_S).get("phase"))
    except SkepError:
        return None


def _end_with(parent_fd: int) -> None:
    """The pipe ends when the process that holds its other end does, however that ends."""

    def wait() -> None:
        os.read(parent_fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_S)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _say(*, quiet: bool) -> Callable[[str], None]:
    """A dated line each. Nobody reading on is no reason to end."""

    def say(line: str) -> None:
        if quiet and line.startswith("monitor.probed") and " outcome=done" in line:
            return
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError):
            print(now, line, file=sys.stderr, flush=True)  # noqa: T201

    return say


def probe_now(name: str, *, as_json: bool) -> None:
    """Raises EndpointError where it failed: what is wrong is one line."""
    from skep.monitor.faults import BUSY
    from skep.monitor.loop import probe_by_hand
    from skep.places import user_paths
    from skep.wiring import probing_turns

    with series_to_read() as series:
        target = series.target(name)
    turns = probing_turns(user_paths(os.environ))
    if not as_json:
        note(f"probing {target.url} ...")

    def waits() -> None:
        note("waiting for the probe under way on that machine ...")

    with series_to_write() as series:
        probe, samples = asyncio.run(probe_by_hand(series, target, os.environ, turns=turns, waits=waits))
    if as_json:
        print_json({"probe": probe_document(probe), "samples": [sample_document(sample) for sample in samples]})
    else:
        _show(probe, samples)
    if probe.outcome is ProbeOutcome.FAILED:
        hint = f"`skep monitor status` shows it; it counts as a failed probe of `{name}`"
        if probe.error_kind == BUSY:
            hint = "it is there and has no room now; that is no outage"
        raise EndpointError(f"{name}: {probe.error or probe.error_kind}", hint=hint)


def _show(probe: Probe, samples: list[Sample]) -> None:
    columns = ("RUN", "TOK/S", "ENGINE", "EFFECTIVE", "TTFT MS", "TOKENS", "QUALITY", "NOTE")
    rows = [
        [
            f"{sample.heat} {sample.shape} c{sample.concurrency}",
            number(sample.tok_s), number(sample.engine_tok_s), number(sample.effective_tok_s), number(sample.ttft_ms),
            number(sample.output_tokens, 0), number(sample.quality, 2), sample.error or "",
        ]
        for sample in samples
    ]  # fmt: skip
    if rows:
        print_table(columns, rows, right=columns[1:-1])
    told = ", ".join(f"{what} {version}" for what, version in sorted(probe.versions.items()))
    note(f"{probe.model or 'no model known'}; {told}")
    if probe.busy:
        note(f"others were there ({probe.running or 0} running, {probe.waiting or 0} waiting): this is no regression")
    if probe.simulated:
        note("simulated")


def probe_document(probe: Probe) -> dict[str, Any]:
    document = asdict(probe)
    kept = {name: document[name] for name in document if name not in ("era", "slot", "slots", "due_at", "id")}
    return {**kept, "outcome": str(probe.outcome), "busy": probe.busy}


def sample_document(sample: Sample) -> dict[str, Any]:
    document = asdict(sample)
    kept = {name: document[name] for name in document if name not in ("id", "probe_id")}
    return {**kept, "heat": str(sample.heat), "shape": str(sample.shape)}
