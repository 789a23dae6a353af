"""One HTTP/1.1 connection of the fake engine: turns bytes into requests and answers into bytes,
and notices when the client hangs up.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol, cast

import httptools
import msgspec

from skep.testing.fake_answers import to_json

REPEAT_S = 0.001


class HttpRequest(msgspec.Struct, frozen=True):
    method: str
    path: str  # without the query
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    keep_alive: bool


class Handler(Protocol):
    def opened(self, connection: FakeConnection) -> None: ...
    def closed(self, connection: FakeConnection) -> None: ...
    def handle(self, request: HttpRequest, connection: FakeConnection) -> None: ...


class FakeConnection(asyncio.Protocol):
    """Answers one request at a time; a request sent early waits for its turn."""

    def __init__(
        self, handler: Handler, *, idle_close_s: float | None = None, counted: bool = True
    ) -> None:
        self._handler = handler
        self.counted = counted  # not those of the control port
        self._idle_close_s = idle_close_s
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._unread: list[bytes] | None = None  # a list while paused
        self.on_message_begin()
        self._pending: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self.on_hang_up: Callable[[], None] | None = None  # set by whoever answers slowly

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's is none by class, only by its methods.
        self._transport = cast(asyncio.Transport, transport)
        self._handler.opened(self)
        self._arm_idle_close()

    def data_received(self, data: bytes) -> None:
        self._disarm_idle_close()
        if self._unread is not None:
            self._unread.append(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:  # a bug of ours: let the loop print it
            self.close()
            raise
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # by place
        self._disarm_idle_close()
        self._transport = None
        self._pending.clear()
        hang_up = self.on_hang_up
        self.on_hang_up = None
        if hang_up is not None:
            hang_up()
        self._handler.closed(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = dict[str, str]()
        self._body = list[bytes]()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.decode("latin-1").partition("?")[0]
        method = self._parser.get_method().decode()
        keep_alive = self._parser.should_keep_alive()
        self._pending.append(
            HttpRequest(method, path, self._headers, b"".join(self._body), keep_alive)
        )
        self._next()

    # What the handler calls.

    def send(self, status: int, body: bytes, missing_bytes: int = 0, /, **headers: str) -> None:
        """Send a whole answer.

        With `missing_bytes` its head promises more than is sent. `headers`: with _ for dashes.
        """
        fields = {
            "content_type": "application/json",
            "content_length": str(len(body) + missing_bytes),
            **headers,
        }
        http_fields = {name.replace("_", "-"): value for name, value in fields.items()}
        self.write(self._head(status, http_fields) + body)
        if missing_bytes:
            self.close()
        else:
            self._finished()

    def send_json(self, status: int, value: Any, **headers: str) -> None:
        self.send(status, to_json(value), **headers)

    def begin_stream(self, content_type: str = "text/event-stream") -> None:
        fields = {
            "content-type": content_type,
            "cache-control": "no-cache",
            "transfer-encoding": "chunked",
        }
        self.write(self._head(200, fields))

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def repeat(self, data: bytes) -> None:
        """Send a chunk again and again, as fast as the client reads, until it hangs up."""
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size() < len(data):
                self.chunk(data)
            asyncio.get_running_loop().call_later(REPEAT_S, self.repeat, data)

    def end_stream(self) -> None:
        self.write(b"0\r\n\r\n")
        self._finished()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self, *, reset: bool = False) -> None:
        self.on_hang_up = None
        if self._transport is None:
            return
        if reset:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def pause(self, seconds: float) -> None:
        """Read nothing for a while: to the client, the server is slow to accept."""
        if self._transport is not None:
            self._unread = []
            asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        unread = self._unread
        self._unread = None
        if self._transport is not None and unread:
            self.data_received(b"".join(unread))

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        keep = self._current is not None and self._current.keep_alive
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            *(f"{name}: {headers[name]}" for name in headers),
        ]
        lines += [f"connection: {'keep-alive' if keep else 'close'}", "server: skep-fake", "", ""]
        return "\r\n".join(lines).encode("latin-1")

    def _finished(self) -> None:
        self.on_hang_up = None
        done = self._current
        self._current = None
        if done is None or not done.keep_alive:
            self.close()
        elif self._pending:
            self._next()
        else:
            self._arm_idle_close()

    def _next(self) -> None:
        if self._current is None and self._pending:
            self._current = self._pending.popleft()
            self._handler.handle(self._current, self)

    def _arm_idle_close(self) -> None:
        if self._idle_close_s is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(
                self._idle_close_s, self.close
            )

    def _disarm_idle_close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
