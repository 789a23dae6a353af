"""The commands of `skep monitor` and their options. `monitor_run` and `monitor_series` carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from skep.cli.options import ConfigOption, JsonOption, command

monitor_app = typer.Typer(
    no_args_is_help=True,
    help="Probe endpoints on a schedule: series over time, changes, alerts.",
    rich_markup_mode=None,
)

MOST_TOKENS = 1_000_000

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A target's name, as in `skep monitor list`.")]
TargetOption = Annotated[str | None, typer.Option(metavar="NAME", help="Only this target. Default: all.")]
SinceOption = Annotated[str, typer.Option(help="How far back (7d), or a date and time (2026-11-15T14:30).")]


def register(app: typer.Typer) -> None:
    app.add_typer(monitor_app, name="monitor")


@dataclass(frozen=True)
class AddTargetOptions:
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the target: 1 to 64 letters, digits, dots and dashes.")
    ]
    url: Annotated[
        str | None, typer.Option(help="Base URL, with or without /v1. Default: the gateway of `skep up`.")
    ] = None
    model: Annotated[str | None, typer.Option(help="Model to ask for. Default: the only one the endpoint serves.")] = (
        None
    )
    key_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Environment variable with the API key; the key is not stored.")
    ] = None
    every: Annotated[str, typer.Option(help="Time between two probes.")] = "1h"
    jitter: Annotated[
        str | None, typer.Option(help="Random delay of each probe, at most this. Default: a tenth of --every.")
    ] = None
    prompt_tokens: Annotated[int, typer.Option(min=16, max=MOST_TOKENS, help="Approximate length of a prompt.")] = 256
    short: Annotated[int, typer.Option(min=8, max=MOST_TOKENS, help="Length of the short answer in tokens.")] = 64
    long: Annotated[int, typer.Option(min=8, max=MOST_TOKENS, help="Length of the long answer in tokens.")] = 512
    no_long: Annotated[bool, typer.Option("--no-long", help="Skip the run with a long answer.")] = False
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", min=0, max=256, help="Add a run with this many streams at once.")
    ] = 0
    quality: Annotated[int, typer.Option(min=0, max=200, help="Add this many small tasks with known answers.")] = 0
    slower: Annotated[
        str | None,
        typer.Option(help="Alert when speed falls this far below its median, such as 10%. Default: skep.toml."),
    ] = None
    ttft: Annotated[str | None, typer.Option(help="Alert when TTFT is above this. Default: skep.toml.")] = None
    timeout: Annotated[str, typer.Option(help="Time limit of one request.")] = "300s"
    api: Annotated[str, typer.Option(help="openai, or ollama for Ollama's own API, which reports durations.")] = (
        "openai"
    )
    no_check: Annotated[bool, typer.Option("--no-check", help="Add the target without connecting to it.")] = False
    as_json: JsonOption = False


@command(
    monitor_app,
    "skep monitor add cloud --url https://api.example.com/v1 --key-env API_KEY",
    runs="monitor_run.add_target",
)
def add(options: AddTargetOptions) -> None:
    """Add a target: connect to it once, then probe it on its schedule."""


@command(monitor_app, "skep monitor list --json", name="list", runs="monitor_run.list_targets")
def list_(
    everyone: Annotated[bool, typer.Option("--all", help="Include removed targets.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the targets and how each is probed."""


@command(monitor_app, "skep monitor remove cloud", runs="monitor_run.remove_target")
def remove(name: NameArgument) -> None:
    """Stop probing a target. Its history stays."""


@command(monitor_app, "skep monitor run", runs="monitor_run.run_loop")
def run(
    once: Annotated[bool, typer.Option("--once", help="Probe what is due now, then exit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line for a successful probe.")] = False,
    config: ConfigOption = None,
    parent_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Probe every target when it is due, until Ctrl-C. `skep up` starts this by itself."""


@command(monitor_app, "skep monitor probe box", runs="monitor_run.probe_now")
def probe(name: NameArgument, as_json: JsonOption = False) -> None:
    """Probe a target once, now. The result is stored with those of the schedule."""


@command(monitor_app, "skep monitor status", runs="monitor_run.show_status")
def status(as_json: JsonOption = False) -> None:
    """Show each target's last value against its 7-day median, the next probe, open alerts, and if the loop runs."""


@command(monitor_app, "skep monitor check --json || mail -s skep me < /dev/null", runs="monitor_run.check_now")
def check(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Print one line for each problem. The exit code is 4 while there is one, for cron."""


@command(monitor_app, "skep monitor series box --since 30d", runs="monitor_series.show_series")
def series(
    wanted: Annotated[str | None, typer.Argument(metavar="TARGET", help="A target, or the name of a series.")] = None,
    since: SinceOption = "30d",
    everything: Annotated[bool, typer.Option("--all", help="Include series beside the main ones of a target.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show level, spread and drift of each series over 1, 7 and 30 days, and when it changed."""


@command(monitor_app, "skep monitor compare box cloud --since 7d", runs="monitor_series.compare_two")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A target.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The target to compare with A.")],
    since: SinceOption = "7d",
    as_json: JsonOption = False,
) -> None:
    """Compare two targets: ratio of medians with its interval, ranges, consistency."""


@command(
    monitor_app,
    'skep monitor note "NVLink bridges removed" --target box',
    name="note",
    runs="monitor_series.write_note",
)
def note_(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What was changed.")],
    target: TargetOption = None,
    at: Annotated[str | None, typer.Option(help="How long ago (2h), or a date and time. Default: now.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Record a change as an event on the time axis. The series before and after it are compared."""


@command(monitor_app, "skep monitor export --csv --since 30d -o samples.csv", runs="monitor_series.export_samples")
def export(
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV, the default.")] = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    since: Annotated[str | None, typer.Option(help="How far back (30d), or a date and time. Default: all.")] = None,
    key: Annotated[
        str | None, typer.Option("--series", metavar="KEY", help="One series, such as box/hot/short/c1/tok_s.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write. Default: stdout.")] = None,
) -> None:
    """Export every sample as it was measured, and missed probes."""


@command(monitor_app, "skep monitor thin --older 90d", runs="monitor_series.thin_samples")
def thin(
    older: Annotated[str, typer.Option(help="Delete samples of days older than this, such as 90d.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete raw samples of old days. The summary of each day stays. This never happens automatically."""


@command(monitor_app, "skep monitor grafana > skep.json", runs="monitor_series.print_dashboard")
def grafana() -> None:
    """Print a Grafana dashboard for the metrics of `skep web`, to be imported as a file."""
