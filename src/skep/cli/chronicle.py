"""What happened to a hive, one dated line per change: `2026-11-15T04:20:01Z replica.ready name=m-0 pid=7`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from skep.engines.supervisor import Supervisor


class Chronicle:
    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._said: dict[str, tuple[object, ...]] = {}

    def changed(self, supervisor: Supervisor) -> None:
        """Called on every change; writes only what is new."""
        for row in supervisor.rows({}):
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
