"""`skep monitor`: targets probed for months. What each command does is in the modules beside this one."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from skep.cli.monitor_words import NOTHING_YET, loop_pid, runs_with_up, series_if_any, series_to_read, series_to_write
from skep.cli.output import note, print_json, print_table
from skep.cli.serve import ConfigOption, JsonOption
from skep.errors import SkepError, UserError
from skep.monitor.records import Target, TargetKind
from skep.units import format_seconds

monitor_app = typer.Typer(
    no_args_is_help=True,
    help="Probe endpoints for months: series, what changed and when, alerts.",
    rich_markup_mode=None,
)

MOST_TOKENS = 1_000_000

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A target's name, as in `skep monitor list`.")]
TargetOption = Annotated[str | None, typer.Option(metavar="NAME", help="Only this target. Default: all.")]
SinceOption = Annotated[str, typer.Option(help="So long ago (7d), or a time (2026-11-15T14:30).")]


def register(app: typer.Typer) -> None:
    app.add_typer(monitor_app, name="monitor")
    command = monitor_app.command
    command("add", epilog="Example: skep monitor add cloud --url https://api.example.com/v1 --key-env API_KEY")(add)
    command("list", epilog="Example: skep monitor list --json")(list_)
    command("remove", epilog="Example: skep monitor remove cloud")(remove)
    command("run", epilog="Example: skep monitor run")(run)
    command("probe", epilog="Example: skep monitor probe box")(probe)
    command("status", epilog="Example: skep monitor status")(status)
    command("check", epilog="Example: skep monitor check --json || mail -s skep me < /dev/null")(check)
    command("series", epilog="Example: skep monitor series box --since 30d")(series)
    command("compare", epilog="Example: skep monitor compare box cloud --since 7d")(compare)
    command("note", epilog='Example: skep monitor note "NVLink bridges removed" --target box')(note_)
    command("export", epilog="Example: skep monitor export --csv --since 30d -o samples.csv")(export)
    command("thin", epilog="Example: skep monitor thin --older 90d")(thin)
    command("grafana", epilog="Example: skep monitor grafana > skep.json")(grafana)


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 64 letters, digits, dots and dashes.")],
    url: Annotated[
        str | None, typer.Option(help="Base URL, with or without /v1. Default: the gateway of `skep up`.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Default: the only one that is served there.")] = None,
    key_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Environment variable with its API key; the key is not kept.")
    ] = None,
    every: Annotated[str, typer.Option(help="How often.")] = "1h",
    jitter: Annotated[
        str | None, typer.Option(help="A probe comes up to so much late, at random. Default: a tenth of --every.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=16, max=MOST_TOKENS, help="Length of a prompt, about.")] = 256,
    short: Annotated[int, typer.Option(min=8, max=MOST_TOKENS, help="Tokens of the short answer.")] = 64,
    long: Annotated[int, typer.Option(min=8, max=MOST_TOKENS, help="Tokens of the long answer.")] = 512,
    no_long: Annotated[bool, typer.Option("--no-long", help="No long answer.")] = False,
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", min=0, max=256, help="Also a run with so many streams at once.")
    ] = 0,
    quality: Annotated[int, typer.Option(min=0, max=200, help="Also so many small tasks with known answers.")] = 0,
    slower: Annotated[
        str | None, typer.Option(help="Alert when it is so much slower than its median. Default: as configured.")
    ] = None,
    ttft: Annotated[str | None, typer.Option(help="Alert when TTFT is over this. Default: as configured.")] = None,
    timeout: Annotated[str, typer.Option(help="For one request.")] = "300s",
    api: Annotated[
        str, typer.Option(help="openai, or ollama for Ollama's own API, which tells its durations.")
    ] = "openai",
    no_check: Annotated[bool, typer.Option("--no-check", help="Add it without asking what answers there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch an endpoint: ask it now what it is, and probe it from now on."""
    from skep.cli import bench_common
    from skep.cli.monitor_words import parse_percent
    from skep.monitor.records import Target
    from skep.units import parse_seconds

    target = Target(
        name=name,
        url=url or bench_common.running_url(),
        model=model,
        key_env=key_env,
        api=api,
        every_s=parse_seconds(every),
        jitter_s=None if jitter is None else parse_seconds(jitter),
        prompt_tokens=prompt_tokens,
        short_tokens=short,
        long_tokens=0 if no_long else long,
        concurrency=concurrency if concurrency > 1 else 0,
        quality_items=quality,
        timeout_s=parse_seconds(timeout),
        slower_pct=None if slower is None else parse_percent(slower, option="--slower"),
        ttft_ms=None if ttft is None else 1000 * parse_seconds(ttft),
    )
    add_target(target, own=url is None, check=not no_check, as_json=as_json)


