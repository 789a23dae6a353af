"""The HTTP/1.1 client: a pool of connections to one origin, answers delivered by callbacks with
arrival times.

Used by the gateway towards its engines and by the load generator: what we measure with is what we
serve with. Knows nothing of models, slots or tokens."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from skep.wire.client_connection import (
    STALE_S,
    Call,
    ClientConnection,
    OnWhole,
    Receiver,
    WireFailure,
)
from skep.wire.heads import HeadCache, Origin, ResponseHead, lines_of

__all__ = [
    "LARGEST_ANSWER_BYTES",
    "Call",
    "HttpResponse",
    "Pool",
    "Receiver",
    "WireFailure",
    "fetch",
    "fetch_if_there",
    "fetch_once",
]

IDLE_S = 4.0  # a connection that stood idle for longer is not used again
CLOSING_ROUNDS = 100


def reason_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if (
        error.errno is not None
        and error.strerror
        and not error.strerror.startswith("Connect call failed")
    ):
        return error.strerror
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or "it closed the connection"


class Pool:
    """Keep-alive connections to one origin.

    An idle connection may have been closed by the server at any moment (llama.cpp does so after 5
    s). A call that was sent on a used connection and lost it before one byte came back is sent
    once more, on a fresh connection."""

    def __init__(
        self,
        origin: Origin,
        *,
        max_idle: int = 64,
        connect_timeout_s: float = 5.0,
        prefix: bytes = b"",
        connect: Callable[[], socket.socket] | None = None,
    ) -> None:
        """`prefix` stands before every target: where a server's paths begin below its address.

        `connect` returns a Unix socket that is connected to the server, whatever its address is.
        """
        self.origin = origin
        self._socket = connect
        self.prefix = prefix
        self.host_line = b"host: %b\r\n" % origin.authority
        self._max_idle = max_idle
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[ClientConnection] = deque()
        self.open: set[ClientConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # connects under way; cancelled by `close`
        self._loop = asyncio.get_running_loop()
        self.heads: HeadCache[ResponseHead] = HeadCache()
        if origin.tls:
            self._tls: ssl.SSLContext | None = ssl.create_default_context()
        else:
            self._tls = None

    def __repr__(self) -> str:
        return f"<Pool {self.origin} {len(self.open)} open, {len(self._idle)} idle>"

    def send(
        self, head: bytes, receiver: Receiver, body: bytes = b"", on_whole: OnWhole | None = None
    ) -> Call:
        """Send a request on an idle connection or a new one.

        `on_whole` may be called once instead of the receiver, where an answer with a known head
        arrived in one read.
        """
        call = Call(head, receiver, body, on_whole)
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= now - IDLE_S and not connection.is_closing():
                if now - connection.idle_since > STALE_S:
                    # It may have been lost while it stood idle, like any other.
                    connection.used = True
                connection.start(call, now)
                return call
            connection.close()
        self._connect_for(call)
        return call

    def has_idle(self) -> bool:
        """Return whether a connection can be used at once."""
        last = self._idle[-1] if self._idle else None
        return (
            last is not None
            and not last.is_closing()
            and last.idle_since >= time.monotonic() - IDLE_S
        )

    async def prepare(self, connections: int) -> None:
        """Have this many idle connections: who measures must not count the time to connect.

        A connection that cannot be made is left to the calls.
        """
        if self._idle and not self.has_idle():
            self.trim()
        missing = min(connections, self._max_idle) - len(self._idle)
        opened = await asyncio.gather(
            *(self._connection() for _ in range(missing)), return_exceptions=True
        )
        for connection in opened:
            if isinstance(connection, ClientConnection):
                self.idle(connection, time.monotonic())

    def trim(self) -> None:
        """Close what is idle; some servers hold a thread for each connection."""
        while self._idle:
            self._idle.pop().close()

    def retire(self) -> None:
        """Keep nothing idle from now on; calls under way go on."""
        self._max_idle = 0
        self.trim()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._idle.clear()
        for _ in range(CLOSING_ROUNDS):  # an aborted transport is closed in the loop's next round
            for connection in list(self.open):
                connection.close()
            if not self.open:
                return
            await asyncio.sleep(0)
        # A connection made while `_connect` was cancelled: uvloop closes it and does not say so.
        self.open.clear()

    def _connect_for(self, call: Call) -> None:
        task = self._loop.create_task(self._connect(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self) -> ClientConnection:
        def make() -> ClientConnection:
            return ClientConnection(self, self._loop)

        async with asyncio.timeout(self._connect_timeout_s):
            if self._socket is not None:
                _, connection = await self._loop.create_unix_connection(make, sock=self._socket())
            else:
                host = self.origin.host
                port = self.origin.port
                _, connection = await self._loop.create_connection(make, host, port, ssl=self._tls)
        return connection

    async def _connect(self, call: Call) -> None:
        try:
            protocol = await self._connection()
        except TimeoutError:
            failure = WireFailure(
                "connect", f"{self.origin} did not accept within {self._connect_timeout_s:g} s"
            )
        except OSError as error:
            failure = WireFailure(
                "connect", f"{self.origin} cannot be reached: {reason_of(error)}"
            )
        else:
            if call.aborted:
                protocol.close()
            else:
                protocol.start(call, time.monotonic())
            return
        if call.retried:
            # It was sent once before, on a connection that broke: the server may have died of it.
            failure = WireFailure("closed", str(failure))
        if not call.aborted:
            call.receiver.on_failure(failure, time.monotonic())

    def idle(self, connection: ClientConnection, since: float) -> None:
        connection.idle_since = since
        if len(self._idle) >= self._max_idle:
            connection.close()
        else:
            self._idle.append(connection)

    def lost(
        self, connection: ClientConnection, call: Call | None, failure: WireFailure, at: float
    ) -> None:
        self.open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        if call is None or call.aborted:
            return
        if connection.was_stale(at) and not call.retried:
            call.retried = True
            self._connect_for(call)
        else:
            call.receiver.on_failure(failure, at)


# Plain requests for those who only want the answer: health checks, model lists, warm-ups.

LARGEST_ANSWER_BYTES = 64 << 20  # one that never ends must not fill the memory


class HttpResponse(msgspec.Struct, frozen=True):
    head: ResponseHead
    body: bytes

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def document(self) -> dict[str, Any]:
        """Return the body as a JSON object; empty where it is none."""
        document = self.json()
        if isinstance(document, dict):
            return document
        return {}

    def json(self) -> Any:
        """Return the body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass
