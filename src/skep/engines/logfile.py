"""An engine's log: appended line by line, rotated by size, its last lines at hand when the engine dies."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from pathlib import Path

from skep.units import MIB

MAX_LINE = 1000  # of what is kept as last words
HIDDEN = b"(key)"  # stands where the engine said its key


class RotatingLog:
    """`NAME.log`, and `NAME.log.1` … `.N` for what came before. `hidden` never gets there, whoever says it."""

    def __init__(
        self, path: Path, *, max_bytes: int = 8 * MIB, keep: int = 3, tail_lines: int = 400, hidden: str = ""
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._tail: deque[str] = deque(maxlen=tail_lines)
        self._rest = b""
        self._hidden = hidden.encode()
        self._begun = b""  # the end of what was written last, where it may be the beginning of what is hidden
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    @property
    def tail(self) -> list[str]:
        rest = [(self._rest + self._begun).decode(errors="replace")] if self._rest or self._begun else []
        return [*self._tail, *rest]

    def write(self, data: bytes) -> None:
        """A full disk costs log lines, never the engine."""
        data = self._without_hidden(data) if self._hidden else data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_LINE:]
        self._tail.extend(line[:MAX_LINE].decode(errors="replace").rstrip("\r") for line in lines)
        with contextlib.suppress(OSError):
            self._file.write(data)
            if self._file.tell() > self._max_bytes:
                self._rotate()

    def _without_hidden(self, data: bytes) -> bytes:
        data = (self._begun + data).replace(self._hidden, HIDDEN)
        sizes = range(min(len(self._hidden) - 1, len(data)), 0, -1)
        size = next((size for size in sizes if data.endswith(self._hidden[:size])), 0)
        self._begun = data[len(data) - size :]
        return data[: len(data) - size]

    def remark(self, text: str) -> None:
        """A line of ours, dated, between the engine's; not among its last words."""
        with contextlib.suppress(OSError):
            self._file.write(f"--- {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n".encode())

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        """The old file is given up only when the new one is open."""
        for number in range(self._keep - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                os.replace(older, self._path.with_name(f"{self._path.name}.{number + 1}"))  # noqa: PTH105
        with contextlib.suppress(FileNotFoundError):  # deleted by somebody: a new one is begun
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))  # noqa: PTH105
        fresh = self._path.open("ab", buffering=0)
        self._file.close()
        self._file = fresh
