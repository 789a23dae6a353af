"""A hive in a process of its own: settings go in by stdin, announcements come back as JSON lines until it is ready."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from skep.config.settings import Settings
from skep.errors import EngineError, SkepError
from skep.files import open_log
from skep.paths import Paths, user_paths

if TYPE_CHECKING:
    from skep.supervisor.main import RemoteNodes
    from skep.supervisor.supervisor import Supervisor

PROGRAM = "skep.cli.hive_process"  # runs `run_detached`
HearAnnouncement = Callable[[Mapping[str, Any]], None]
LOGGED = ("name", "node", "pid", "url", "why", "what")  # keys of a row


def start_detached(
    settings: Settings, paths: Paths, env: Mapping[str, str], hear: HearAnnouncement, *, parent_fd: int | None = None
) -> dict[str, Any]:
    """Return the description of the hive once it is ready. A Ctrl-C meanwhile stops what was started.

    With `parent_fd`, the reading end of a pipe, the hive ends when all writing ends are closed.
    """
    read_fd, write_fd = os.pipe()
    words, fds = [sys.executable, "-m", PROGRAM, "--announce-fd", str(write_fd)], [write_fd]
    if parent_fd is not None:
        words, fds = [*words, "--parent-fd", str(parent_fd)], [write_fd, parent_fd]
    with open_log(paths.logs / "skep.log") as log:
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=fds, start_new_session=True, env=env
        )
    os.close(write_fd)
    assert child.stdin is not None
    with child.stdin:
        child.stdin.write(msgspec.json.encode(settings))
    try:
        with os.fdopen(read_fd) as pipe:
            for line in pipe:
                message = json.loads(line)
                hear(message)
                if "ready" in message:
                    return cast("dict[str, Any]", message["ready"])
                if "error" in message:
                    child.wait()
                    error = EngineError(message["error"], hint=message["hint"])
                    error.exit_code = message["exit_code"]
                    raise error
    except BaseException:
        child.send_signal(signal.SIGTERM)
        child.wait()
        raise
    child.wait()
    hint = f"the end of {paths.logs / 'skep.log'} says more"
    raise EngineError(f"skep ended with code {child.returncode} before it was ready", hint=hint)


class EventLog:
    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._said: dict[str, tuple[object, ...]] = {}

    def changed(self, supervisor: Supervisor) -> None:
        """Called on every change; writes only what is new."""
        left = [{"kind": "hive", "state": "left_behind", "what": what} for what in supervisor.left_behind]
        for row in (*supervisor.last_rows, *left):
            who, state = row.get("name") or row["what"], (row["state"], row["pid"] if row["state"] == "ready" else None)
            if self._said.get(who) == state:
                continue
            self._said[who] = state
            texts = {key: str(row[key]) for key in LOGGED if row.get(key) is not None}
            words = " ".join(f'{key}="{text}"' if " " in text else f"{key}={text}" for key, text in texts.items())
            self._write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {row['kind']}.{row['state']} {words}")


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


class StartReporter:
    """Writes to the process that started us, as long as it listens."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd: int | None = fd
        self._chronicle = EventLog(_log)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def tell(self, **message: Any) -> None:
        try:
            if self._fd is not None:
                os.write(self._fd, json.dumps(message).encode() + b"\n")
        except OSError:
            self.close()

    def warn(self, line: str) -> None:
        _log(f"warning: {line}")
        self.tell(warning=line)

    def changed(self, supervisor: Supervisor) -> None:
        self._chronicle.changed(supervisor)
        if supervisor.phase == "ready":
            self.tell(ready=supervisor.description())
            self.close()
        else:
            self.tell(rows=supervisor.last_rows)


def run_detached(nodes_of: Callable[[Settings], RemoteNodes | None]) -> int:
    """Be that process. `nodes_of` returns the nodes of the cluster that the settings name, if any."""
    from skep.supervisor.main import run_hive

    parser = argparse.ArgumentParser(prog="skep-detached")
    parser.add_argument("--announce-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int)
    args = parser.parse_args()
    announcer = StartReporter(args.announce_fd)
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
    try:
        run_hive(
            settings,
            user_paths(os.environ),
            announcer.changed,
            progress=lambda done, total: announcer.tell(done=done, total=total),
            tell=announcer.warn,
            parent_fd=args.parent_fd,
            nodes=nodes_of(settings),
        )
    except SkepError as error:
        announcer.tell(error=error.message, hint=error.hint, exit_code=error.exit_code)
        return error.exit_code
    except Exception as error:
        announcer.tell(error=f"unexpected {type(error).__name__}: {error}", hint="see `skep logs skep`", exit_code=1)
        raise
    return 0
