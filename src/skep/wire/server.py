"""The HTTP/1.1 server side: whole requests in, answers out in pieces, and word at once when the client leaves.

Knows nothing of models or engines. A request's body is read whole before it is handed over (bounded); answers are
streamed. Reading goes on while an answer is under way, because only so is a hang-up noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import httptools

from skep.units import KIB, MIB
from skep.wire.heads import Headers, request_bytes, response_bytes

QUIET_POLL_S = 0.02
LINGER_S = 2.0  # after a refusal, for what the client still sends


@dataclass(frozen=True, slots=True)
class ServerLimits:
    head_bytes: int = 64 * KIB
    body_bytes: int = 64 * MIB
    pipelined: int = 16  # requests waiting behind the one being answered
    head_timeout_s: float = 60.0  # from a request's first byte to its last
    idle_timeout_s: float = 300.0  # of a keep-alive connection between requests


class Incoming:
    """One request and the means to answer it. Exactly one of `respond` or `start`…`finish` is called.

    `on_gone` is called once if the client leaves before the answer is complete; writes after that are dropped.
    `on_pause` and `on_resume` tell that the client reads slower than we write.
    """

    __slots__ = (
        "_chunked", "_connection", "_done", "_started", "body", "headers", "keep_alive", "method",
        "on_gone", "on_pause", "on_resume", "target", "version",
    )  # fmt: skip

    def __init__(
        self, connection: ServerConnection, method: bytes, target: bytes, headers: Headers, version: str
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.version = version
        self.body = b""
        self.keep_alive = True
        self.on_gone: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self._connection = connection
        self._chunked = False
        self._started = False
        self._done = False

    @property
    def path(self) -> str:
        return self.target.split(b"?", 1)[0].decode("latin-1")

    @property
    def started(self) -> bool:
        """Some of the answer has been handed to the client."""
        return self._started

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        self.start(status, headers, len(body))
        self.write(body)
        self.finish()

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]], length: int | None) -> None:
        """Send the head. Without a length the body goes out in chunks, or until the close for HTTP/1.0."""
        fields = list(headers)
        if status in (204, 304):
            length = None  # no body, and no word about its length
        elif length is not None:
            fields.append((b"content-length", b"%d" % length))
        elif self.version == "1.0":
            self.keep_alive = False
        else:
            self._chunked = True
            fields.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            fields.append((b"connection", b"close"))
        elif self.version == "1.0":
            fields.append((b"connection", b"keep-alive"))
        self._started = True
        self._connection.send(self, response_bytes(status, fields))

    def write(self, data: bytes) -> None:
        if not data or self.method == b"HEAD":
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.send(self, data)

    def finish(self) -> None:
        if self._done:
            return
        if self._chunked:
            self._connection.send(self, b"0\r\n\r\n")
        self._done = True
        self._connection.finished(self)

    def cut(self) -> None:
        """Break off: the client sees that the answer is not whole."""
        self._done = True
        self._connection.abort()


class ServerConnection(asyncio.Protocol):
    def __init__(
        self, handler: Callable[[Incoming], None], limits: ServerLimits, open_set: set[ServerConnection]
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._open = open_set
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._active: Incoming | None = None
        self._waiting: deque[Incoming] = deque()
        self._reading: Incoming | None = None
        self._target = b""
        self._headers: Headers = []
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._refused = False
        self._in_message = False  # between a request's first byte and its last
        self._leaving = False  # no request after the one under way
        self._paused = False  # the client reads slower than we write
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """A request is being read or answered, or its answer has not left yet."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._active is not None or self._in_message or unsent > 0

    def close_when_idle(self) -> None:
        """For a graceful stop: finish what is under way, take nothing new."""
        self._leaving = True
        if self._active is not None:
            self._active.keep_alive = False
        elif not self._in_message and self._transport is not None:
            self._refused = True
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Incoming's side

    def send(self, request: Incoming, data: bytes) -> None:
        if request is self._active and self._transport is not None:
            self._transport.write(data)

    def finished(self, request: Incoming) -> None:
        if request is not self._active:
            return
        self._active = None
        if self._transport is None:
            return
        if not request.keep_alive:
            self._transport.close()
        elif self._waiting:
            self._hand_over(self._waiting.popleft())
        else:
            self._arm(self._limits.idle_timeout_s)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)
        self._arm(self._limits.idle_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._pass_over_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, _Refusal):
                raise
            self._refuse(cause.status, cause.message)
        except httptools.HttpParserError as error:
            self._refuse(400, f"malformed request: {error}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._open.discard(self)
        self._disarm()
        self._waiting.clear()
        active, self._active = self._active, None
        if active is not None and active.on_gone is not None:
            active.on_gone()

    def pause_writing(self) -> None:
        self._paused = True
        if self._active is not None and self._active.on_pause is not None:
            self._active.on_pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._active is not None and self._active.on_resume is not None:
            self._active.on_resume()

    # httptools' side

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", [], []
        self._head_bytes = self._body_bytes = 0
        self._in_message = True
        if self._active is None:
            self._arm(self._limits.head_timeout_s)

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        version = self._parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self._headers)
        if version not in ("1.0", "1.1") or hosts > 1 or (hosts == 0 and version == "1.1"):
            raise _Refusal(400, "one Host header and HTTP/1.1 are needed")
        self._reading = Incoming(self, self._parser.get_method(), self._target, self._headers, version)
        self._reading.keep_alive = self._parser.should_keep_alive()
        declared = self._reading.get(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._limits.body_bytes:
            raise _Refusal(413, f"the body is larger than {self._limits.body_bytes} bytes")
        expect = self._reading.get(b"expect")
        if expect is not None and expect.lower() == b"100-continue" and self._active is None and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes:
            raise _Refusal(413, f"the body is larger than {self._limits.body_bytes} bytes")
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # the parser stops here; `data_received` goes on without the offer
        request, self._reading = self._reading, None
        self._in_message = False
        assert request is not None
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        if self._active is None:
            self._hand_over(request)
        else:
            self._waiting.append(request)
            if len(self._waiting) > self._limits.pipelined:
                raise _Refusal(429, "too many pipelined requests")

    def _hand_over(self, request: Incoming) -> None:
        self._disarm()
        self._active = request
        if self._leaving:
            request.keep_alive = False
        self._handler(request)
        if self._paused and request is self._active and request.on_pause is not None:
            request.on_pause()

    def _pass_over_upgrade(self, rest: bytes) -> None:
        """An offer to speak another protocol (h2c, from `curl --http2` or Java): the request is read again without."""
        request, self._reading = self._reading, None
        if request is None or request.method == b"CONNECT":
            self._refuse(400, "CONNECT is not supported")
            return
        dropped = (b"connection", b"upgrade", b"http2-settings")
        head = request_bytes(request.method, request.target, [h for h in request.headers if h[0] not in dropped])
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(head + rest)

    def _count_head(self, n: int) -> None:
        self._head_bytes += n
        if self._head_bytes > self._limits.head_bytes:
            raise _Refusal(431, f"the request's head is larger than {self._limits.head_bytes} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Answer once and close; what is being answered already is finished first."""
        self._refused = True
        if self._transport is None:
            return
        if self._active is not None:
            self._active.keep_alive = False
            self._waiting.clear()
            return
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "bad_request"}
        body = json.dumps({"error": error, "source": "gateway"}).encode()
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        self._transport.write(response_bytes(status, fields) + body)
        # Closing with unread bytes would reset the connection and lose the answer: end our side, let the rest arrive.
        self._transport.write_eof()
        self._disarm()
        self._timer = self._loop.call_later(LINGER_S, self.abort)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self._loop.call_later(seconds, self._expired)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        if self._in_message:
            self._refuse(408, "the request did not arrive in time")
        elif self._transport is not None:
            self._transport.close()


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HttpServer:
    """Accepts on a bound, listening socket until closed."""

    def __init__(self, handler: Callable[[Incoming], None], limits: ServerLimits | None = None) -> None:
        self._handler = handler
        self._limits = limits or ServerLimits()
        self._connections: set[ServerConnection] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<HttpServer {len(self._connections)} connections, {self.active} active>"

    @property
    def active(self) -> int:
        return sum(connection.busy for connection in self._connections)

    async def listen(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ServerConnection(self._handler, self._limits, self._connections), sock=sock, backlog=1024
        )

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.close_when_idle()

    async def close(self, timeout_s: float = 1.0) -> None:
        """Let what is written leave, for so long; then cut."""
        self.stop_accepting()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.active:
                    await asyncio.sleep(QUIET_POLL_S)
        self.abort_all()

    def abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()
