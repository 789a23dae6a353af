"""Carry out the commands of `skep monitor` that add, probe and check targets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from skep.cli.monitor import AddTargetOptions
from skep.cli.monitor_series import NOTHING_YET, parse_percent, series_if_any, series_to_read, series_to_write
from skep.cli.options import ask_hive, running_url
from skep.cli.output import note, print_json
from skep.config.load import find_config, load_settings
from skep.config.settings import Monitor
from skep.errors import Regression, SkepError, UserError
from skep.monitor.alerts import check_document
from skep.monitor.describe import describe_probe
from skep.monitor.loop import probe_by_hand
from skep.monitor.main import end_with, monitor_pid, probe_lock_for, run_monitor, when_alone, when_ready
from skep.monitor.probe_errors import probe_error
from skep.monitor.records import ProbeOutcome, ProbeTarget
from skep.monitor.schedule import format_interval
from skep.monitor.status import MonitorStatus, monitor_status
from skep.monitor.targets import add_target as store_target
from skep.monitor.targets import runs_of, target_document
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
    if parent_fd is not None:
        if not when_alone(parent_fd, paths) or not when_ready(parent_fd, _phase):
            return
        end_with(parent_fd)
    with series_if_any() as series:
        watched = series.targets() if series else []
    say = _say(quiet=quiet)
    if _loop_pid() is None:  # another one is refused below, and has not begun
        say(f"monitor.begins targets={len(watched)} pid={os.getpid()}")
    if not watched and parent_fd is None:
        note(f"no target is watched yet; {NOTHING_YET}, also while this runs")
    run_monitor(settings, paths, say, env=os.environ, once=once)
    say("monitor.ends")


def _phase() -> str | None:
    """Return the phase of the hive, None where it does not answer."""
    try:
        return str(ask_hive({"op": "status"}, ASK_S).get("phase"))
    except SkepError:
        return None


def _say(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that writes a dated line to stderr. A closed stderr is ignored."""

    def say(line: str) -> None:
        if quiet and line.startswith("monitor.probed") and " outcome=done" in line:
            return
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        with contextlib.suppress(OSError):
            print(now, line, file=sys.stderr, flush=True)  # noqa: T201

    return say


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
        if not series.targets():  # cron may run as somebody else: nothing watched is not the same as all well
            raise UserError("nothing is watched here", hint=NOTHING_YET)
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
    target, running = found.target, _wake_monitor()
    if options.as_json:
        print_json({**target_document(target), "about": found.about, "probing": running})
        return
    told = f"{found.model} at {target.url} ({found.about})" if found.about else f"{target.url}, not asked"
    note(f"`{target.name}`: {told}")
    if not check and target.key_env is not None and not os.environ.get(target.key_env):
        note(f"`{target.key_env}` is not set here; probes fail until it is, where the loop is started")
    note(f"it is probed every {format_interval(target.every_s)} ({runs_of(target)})")
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


def _wake_monitor() -> bool:
    """Return whether a loop runs; a running hive is asked to start one."""
    if _loop_pid() is not None:
        return True
    try:
        return bool(ask_hive({"op": "monitor"}, ASK_S).get("running"))
    except SkepError:
        return False


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
