"""`skep monitor`: targets probed for months. What each command does is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skep.cli.serve import ConfigOption, JsonOption

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
    from skep.cli import bench_options
    from skep.cli.monitor_run import add_target
    from skep.cli.monitor_words import parse_percent
    from skep.monitor.records import ProbeTarget
    from skep.units import parse_seconds

    target = ProbeTarget(
        name=name,
        url=url or bench_options.running_url(),
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
    from skep.cli.monitor_run import list_targets

    list_targets(everyone=everyone, as_json=as_json)


def remove(name: NameArgument) -> None:
    """Probe a target no longer. What was measured stays."""
    from skep.cli.monitor_run import remove_target

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
