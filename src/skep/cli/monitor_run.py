"""What the commands of `skep monitor` do: targets and probes, and series shown, compared, noted
and exported.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from skep.cli.monitor import AddTargetOptions
from skep.cli.options import ask_hive, running_url
from skep.config.load import find_config, load_settings
from skep.config.settings import Monitor
from skep.errors import Regression, SkepError
from skep.monitor.alerts import check_document
from skep.monitor.describe import describe_probe
from skep.monitor.history import model_changes
from skep.monitor.history import write_note as store_note
from skep.monitor.loop import begin_with, log_on_stderr, monitor_pid, probe_by_hand, run_monitor
from skep.monitor.overview import monitor_status, pair_of
from skep.monitor.probe import probe_error
from skep.monitor.records import ProbeOutcome, ProbeTarget
from skep.monitor.store import SeriesStore
from skep.monitor.targets import add_target as store_target
from skep.monitor.targets import moment_of, parse_percent
from skep.paths import user_paths
from skep.report.columns import print_records
from skep.report.hive_text import (
    SAMPLE_COLUMNS,
    TARGET_COLUMNS,
    comparison_columns,
    status_columns,
)
from skep.report.terminal import day_and_time, note, print_json, print_list
from skep.store.database import open_store, read_store
from skep.units import parse_seconds

NOTHING_YET = "`skep monitor add NAME --url URL` adds a target"


def series_to_read() -> SeriesStore:
    """Open the store read-only; empty where there is no store yet, and none is made."""
    return SeriesStore(read_store(user_paths(os.environ).store))


def series_to_write() -> SeriesStore:
    return SeriesStore(open_store(user_paths(os.environ).store))


def write_note(text: str, target: str | None, at: str | None, *, as_json: bool) -> None:
    now = time.time()
    moment = None if at is None else moment_of(at, now, option="--at")
    with series_to_write() as series:
        event, effects = store_note(series, text, target, now, moment)
    if as_json:
        print_json({"event": msgspec.to_builtins(event), "around": effects})
        return
    note(f"recorded for {target or 'all targets'} at {day_and_time(event.at)}")
    for effect in effects:
        print(f"{effect['series']}: {effect['sentence']}")  # noqa: T201
    if not effects:
        note("skep compares before and after once new probes have run: see `skep monitor status`")


ASK_S = 5.0


def _settings(config: Path | None) -> Monitor:
    paths = user_paths(os.environ)
    return load_settings(find_config(config, paths), paths, os.environ).monitor


def _loop_pid() -> int | None:
    return monitor_pid(user_paths(os.environ))


def run_loop(config: Path | None, *, once: bool, parent_fd: int | None) -> None:
    paths = user_paths(os.environ)
    settings = _settings(config)
    if parent_fd is not None and not begin_with(
        parent_fd, paths, lambda: _hive("status").get("phase")
    ):
        return
    with series_to_read() as series:
        if parent_fd is None and not series.targets():
            note(f"there are no targets yet; {NOTHING_YET}, also while this runs")
    run_monitor(settings, paths, log_on_stderr, env=os.environ, once=once)


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

    with series_to_write() as series:
        probe, samples = asyncio.run(probe_by_hand(series, target, os.environ))
        news = model_changes(series, name, time.time() + 1)[-1:]
    if as_json:
        print_json(
            {"probe": probe.document(), "samples": [sample.document() for sample in samples]}
        )
    else:
        if samples:
            print_records(SAMPLE_COLUMNS, samples)
        note(
            *describe_probe(probe), *(event.text for event in news if event.at == probe.started_at)
        )
    if probe.outcome is ProbeOutcome.FAILED:
        raise probe_error(probe)


def show_status(*, as_json: bool) -> None:
    now = time.time()
    pid = _loop_pid()
    with series_to_read() as series:
        status = monitor_status(series, now)
    if as_json:
        print_json({**status.document(), "loop": {"running": pid is not None, "pid": pid}})
        return
    if not status.targets:
        note(f"there are no targets; {NOTHING_YET}")
        return
    print("".join(f"{headline.line}\n" for headline in status.headlines), end="")  # noqa: T201
    print_records(status_columns(now, running=pid is not None), status.targets)
    note(*status.sentences())
    if pid is None:
        note("the loop is not running: `skep monitor run` or `skep up` starts it")


def compare_two(a: str, b: str, since: str, *, as_json: bool) -> None:
    now = time.time()
    start = moment_of(since, now, option="--since")
    with series_to_read() as series:
        pair = pair_of(series, a, b, start, now)
    if as_json:
        print_json(pair.document())
        return
    if not pair.rows:
        note(f"`{a}` and `{b}` have no kind of run in common since {day_and_time(start)}")
        return
    if pair.headline is not None:
        print(pair.headline.line)  # noqa: T201
    print_records(comparison_columns(a, b), pair.rows)
    note(*(cold_start.sentence for cold_start in pair.cold_starts), *pair.probing)


def check_now(*, as_json: bool) -> None:
    """Print what is wrong. Raise Regression, exit code 4, where something is."""
    with series_to_read() as series:
        document = check_document(series, time.time(), running=_loop_pid() is not None)
    wrong = document["wrong"]
    if as_json:
        print_json(document)
    elif wrong:
        print("\n".join(alert["message"] for alert in wrong))  # noqa: T201
    else:
        note("no problems found")
    if wrong:
        raise Regression(
            f"{len(wrong)} thing{'s are' if len(wrong) > 1 else ' is'} wrong", hint=None
        )


def add_target(options: AddTargetOptions) -> None:
    """Store a target. Without `--url`, it is this installation's gateway."""
    is_own_target = options.url is None
    check = not options.no_check
    with series_to_write() as series:
        target = store_target(
            series,
            _target_of(options),
            os.environ,
            time.time(),
            own_gateway=is_own_target,
            check=check,
        )
    running = _loop_pid() is not None or bool(_hive("monitor").get("running"))
    if options.as_json:
        print_json(
            {**msgspec.to_builtins(target.target), "about": target.about, "probing": running}
        )
        return
    if running:
        start = "the first probe begins soon"
    else:
        start = "`skep monitor run` or the next `skep up` starts probing"
    note(*target.sentences(), f"{start}; `skep monitor status` shows it")


def _target_of(options: AddTargetOptions) -> ProbeTarget:
    return ProbeTarget(
        name=options.name,
        url=options.url or running_url(),
        model=options.model,
        key_env=options.key_env,
        api=options.api,
        every_s=parse_seconds(options.every),
        prompt_tokens=options.prompt_tokens,
        short_tokens=options.short,
        long_tokens=0 if options.no_long else options.long,
        concurrency=options.concurrency if options.concurrency > 1 else 0,
        timeout_s=parse_seconds(options.timeout),
        slower_pct=None
        if options.slower is None
        else parse_percent(options.slower, option="--slower"),
        ttft_ms=None if options.ttft is None else 1000 * parse_seconds(options.ttft),
    )


def list_targets(*, everyone: bool, as_json: bool) -> None:
    with series_to_read() as series:
        targets = series.targets(removed=everyone)
    none_yet = f"there are no targets; {NOTHING_YET}"
    print_list(
        targets,
        partial(print_records, TARGET_COLUMNS),
        msgspec.to_builtins,
        as_json=as_json,
        none_yet=none_yet,
    )


def remove_target(name: str) -> None:
    with series_to_read() as series:
        series.target(name)
    with series_to_write() as series:
        series.remove_target(name, time.time())
    note(f"`{name}` is no longer probed; its history stays")
