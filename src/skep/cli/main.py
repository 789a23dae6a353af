"""`skep`: the tree of commands, and the one place where an error becomes a line and an exit code.

Nothing heavy is imported here: `skep --help` answers at once, each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from skep import __version__
from skep.errors import SkepError

REMOVED_COMMANDS: dict[str, str] = {
    "bench import": "`skep bench import` was removed: measure the same endpoint with `skep bench sweep`",
    "bench judge": "`skep bench judge` was removed: `skep bench quality` and `bench mixed` judge answers as they run",
    "tune explain": "`skep tune explain` was removed: `skep tune show` says why each step was kept or left",
}
MEASURING = ("sweep", "serial-vs-swarm", "open", "classes", "replay", "ab", "matrix")
ONE_MACHINE = "`--cluster` was removed: use `--processes N`, or run skep on each machine"
REMOVED_OPTIONS: dict[tuple[str, str], str] = {
    ("up", "--max-replicas"): "`--max-replicas` was removed: use `skep scale MODEL=N`",
    (
        "swarm run",
        "--serial-sample",
    ): "`--serial-sample` was removed: `skep bench serial-vs-swarm` measures the speedup over one task at a time",
    ("tune show", "--all"): "`--all` was removed: `skep tune show` lists every step",
    **{(f"bench {name}", "--cluster"): ONE_MACHINE for name in MEASURING},
    ("bench quality", "--cluster"): "`--cluster` was removed: leave it out, this machine makes the load",
    ("validate", "--calibrated"): "`--calibrated` was removed: `skep calibrate` fits the planner to your own machine",
    ("validate", "--in-sample"): "`--in-sample` was removed: constants are never fitted on a row's own source",
    ("validate", "--picture"): "`--picture` was removed: `skep validate POINTS.csv --json` has every point",
    ("swarm ask", "--tools"): "`--tools` was removed: an orchestrator of your own can give agents tools (docs/mcp.md)",
    ("swarm ask", "--plan"): "`--plan` was removed: for tasks of your own, `skep swarm run TASKS.jsonl`",
    ("swarm ask", "--plan-only"): "`--plan-only` was removed: use `--dry-run`, with `--json` as a document",
    ("swarm ask", "--edit"): "`--edit` was removed: for tasks of your own, `skep swarm run TASKS.jsonl`",
    ("swarm ask", "--yes"): "`--yes` was removed: nothing is asked any more; `--dry-run` shows the split first",
    ("swarm ask", "-y"): "`-y` was removed: nothing is asked any more; `--dry-run` shows the split first",
    ("swarm ask", "--orchestrator-url"): "`--orchestrator-url` was removed: --url splits, works and merges",
    ("swarm ask", "--orchestrator-model"): "`--orchestrator-model` was removed: --model splits, works and merges",
    ("swarm ask", "--orchestrator-key-env"): "`--orchestrator-key-env` was removed: use `--key-env`",
    ("gateway", "--cluster"): "`skep gateway --cluster` was removed: a hive has one gateway; use `skep up --cluster`",
    ("gateway", "--hive"): "`skep gateway --hive` was removed: a hive has one gateway; use `skep up --cluster --hive`",
}


def instead_of(words: Sequence[str]) -> str | None:
    """Return what to say of a command line that names a removed command or option; None: it names neither."""
    given = words[: words.index("--")] if "--" in words else words
    for command, message in REMOVED_COMMANDS.items():
        if list(given[: len(command.split())]) == command.split():
            return message
    for (command, option), message in REMOVED_OPTIONS.items():
        if list(given[: len(command.split())]) == command.split() and option in (word.split("=")[0] for word in given):
            return message
    return None


# Which commands each module of `skep.cli` has: only the one that is asked for is loaded.
PARTS = {
    "serve": ("up", "down", "ps", "logs", "restart", "service"),
    "presets": ("presets",),
    "export": ("export",),
    "control": ("load", "unload", "swap", "drain", "undrain", "reload", "scale"),
    "cluster": ("cluster",),
    "gateway": ("gateway",),
    "bench": ("bench", "runs", "report"),
    "maintenance": ("demo", "doctor", "pull", "store", "gc"),
    "keys": ("key",),
    "catalog": ("catalog",),
    "plan": ("plan",),
    "calibrate": ("calibrate", "calibrations"),
    "top": ("top",),
    "validate": ("validate",),
    "monitor": ("monitor",),
    "web": ("web",),
    "swarm": ("swarm",),
    "tune": ("tune",),
    "mcp": ("mcp",),
}


def parts_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that a command line needs; all of them where it names no command."""
    return tuple(part for part, names in PARTS.items() if words and words[0] in names) or tuple(PARTS)


def app_of(parts: Iterable[str]) -> typer.Typer:
    made = typer.Typer(
        name="skep",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="One endpoint for a swarm of agents, on the cards you own: serve a model, measure it under concurrency, "
        "keep the results.",
        epilog="Example: skep up -d && skep bench sweep --concurrency 1,2,4 && skep report last -o report.html",
    )
    made.callback()(root)
    for part in parts:
        import_module(f"skep.cli.{part}").register(made)
    return made


def __getattr__(name: str) -> typer.Typer:
    """`app` is the whole tree, made when somebody asks for it."""
    if name == "app":
        return app_of(PARTS)
    raise AttributeError(name)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"skep {__version__}")  # noqa: T201
        raise typer.Exit


def root(
    _version_wanted: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


def main() -> int:
    _open_standard_files()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` sets it: the command is to go on
            signal.signal(number, _leave)
    if removed := instead_of(sys.argv[1:]):
        say_error(removed, None)
        return 2
    try:
        app_of(parts_of(sys.argv[1:]))()
    except SkepError as error:
        say_error(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: no second complaint at exit
        return 1
    except OSError as error:
        where = f" `{error.filename}`" if error.filename else ""
        say_error(f"{error.strerror or error}{where}", "check the disk, the permissions and the path")
        return 1
    except Exception as error:
        if os.environ.get("SKEP_DEBUG"):
            raise
        say_error(f"unexpected {type(error).__name__}: {error}", "SKEP_DEBUG=1 shows where; please report it")
        return 1
    return 0


def _leave(number: int, _frame: object) -> None:
    """Like Ctrl-C: what was started is stopped on the way out."""
    raise SystemExit(128 + number)


def _open_standard_files() -> None:
    """Started with stdin, stdout or stderr closed, the next file opened would take its number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if descriptor == 0 else "w", closefd=False))


def say_error(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    if hint:
        print(f"hint: {hint}", file=sys.stderr)  # noqa: T201
