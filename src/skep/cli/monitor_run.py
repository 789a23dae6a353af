"""Run the loop, probe once, show and check the status, and manage targets for `skep monitor`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skep.cli.monitor import AddTargetOptions
from skep.cli.monitor_series import (
    NOTHING_YET,
    ago,
    ahead,
    loop_pid,
    notes_in_words,
    parse_percent,
    percent,
    runs_with_up,
    series_if_any,
    series_to_read,
    series_to_write,
)
from skep.cli.options import ask_hive, running_url
from skep.cli.output import day_and_time, note, number, print_json, print_list, print_table
from skep.errors import EndpointError, Regression, SkepError, UserError
from skep.monitor.records import Alert, Probe, ProbeOutcome, ProbeSample, ProbeTarget, SeriesMetric, TargetKind
from skep.monitor.status import SeriesStatus, TargetState, TargetStatus, alert_document, target_statuses
from skep.paths import user_paths
from skep.units import format_seconds, parse_seconds

ANOTHER_RUNS_S = 30.0  # between two looks whether the other loop is gone
END_S = 5.0
READY_LOOK_S = 0.5
ASK_S = 5.0


def run_loop(config: Path | None, *, once: bool, quiet: bool, parent_fd: int | None) -> None:
    from skep.config.load import find_config, load_settings
    from skep.monitor.main import run_monitor

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
    """Wait while another process runs the loop. Return False where the parent process has ended meanwhile."""
    while loop_pid() is not None:
        if select.select([parent_fd], [], [], ANOTHER_RUNS_S)[0]:
            return False
    return True


def when_ready(parent_fd: int, phase: Callable[[], str | None]) -> bool:
    """Wait until the hive has loaded its models. Return False where the parent process has ended meanwhile."""
    while phase() == "starting":
        if select.select([parent_fd], [], [], READY_LOOK_S)[0]:
            return False
    return True


def _phase() -> str | None:
    """Return the phase of the hive, None where it does not answer."""
    try:
        return str(ask_hive({"op": "status"}, ASK_S).get("phase"))
    except SkepError:
        return None


def _end_with(parent_fd: int) -> None:
    """End this process when the parent ends: the pipe closes however the parent ends."""

    def wait() -> None:
        os.read(parent_fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_S)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


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
    from skep.monitor.loop import probe_by_hand
    from skep.monitor.main import probe_lock_for
    from skep.monitor.probe_errors import BUSY

    with series_to_read() as series:
        target = series.target(name)
    turns = probe_lock_for(user_paths(os.environ))
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
            hint = "the target answered that it is busy; this does not count as an outage"
        raise EndpointError(f"{name}: {probe.error or probe.error_kind}", hint=hint)


def _show(probe: Probe, samples: list[ProbeSample]) -> None:
    rows = [
        [
            f"{sample.heat} {sample.shape} c{sample.concurrency}",
            number(sample.tok_s), number(sample.engine_tok_s), number(sample.effective_tok_s), number(sample.ttft_ms),
            number(sample.output_tokens, 0), number(sample.quality, 2), sample.error or "",
        ]
        for sample in samples
    ]  # fmt: skip
    if rows:
        print_table("RUN|>TOK/S|>ENGINE|>EFFECTIVE|>TTFT MS|>TOKENS|>QUALITY|NOTE", rows)
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


def sample_document(sample: ProbeSample) -> dict[str, Any]:
    document = asdict(sample)
    kept = {name: document[name] for name in document if name not in ("id", "probe_id")}
    return {**kept, "heat": str(sample.heat), "shape": str(sample.shape)}


def show_status(*, as_json: bool) -> None:
    now = time.time()
    with series_if_any() as series:
        found = target_statuses(series, now) if series else []
        alerts = series.alerts(open_only=True) if series else []
        notes = notes_in_words(series, now) if series else []
    pid = loop_pid()
    if as_json:
        loop = {"running": pid is not None, "pid": pid}
        targets = [standing.document() for standing in found]
        opened = [alert_document(one) for one in alerts]
        print_json({"at": now, "loop": loop, "targets": targets, "alerts": opened, "notes": notes})
        return
    if not found:
        note(f"no target is watched; {NOTHING_YET}")
        return
    columns = "TARGET|STATE|>NOW|>7 D MEDIAN|>CHANGE|>TTFT|PROBED|NEXT|>COVERED|>ALERTS"
    print_table(columns, [_cells(standing, now, running=pid is not None) for standing in found])
    _say_why(found, alerts)
    note(*notes)
    if pid is None:
        also = ", and `skep up` does" if runs_with_up() else ""
        note(f"the loop is not running: `skep monitor run` starts it{also}")


def _cells(standing: TargetStatus, now: float, *, running: bool) -> list[str]:
    speed = next((one for one in standing.readings if one.key.metric.unit == "tok/s"), None)
    ttft = next((one for one in standing.readings if one.key.metric is SeriesMetric.TTFT_MS), None)
    covered = standing.covered
    return [
        standing.target.name,
        str(standing.state),
        _latest(speed, "tok/s"),
        "–" if speed is None or speed.week is None else number(speed.week.median),
        percent(None if speed is None else speed.ratio),
        _latest(ttft, "ms"),
        "never" if standing.last is None else ago(now - standing.last.ended_at),
        ahead(standing.due_at - now) if running else "–",
        "–" if covered is None else f"{100 * covered:.0f} %",
        str(len(standing.alerts)),
    ]


def _latest(reading: SeriesStatus | None, unit: str) -> str:
    known = reading is not None and reading.latest is not None
    return f"{number(reading.latest.value)} {unit}" if known else "–"  # type: ignore[union-attr]


def _say_why(found: list[TargetStatus], alerts: list[Alert]) -> None:
    for standing in found:
        last = standing.last
        if last is not None and last.outcome is ProbeOutcome.FAILED and standing.state is not TargetState.SILENT:
            note(f"{standing.target.name}: {last.error or last.error_kind or 'the last probe failed'}")
        elif standing.state is TargetState.BUSY:
            note(f"{standing.target.name}: others were there during the last probe; its figures are no regression")
        elif standing.state is TargetState.SILENT and last is not None:
            note(f"{standing.target.name}: not probed since {day_and_time(last.ended_at)}")
    for alert in alerts:
        note(f"alert: {alert.message} (since {day_and_time(alert.opened_at)})")


def check_now(config: Path | None, *, as_json: bool) -> None:
    """Print what is wrong. Raise Regression, exit code 4, where something is."""
    from skep.config.load import find_config, load_settings
    from skep.monitor.alerts import check_document

    paths = user_paths(os.environ)
    settings = load_settings(find_config(config, paths), paths, os.environ)
    with series_to_read() as series:
        if not series.targets():  # cron may run as somebody else: nothing watched is not the same as all well
            raise UserError("nothing is watched here", hint=NOTHING_YET)
        document: dict[str, Any] = check_document(
            series, settings.monitor, time.time(), paths.store, running=loop_pid() is not None
        )
    wrong = document["wrong"]
    if as_json:
        print_json(document)
    else:
        for one in wrong:
            print(one["message"])  # noqa: T201
        if not wrong:
            note("nothing is wrong")
    if wrong:
        raise Regression(f"{len(wrong)} thing{'s are' if len(wrong) > 1 else ' is'} wrong", hint=None)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHORTEST_S = 10.0
LONGEST_S = 366 * 86400.0
SHORTEST_TIMEOUT_S = 0.1
CHECK_S = 10.0  # for the question that `add` asks


@dataclass(frozen=True, slots=True)
class DetectedServer:
    """The server that answered when a target was added."""

    model: str
    kind: TargetKind
    about: str


def add_target(options: AddTargetOptions) -> None:
    """Store a target. Without `--url`, it is this installation's gateway."""
    check, as_json = not options.no_check, options.as_json
    target = target_of(options)
    refuse_nonsense(target)
    with series_to_write() as series:
        taken = next((known for known in series.targets() if known.name == target.name), None)
        if taken is not None:
            hint = f"choose another name, or `skep monitor remove {target.name}` first: its history stays and goes on"
            raise UserError(f"`{target.name}` is watched already, at {taken.url}", hint=hint)
        found = asyncio.run(_look(target)) if check else None
        kind = found.kind if found else TargetKind.GATEWAY if options.url is None else target.kind
        target = replace(target, kind=kind, key_env=key_env_of(target, kind), added_at=time.time())
        series.put_target(target)
    running = wake_monitor()
    if as_json:
        print_json({**target_document(target), "about": found and found.about, "probing": running})
        return
    told = f"{found.model} at {target.url} ({found.about})" if found else f"{target.url}, not asked"
    note(f"`{target.name}`: {told}")
    if not check and target.key_env is not None and not os.environ.get(target.key_env):
        note(f"`{target.key_env}` is not set here; probes fail until it is, where the loop is started")
    note(f"it is probed every {words_of(target.every_s)} ({runs_of(target)})")
    if not running:
        also = ", and `skep up` with its next start" if runs_with_up() else ""
        note(f"nothing probes yet: `skep monitor run` does{also}")


