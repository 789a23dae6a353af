"""The process that works on one run, `python -m skep.mcp_server.worker RUN CANCEL`, and what starts it.
It prints nothing but why it could not go on: how the run stands is in the journal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL, Popen

from skep.errors import EngineError, SkepError, UserError, first_of
from skep.files import lock_holder, open_log
from skep.paths import Paths, user_paths
from skep.store.database import open_store
from skep.supervisor.control import local_key
from skep.swarm.store import SwarmStore, lock_path

TAIL_BYTES = 4096


class RunLauncher:
    """Starts processes that work on runs: in sessions of their own, so that they outlive this server and its client."""

    def __init__(self, paths: Paths, env: Mapping[str, str]) -> None:
        self._paths, self._env = paths, dict(env)
        self._started: dict[str, Popen[bytes]] = {}

    def start(self, run_id: str, after_cancel: int) -> None:
        """Nothing where it is at work already. `after_cancel`: the newest there is; after another, it is not begun."""
        if self.is_alive(run_id):
            return
        # -P: the client's folder, which may hold anything, is no place to import from.
        argv = [sys.executable, "-P", "-m", "skep.mcp_server.worker", run_id, str(after_cancel)]
        try:
            with open_log(self._log_of(run_id), empty=True) as output:
                process = Popen(
                    argv, stdin=DEVNULL, stdout=output, stderr=output, cwd="/", env=self._env, start_new_session=True
                )
            self._started[run_id] = process
            threading.Thread(target=process.wait, daemon=True).start()  # so that it does not stay behind as a zombie
        except OSError as error:
            what = f"the process for run `{run_id}` could not be started: {error.strerror or error}"
            raise EngineError(what, hint="the run is stored; swarm_resume tries again") from None

    def is_alive(self, run_id: str) -> bool:
        """Whether a process works on it: one that this server started, or another that holds the run's lock."""
        started = self._started.get(run_id)
        if started is not None and started.poll() is None:
            return True
        self._started.pop(run_id, None)
        return lock_holder(lock_path(self._paths, run_id)) is not None

    def _log_of(self, run_id: str) -> Path:
        return self._paths.logs / f"swarm-{run_id}.log"

    def last_words(self, run_id: str) -> str | None:
        """The error that the process ended with, where it told one."""
        try:
            with self._log_of(run_id).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return None
        told = re.findall(r"^error: (.*)(?:\nhint: (.*))?", text, re.MULTILINE)
        if not told:
            return None
        error, hint = told[-1]
        return f"{error} ({hint})" if hint else f"{error}"


def main() -> int:
    import uvloop

    try:
        uvloop.run(_work(sys.argv[1], int(sys.argv[2])))
    except asyncio.CancelledError:
        return 130
    except (BaseExceptionGroup, SkepError, OSError) as raised:
        error = first_of(raised) if isinstance(raised, BaseExceptionGroup) else raised
        if not isinstance(error, SkepError):
            print(f"error: unexpected {error!r}", file=sys.stderr)  # noqa: T201
            return 1
        hint = [f"hint: {error.hint}"] if error.hint else []
        print(f"error: {error}", *hint, sep="\n", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


async def _work(run_id: str, after_cancel: int) -> None:
    """TERM and Ctrl-C end it in order. A run that was cancelled while this process was starting is not begun."""
    from skep.swarm.runner import carry_out  # not where a server only asks for the key of an endpoint

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    paths = user_paths(os.environ)
    with open_store(paths.store, read_only=True) as store:
        run = SwarmStore(store).run(run_id)
    key = key_of(run.url, run.options.key_env, os.environ, paths)
    await carry_out(paths, run.id, key=key, after_cancel=after_cancel)


def key_of(url: str, key_env: str | None, env: Mapping[str, str], paths: Paths) -> str | None:
    """The key in the variable that was named; else the one that skep itself has for a server on this machine."""
    if key_env is None:
        return local_key(url, env, paths)
    value = env.get(key_env)
    if not value:
        raise UserError(f"--key-env `{key_env}` is not set", hint="set it where `skep mcp` is started")
    return value


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal of a client that goes away is none of ours
    sys.exit(main())
