"""Carry out the commands of `skep monitor` that add, probe and check targets."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from skep.cli.monitor import AddTargetOptions
from skep.cli.monitor_series import NOTHING_YET, parse_percent, series_if_any, series_to_read, series_to_write
from skep.cli.options import ask_hive, running_url
from skep.cli.output import note, print_json
from skep.config.load import find_config, load_settings
from skep.config.settings import Monitor
from skep.errors import Regression, SkepError
from skep.monitor.alerts import check_document
from skep.monitor.describe import describe_probe
from skep.monitor.loop import probe_by_hand
from skep.monitor.main import begin_with, log_on_stderr, monitor_pid, probe_lock_for, run_monitor
from skep.monitor.probe_errors import probe_error
from skep.monitor.records import ProbeOutcome, ProbeTarget
from skep.monitor.status import MonitorStatus, monitor_status
from skep.monitor.targets import add_target as store_target
from skep.monitor.targets import target_document
from skep.paths import user_paths
from skep.report.columns import print_records
from skep.report.monitor import SAMPLES, TARGETS, status_columns
from skep.units import parse_seconds

ASK_S = 5.0


def _settings(config: Path | None) -> Monitor:
    paths = user_paths(os.environ)
    return load_settings(find_config(config, paths), paths, os.environ).monitor


def _loop_pid() -> int | None:
    return monitor_pid(user_paths(os.environ))


def run_loop(config: Path | None, *, once: bool, quiet: bool, parent_fd: int | None) -> None:
    paths, settings = user_paths(os.environ), _settings(config)
    if parent_fd is not None and not begin_with(parent_fd, paths, lambda: _hive("status").get("phase")):
        return
    with series_if_any() as series:
        if parent_fd is None and not (series and series.targets()):
            note(f"no target is watched yet; {NOTHING_YET}, also while this runs")
    run_monitor(settings, paths, log_on_stderr(quiet=quiet), env=os.environ, once=once)


def _hive(op: str) -> dict[str, Any]:
    """Return what the hive answers; nothing where it does not."""
    try:
        return ask_hive({"op": op}, ASK_S)
    except SkepError:
        return {}


def probe_now(name: str, *, as_json: bool) -> None:
    """Probe a target once and print the result. Raise EndpointError where the probe failed."""
    with series_to_read() as series:
        target = series.target(name)
    if not as_json:
        note(f"probing {target.url} ...")

    def waits() -> None:
        note("waiting for the probe under way on that machine ...")

    turns = probe_lock_for(user_paths(os.environ))
    with series_to_write() as series:
        probe, samples = asyncio.run(probe_by_hand(series, target, os.environ, turns=turns, waits=waits))
    if as_json:
        print_json({"probe": probe.document(), "samples": [sample.document() for sample in samples]})
    else:
        if samples:
            print_records(SAMPLES, samples)
        note(*describe_probe(probe))
    if probe.outcome is ProbeOutcome.FAILED:
        raise probe_error(probe)


def show_status(*, as_json: bool) -> None:
    now, pid = time.time(), _loop_pid()
    with series_if_any() as series:
        found = monitor_status(series, now) if series else MonitorStatus(now)
    if as_json:
        print_json({**found.document(), "loop": {"running": pid is not None, "pid": pid}})
        return
    if not found.targets:
        note(f"no target is watched; {NOTHING_YET}")
        return
    print_records(status_columns(now, running=pid is not None), found.targets)
    note(*found.sentences())
    if pid is None:
        note(f"the loop is not running: `skep monitor run` starts it{_with_up(', and `skep up` does')}")


def _with_up(words: str) -> str:
    """Return the words where `skep up` starts the loop; nothing where skep.toml says no, or cannot be read."""
    try:
        return words if _settings(None).with_up else ""
    except SkepError:
        return ""


def check_now(config: Path | None, *, as_json: bool) -> None:
    """Print what is wrong. Raise Regression, exit code 4, where something is."""
    settings = _settings(config)
    with series_to_read() as series:
        store = user_paths(os.environ).store
        document = check_document(series, settings, time.time(), store, running=_loop_pid() is not None)
    wrong = document["wrong"]
    if as_json:
        print_json(document)
    elif wrong:
        print("\n".join(one["message"] for one in wrong))  # noqa: T201
    else:
        note("nothing is wrong")
    if wrong:
        raise Regression(f"{len(wrong)} thing{'s are' if len(wrong) > 1 else ' is'} wrong", hint=None)


def add_target(options: AddTargetOptions) -> None:
    """Store a target. Without `--url`, it is this installation's gateway."""
    own, check = options.url is None, not options.no_check
    with series_to_write() as series:
        found = store_target(series, _target_of(options), os.environ, time.time(), own=own, check=check)
    running = _loop_pid() is not None or bool(_hive("monitor").get("running"))
    if options.as_json:
        print_json({**target_document(found.target), "about": found.about, "probing": running})
        return
    note(*found.sentences(os.environ))
    if not running:
        note(f"nothing probes yet: `skep monitor run` does{_with_up(', and `skep up` with its next start')}")


def _target_of(options: AddTargetOptions) -> ProbeTarget:
    return ProbeTarget(
        name=options.name,
        url=options.url or running_url(),
        model=options.model,
        key_env=options.key_env,
        api=options.api,
        every_s=parse_seconds(options.every),
        jitter_s=None if options.jitter is None else parse_seconds(options.jitter),
        prompt_tokens=options.prompt_tokens,
        short_tokens=options.short,
        long_tokens=0 if options.no_long else options.long,
        concurrency=options.concurrency if options.concurrency > 1 else 0,
        quality_items=options.quality,
        timeout_s=parse_seconds(options.timeout),
        slower_pct=None if options.slower is None else parse_percent(options.slower, option="--slower"),
        ttft_ms=None if options.ttft is None else 1000 * parse_seconds(options.ttft),
    )


def list_targets(*, everyone: bool, as_json: bool) -> None:
    with series_if_any() as series:
        found = series.targets(removed=everyone) if series else []

    if as_json:
        print_json([target_document(target) for target in found])
    elif found:
        print_records(TARGETS, found)
    else:
        note(f"no target is watched; {NOTHING_YET}")


def remove_target(name: str) -> None:
    with series_to_read() as series:
        series.target(name)
    with series_to_write() as series:
        series.remove_target(name, time.time())
    note(f"`{name}` is no longer probed; its history stays")
