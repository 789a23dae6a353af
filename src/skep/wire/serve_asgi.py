"""An application served over HTTP, as the dashboard and the MCP server are: uvicorn on a socket
that is bound first.

uvicorn limits neither how long a request may take to arrive nor how many connections there are:
`LimitedConnection` does. Knows nothing of what is served."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import h11  # of uvicorn
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from skep.units import KIB
from skep.wire.listen import bind

HEAD_BYTES = 64 * KIB


class AsgiServer(uvicorn.Server):
    """A server that ends without an error at a signal, and is not held up by streams. A port in
    use is a GatewayError.

    `guarded`: the application turns away who has no key. `on_ready` is called with the URL, `path`
    added, once the server answers; `on_end` ends the streams that are open at the end."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        guarded: bool,
        grace_s: int,
        path: str = "",
        connection: type[LimitedConnection] | None = None,
        on_ready: Callable[[str], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = bind(host, port, guarded=guarded)
        self._path = path
        self._on_ready = on_ready
        self._on_end = on_end
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=connection or LimitedConnection,
            h11_max_incomplete_event_size=HEAD_BYTES,
            ws="none",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # whoever reaches the port may write anything into them
            timeout_graceful_shutdown=grace_s,
        )
        super().__init__(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until Ctrl-C, SIGTERM or `stop`."""
        super().run([self._listener] if sockets is None else sockets)

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self._listener.getsockname()[:2]
        self._on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}{self._path}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)

    # uvicorn passes both arguments.
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """End the server; unlike uvicorn's own, this raises no signal again, so that the command
        ends with 0.
        """
        self.force_exit = self.should_exit
        self.should_exit = True


REFUSED = "Invalid HTTP request received."
NO_CHUNKS = "A request's body needs a content-length here; chunks are not taken."
NO_HTTP_2 = "HTTP/1.1 is spoken here, not HTTP/2."


class StrictParser(h11.Connection):
    """Refuses what no browser sends and what would cost far more to read than to send.

    h11 makes an event of every chunk: two clients that sent chunks of one byte, before they had
    shown a key, kept everybody else waiting for as long as they went on. It takes HTTP/2's preface
    for a request."""

    complaint = REFUSED

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check(event)
        return event

    def _check(self, request: h11.Request) -> None:
        if request.http_version not in (b"1.0", b"1.1"):
            self.complaint = NO_HTTP_2
        elif any(name == b"transfer-encoding" for name, _ in request.headers):
            self.complaint = NO_CHUNKS
        else:
            return
        raise h11.RemoteProtocolError(self.complaint)


class LimitedConnection(H11Protocol):
    """Closes a connection on which no request arrives whole, or whose client does not read its
    answer.

    Where there are too many, the one goes that has waited longest for a request.
    """

    max_connections = 512  # far more than browsers need, fewer than a process may open
    look_every_s = 30.0
    body_looks = 4  # a body must be whole within so many
    unwanted_bytes = 1 << 20  # of a body whose request has been answered

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parser = StrictParser(h11.SERVER, HEAD_BYTES)
        self.conn = self._parser
        self._arrived_bytes = 0
        self._unwanted_bytes = 0
        self._answers = 0
        self._looks_at_body = 0
        self.waiting_since = 0.0

    def connection_made(
        self,
        transport: asyncio.Transport,  # type: ignore[override] # as uvicorn has it
    ) -> None:
        super().connection_made(transport)
        self.waiting_since = time.monotonic()
        if len(self.connections) > self.max_connections:
            self._make_room()
        self._look(None)

    def data_received(self, data: bytes) -> None:
        self._arrived_bytes += len(data)
        if self._is_answered_early():
            self._unwanted_bytes += len(data)
            if self._unwanted_bytes > self.unwanted_bytes:
                self.transport.abort()
                return
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._answers += 1
        self._unwanted_bytes = 0
        self.waiting_since = time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Send an answer that says why; close the connection where an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(self._parser.complaint)
        else:
            self.transport.close()

    def _should_upgrade(self) -> bool:
        """Return whether to speak another protocol: never. uvicorn would log each offer."""
        return False

    def _is_answered_early(self) -> bool:
        is_answered = self.cycle is not None and self.cycle.response_complete
        return is_answered and self.conn.their_state is h11.SEND_BODY

    def is_waiting(self) -> bool:
        """Return whether the client has to send something before anything can be done.

        Where reading is paused, the application does not take what has arrived: the client is not
        late."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.flow.read_paused

    def _make_room(self) -> None:
        others = [
            connection
            for connection in self.connections
            if isinstance(connection, LimitedConnection)
            and connection is not self
            and connection.is_waiting()
        ]
        longest = min(others, key=lambda connection: connection.waiting_since, default=self)
        self.connections.discard(longest)
        longest.transport.abort()

    def _look(self, before: tuple[int, int, int] | None) -> None:
        """Close a connection whose head is not whole by the second look, or on which no byte of a
        body or of the answer has moved.

        How long the application takes for an answer is not limited.
        """
        if self.transport.is_closing():
            return
        is_idle = self.conn.their_state is h11.IDLE
        arrived_bytes = 0 if is_idle else self._arrived_bytes
        unsent_bytes = self.transport.get_write_buffer_size()
        now = (self._answers, arrived_bytes, unsent_bytes)
        if self.conn.their_state is h11.SEND_BODY:
            self._looks_at_body += 1
        else:
            self._looks_at_body = 0
        is_late = self._looks_at_body > self.body_looks and not self.flow.read_paused
        if is_late or (now == before and unsent_bytes):
            self.transport.abort()
        elif now == before and self.is_waiting():
            self.transport.close()
        else:
            self.loop.call_later(self.look_every_s, self._look, now)
