"""One HTTP/1.1 connection of the client: requests are written, answers delivered by callbacks with
arrival times.

Knows how an answer is framed and where in it the connection stands; knows nothing of how many
connections there are or which request goes to which."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol, cast

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
)
from skep.wire.transport import unsent_bytes

HEAD_BYTES = 262_144  # of an answer's head, at most, with the interim ones before it
# Of what stands around the chunks of an answer, at most: extensions of their sizes, trailers.
OVERHEAD_BYTES = 65_536
LONGEST_CODING = 60  # characters of an unknown transfer coding that are named
FRAME_BYTES = 12  # of a chunk: its size, by some servers in eight digits, and two line ends
STALE_S = 1.0  # a used connection that is lost sooner had been closed before the call
COPY_BYTES = 16_384  # a shorter body is joined to its head: one write instead of two


class Receiver(Protocol):
    """Gets one answer, piece by piece.

    `at` is `time.monotonic()` as the bytes arrived: uvloop's clock stands still.
    """

    takes_chunks: bool  # looked at after `on_head`: `on_chunks` may be called instead of `on_body`

    def on_head(self, head: ResponseHead, at: float) -> None: ...
    def on_body(self, data: bytes, at: float) -> None: ...
    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        """Take whole chunks as they arrived; `carried`: how many bytes of the body they hold."""

    def on_end(self, at: float) -> None: ...
    def on_failure(self, failure: WireFailure, at: float) -> None: ...


# Gets a whole answer at once. The head is one from the cache: its length is another answer's.
OnWhole = Callable[[ResponseHead, bytes, float], None]


class WireFailure(Exception):
    """Why an answer did not arrive whole. `kind`: connect, timeout, closed or protocol."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Call(msgspec.Struct, eq=False):
    """One request on its way.

    `abort` closes its connection at once; after it no callback is called.
    """

    head: bytes
    receiver: Receiver
    body: bytes
    on_whole: OnWhole | None = None
    retried: bool = False
    aborted: bool = False
    carrier: ClientConnection | None = None  # the connection it is on

    def abort(self) -> None:
        self.aborted = True
        if self.carrier is not None:
            self.carrier.close()

    def pass_on(self, write: Callable[[bytes], None], passed: list[bytes]) -> None:
        """Write short chunks as they arrive and add them to `passed`, without calling the
        receiver.
        """
        if self.carrier is not None:
            self.carrier.write_on = write
            self.carrier.passed = passed

    def pause(self) -> None:
        if self.carrier is not None:
            self.carrier.pause()

    def resume(self) -> None:
        if self.carrier is not None:
            self.carrier.resume()


class ConnectionPool(Protocol):
    """Where a connection goes when its answer is whole, and whom it tells of its end."""

    origin: Origin
    open: set[ClientConnection]
    heads: HeadCache[ResponseHead]

    def idle(self, connection: ClientConnection, since: float) -> None: ...
    def lost(
        self, connection: ClientConnection, call: Call | None, failure: WireFailure, at: float
    ) -> None: ...


class AnswerState(Enum):
    """Where a connection stands in the answer to its call; after a failure, where that broke off.

    The states of `ENDED` last no longer than the read that completed the answer."""

    IDLE = "no call is under way"
    AWAITED = "no byte of the answer has arrived"
    HEAD = "its head, or an interim one before it, is being read"
    BODY = "its body is being read"
    BETWEEN_CHUNKS = "its body is being read, and the next byte begins a chunk"
    WHOLE = "it has been read, and another one may follow"
    LAST = "it has been read, and the server ends the connection"
    SURPLUS = "it has been read, and bytes arrived behind it that nobody asked for"


# Looked up once: with Python 3.11 each `AnswerState.HEAD` is a call, and an exchange needs ten.
IDLE, AWAITED, HEAD, BODY, BETWEEN_CHUNKS, WHOLE, LAST, SURPLUS = AnswerState
ENDED = (WHOLE, LAST, SURPLUS)


