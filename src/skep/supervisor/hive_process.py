"""Starts a hive in a process of its own and follows it until it is ready or has ended: settings go
in by stdin, announcements come back as JSON lines. Does not know the program that it runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, cast

import msgspec

from skep.config.settings import Settings
from skep.errors import EngineError
from skep.files import open_log
from skep.paths import Paths
from skep.supervisor.control import STOP_S, error_of

HearAnnouncement = Callable[[Mapping[str, Any]], None]


class HiveProcess:
    """The process of a hive. `program` is a module that calls `skep.supervisor.main.run_detached`.

    With `parent_fd`, the reading end of a pipe, the hive ends when all writing ends are closed.
    """

    def __init__(
        self,
        program: str,
        settings: Settings,
        paths: Paths,
        env: Mapping[str, str],
        hear: HearAnnouncement,
        parent_fd: int | None,
    ) -> None:
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-m", program, "--announce-fd", str(write_fd)]
        fds = [write_fd]
        if parent_fd is not None:
            command += ["--parent-fd", str(parent_fd)]
            fds.append(parent_fd)
        self._log = paths.logs / "skep.log"
        self._hear = hear
        self._stop_s = settings.drain_s + STOP_S
        with open_log(self._log) as log:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
                env=env,
            )
        os.close(write_fd)
        self._announcements = os.fdopen(read_fd)
        try:
            self._send(settings)
        except BaseException:
            self.end()
            self.close()
            raise

    def _send(self, settings: Settings) -> None:
        """Write the settings to its stdin.

        A process that has ended already reads none: `until_ready` says why it did.
        """
        assert self.child.stdin is not None
        with suppress(BrokenPipeError), self.child.stdin as stdin:
            stdin.write(msgspec.json.encode(settings))

    def close(self) -> None:
        self._announcements.close()

    def end(self) -> None:
        """End it with all it has started: SIGTERM, then SIGKILL where it takes too long or its
        user is in a hurry.
        """
        self.child.send_signal(signal.SIGTERM)
        self._await_end(self._stop_s)

    def kill(self) -> None:
        from skep.supervisor.silent_hive import kill_family, process_family

        try:
            family = process_family(self.child.pid)
        finally:  # also where one more signal comes: its guards end the engines then
            self.child.send_signal(signal.SIGKILL)
        kill_family(family)

    def _await_end(self, limit_s: float) -> None:
        try:
            self.child.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
        except BaseException:
            self.kill()
            raise

    def until_ready(self) -> dict[str, Any]:
        """Return its description. Raise where it does not start."""
        for message in self._messages():
            if "ready" in message:
                return cast("dict[str, Any]", message["ready"])
        code = self.child.wait()
        raise EngineError(
            f"skep ended with code {code} before it was ready",
            hint=f"the end of {self._log} says more",
        )

    def until_ended(self) -> None:
        """Raise its error where it ends with one."""
        for _ in self._messages():
            pass
        self.child.wait()

    def _messages(self) -> Iterator[Mapping[str, Any]]:
        for line in self._announcements:
            message = json.loads(line)
            self._hear(message)
            if "error" in message:
                self._await_end(STOP_S)
                raise error_of(message)
            yield message


def start_detached(
    program: str,
    settings: Settings,
    paths: Paths,
    env: Mapping[str, str],
    hear: HearAnnouncement,
    *,
    parent_fd: int | None = None,
) -> dict[str, Any]:
    """Return the description of the hive once it is ready.

    A Ctrl-C meanwhile stops what was started.
    """
    with closing(HiveProcess(program, settings, paths, env, hear, parent_fd)) as hive:
        try:
            return hive.until_ready()
        except BaseException:
            hive.end()
            raise
