"""Starts the process that works on a run: in a session of its own, so that it outlives this server and its client."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from skep.errors import EngineError
from skep.files import lock_holder, open_log
from skep.paths import Paths
from skep.swarm.journal import lock_path

TAIL_BYTES = 4096


class RunLauncher:
    """Knows the processes that it started."""

    def __init__(self, paths: Paths, env: Mapping[str, str]) -> None:
        self._paths = paths
        self._env = dict(env)
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __repr__(self) -> str:
        return f"<RunLauncher {sum(one.poll() is None for one in self._started.values())} at work>"

    def start(self, run_id: str, after_cancel: int) -> None:
        """Nothing where it is at work already. `after_cancel`: the newest there is; after another, it is not begun.

        `-P`: the client's folder, which may hold anything, is no place to import from.
        """
        if self.is_alive(run_id):
            return
        log = self.log_of(run_id)
        argv = [sys.executable, "-P", "-m", "skep.mcp_server.worker", run_id, str(after_cancel)]
        try:
            with open_log(log, empty=True) as output:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    cwd="/",
                    env=self._env,
                )
            self._started[run_id] = process
            threading.Thread(target=process.wait, daemon=True).start()  # so that it does not stay behind as a zombie
        except OSError as error:
            what = f"the process for run `{run_id}` could not be started: {error.strerror or error}"
            raise EngineError(what, hint="the run is stored: swarm_resume tries again") from None

    def is_alive(self, run_id: str) -> bool:
        """Whether a process works on it: one that this server started, or another that holds the run's lock."""
        started = self._started.get(run_id)
        if started is not None and started.poll() is None:
            return True
        self._started.pop(run_id, None)
        return lock_holder(lock_path(self._paths, run_id)) is not None

    def log_of(self, run_id: str) -> Path:
        return self._paths.logs / f"swarm-{run_id}.log"

    def last_words(self, run_id: str) -> str | None:
        """The error that the process ended with, where it told one."""
        try:
            with self.log_of(run_id).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return None
        errors = [place for place, line in enumerate(lines) if line.startswith("error: ")]
        if not errors:
            return None
        last = errors[-1]
        hint = lines[last + 1].removeprefix("hint: ") if lines[last + 1 : last + 2] else ""
        return lines[last].removeprefix("error: ") + (f" ({hint})" if hint else "")
