"""An application served over HTTP, as the dashboard and the MCP server are: uvicorn on a socket that is bound first.

uvicorn limits neither how long a request may take to arrive nor how many connections there are: `LimitedConnection`
does. Knows nothing of what is served.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from typing import Self

import h11  # of uvicorn
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from skep.units import KIB
from skep.wire.listen import bind

HEAD_BYTES = 64 * KIB


class AsgiServer(uvicorn.Server):
    """Ends quietly: a signal is an end as good as any, and streams do not hold it up. A port in use is a GatewayError.

    `guarded`: those who may not come in are turned away by the application. `on_ready` hears the URL, `path` added,
    once it answers; `on_end` ends the streams that are open at the end.
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
        connection: type[LimitedConnection] | None = None,
        on_ready: Callable[[str], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = bind(host, port, guarded=guarded)
        self._path, self._on_ready, self._on_end = path, on_ready, on_end
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
        """Until Ctrl-C, SIGTERM or `stop`."""
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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Without uvicorn's raising the signal again at the end: the command ends with 0."""
        self.force_exit = self.should_exit
        self.should_exit = True


class LimitedConnection(H11Protocol):
    """Closes a connection on which no request arrives whole, or that is one too many."""

    max_connections = 512  # far more than browsers and MCP clients need, fewer than a process may open
    look_every_s = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._arrived = self._requests = 0  # bytes; answers
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self._look(None)

    def data_received(self, data: bytes) -> None:
        self._arrived += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._requests += 1
        super().on_response_complete()

    def _look(self, before: tuple[int, int] | None) -> None:
        """A head must be whole by the second look, and bytes of a body must have come: answers may take long."""
        now = (self._requests, 0 if self.conn.their_state is h11.IDLE else self._arrived)
        # Where reading is paused, the application does not take what has arrived: the client is not late.
        waiting = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.flow.read_paused
        if waiting and now == before:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(self.look_every_s, self._look, now)
