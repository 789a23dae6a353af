"""The HTTP/1.1 client: a pool of connections to one origin, answers delivered by callbacks with arrival times.

Used by the gateway towards its engines and by the load generator: what we measure with is what we serve with.
Knows nothing of models, slots or tokens.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Protocol, cast

import httptools

from skep.wire.heads import Headers, Origin, ResponseHead

STALE_S = 1.0


class Receiver(Protocol):
    """Gets one answer, piece by piece. `at` is `time.monotonic()` as the bytes arrived, before they were parsed.

    Not the loop's clock: uvloop's stands still while it works through one round of events, in whole milliseconds.
    """

    def on_head(self, head: ResponseHead, at: float) -> None: ...
    def on_body(self, data: bytes, at: float) -> None: ...
    def on_end(self, at: float) -> None: ...
    def on_failure(self, failure: WireFailure, at: float) -> None: ...


class WireFailure(Exception):
    """Why an answer did not come whole. `kind`: connect, timeout, closed or protocol."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Call:
    """One request on its way. `abort` closes its connection at once; after it no callback comes."""

    __slots__ = ("_connection", "aborted", "payload", "receiver", "retried")

    def __init__(self, payload: bytes, receiver: Receiver) -> None:
        self.payload = payload
        self.receiver = receiver
        self.retried = False
        self.aborted = False
        self._connection: _Connection | None = None

    def abort(self) -> None:
        self.aborted = True
        if self._connection is not None:
            self._connection.close()

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()


