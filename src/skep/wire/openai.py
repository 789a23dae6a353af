"""The OpenAI client: streamed chat requests to one server, for whoever measures, asks or watches it.

`send` hands back a `StreamReader`; what costs time to read is put off until its `digest` is called. Faults are told in
its `error_kind`, not raised. Knows nothing of tasks, rows and retries.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from skep.wire.client import Call, Pool
from skep.wire.stream_reader import StreamReader

CHAT = "/chat/completions"


class OpenAIClient:
    """Chat requests to one path over one pool. `in_flight`: the answers under way."""

    def __init__(self, pool: Pool, path: str, headers: Mapping[str, str], *, timeout_s: float) -> None:
        self.pool = pool
        self.timeout_s = timeout_s
        self.in_flight: set[StreamReader] = set()
        self._loop = asyncio.get_running_loop()
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        fixed = "accept: */*\r\nuser-agent: skep\r\ncontent-type: application/json\r\n"
        self._lines = b"POST %b HTTP/1.1\r\n%b%b" % (path.encode(), pool.host_line, f"{fixed}{own}".encode())

    def encode(self, body: Mapping[str, Any], headers: Mapping[str, str | None] | None = None) -> tuple[bytes, bytes]:
        """Return the head and the body of a request. `headers`: of this one alone; None is left out."""
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        own = "".join(f"{name}: {_visible(value)}\r\n" for name, value in (headers or {}).items() if value)
        return b"%b%bcontent-length: %d\r\n\r\n" % (self._lines, own.encode(), len(data)), data

    async def send(
        self, request: tuple[bytes, bytes], reading: StreamReader | None = None, *, timeout_s: float | None = None
    ) -> StreamReader:
        """Return when the answer has ended, in whatever way. `reading`: a reader of the caller's own kind."""
        reading = reading or StreamReader(self._loop.create_future())
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        self.in_flight.add(reading)
        reading.started_at = time.monotonic()
        call = self.pool.send(request[0], reading, request[1])
        timer = self._loop.call_later(limit_s, _time_out, reading, call, limit_s)
        try:
            await reading.done
        except asyncio.CancelledError:
            call.abort()
            raise
        finally:
            timer.cancel()
            self.in_flight.discard(reading)
        if reading.is_given_up:
            call.abort()
        return reading


def _time_out(reading: StreamReader, call: Call, limit_s: float) -> None:
    call.abort()
    reading.give_up("timeout", f"no complete answer within {limit_s:g} s", time.monotonic())


def _visible(text: str) -> str:
    """Return the text as a header may hold it."""
    return "".join(one if one.isascii() and one.isprintable() else "_" for one in text)
