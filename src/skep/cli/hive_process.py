"""The process behind `skep up -d`: settings from stdin, announcements as JSON lines until it is ready, then silence."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from skep.cli.hive import remote_nodes
from skep.cli.output import note
from skep.config.settings import Settings
from skep.errors import SkepError
from skep.paths import user_paths
from skep.supervisor.main import run_hive
from skep.supervisor.supervisor import Supervisor


class EventLog:
    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._said: dict[str, tuple[object, ...]] = {}

    def changed(self, supervisor: Supervisor) -> None:
        """Called on every change; writes only what is new."""
        for row in supervisor.last_rows:
            state = (row["state"], row["pid"] if row["state"] == "ready" else None)
            details = {key: row.get(key) for key in ("name", "node", "pid", "url", "why")}
            self._say(row["name"], state, f"{row['kind']}.{row['state']}", details)

        for left in supervisor.left_behind:
            self._say(f" {left}", (), "hive.left_behind", {"what": left})

    def _say(self, what: str, state: tuple[object, ...], event: str, details: Mapping[str, object]) -> None:
        if self._said.get(what) == state:
            return
        self._said[what] = state
        told = " ".join(f"{key}={_quoted(value)}" for key, value in details.items() if value is not None)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._write(f"{now} {event} {told}")


def _quoted(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text else text


class StartReporter:
    """Writes to the process that started us, as long as it listens."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._chronicle = EventLog(note)
        self._gone = False

    def close(self) -> None:
        if not self._gone:
            self._gone = True
            os.close(self._fd)

    def tell(self, **message: Any) -> None:
        if not self._gone:
            try:
                os.write(self._fd, json.dumps(message).encode() + b"\n")
            except OSError:
                self.close()

    def warn(self, line: str) -> None:
        note(f"warning: {line}")
        self.tell(warning=line)

    def changed(self, supervisor: Supervisor) -> None:
        self._chronicle.changed(supervisor)
        if supervisor.phase == "ready":
            self.tell(ready=supervisor.description())
            self.close()
        else:
            self.tell(rows=supervisor.last_rows)


def main() -> int:
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
            nodes=remote_nodes(settings),
        )
    except SkepError as error:
        announcer.tell(error=error.message, hint=error.hint, exit_code=error.exit_code)
        return error.exit_code
    except Exception as error:
        announcer.tell(error=f"unexpected {type(error).__name__}: {error}", hint="see `skep logs skep`", exit_code=1)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