class Pool:
    """Keep-alive connections to one origin.

    An idle connection may have been closed by the server at any moment (llama.cpp does so after 5 s). A call that was
    sent on a used connection and lost it before one byte came back is sent once more, on a fresh connection.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        max_idle: int = 64,
        idle_s: float = 4.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        self.origin = origin
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # connects under way; cancelled by `close`
        self._loop = asyncio.get_running_loop()
        self._tls = ssl.create_default_context() if origin.tls else None

    def __repr__(self) -> str:
        return f"<Pool {self.origin} {len(self._open)} open, {len(self._idle)} idle>"

    def send(self, payload: bytes, receiver: Receiver) -> Call:
        call = Call(payload, receiver)
        self._dispatch(call, fresh=False)
        return call

    def retire(self) -> None:
        """Keep nothing idle from now on; calls under way go on."""
        self._max_idle = 0
        while self._idle:
            self._idle.pop().close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for connection in list(self._open):
            connection.close()
        self._idle.clear()
        while self._open:
            await asyncio.sleep(0)  # an aborted transport is closed in the loop's next round

    def _dispatch(self, call: Call, *, fresh: bool) -> None:
        connection = None if fresh else self._take_idle()
        if connection is not None:
            connection.start(call)
            return
        task = self._loop.create_task(self._connect(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_idle(self) -> _Connection | None:
        oldest_ok = time.monotonic() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest_ok and not connection.closing:
                return connection
            connection.close()
        return None

    async def _connect(self, call: Call) -> None:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, protocol = await self._loop.create_connection(
                    lambda: _Connection(self, self._loop), self.origin.host, self.origin.port, ssl=self._tls
                )
        except TimeoutError:
            failure = WireFailure("connect", f"{self.origin} did not accept within {self._connect_timeout_s:g} s")
        except OSError as error:
            failure = WireFailure("connect", f"{self.origin} cannot be reached: {_reason(error)}")
        else:
            if call.aborted:
                protocol.close()
            else:
                protocol.start(call)
            return
        if call.retried:  # it was sent once before, on a connection that broke: the server may have died of it
            failure = WireFailure("closed", str(failure))
        if not call.aborted:
            call.receiver.on_failure(failure, time.monotonic())

    def opened(self, connection: _Connection) -> None:
        self._open.add(connection)

    def idle(self, connection: _Connection) -> None:
        if len(self._idle) >= self._max_idle:
            connection.close()
        else:
            self._idle.append(connection)

    def lost(self, connection: _Connection, call: Call | None, failure: WireFailure, at: float) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if call is None or call.aborted:
            return
        if connection.was_stale(at) and not call.retried:
            call.retried = True
            self._dispatch(call, fresh=True)
        else:
            call.receiver.on_failure(failure, at)


class _Connection(asyncio.Protocol):
    """One connection: one call at a time, any number one after another."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head: ResponseHead | None = None
        self._at = 0.0
        self._paused = False
        self._complete = False  # the whole answer has been parsed
        self._reusable = False
        self._surplus = False  # bytes came after it
        self._sent_at = 0.0
        self.used = False  # has carried a whole exchange before this one
        self.answered = False  # a byte of the current answer came
        self.idle_since = 0.0

    def was_stale(self, lost_at: float) -> bool:
        """A used connection that was lost at once and without a byte had been closed before we wrote."""
        return self.used and not self.answered and lost_at - self._sent_at < STALE_S

    @property
    def closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def start(self, call: Call) -> None:
        self._call = call
        call._connection = self  # noqa: SLF001 - Call and _Connection are two halves of one thing
        self.answered = False
        self._sent_at = time.monotonic()
        if self._transport is None:  # lost between connecting and sending
            failure = WireFailure("closed", f"{self._pool.origin} closed the connection before it answered")
            self._pool.lost(self, call, failure, self._sent_at)
        else:
            self._transport.write(call.payload)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        self._at = time.monotonic()
        if self._call is None:
            self.close()  # bytes that nobody asked for
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            self._fail(WireFailure("protocol", "the answer could not be taken"))
            raise
        except httptools.HttpParserUpgrade:
            self._fail(WireFailure("protocol", f"{self._pool.origin} switched to another protocol"))
        except httptools.HttpParserError as error:
            self._fail(WireFailure("protocol", f"{self._pool.origin} does not speak HTTP: {error}"))
        if self._complete:
            self._hand_back()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        at = time.monotonic()
        call, self._call = self._call, None
        self._transport = None
        head = self._head
        if call is not None and not call.aborted and head is not None and _ends_with_connection(head) and exc is None:
            self._pool.lost(self, None, WireFailure("closed", ""), at)
            call.receiver.on_end(at)
            return
        when = "in the middle of its answer" if self.answered else "before it answered"
        self._pool.lost(self, call, WireFailure("closed", f"{self._pool.origin} closed the connection {when}"), at)

    # httptools' side

    def on_message_begin(self) -> None:
        self._surplus = self._complete
        self._headers = []
        self._head = None

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._call is None or self._surplus:
            return
        lengths = [value for name, value in self._headers if name == b"content-length"]
        length = int(lengths[0]) if lengths and lengths[0].isdigit() else None
        self._head = ResponseHead(status, self._headers, length)
        self._call.receiver.on_head(self._head, self._at)

    def on_body(self, data: bytes) -> None:
        if self._call is not None and self._head is not None and not self._call.aborted:
            self._call.receiver.on_body(data, self._at)

    def on_message_complete(self) -> None:
        if self._head is None or self._call is None:
            return  # an interim 1xx answer, or one that nobody asked for
        self._head = None
        self._complete = True
        self._reusable = self._parser.should_keep_alive()

    def _hand_back(self) -> None:
        """The answer is whole: the connection goes back to the pool unless more came than was asked for."""
        call, self._call = self._call, None
        self._complete = False
        if call is None:
            return
        call._connection = None  # noqa: SLF001
        self.resume()  # the answer's last bytes may have paused it; an idle connection must hear
        if self._reusable and not self._surplus:
            self.used = True
            self.idle_since = self._at
            self._pool.idle(self)
        else:
            self.close()
        if not call.aborted:
            call.receiver.on_end(self._at)

    def _fail(self, failure: WireFailure) -> None:
        call, self._call = self._call, None
        self.close()
        if call is not None and not call.aborted:
            call.receiver.on_failure(failure, self._at)


def _ends_with_connection(head: ResponseHead) -> bool:
    return head.length is None and b"chunked" not in (head.get(b"transfer-encoding") or b"").lower()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if error.errno is not None and error.strerror and not error.strerror.startswith("Connect call failed"):
        return error.strerror
    return "connection refused" if isinstance(error, ConnectionRefusedError) else str(error)
