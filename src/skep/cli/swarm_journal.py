"""The journal as the commands of `skep swarm` open it, and where results may be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skep.cli.run_list import existing
from skep.errors import UserError
from skep.paths import user_paths
from skep.store.database import Store
from skep.swarm.journal import as_it_stands
from skep.swarm.records import SwarmRun, SwarmRunState
from skep.swarm.run_options import run_options_from_json
from skep.swarm.store import SwarmStore

NONE_YET = "there are no swarm runs yet"
MAKES_ONE = "`skep swarm run TASKS.jsonl` makes one"


def opened(*, read_only: bool = True) -> Store:
    return existing(NONE_YET, MAKES_ONE, read_only=read_only)


@contextmanager
def journal(*, read_only: bool = True) -> Iterator[SwarmStore]:
    with opened(read_only=read_only) as store:
        yield SwarmStore(store)


def stored_runs(limit: int | None = None) -> list[SwarmRun]:
    """Newest first; none where nothing was ever stored."""
    if not user_paths(os.environ).store.exists():
        return []
    with journal() as swarm:
        return [as_it_stands(user_paths(os.environ), run) for run in swarm.runs(limit)]


def stored_run(swarm: SwarmStore, name: str) -> SwarmRun:
    return as_it_stands(user_paths(os.environ), swarm.run(name))


def free_output(output: Path, source: Path | None, *, overwrite: bool) -> None:
    """Before anything runs: results can be written there, and no others are there already."""
    check_place(output)
    if source is not None and output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"--output `{output}` is the file with the tasks", hint="name another file with -o")
    writers = [run for run in stored_runs() if run_options_from_json(run.config).output == str(output)]
    if busy := next((run for run in writers if run.state is SwarmRunState.RUNNING), None):
        hint = "name another file with -o, or wait for it"
        raise UserError(f"`{busy.id}` is writing to `{output}` at this moment", hint=hint)
    if output.exists() and output.stat().st_size and not overwrite:
        goes_on = next((run for run in writers if run.state is not SwarmRunState.DONE), None)
        first = f"`skep swarm resume {goes_on.id}` goes on with it; " if goes_on else ""
        raise UserError(f"`{output}` is there already", hint=f"{first}name another file with -o, or add --overwrite")


def check_place(output: Path) -> None:
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else "lies in a folder that does not exist"
        raise UserError(f"--output `{output}` {what}", hint="name a file, such as results.jsonl, or `-` for stdout")
    if output.exists() and not output.is_file():
        raise UserError(f"--output `{output}` is no plain file", hint="name a file, or `-` for stdout")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise UserError(f"--output `{output}` cannot be written: no permission", hint="name another file with -o")
