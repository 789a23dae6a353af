"""The HTTP/1.1 client: a pool of connections to one origin, answers delivered by callbacks with
arrival times.

Used by the gateway towards its engines and by the load generator: what we measure with is what we
serve with. Knows nothing of models, slots or tokens."""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import ssl
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import httptools
import msgspec

from skep.units import one_line
from skep.wire.heads import (
    SHORT_CHUNK,
    SIZE_LINES,
    CachedHead,
    HeadCache,
    Headers,
    Origin,
    ResponseHead,
    chunked_body_size,
    lines_of,
)


class Receiver(Protocol):
    """Gets one answer, piece by piece.

    `at` is `time.monotonic()` as the bytes came: uvloop's clock stands still.
    """

    takes_chunks: bool  # looked at after `on_head`: `on_chunks` may be called instead of `on_body`

    def on_head(self, head: ResponseHead, at: float) -> None: ...
    def on_body(self, data: bytes, at: float) -> None: ...
    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        """Whole chunks as they came, and how many bytes of the body they carry."""

    def on_end(self, at: float) -> None: ...
    def on_failure(self, failure: WireFailure, at: float) -> None: ...


OnWhole = Callable[
    [ResponseHead, bytes, float], None
]  # the length of this head is another answer's


class WireFailure(Exception):
    """Why an answer did not come whole. `kind`: connect, timeout, closed or protocol."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Call(msgspec.Struct, eq=False):
    """One request on its way.

    `abort` closes its connection at once; after it no callback comes.
    """

    head: bytes
    receiver: Receiver
    body: bytes
    on_whole: OnWhole | None = None
    retried: bool = False
    aborted: bool = False
    carrier: _ClientConnection | None = None  # the connection it is on

    def abort(self) -> None:
        self.aborted = True
        if self.carrier is not None:
            self.carrier.close()

    def pass_on(self, write: Callable[[bytes], None], passed: list[bytes]) -> None:
        """Have short chunks written as they come and added to `passed`, without a call of the
        receiver.
        """
        if self.carrier is not None:
            self.carrier.write_on, self.carrier.passed = write, passed

    def pause(self) -> None:
        if self.carrier is not None:
            self.carrier.pause()

    def resume(self) -> None:
        if self.carrier is not None:
            self.carrier.resume()


def unsent_bytes(transport: asyncio.Transport | None) -> int:
    """Return bytes that we still hold."""
    try:
        if transport is not None:
            return transport.get_write_buffer_size()
        return 0
    except AttributeError:  # asyncio's TLS transport, between `close` and `connection_lost`
        return 0


def unread_bytes(transport: asyncio.Transport | None) -> int:
    """Bytes in the kernel that the client has not taken: megabytes leave us at once, and then
    nothing for minutes.
    """
    if transport is not None:
        sock = transport.get_extra_info("socket")
    else:
        sock = None
    try:
        if sock:
            return int.from_bytes(
                fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder
            )
        return 0
    except OSError:
        return 0


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


HEAD_BYTES = 262_144  # of an answer's head, at most, with the interim ones before it
OVERHEAD_BYTES = (
    65_536  # of what stands around an answer's chunks: extensions of their sizes, and trailers
)
LONGEST_CODING = 60  # characters of an unknown transfer coding that are named
FRAME_BYTES = 12  # of a chunk: its size, by some servers in eight digits, and two line ends
STALE_S = 1.0
IDLE_S = 4.0  # a connection that stood idle for longer is not used again
CLOSING_ROUNDS = 100
COPY_BYTES = 16_384  # a shorter body is joined to its head: one write instead of two


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
        self._idle: deque[_ClientConnection] = deque()
        self.open: set[_ClientConnection] = set()
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
        """`on_whole` may be called once instead of the receiver, where an answer with a known head
        came in one read.
        """
        call = Call(head, receiver, body, on_whole)
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= now - IDLE_S and not connection.is_closing():
                if now - connection.idle_since > STALE_S:
                    connection.used = (
                        True  # it may have been lost while it stood idle, like any other
                    )
                connection.start(call, now)
                return call
            connection.close()
        self._connect_for(call)
        return call

    def has_idle(self) -> bool:
        """One that can be used at once."""
        last = self._idle[-1] if self._idle else None
        return (
            last is not None
            and not last.is_closing()
            and last.idle_since >= time.monotonic() - IDLE_S
        )

    async def prepare(self, connections: int) -> None:
        """Have this many idle: who measures must not count the time to connect.

        What fails is left to the calls.
        """
        if self._idle and not self.has_idle():
            self.trim()
        missing = min(connections, self._max_idle) - len(self._idle)
        opened = await asyncio.gather(
            *(self._connection() for _ in range(missing)), return_exceptions=True
        )
        for connection in opened:
            if isinstance(connection, _ClientConnection):
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
        # made while it was being cancelled: uvloop closes it and does not say so
        self.open.clear()

    def _connect_for(self, call: Call) -> None:
        self._tasks.add(task := self._loop.create_task(self._connect(call)))
        task.add_done_callback(self._tasks.discard)

    async def _connection(self) -> _ClientConnection:
        def make() -> _ClientConnection:
            return _ClientConnection(self, self._loop)

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
        if (
            call.retried
        ):  # it was sent once before, on a connection that broke: the server may have died of it
            failure = WireFailure("closed", str(failure))
        if not call.aborted:
            call.receiver.on_failure(failure, time.monotonic())

    def idle(self, connection: _ClientConnection, since: float) -> None:
        connection.idle_since = since
        if len(self._idle) >= self._max_idle:
            connection.close()
        else:
            self._idle.append(connection)

    def lost(
        self, connection: _ClientConnection, call: Call | None, failure: WireFailure, at: float
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


class _ClientConnection(asyncio.Protocol):
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
        self._begun = 0  # answers that began in this read, interim ones included
        self._unheaded = 0  # bytes of reads before the head was whole
        self._overhead = (
            0  # bytes of the answer behind its head that are neither body nor plain framing
        )
        self._body_read = 0  # bytes of this read that are body
        self._chunks_read = 0
        self._chunked = False  # the receiver takes whole chunks as they are
        self._between = False  # the parser stands between two chunks
        self._strange_coding = ""  # of a body that is not to be read: only `chunked` was asked for
        self.write_on: Callable[[bytes], None] | None = (
            None  # where chunks go as they are, each one noted in `passed`
        )
        self.passed: list[bytes] = []
        self._last_head: CachedHead[ResponseHead] | None = None
        self._plain: ResponseHead | None = (
            None  # the head under way, if its like may be recognised by its bytes
        )
        self._sent_at = 0.0
        self.used = False  # has carried a whole exchange before this one
        self.answered = False  # a byte of the current answer came
        self.idle_since = 0.0

    def was_stale(self, lost_at: float) -> bool:
        """Return a used connection that was lost at once and without a byte had been closed before
        we wrote.
        """
        return self.used and not self.answered and lost_at - self._sent_at < STALE_S

    def start(self, call: Call, at: float) -> None:
        self._call = call
        call.carrier = self
        self.answered = False
        self._unheaded = 0
        self._sent_at = at
        if self._transport is None:  # lost between connecting and sending
            failure = WireFailure(
                "closed", f"{self._pool.origin} closed the connection before it answered"
            )
            self._pool.lost(self, call, failure, self._sent_at)
        else:
            short = len(call.body) < COPY_BYTES
            self._transport.write(call.head + call.body if short else call.head)
            if not short:
                self._transport.write(call.body)

    def close(self) -> None:
        self.write_on = None
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
        self.is_closing = transport.is_closing
        self._pool.open.add(self)

    def data_received(self, data: bytes) -> None:
        if (
            self._between and self.write_on is not None
        ):  # the way of nearly every token: as few steps as can be
            length = len(data)
            if (
                length < SHORT_CHUNK
                and data.startswith(SIZE_LINES[length])
                and data.endswith(b"\r\n")
            ):
                self.write_on(data)
                self.passed.append(data)
                return
        call = self._call
        if call is None:
            self.close()  # bytes that nobody asked for
            return
        self._at = at = time.monotonic()
        if self._between and self._chunked and not call.aborted:
            carried = chunked_body_size(data)
            if carried:
                call.receiver.on_chunks(data, carried, at)
                return
        fresh = not self.answered
        self.answered = True
        self._begun = 0
        if fresh and self._handle_cached_head(call, data, at):
            return
        in_body = self._head is not None
        self._body_read = self._chunks_read = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            self._fail(WireFailure("protocol", "the answer could not be taken"))
            raise
        except httptools.HttpParserUpgrade:
            self._fail(
                WireFailure("protocol", f"{self._pool.origin} switched to another protocol")
            )
        except httptools.HttpParserError as error:
            # Nonsense behind a whole answer does not spoil the answer.
            self._surplus = self._complete
            if not self._complete:
                self._fail(
                    WireFailure("protocol", f"{self._pool.origin} does not speak HTTP: {error}")
                )
        if self._strange_coding:
            coding = one_line(self._strange_coding, LONGEST_CODING)
            why = f"{self._pool.origin} used the transfer coding `{coding}`"
            self._fail(WireFailure("protocol", why))
        # Else it stands inside the next chunk's size.
        self._between = self._between and data.endswith(b"\r\n")
        if not self._complete and self._call is not None:
            self._check_bounds(len(data), in_body=in_body)
        if self._complete:
            if fresh and self._reusable and self._begun == 1:
                self._pool.heads.keep(data, self._plain)
            self._hand_back()
            if not call.aborted:
                call.receiver.on_end(at)

    def _check_bounds(self, length: int, *, in_body: bool) -> None:
        """Fail an answer whose head has no end, or that goes on with anything but a body."""
        origin = self._pool.origin
        if self._head is None:
            self._unheaded += length
            if self._unheaded > HEAD_BYTES:
                self._fail(
                    WireFailure(
                        "protocol", f"{origin} sent more than {HEAD_BYTES} bytes of headers"
                    )
                )
        elif in_body:
            overhead = length - self._body_read - FRAME_BYTES * self._chunks_read
            self._overhead = max(0, self._overhead + overhead)
            if self._overhead > OVERHEAD_BYTES:
                excess = f"more than {OVERHEAD_BYTES} bytes of trailers or chunk extensions"
                self._fail(WireFailure("protocol", f"{origin} sent {excess}"))

    def _handle_cached_head(self, call: Call, data: bytes, at: float) -> bool:
        """Return an answer in one read, with a head that was read before: the parser need not see
        it.
        """
        cached = self._pool.heads.find(data, self._last_head)
        if cached is None:
            return False
        self._last_head, begins, length = cached
        value = self._last_head.value
        if len(data) != begins + length:
            return False
        self._reusable = True
        self._surplus = False
        if call.on_whole is not None:
            self._hand_back()
            call.on_whole(value, data[begins:], at)
            return True
        call.receiver.on_head(ResponseHead(value.status, value.headers, length, value.memo), at)
        if length and not call.aborted:
            call.receiver.on_body(data[begins:], at)
        self._hand_back()
        if not call.aborted:
            call.receiver.on_end(at)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        at = time.monotonic()
        call = self._call
        self._call = None
        self._transport = None
        head = self._head
        if (
            call is not None
            and not call.aborted
            and head is not None
            and head.ends_with_connection
            and exc is None
        ):
            self._pool.lost(self, None, WireFailure("closed", ""), at)
            call.receiver.on_end(at)
            return
        if self.answered:
            when = "in the middle of its answer"
        else:
            when = "before it answered"
        self._pool.lost(
            self,
            call,
            WireFailure("closed", f"{self._pool.origin} closed the connection {when}"),
            at,
        )

    # httptools' side

    def on_chunk_header(self) -> None:
        self._between = False
        self._chunks_read += 1

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_begin(self) -> None:
        self._surplus = self._complete
        self._begun += 1
        self._between = self._chunked = False
        self._overhead = 0
        self.write_on = self._plain = None
        self._headers = []
        self._head = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # else it is a trailer, which nobody is told
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._call is None or self._surplus:
            return
        lengths = [value for name, value in self._headers if name == b"content-length"]
        if lengths and lengths[0].isdigit():
            length = int(lengths[0])
        else:
            length = None
        codings = [value for name, value in self._headers if name == b"transfer-encoding"]
        if codings and b", ".join(codings).strip(b" ").lower() != b"chunked":
            self._strange_coding = b", ".join(codings).decode("latin-1")
            return
        head = self._head = ResponseHead(status, self._headers, length)
        if len(lengths) == 1 and status == 200 and head.get(b"transfer-encoding") is None:
            self._plain = head
        receiver = self._call.receiver
        receiver.on_head(head, self._at)
        self._chunked = receiver.takes_chunks and head.get(b"transfer-encoding") == b"chunked"

    def on_body(self, data: bytes) -> None:
        self._body_read += len(data)
        if self._call is not None and self._head is not None and not self._call.aborted:
            self._call.receiver.on_body(data, self._at)

    def on_message_complete(self) -> None:
        if self._head is None or self._call is None:
            return  # an interim 1xx answer, or one that nobody asked for
        self._head = None
        self._complete = True
        self._between = False
        self._reusable = self._parser.should_keep_alive()

    def _hand_back(self) -> None:
        """The answer is whole: the connection goes back to the pool unless more came than was
        asked for.
        """
        call = self._call
        self._call = None
        if call is not None:
            call.carrier = None
        self._complete = False
        self.write_on = None
        if self._paused:
            # the answer's last bytes may have paused it; an idle connection must hear
            self.resume()
        if self._reusable and not self._surplus and not unsent_bytes(self._transport):
            self.used = True
            self._pool.idle(self, self._at)
        else:
            self.close()

    def _fail(self, failure: WireFailure) -> None:
        call = self._call
        self._call = None
        self.close()
        if call is not None and not call.aborted:
            call.receiver.on_failure(failure, self._at)


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
        return document if isinstance(document, dict) else {}

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
            self.on_failure(
                WireFailure("protocol", f"an answer of more than {self.most_bytes:,} bytes"), at
            )

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
    if body is None:
        content = b""
    else:
        content = json.dumps(body, ensure_ascii=False).encode()
    fields = {"accept": "*/*", "user-agent": "skep", **(headers or {})}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(content))}
    lines = pool.host_line + lines_of(
        (name.encode(), value.encode()) for name, value in fields.items()
    )
    call = pool.send(
        f"{method} {target} HTTP/1.1\r\n".encode() + lines + b"\r\n" + content, collector
    )
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
    """`fetch`, for what a server may not have: None for a failure and for any status but 200."""
    with suppress(WireFailure):
        answer = await fetch(pool, method, target, **kwargs)
        return answer if answer.status == 200 else None
    return None


async def fetch_once(
    origin: Origin, method: str, target: str, *, timeout_s: float = 10.0, **kwargs: Any
) -> HttpResponse:
    """`fetch` on a connection of its own."""
    pool = Pool(origin, connect_timeout_s=timeout_s)
    try:
        return await fetch(pool, method, target, timeout_s=timeout_s, **kwargs)
    finally:
        await pool.close()
