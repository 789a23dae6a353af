"""An application served over HTTP, as the dashboard and the MCP server are: uvicorn on a socket that is bound first.

uvicorn limits neither how long a request may take to arrive nor how many connections there are. `LimitedConnection`
does, with the gateway's limits. Knows nothing of what is served.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from types import FrameType
from typing import Any, Self, cast

import h11  # of uvicorn
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from skep.wire.listen import bind
from skep.wire.server_request import ClientTimeouts, ConnectionStage, ServerLimits, SweepAction

LIMITS = ServerLimits(max_connections=512)  # far more than browsers and MCP clients need, fewer than a process may open


class AsgiServer(uvicorn.Server):
    """Ends quietly: a signal is an end as good as any, and streams do not hold it up. A port in use is a GatewayError.

    `guarded`: those who may not come in are turned away by the application. `on_ready` hears the URL, `path` added,
    once it answers; `on_end` ends the streams that are open at the end. Of `limits`, what h11 and uvicorn limit in
    their own way is left out: the number of headers, pipelined requests, and bodies, which applications limit.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        guarded: bool,
        grace_s: int,
        path: str = "",
        limits: ServerLimits = LIMITS,
        on_ready: Callable[[str], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = bind(host, port, guarded=guarded)
        self._path, self._sweep_s, self._on_ready, self._on_end = path, limits.sweep_s, on_ready, on_end
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=type("Connection", (LimitedConnection,), {"limits": limits}),
            h11_max_incomplete_event_size=limits.head_bytes,
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
        """Until Ctrl-C, SIGTERM or `stop`."""
        super().run([self._listener] if sockets is None else sockets)

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._sweep()
        host, port = self._listener.getsockname()[:2]
        self._on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}{self._path}")

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self.server_state.connections):
            assert isinstance(connection, LimitedConnection)
            connection.sweep(loop.time())
        loop.call_later(self._sweep_s, self._sweep)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Without uvicorn's raising the signal again at the end: the command ends with 0."""
        self.force_exit = self.should_exit
        self.should_exit = True


class _CountedTransport:
    """A transport that knows how many bytes were written to it, as no transport does by itself."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LimitedConnection(H11Protocol):
    """Refuses a head that is too long (h11 keeps `head_bytes`); `sweep` ends a connection on which nothing gets on."""

    limits = LIMITS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience = ClientTimeouts(self.limits, self.loop.time())
        self._arrived = 0  # bytes, of all requests
        self._answered = 0  # requests
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(cast("asyncio.Transport", _CountedTransport(transport)))
        if len(self.connections) > self.limits.max_connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._arrived += len(data)
        if not self._refused:  # else it is only waited for the client to read why
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """For whatever h11 refuses: no HTTP, or too much of it."""
        too_long = len(self.conn.trailing_data[0]) > self.limits.head_bytes
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_long else HTTPStatus.BAD_REQUEST)

    def on_response_complete(self) -> None:
        self._answered += 1
        super().on_response_complete()

    def sweep(self, now: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        left = cast("_CountedTransport", self.transport).written - unsent
        verdict = self._patience.look(
            now, self._stage(), message=self._answered, arrived=self._arrived, unsent=unsent, left=left
        )
        match verdict:
            case SweepAction.CLOSE:
                self.transport.close()
            case SweepAction.TIMED_OUT:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT)
            case SweepAction.ABORT:
                self.transport.abort()

    def _stage(self) -> ConnectionStage:
        if self._refused or self.transport.is_closing():
            return ConnectionStage.ENDED
        if self.conn.their_state is h11.IDLE:
            if self.conn.trailing_data[0]:
                return ConnectionStage.HEAD
            return ConnectionStage.NEW if self.cycle is None else ConnectionStage.IDLE
        # Where reading is paused, the application does not take what has arrived: the client is not late.
        waiting = self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused
        return ConnectionStage.BODY if waiting else ConnectionStage.ANSWERING

    def _refuse(self, status: HTTPStatus) -> None:
        """Say so, where no answer has begun. The client has `linger_s` to read it: closing at once may lose it."""
        self._refused = True
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        if self.cycle is not None:  # the application may be waiting for the rest
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        self.transport.write(head.encode())
        self.transport.write_eof()
