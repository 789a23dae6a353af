"""The commands of `skep monitor` and their options.

`monitor_run` and `monitor_series` carry them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from skep.cli.options import ConfigOption, JsonOption, argument, command, group, option

monitor_app = group("monitor", "Probe endpoints on a schedule, detect changes and send alerts.")

MOST_TOKENS = 1_000_000

NameArgument = Annotated[str, argument("Target name from `skep monitor list`.", metavar="NAME")]
TargetOption = Annotated[str | None, option("Only this target (default: all).", metavar="NAME")]


@dataclass(frozen=True)
class AddTargetOptions:
    name: Annotated[
        str,
        argument(
            "Name of the new target: 1 to 64 letters, digits, dots and dashes.", metavar="NAME"
        ),
    ]
    url: Annotated[
        str | None, option("Base URL, with or without /v1 (default: the gateway of `skep up`).")
    ] = None
    model: Annotated[str | None, option("Model name (default: the only model served).")] = None
    key_env: Annotated[
        str | None,
        option("Environment variable with the API key; the key is not stored.", metavar="VAR"),
    ] = None
    every: Annotated[str, option("Time between two probes.")] = "1h"
    prompt_tokens: Annotated[
        int, option("Approximate prompt length in tokens.", min=16, max=MOST_TOKENS)
    ] = 256
    short: Annotated[
        int, option("Length of the short answer in tokens.", min=8, max=MOST_TOKENS)
    ] = 64
    long: Annotated[
        int, option("Length of the long answer in tokens.", min=8, max=MOST_TOKENS)
    ] = 512
    no_long: Annotated[bool, option("Skip the run with the long answer.")] = False
    concurrency: Annotated[
        int,
        option(
            "Add a run with this many concurrent requests; 0: none.",
            "-c",
            "--concurrency",
            min=0,
            max=256,
        ),
    ] = 0
    slower: Annotated[
        str | None,
        option(
            "Alert when speed falls this far below its median, such as 10% (default: skep.toml)."
        ),
    ] = None
    ttft: Annotated[
        str | None, option("Alert when TTFT is above this, such as 2s (default: skep.toml).")
    ] = None
    timeout: Annotated[str, option("Time limit of one request.")] = "300s"
    api: Annotated[
        str, option("API: openai, or ollama for Ollama's own, which reports durations.")
    ] = "openai"
    no_check: Annotated[bool, option("Add the target without connecting to it.")] = False
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
    everyone: Annotated[bool, option("Include removed targets.", "--all")] = False,
    as_json: JsonOption = False,
) -> None:
    """List targets and how each is probed."""


@command(monitor_app, "skep monitor remove cloud", runs="monitor_run.remove_target")
def remove(name: NameArgument) -> None:
    """Stop probing a target. Its history stays."""


@command(monitor_app, "skep monitor run", runs="monitor_run.run_loop")
def run(
    once: Annotated[bool, option("Probe the targets that are due now, then exit.")] = False,
    config: ConfigOption = None,
    parent_fd: Annotated[int | None, option("", hidden=True)] = None,
) -> None:
    """Probe every target when it is due, until Ctrl-C. `skep up` starts this automatically."""


@command(monitor_app, "skep monitor probe box", runs="monitor_run.probe_now")
def probe(name: NameArgument, as_json: JsonOption = False) -> None:
    """Probe a target once, now, and store the result with the others."""


@command(monitor_app, "skep monitor status", runs="monitor_run.show_status")
def status(as_json: JsonOption = False) -> None:
    """Show each target's last value against its 7-day median, its next probe, open alerts and the
    probe loop.
    """


@command(monitor_app, "skep monitor compare box cloud --since 30d", runs="monitor_run.compare_two")
def compare(
    a: Annotated[str, argument("Target from `skep monitor list`.", metavar="A")],
    b: Annotated[str, argument("Target to compare it with.", metavar="B")],
    since: Annotated[str, option("How far back, such as 7d, or a date and time.")] = "7d",
    as_json: JsonOption = False,
) -> None:
    """Compare two targets: which is faster, every figure that both have, and what a pause costs
    each.
    """


@command(
    monitor_app,
    "skep monitor check --json || mail -s skep me < /dev/null",
    runs="monitor_run.check_now",
)
def check(as_json: JsonOption = False) -> None:
    """Print one line per open problem, for cron. Exit code 4 if there is one."""


@command(
    monitor_app,
    'skep monitor note "NVLink bridges removed" --target box',
    name="note",
    runs="monitor_run.write_note",
)
def note_(
    text: Annotated[str, argument("What you changed.", metavar="TEXT")],
    target: TargetOption = None,
    at: Annotated[
        str | None, option("How long ago, such as 2h, or a date and time (default: now).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Record a change that you made. skep compares each series before and after it."""
