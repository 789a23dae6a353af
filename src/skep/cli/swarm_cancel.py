"""`skep swarm cancel`: stop a run, whoever works on it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from skep.cli.output import note, print_json
from skep.cli.swarm_places import journal
from skep.cli.swarm_tables import run_document
from skep.engines.logfile import holder_of
from skep.errors import EngineError
from skep.places import user_paths
from skep.swarm.locks import lock_path
from skep.tasks import RunState
from skep.units import parse_seconds

LOOK_S = 0.05
PROC = Path("/proc")


def cancel_run(name: str, wait: str, *, as_json: bool) -> None:
    """Told through the journal, where whoever works on it looks every few seconds; a command is woken as well."""
    wait_s = parse_seconds(wait)
    with journal(read_only=False) as swarm:
        run = swarm.run(name)
        lock = lock_path(user_paths(os.environ), run.id)
        if run.state is not RunState.DONE:
            swarm.set_cancelled(run.id, time.time())
            _await_end(lock, run.id, wait_s)
        ended = swarm.run(run.id)
    counts = f"{ended.counts.done} done, {ended.counts.failed} set aside, {ended.counts.left} left"
    if run.state is RunState.DONE:
        note(f"{run.id} is finished already: {counts}")
    else:
        note(f"{run.id} is cancelled: {counts}; `skep swarm resume {run.id}` would go on with it")
    if as_json:
        print_json(run_document(ended))


def is_command(pid: int) -> bool:
    """Whether it is `skep swarm` and nothing else: a Ctrl-C would end an MCP server or a notebook as a whole."""
    try:
        words = [word.rpartition(b"/")[2] for word in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")]
    except OSError:
        return False
    return b"skep" in words and b"swarm" in words[words.index(b"skep") :]


def _await_end(lock: Path, run_id: str, wait_s: float) -> None:
    began, woken = time.monotonic(), False
    while (pid := holder_of(lock)) is not None:
        if not woken and is_command(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGINT)
        woken = True
        if time.monotonic() - began > wait_s:
            hint = f"it has been told; `kill {pid}` ends it, and what is done is kept all the same"
            raise EngineError(f"process {pid} still works on `{run_id}` after {wait_s:g} s", hint=hint)
        time.sleep(LOOK_S)