class ClientConnection(asyncio.Protocol):
    """One connection: one call at a time, any number one after another."""

    def __init__(self, pool: ConnectionPool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._state = IDLE
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head: ResponseHead | None = None  # of the answer whose body is being read
        self._at = 0.0
        self._paused = False  # nothing is read from the transport
        self._answers_begun = 0  # answers that began in this read, interim ones included
        self._head_bytes_read = 0  # bytes of reads before the head was whole
        # Bytes of the answer behind its head that are neither body nor plain framing.
        self._overhead = 0
        self._body_read = 0  # bytes of this read that are body
        self._chunks_read = 0
        self._hands_chunks = False  # the receiver takes whole chunks as they are
        # The transfer coding of a body that cannot be read: only `chunked` was asked for.
        self._unknown_coding = ""
        # Where chunks go as they are, each one noted in `passed`.
        self.write_on: Callable[[bytes], None] | None = None
        self.passed: list[bytes] = []
        self._last_head: CachedHead[ResponseHead] | None = None
        # The head of this answer, if a later one of the same bytes may be read from the cache.
        self._cacheable: ResponseHead | None = None
        self._sent_at = 0.0
        self.used = False  # has carried a whole exchange before this one
        self.idle_since = 0.0

    def was_stale(self, lost_at: float) -> bool:
        """Return whether the server had closed the connection before the call was written: a used
        connection that was lost at once, without a byte of the answer.
        """
        is_silent = self._state is AWAITED
        return self.used and is_silent and lost_at - self._sent_at < STALE_S

    def start(self, call: Call, at: float) -> None:
        self._call = call
        call.carrier = self
        self._state = AWAITED
        self._head_bytes_read = 0
        self._sent_at = at
        if self._transport is None:  # lost between connecting and sending
            failure = WireFailure(
                "closed", f"{self._pool.origin} closed the connection before it answered"
            )
            self._pool.lost(self, call, failure, self._sent_at)
        elif len(call.body) < COPY_BYTES:
            self._transport.write(call.head + call.body)
        else:
            self._transport.write(call.head)
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

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_closing = transport.is_closing
        self._pool.open.add(self)

    def data_received(self, data: bytes) -> None:
        # Nearly every token comes this way: as few steps as possible, by measurement.
        write_on = self.write_on
        if write_on is not None and self._state is BETWEEN_CHUNKS:
            length = len(data)
            if (
                length < SHORT_CHUNK
                and data.startswith(SIZE_LINES[length])
                and data.endswith(b"\r\n")
            ):
                write_on(data)
                self.passed.append(data)
                return
        call = self._call
        if call is None:
            self.close()  # bytes that nobody asked for
            return
        self._at = at = time.monotonic()
        if self._state is BETWEEN_CHUNKS and self._hands_chunks and not call.aborted:
            carried = chunked_body_size(data)
            if carried:
                call.receiver.on_chunks(data, carried, at)
                return
        if self._state is not AWAITED:
            self._read(call, data, is_first_read=False)
        else:
            self._state = HEAD
            if not self._handle_cached_head(call, data, at):
                self._read(call, data, is_first_read=True)

    def _read(self, call: Call, data: bytes, *, is_first_read: bool) -> None:
        self._answers_begun = 0
        in_body = self._head is not None
        self._body_read = 0
        self._chunks_read = 0
        self._parse(data)
        if self._state is BETWEEN_CHUNKS and not data.endswith(b"\r\n"):
            self._state = BODY  # the parser stands inside the next chunk's size
        if self._state in ENDED:
            if is_first_read and self._state is WHOLE and self._answers_begun == 1:
                self._pool.heads.keep(data, self._cacheable)
            self._hand_back()
            if not call.aborted:
                call.receiver.on_end(self._at)
        elif self._call is not None:
            self._check_bounds(len(data), in_body=in_body)

    def _parse(self, data: bytes) -> None:
        """Have the parser read `data` and call back; fail an answer that it cannot read."""
        origin = self._pool.origin
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            self._fail(WireFailure("protocol", "the answer could not be taken"))
            raise
        except httptools.HttpParserUpgrade:
            self._fail(WireFailure("protocol", f"{origin} switched to another protocol"))
        except httptools.HttpParserError as error:
            # Nonsense behind a whole answer does not spoil the answer.
            if self._state in ENDED:
                self._state = SURPLUS
            else:
                self._fail(WireFailure("protocol", f"{origin} does not speak HTTP: {error}"))
        if self._unknown_coding:
            coding = one_line(self._unknown_coding, LONGEST_CODING)
            self._fail(WireFailure("protocol", f"{origin} used the transfer coding `{coding}`"))

    def _check_bounds(self, length: int, *, in_body: bool) -> None:
        """Fail an answer whose head has no end, or that goes on with anything but a body."""
        origin = self._pool.origin
        if self._head is None:
            self._head_bytes_read += length
            if self._head_bytes_read > HEAD_BYTES:
                message = f"{origin} sent more than {HEAD_BYTES} bytes of headers"
                self._fail(WireFailure("protocol", message))
        elif in_body:
            overhead = length - self._body_read - FRAME_BYTES * self._chunks_read
            self._overhead = max(0, self._overhead + overhead)
            if self._overhead > OVERHEAD_BYTES:
                excess = f"more than {OVERHEAD_BYTES} bytes of trailers or chunk extensions"
                self._fail(WireFailure("protocol", f"{origin} sent {excess}"))

    def _handle_cached_head(self, call: Call, data: bytes, at: float) -> bool:
        """Deliver an answer that is whole in one read and whose head was read before, without the
        parser; return whether it is one.
        """
        cached = self._pool.heads.find(data, self._last_head)
        if cached is None:
            return False
        self._last_head, begins, length = cached
        head = self._last_head.value
        if len(data) != begins + length:
            return False
        self._state = WHOLE
        if call.on_whole is not None:
            self._hand_back()
            call.on_whole(head, data[begins:], at)
            return True
        call.receiver.on_head(ResponseHead(head.status, head.headers, length, head.memo), at)
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
        if self._state is AWAITED:
            when = "before it answered"
        else:
            when = "in the middle of its answer"
        failure = WireFailure("closed", f"{self._pool.origin} closed the connection {when}")
        self._pool.lost(self, call, failure, at)

    # Called by httptools

    def on_chunk_header(self) -> None:
        if self._head is not None:
            self._state = BODY
            self._chunks_read += 1

    def on_chunk_complete(self) -> None:
        if self._head is not None:
            self._state = BETWEEN_CHUNKS

    def on_message_begin(self) -> None:
        if self._state in ENDED:
            self._state = SURPLUS
        else:
            self._state = HEAD
        self._answers_begun += 1
        self._hands_chunks = False
        self._overhead = 0
        self.write_on = None
        self._cacheable = None
        self._headers = []
        self._head = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # else it is a trailer, which is dropped
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._call is None or self._state is SURPLUS:
            return
        lengths = [value for name, value in self._headers if name == b"content-length"]
        length = None
        if lengths and lengths[0].isdigit():
            length = int(lengths[0])
        codings = [value for name, value in self._headers if name == b"transfer-encoding"]
        if codings and b", ".join(codings).strip(b" ").lower() != b"chunked":
            self._unknown_coding = b", ".join(codings).decode("latin-1")
            return
        head = ResponseHead(status, self._headers, length)
        self._head = head
        self._state = BODY
        if len(lengths) == 1 and status == 200 and head.get(b"transfer-encoding") is None:
            self._cacheable = head
        receiver = self._call.receiver
        receiver.on_head(head, self._at)
        is_chunked = head.get(b"transfer-encoding") == b"chunked"
        self._hands_chunks = receiver.takes_chunks and is_chunked

    def on_body(self, data: bytes) -> None:
        self._body_read += len(data)
        if self._call is not None and self._head is not None and not self._call.aborted:
            self._call.receiver.on_body(data, self._at)

    def on_message_complete(self) -> None:
        if self._head is None or self._call is None:
            return  # an interim 1xx answer, or one that nobody asked for
        self._head = None
        if self._parser.should_keep_alive():
            self._state = WHOLE
        else:
            self._state = LAST

    def _hand_back(self) -> None:
        """Give the connection back to the pool after a whole answer; close it where no other
        answer may follow.
        """
        is_reusable = self._state is WHOLE
        self._state = IDLE
        call = self._call
        self._call = None
        if call is not None:
            call.carrier = None
        self.write_on = None
        if self._paused:
            # The answer's last bytes may have paused it; an idle connection must notice its end.
            self.resume()
        if is_reusable and not unsent_bytes(self._transport):
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