class _Collector:
    done: asyncio.Future[HttpResponse]
    most_bytes: int
    head: ResponseHead | None = None
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    takes_chunks = False

    def on_head(self, head: ResponseHead, at: float) -> None:  # noqa: ARG002
        self.head = head

    def on_body(self, data: bytes, at: float) -> None:
        self.size += len(data)
        if self.size <= self.most_bytes:
            self.parts.append(data)
        else:
            self.parts.clear()
            message = f"an answer of more than {self.most_bytes:,} bytes"
            self.on_failure(WireFailure("protocol", message), at)

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:  # noqa: ARG002
        raise AssertionError("chunks were not asked for")

    def on_end(self, at: float) -> None:  # noqa: ARG002
        if not self.done.done():
            assert self.head is not None
            self.done.set_result(HttpResponse(self.head, b"".join(self.parts)))

    def on_failure(self, failure: WireFailure, at: float) -> None:  # noqa: ARG002
        if not self.done.done():
            self.done.set_exception(failure)


async def fetch(
    pool: Pool,
    method: str,
    target: str,
    *,
    body: Any = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 10.0,
    most_bytes: int = LARGEST_ANSWER_BYTES,
) -> HttpResponse:
    """Return the whole answer; `body` is sent as JSON.

    Raises WireFailure; a cancelled caller aborts the request.
    """
    collector = _Collector(asyncio.get_running_loop().create_future(), most_bytes)
    target = f"{pool.prefix.decode()}{target}"
    content = b""
    fields = {"accept": "*/*", "user-agent": "skep", **(headers or {})}
    if body is not None:
        content = json.dumps(body, ensure_ascii=False).encode()
        fields |= {"content-type": "application/json", "content-length": str(len(content))}
    first_line = f"{method} {target} HTTP/1.1\r\n".encode()
    lines = lines_of((name.encode(), value.encode()) for name, value in fields.items())
    head = first_line + pool.host_line + lines + b"\r\n"
    call = pool.send(head + content, collector)
    try:
        async with asyncio.timeout(timeout_s):
            return await collector.done
    except TimeoutError:
        raise WireFailure(
            "timeout", f"{pool.origin}{target} did not answer within {timeout_s:g} s"
        ) from None
    finally:
        if collector.size > most_bytes or not collector.done.done() or collector.done.cancelled():
            call.abort()


async def fetch_if_there(
    pool: Pool, method: str, target: str, **kwargs: Any
) -> HttpResponse | None:
    """Return an answer that a server may not have: None for a failure and any status but 200."""
    try:
        answer = await fetch(pool, method, target, **kwargs)
    except WireFailure:
        return None
    return answer if answer.status == 200 else None


async def fetch_once(
    origin: Origin, method: str, target: str, *, timeout_s: float = 10.0, **kwargs: Any
) -> HttpResponse:
    """`fetch` on a connection of its own."""
    pool = Pool(origin, connect_timeout_s=timeout_s)
    try:
        return await fetch(pool, method, target, timeout_s=timeout_s, **kwargs)
    finally:
        await pool.close()
