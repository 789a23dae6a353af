"""Server-sent events, bytes in, payloads out. Tolerates every legal form: CRLF, comments, several data lines."""

from __future__ import annotations


class SseParser:
    """Feed bytes as they arrive; get the `data` payloads of the events that became complete.

    Works on bytes, so a character split between two reads stays whole.
    """

    __slots__ = ("_buffer", "_data")

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    @property
    def is_empty(self) -> bool:
        """Nothing of an event has come that is not whole."""
        return not self._buffer and not self._data

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = (self._buffer + chunk).split(b"\n")
        self._buffer = lines.pop()
        events = []
        for raw in lines:
            line = raw[:-1] if raw.endswith(b"\r") else raw
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        return events
