"""The HTTP/1.1 server side: whole requests in, answers out in pieces, and word at once when the client leaves.

Knows nothing of models or engines. Here are the listening socket and the one clock of all connections; `connection`
reads and writes, `rules` says what a request must be, `limits` what a client may use up, `incoming` is for handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import resource
import socket
import ssl
import time
from collections.abc import Callable

from skep.wire.connection import ServerConnection, Shared
from skep.wire.incoming import Incoming
from skep.wire.limits import HeldBodies, ServerLimits

__all__ = ["HttpServer", "Incoming", "ServerConnection", "ServerLimits"]

QUIET_POLL_S = 0.02


class HttpServer:
    """Accepts on a bound, listening socket until closed.

    `check_head` is called with a request whose body is not there yet. It raises `Refusal` where none is to be read.
    """

    def __init__(
        self,
        handler: Callable[[Incoming], None],
        limits: ServerLimits | None = None,
        check_head: Callable[[Incoming], None] = lambda _request: None,
    ) -> None:
        self._handler = handler
        self._check_head = check_head
        self._limits = _within_open_files(limits or ServerLimits())
        self._connections: set[ServerConnection] = set()
        self._bodies = HeldBodies(self._limits)
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<HttpServer {len(self._connections)} connections, {self.active} active>"

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """Of the bodies that are being read or wait for their answer."""
        return self._bodies.bytes

    @property
    def active(self) -> int:
        return sum(connection.busy for connection in self._connections)

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        shared = Shared(self._handler, self._check_head, self._limits, self._connections, self._bodies)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ServerConnection(shared),
            sock=sock,
            backlog=1024,
            ssl=tls,
            ssl_handshake_timeout=self._limits.head_timeout_s if tls is not None else None,
            ssl_shutdown_timeout=self._limits.linger_s if tls is not None else None,
        )
        self._sweep_later()

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

    def _sweep_later(self) -> None:
        asyncio.get_running_loop().call_later(self._limits.sweep_s, self._sweep)

    def _sweep(self) -> None:
        """Goes on after `stop_accepting`, as long as a connection is left."""
        now = time.monotonic()
        for connection in list(self._connections):
            connection.sweep(now)
        if self._server is not None or self._connections:
            self._sweep_later()


def _within_open_files(limits: ServerLimits) -> ServerLimits:
    """A quarter of the files this process may open is left for other things: a proxy's own connections above all."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    return dataclasses.replace(limits, max_connections=max(1, min(limits.max_connections, files * 3 // 4)))
