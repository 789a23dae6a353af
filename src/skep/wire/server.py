"""The HTTP/1.1 server: accepts connections, counts and limits them, and looks after them until it
is closed.

Knows nothing of models or engines, and leaves requests to each `ServerConnection`."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from skep.wire.connection_limits import (
    ConnectionEntry,
    ConnectionLimit,
    RefusalReason,
    limited_address,
)
from skep.wire.heads import HeadCache, RequestHead
from skep.wire.listen import ConnectionAcceptor
from skep.wire.server_connection import ServerConnection
from skep.wire.server_request import Handler, HeldBodies, InvalidRequest, ServerLimits

# Beyond the limit, these many at once are told so; the others wait to be accepted.
SPARE_CONNECTIONS = 64
SPARE_SHARE = 16  # and at most this part of the files that the process may open
OTHER_FILES = 32  # that a process needs for itself: its loop, its links, its log, the store
BACKLOG = 1024
QUIET_POLL_S = 0.02
SWEPT_AT_ONCE = 16


def spare_connections(files: int) -> int:
    """Return how many connections beyond the limit are told so.

    `files`: how many the process may open.
    """
    if files == resource.RLIM_INFINITY:
        return SPARE_CONNECTIONS
    return min(SPARE_CONNECTIONS, max(1, files // SPARE_SHARE))


def within_files(limits: ServerLimits, files: int) -> ServerLimits:
    """Return the limits, with as many connections as files suffice for: each may need one to an
    engine as well.
    """
    if files == resource.RLIM_INFINITY:
        return limits
    free_files = files - OTHER_FILES - spare_connections(files)
    return replace(limits, max_connections=max(1, min(limits.max_connections, free_files // 2)))


class HttpServer:
    """Accepts on a bound socket until closed.

    `check_head` refuses, before its body is read, who may not send one.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ServerLimits | None = None,
        check_head: Handler = lambda _request: None,
        address_of: Callable[[object], str | None] = limited_address,
    ) -> None:
        self.handler = handler
        self.check_head = check_head
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limits = within_files(limits or ServerLimits(), files)
        max_connections = self.limits.max_connections
        self.connections = ConnectionLimit(
            max_connections,
            per_address=max(1, round(max_connections * self.limits.address_share)),
            spare=spare_connections(files),
        )
        self.on_room: Callable[[], None] = lambda: None  # a connection has ended
        self.open: set[ServerConnection] = set()
        self.bodies = HeldBodies(max(self.limits.held_bytes, 2 * self.limits.body_bytes))
        self.heads: HeadCache[RequestHead] = HeadCache()
        self._address_of = address_of
        self._listener: socket.socket | None = None
        self._acceptor: ConnectionAcceptor | None = None
        self._opening: set[asyncio.Task[None]] = set()  # TLS handshakes, above all
        self._sweeping = False

    def __repr__(self) -> str:
        return f"<HttpServer {len(self.open)} connections, {self.active} active>"

    @property
    def active(self) -> int:
        return sum(connection.busy for connection in self.open)

    @property
    def has_room(self) -> bool:
        return self.connections.has_room

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept while there is room, a few at a time.

        A connection counts from here on: a handshake may take long.
        """

        def take(client: socket.socket) -> None:
            self.take(client, tls)

        sock.listen(BACKLOG)
        self._listener = sock
        self._acceptor = ConnectionAcceptor(sock, take, lambda: self.has_room)
        self.on_room = self._acceptor.resume
        self._acceptor.resume()

    def take(self, client: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve or refuse a connection that somebody else has accepted."""
        connection = ServerConnection(self)
        try:
            peer = client.getpeername()
        except OSError:  # it has left already
            peer = None
        self.enter(connection, peer)
        if connection.entry is ConnectionEntry.CLOSED:
            client.close()
            self.forget(connection)
            return
        task = asyncio.get_running_loop().create_task(self._open(connection, client, tls))
        self._opening.add(task)
        task.add_done_callback(lambda task: self._opened(task, connection, client))

    def enter(self, connection: ServerConnection, peer: object) -> None:
        """Count a new connection, and decide whether it is served."""
        address = self._address_of(peer)
        connection.address = address
        connection.entry, reason = self.connections.enter(address)
        if reason is not None:
            connection.refusal = self._refusal(reason)
        self.open.add(connection)
        if not self._sweeping:
            self._sweeping = True
            self._sweep()

    def forget(self, connection: ServerConnection) -> None:
        """Handle the end of a connection."""
        self.open.discard(connection)
        if connection.entry is not None:
            self.connections.leave(connection.entry, connection.address)
            connection.entry = None
            self.on_room()

    async def _open(
        self, connection: ServerConnection, client: socket.socket, tls: ssl.SSLContext | None
    ) -> None:
        options = self._tls_options(tls, refused=connection.refusal is not None)
        with contextlib.suppress(OSError):  # its client has left, or speaks no TLS
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, **options
            )

    def _opened(
        self, task: asyncio.Task[None], connection: ServerConnection, client: socket.socket
    ) -> None:
        """Give back the place of a connection that did not open, and of one that has ended
        already.
        """
        self._opening.discard(task)
        if connection.transport is None:
            client.close()
            self.forget(connection)

    def _tls_options(self, tls: ssl.SSLContext | None, *, refused: bool) -> dict[str, Any]:
        if tls is None:
            return {}
        limits = self.limits
        if refused:
            handshake_s = limits.linger_s
        else:
            handshake_s = limits.head_timeout_s
        times = {"ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": limits.linger_s}
        return {"ssl": tls, **times}

    def _refusal(self, reason: RefusalReason) -> InvalidRequest:
        message = "too many connections are open; try again in 1 s"
        if reason is RefusalReason.ADDRESS:
            message = (
                "too many connections are open from your address; close some, or try again in 1 s"
            )
        return InvalidRequest(503, message, code="too_many_connections")

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.open):
            connection.close_when_idle()

    async def close(self, timeout_s: float = 1.0) -> None:
        """Let what is written leave, for so long; then cut."""
        self.stop_accepting()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.active:
                    await asyncio.sleep(QUIET_POLL_S)
        for task in self._opening:
            task.cancel()
        for connection in list(self.open):
            connection.abort()

    def _sweep(self, unswept: list[ServerConnection] | None = None) -> None:
        """Look after all connections, a few at a time, so that answers do not wait for it.

        Goes on as long as there is a connection. `unswept`: those left of this round.
        """
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        if unswept is None:
            unswept = list(self.open)
        for connection in unswept[:SWEPT_AT_ONCE]:
            connection.sweep(now)
        if rest := unswept[SWEPT_AT_ONCE:]:
            loop.call_soon(self._sweep, rest)
        elif self.open:
            loop.call_later(self.limits.sweep_s, self._sweep)
        else:
            self._sweeping = False
