"""What happened to a hive, one dated line per change: `2026-11-15T04:20:01Z replica.ready name=m-0 pid=7`."""

from __future__ import annotations

from collections.abc import Callable
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
            if self._said.get(row["name"]) == state:
                continue
            self._said[row["name"]] = state
            details = {"name": row["name"], "pid": row["pid"], "url": row["url"], "why": row["why"]}
            told = " ".join(f"{key}={_quoted(value)}" for key, value in details.items() if value is not None)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._write(f"{now} {row['kind']}.{row['state']} {told}")


def _quoted(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text else text