def target_of(options: AddTargetOptions) -> ProbeTarget:
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


def refuse_nonsense(target: ProbeTarget) -> None:
    from skep.wire.heads import parse_url

    if not NAME.fullmatch(target.name):
        hint = "1 to 64 letters, digits, dots and dashes, the first one a letter or a digit"
        raise UserError(f"`{target.name}` is not a valid target name", hint=hint)
    parse_url(target.url)
    parts = urlsplit(target.url if "://" in target.url else f"http://{target.url}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        hint = "the URL is stored and shown; give the key in a variable with `--key-env VAR`"
        raise UserError("--url must be a base URL, without a user, a `?` or a `#`", hint=hint)
    if target.key_env is not None and not VARIABLE.fullmatch(target.key_env):
        hint = "put the key into a variable and pass its name: --key-env MY_KEY"
        raise UserError("--key-env is not the name of a variable", hint=hint)
    if target.model is not None and not target.model.isprintable():
        raise UserError("--model has characters that cannot be printed", hint="copy it from `/v1/models`")
    if target.api not in ("openai", "ollama"):
        raise UserError(f"--api `{target.api}` is unknown", hint="choose openai or ollama")
    if target.every_s < SHORTEST_S:
        hint = "a probe costs the target load: `--every 1h` is usual, 10s is the least"
        raise UserError(f"--every {words_of(target.every_s)} is too often", hint=hint)
    if target.every_s > LONGEST_S:
        raise UserError(
            f"--every {words_of(target.every_s)} is too rare", hint="the longest interval is a year; try `--every 30d`"
        )
    if target.timeout_s < SHORTEST_TIMEOUT_S:
        hint = "use at least 0.1s; the default is 300s"
        raise UserError(f"--timeout {words_of(target.timeout_s)} is too short", hint=hint)
    if target.jitter >= target.every_s:
        raise UserError(
            "--jitter must be shorter than --every", hint="the default is a tenth of --every; --jitter 0s turns it off"
        )


def key_of(target: ProbeTarget) -> str | None:
    """Return the key in the variable `key_env`, else skep's own key for a server on this machine."""
    from skep.supervisor.control import local_key

    if target.key_env is None:
        return local_key(target.url, os.environ, user_paths(os.environ))
    value = os.environ.get(target.key_env)
    if not value:
        hint = f"export {target.key_env}=... first, also where `skep up` or `skep monitor run` is started"
        raise UserError(f"--key-env `{target.key_env}` is not set", hint=hint)
    return value


def key_env_of(target: ProbeTarget, kind: TargetKind) -> str | None:
    """Return the name of the variable with the key. The gateway's own key is in SKEP_API_KEY."""
    own = kind is TargetKind.GATEWAY and target.key_env is None and key_of(target) is not None
    return "SKEP_API_KEY" if own else target.key_env


async def _look(target: ProbeTarget) -> DetectedServer:
    from skep.bench.endpoint import find_endpoint
    from skep.paths import LOOPBACK

    key = key_of(target)
    try:
        timeout_s = min(CHECK_S, target.timeout_s)
        endpoint = await find_endpoint(target.url, target.model, key=key, api=target.api, timeout_s=timeout_s)
    except SkepError as error:
        error.hint = f"{error.hint or 'check the URL'}; --no-check adds it as it is"
        raise
    engine = endpoint.engine
    kind = TargetKind.ENDPOINT
    if "replicas" in engine:  # only skep's gateway tells it
        kind = TargetKind.GATEWAY
    elif endpoint.origin.host in LOOPBACK:
        kind = TargetKind.REPLICA
    told = [str(engine.get("engine") or engine.get("server") or "an OpenAI-compatible server")]
    told += [f"{engine['slots']} slots"] if isinstance(engine.get("slots"), int) else []
    told += ["simulated"] if endpoint.simulated else []
    return DetectedServer(endpoint.model, kind, ", ".join([str(kind), *told]))


def wake_monitor() -> bool:
    """Return whether a loop runs; a running hive is asked to start one."""
    if loop_pid() is not None:
        return True
    try:
        return bool(ask_hive({"op": "monitor"}, ASK_S).get("running"))
    except SkepError:
        return False


def list_targets(*, everyone: bool, as_json: bool) -> None:
    with series_if_any() as series:
        found = series.targets(removed=everyone) if series else []

    def cells(target: ProbeTarget) -> list[str]:
        removed = "removed" if target.removed_at is not None else ""
        where = [words_of(target.every_s), target.url, target.model or "the only one", runs_of(target)]
        return [target.name, str(target.kind), *where, target.key_env or "–", removed]

    columns, none_yet = "NAME|KIND|EVERY|URL|MODEL|RUNS|KEY IN|NOTE", f"no target is watched; {NOTHING_YET}"
    print_list(found, columns, cells, target_document, as_json=as_json, none_yet=none_yet)


def remove_target(name: str) -> None:
    with series_to_read() as series:
        series.target(name)
    with series_to_write() as series:
        now = time.time()
        series.remove_target(name, now)
        for alert in series.alerts(open_only=True):
            if alert.target == name and alert.id is not None:
                series.close_alert(alert.id, now, "the target was removed")
    note(f"`{name}` is no longer probed; its history stays")


def runs_of(target: ProbeTarget) -> str:
    """Return the runs of a probe in tokens of output: `short 64, long 512, c4`."""
    runs = [f"short {target.short_tokens}"]
    runs += [f"long {target.long_tokens}"] if target.long_tokens else []
    runs += [f"c{target.concurrency}"] if target.concurrency else []
    runs += [f"{target.quality_items} tasks"] if target.quality_items else []
    return ", ".join(runs)


def words_of(seconds: float) -> str:
    """Return a duration as `1 h`, `30 min` or `45 s`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s" if seconds < 60 else format_seconds(seconds)


def target_document(target: ProbeTarget) -> dict[str, Any]:
    """Return the target as JSON. It has the name of the key's variable, never the key."""
    return {**asdict(target), "kind": str(target.kind), "jitter_s": target.jitter}