def list_(
    everyone: Annotated[bool, typer.Option("--all", help="Also those that were removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The targets, how often and how they are probed."""

    list_targets(everyone=everyone, as_json=as_json)


def remove(name: NameArgument) -> None:
    """Probe a target no longer. What was measured stays."""

    remove_target(name)


def run(
    once: Annotated[bool, typer.Option("--once", help="Probe what is due now, and leave.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for a probe that went well.")] = False,
    config: ConfigOption = None,
    parent_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Probe every target when it is due, until Ctrl-C. `skep up` does it by itself."""
    from skep.cli.monitor_run import run_loop

    run_loop(config, once=once, quiet=quiet, parent_fd=parent_fd)


def probe(name: NameArgument, as_json: JsonOption = False) -> None:
    """Probe a target once, now, beside the schedule. It is stored with the others."""
    from skep.cli.monitor_run import probe_now

    probe_now(name, as_json=as_json)


def status(as_json: JsonOption = False) -> None:
    """Each target's last value against its 7-day median, what is due, what is wrong, and whether the loop runs."""
    from skep.cli.monitor_run import show_status

    show_status(as_json=as_json)


def check(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """One line for each thing that is wrong. Exit code 4 while there is one, for cron."""
    from skep.cli.monitor_run import check_now

    check_now(config, as_json=as_json)


def series(
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help="A target, or the name of a series.")] = None,
    since: SinceOption = "30d",
    every_series: Annotated[bool, typer.Option("--all", help="Also those that do not stand for their target.")] = False,
    as_json: JsonOption = False,
) -> None:
    """What is known of each series: level, spread and drift over 1, 7 and 30 days, and when it changed."""
    from skep.cli.monitor_series import show_series

    show_series(target, since, everything=every_series, as_json=as_json)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A target.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The one that is held against it.")],
    since: SinceOption = "7d",
    as_json: JsonOption = False,
) -> None:
    """Two targets side by side: ratio of medians with its interval, ranges, consistency."""
    from skep.cli.monitor_series import compare_two

    compare_two(a, b, since, as_json=as_json)


def note_(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What was done.")],
    target: TargetOption = None,
    at: Annotated[str | None, typer.Option(help="When: so long ago (2h), or a time. Default: now.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write down what was done: an event on the axis, before and after which are compared by themselves."""
    from skep.cli.monitor_series import write_note

    write_note(text, target, at, as_json=as_json)


def export(
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, the default.")] = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    since: Annotated[str | None, typer.Option(help="So long ago (30d), or a time. Default: all.")] = None,
    key: Annotated[
        str | None, typer.Option("--series", metavar="KEY", help="One series, such as box/hot/short/c1/tok_s.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file. Default: stdout.")] = None,
) -> None:
    """Every sample as it was measured, missed occasions included."""
    from skep.cli.monitor_series import export_samples

    export_samples(target, since, key, output, as_csv=as_csv, as_json=as_json)


def thin(
    older: Annotated[str, typer.Option(help="Samples of whole days older than this, such as 90d.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Let raw samples of old days go; the summary of each day stays. Never done by itself."""
    from skep.cli.monitor_series import thin_samples

    thin_samples(older, yes=yes)


def grafana() -> None:
    """Print a Grafana dashboard for the metrics of `skep web`: import it as a file."""
    from skep.cli.monitor_series import print_dashboard

    print_dashboard()


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHORTEST_S = 10.0
LONGEST_S = 366 * 86400.0
SHORTEST_TIMEOUT_S = 0.1
CHECK_S = 10.0  # for the question that `add` asks


@dataclass(frozen=True, slots=True)
class Found:
    """What answered when a target was added."""

    model: str
    kind: TargetKind
    about: str


def add_target(target: Target, *, own: bool, check: bool, as_json: bool) -> None:
    """`own`: the URL is that of this installation's gateway."""
    refuse_nonsense(target)
    with series_to_write() as series:
        taken = next((known for known in series.targets() if known.name == target.name), None)
        if taken is not None:
            hint = f"choose another name, or `skep monitor remove {target.name}` first: its history stays and goes on"
            raise UserError(f"`{target.name}` is watched already, at {taken.url}", hint=hint)
        found = asyncio.run(_look(target)) if check else None
        kind = found.kind if found else TargetKind.GATEWAY if own else target.kind
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


def refuse_nonsense(target: Target) -> None:
    from skep.wire.heads import parse_url

    if not NAME.fullmatch(target.name):
        hint = "1 to 64 letters, digits, dots and dashes, the first one a letter or a digit"
        raise UserError(f"`{target.name}` is no name for a target", hint=hint)
    parse_url(target.url)
    parts = urlsplit(target.url if "://" in target.url else f"http://{target.url}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        hint = "it is stored and shown: keys come from a variable, `--key-env VAR`"
        raise UserError("--url has more in it than a base URL has: a user, a `?` or a `#`", hint=hint)
    if target.key_env is not None and not VARIABLE.fullmatch(target.key_env):
        hint = "put the key into a variable, and write --key-env MY_KEY; the key itself is never kept"
        raise UserError("--key-env is not the name of a variable", hint=hint)
    if target.model is not None and not target.model.isprintable():
        raise UserError("--model is not a name that can be printed", hint="copy it from `/v1/models`")
    if target.api not in ("openai", "ollama"):
        raise UserError(f"--api `{target.api}` is unknown", hint="choose openai or ollama")
    if target.every_s < SHORTEST_S:
        hint = "a probe is load: every minute is often, every hour is usual"
        raise UserError(f"--every {words_of(target.every_s)} is too often", hint=hint)
    if target.every_s > LONGEST_S:
        raise UserError(f"--every {words_of(target.every_s)} is too rare", hint="at least once a year: --every 30d")
    if target.timeout_s < SHORTEST_TIMEOUT_S:
        hint = "an answer takes a while; 300 s is the default"
        raise UserError(f"--timeout {words_of(target.timeout_s)} is too short", hint=hint)
    if target.jitter >= target.every_s:
        raise UserError(
            "--jitter is not shorter than --every", hint="a tenth of it is the default; --jitter 0s is none"
        )


def key_of(target: Target) -> str | None:
    """The variable that it names; else the key that skep itself has for a server on this machine."""
    from skep.paths import user_paths
    from skep.supervisor.control import local_key

    if target.key_env is None:
        return local_key(target.url, os.environ, user_paths(os.environ))
    value = os.environ.get(target.key_env)
    if not value:
        hint = f"export {target.key_env}=... first, also where `skep up` or `skep monitor run` is started"
        raise UserError(f"--key-env `{target.key_env}` is not set", hint=hint)
    return value


def key_env_of(target: Target, kind: TargetKind) -> str | None:
    """The gateway's own key is in a variable of its own, where it was set."""
    own = kind is TargetKind.GATEWAY and target.key_env is None and key_of(target) is not None
    return "SKEP_API_KEY" if own else target.key_env


async def _look(target: Target) -> Found:
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
    return Found(endpoint.model, kind, ", ".join([str(kind), *told]))


def wake_monitor() -> bool:
    """Whether somebody probes: the hive that runs here is asked to, where one does."""
    from skep.paths import user_paths
    from skep.supervisor.control import ask, socket_of

    paths = user_paths(os.environ)
    if loop_pid() is not None:
        return True
    try:
        return bool(ask(socket_of(paths.lock, paths.socket), {"op": "monitor"}, timeout_s=5.0).get("running"))
    except SkepError:
        return False


def list_targets(*, everyone: bool, as_json: bool) -> None:
    with series_if_any() as series:
        found = series.targets(removed=everyone) if series else []
    if as_json:
        print_json([target_document(target) for target in found])
    elif not found:
        note(f"no target is watched; {NOTHING_YET}")
    else:
        rows = [
            [
                target.name, str(target.kind), words_of(target.every_s), target.url, target.model or "the only one",
                runs_of(target), target.key_env or "–", "removed" if target.removed_at is not None else "",
            ]
            for target in found
        ]  # fmt: skip
        print_table(("NAME", "KIND", "EVERY", "URL", "MODEL", "RUNS", "KEY IN", "NOTE"), rows)


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


def runs_of(target: Target) -> str:
    """ "short 64, long 512, c4" in tokens of output."""
    runs = [f"short {target.short_tokens}"]
    runs += [f"long {target.long_tokens}"] if target.long_tokens else []
    runs += [f"c{target.concurrency}"] if target.concurrency else []
    runs += [f"{target.quality_items} tasks"] if target.quality_items else []
    return ", ".join(runs)


def words_of(seconds: float) -> str:
    """1 h, 30 min, 45 s, without what is zero."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s" if seconds < 60 else format_seconds(seconds)


def target_document(target: Target) -> dict[str, Any]:
    """The key's value is nowhere in it: it is not known."""
    return {
        "name": target.name,
        "kind": str(target.kind),
        "url": target.url,
        "model": target.model,
        "key_env": target.key_env,
        "api": target.api,
        "every_s": target.every_s,
        "jitter_s": target.jitter,
        "prompt_tokens": target.prompt_tokens,
        "short_tokens": target.short_tokens,
        "long_tokens": target.long_tokens,
        "concurrency": target.concurrency,
        "quality_items": target.quality_items,
        "timeout_s": target.timeout_s,
        "slower_pct": target.slower_pct,
        "ttft_ms": target.ttft_ms,
        "added_at": target.added_at,
        "removed_at": target.removed_at,
    }
