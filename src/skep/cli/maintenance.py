"""Commands around the edges: pull, doctor, demo, store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from skep.cli.options import ROOT, JsonOption, KeyEnv, Model, argument, command, group, option
from skep.files import OutputFile

REPORT = OutputFile("report.html")
store_app = group("store", "Show, back up and clean the file that holds all runs.")


@command(ROOT, "skep pull smollm2-135m", runs="maintenance_run.pull_model")
def pull(
    source: Annotated[
        str, argument("Model, hub checkpoint ORG/NAME[:FILE], GGUF file or `humaneval`.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Download a model's weights, or the questions of HumanEval,
    into the cache and verify them.
    """


@command(ROOT, "skep doctor --url http://box:8000", runs="maintenance_run.run_doctor")
def doctor(
    url: Annotated[
        str | None,
        option(
            "Check what agents need of the server at this URL instead: tool calls and the "
            "prefix cache."
        ),
    ] = None,
    key_env: KeyEnv = None,
    model: Model = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine, or a server, and say how to fix each problem. Exit code 1 if there is a
    problem.
    """


@command(ROOT, "skep demo", runs="maintenance_run.run_demo")
def demo(
    output: Annotated[OutputFile, option("File for the report.", "-o", "--output")] = REPORT,
) -> None:
    """Ask a small real model, show agents on a SIMULATED 2x RTX 3090 with and without skep. About
    a minute.
    """


@command(store_app, "skep store info", runs="maintenance_run.store_info")
def info(as_json: JsonOption = False) -> None:
    """Show the path, size and contents of the store."""


@command(store_app, "skep store backup ~/skep-backup.sqlite3", runs="maintenance_run.store_backup")
def backup(
    to: Annotated[Path, argument("File to write.")],
    overwrite: Annotated[bool, option("Replace an existing file.")] = False,
) -> None:
    """Copy the store to a file, consistently even while runs are being written."""


@command(store_app, "skep store gc --older-than 90d", runs="maintenance_run.collect_garbage")
def gc(
    older_than: Annotated[
        str | None, option("Delete what is older than this, such as 90d.")
    ] = None,
    dry_run: Annotated[bool, option("List what would be deleted and delete nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Free disk space: delete old runs, tunings, gateway requests and probe samples; compact the
    store.
    """
