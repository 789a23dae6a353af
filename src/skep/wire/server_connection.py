"""One connection of the HTTP/1.1 server: whole requests in, answers out in pieces, and a word at
once when the client leaves.

Knows how requests are framed; `server_request` says what a request must be and what a client may
use up. Knows nothing of other connections, models or engines."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Protocol, cast

import httptools

from skep.wire.connection_limits import ConnectionEntry
from skep.wire.heads import CachedHead, HeadCache, HeadMemo, PartialBody, RequestHead
from skep.wire.server_request import (
    ClientTimeouts,
    ConnectionStage,
    Handler,
    HeldBodies,
    InvalidRequest,
    ServerLimits,
    ServerRequest,
    SweepAction,
    check_head,
    head_without_offer,
    size_of,
)
from skep.wire.transport import unread_bytes, unsent_bytes

FIRST_REQUEST_S = 0.5  # for a new connection when the server stops
OVERHEAD_PER_BYTE = 8  # of a chunked body: a chunk of one byte has five around it
# Heads with one of these are not kept: the parser reads what follows them.
_UNUSUAL = frozenset((b"connection", b"upgrade", b"transfer-encoding", b"expect", b"trailer"))


class ConnectionServer(Protocol):
    """What a connection shares with the others of its server."""

    handler: Handler
    check_head: Handler
    limits: ServerLimits
    heads: HeadCache[RequestHead]
    bodies: HeldBodies

    def forget(self, connection: ServerConnection) -> None: ...


class ServerConnection(asyncio.Protocol):
    """Reads requests and writes their answers, in order. Once `_ended` is set, nothing that
    arrives is looked at: a refusal is final.

    The way of a normal request (one read, one answer) is kept short: limits that need counting are
    looked at only when a request is not whole after a read, times only by the sweep."""

    def __init__(self, server: ConnectionServer) -> None:
        limits = self._limits = server.limits
        self._handler = server.handler
        self._check_head = server.check_head
        self._server = server
        self._heads = server.heads
        self._bodies = server.bodies
        self._last_head: CachedHead[RequestHead] | None = None
        # The first head of this read, if its like may be recognised by its bytes.
        self._cacheable: RequestHead | None = None
        self._heads_read = 0
        self._gathering: PartialBody | None = None  # a body whose head was known
        self.transport: asyncio.Transport | None = None
        self.address: str | None = None  # that it is counted under
        # None: it is not counted, not yet or not any more.
        self.entry: ConnectionEntry | None = None
        self.refusal: InvalidRequest | None = None  # of the connection itself
        self._parser = httptools.HttpRequestParser(self)
        self._timeouts = ClientTimeouts(limits, time.monotonic())
        self._active: ServerRequest | None = None
        self._waiting: deque[ServerRequest] = deque()
        self._waiting_bytes = 0
        self._ended = False
        self._leaving = False  # no request after the one under way
        self._paused = False  # the client reads slower than we write
        self._deaf = False  # and so we do not read
        self.written = 0  # bytes of all answers
        self._messages = 0  # whole requests
        self._in_message = False  # between a request's first byte and its last
        self._reading: ServerRequest | None = None  # its head is whole
        self._checked = False  # its head was looked at by the handler's side: its body may be read
        # Its head is whole, with an offer to speak another protocol.
        self._offered: ServerRequest | None = None
        self._target = b""
        self._headers = list[tuple[bytes, bytes]]()
        self._body: bytes | bytearray = b""
        self._room = limits.body_bytes  # for the body
        self._read = 0  # bytes of this read
        self._spans = False  # the request came in more than one read
        self._raw = 0  # bytes of its reads after the first
        self._quiet = 0  # those of them since the body last grew
        self._seen_body = 0  # the body after the read before

    @property
    def busy(self) -> bool:
        """Return whether it is being opened, a request is being read or answered, or an answer has
        not left yet.
        """
        opening = not self._ended and (
            self.transport is None or (self._leaving and not self._messages)
        )
        return (
            opening
            or self._active is not None
            or self._in_message
            or unsent_bytes(self.transport) > 0
        )

    def close_when_idle(self) -> None:
        """For a graceful stop: finish what is under way, take nothing new.

        The first request may be on its way.
        """
        self._leaving = True
        if self._active is not None:
            self._active.keep_alive = False
        elif self._messages:
            self._close_if_idle()
        else:
            asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._active is None and not self._in_message:
            self._ended = True  # also where TLS has not begun yet
            self._close()

    def _close(self) -> None:
        if self.transport is not None:
            self._ended = True
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            # asyncio's TLS of Python 3.11.2, closed twice.
            with contextlib.suppress(AttributeError):
                self.transport.abort()

    def sweep(self, now: float) -> None:
        """Carry out what the timeouts say; called every `sweep_s`."""
        unsent = unsent_bytes(self.transport)
        taken = self.written - unsent
        if unsent:
            taken -= unread_bytes(self.transport)
        if self._gathering is None:
            arrived = len(self._body)
        else:
            arrived = -self._gathering.missing
        action = self._timeouts.look(
            now,
            self._stage(),
            message=self._messages,
            arrived=arrived,
            unsent=unsent,
            taken=taken,
        )
        match action:
            case SweepAction.ABORT:
                self.abort()
            case SweepAction.TIMED_OUT:
                self._refuse(InvalidRequest(408, "the request did not arrive in time"))
            case SweepAction.CLOSE:
                self._close()

    # The request's side

    def send(self, request: ServerRequest, data: bytes) -> None:
        if request is self._active and self.transport is not None:
            self.written += len(data)
            self.transport.write(data)

    def finished(self, request: ServerRequest) -> None:
        if request is not self._active:
            return
        self._active = None
        if request.counted:
            request.uncount_body()
        if self.transport is None:
            return
        if not request.keep_alive:
            self._end()
        elif self._paused:  # until it has read what it asked for, it may not ask for more
            self._deaf = True
            self.transport.pause_reading()
        elif self._waiting:
            self._hand_over_next()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._ended:
            self.transport.abort()
        elif self.refusal is not None:
            self._refuse(self.refusal)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._gathering is not None:
            self._gather(self._gathering, data)
            return
        inside = self._in_message
        messages = self._messages
        if (
            not inside
            and self._active is None
            and not self._paused
            and self._handle_cached_head(data)
        ):
            return
        self._read = len(data)
        self._cacheable = None
        self._heads_read = 0
        stop = self._feed(data)
        if stop is not None:
            self._stopped(stop, data)
        elif not inside:
            self._heads.keep(data, self._cacheable)
        if self._in_message:
            self._count_raw(began=not inside or messages != self._messages)
            if self._reading is not None:
                self._hold(self._reading, len(self._body))

    def eof_received(self) -> bool:
        if self._active is not None:
            # who closes half of a connection counts as gone, and for the gone nothing is flushed
            self.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.transport = None
        self._ended = True
        self._server.forget(self)
        self._forget_unread()
        active = self._active
        self._active = None
        if active is not None:
            if active.on_gone is not None:
                active.on_gone()
            active.uncount_body()

    def pause_writing(self) -> None:
        self._paused = True
        if self._active is not None and self._active.on_pause is not None:
            self._active.on_pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._deaf and self.transport is not None:
            self._deaf = False
            self.transport.resume_reading()
        if self._active is None:
            if self._waiting:
                self._hand_over_next()
        elif self._active.on_resume is not None:
            self._active.on_resume()

    # httptools' side

    def on_message_begin(self) -> None:
        if self._ended:  # by the answer to a request in the same read
            raise InvalidRequest(400, "the connection was closed before this request")
        self._target = self._body = b""
        self._headers = []
        self._in_message = True
        self._spans = False

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        headers = self._headers
        target = self._target
        limits = self._limits
        self._headers = []  # trailers go nowhere
        if self._spans or self._read > limits.head_bytes or len(headers) > limits.headers:
            limits.check_head_size(target, headers)
        fields = dict(headers)
        keep_alive = parser.should_keep_alive()
        # Only HTTP/1.1 is kept alive without a word about it; asking the parser costs more than
        # all checks.
        if keep_alive and b"connection" not in fields:
            version = "1.1"
        else:
            version = parser.get_http_version()
        method = parser.get_method()
        target = check_head(method, target, version, headers, fields, limits)
        request = ServerRequest(self, method, target, headers, HeadMemo(), self._bodies)
        request.version = version
        request.keep_alive = keep_alive
        self._checked = False
        self._heads_read += 1
        if self._heads_read == 1 and version == "1.1" and fields.keys().isdisjoint(_UNUSUAL):
            self._cacheable = RequestHead(method, target, headers, request.memo)
        if b"upgrade" in fields and parser.should_upgrade():
            self._offered = request
            return
        self._reading = request
        self._room = limits.body_bytes
        if self._active is not None:
            self._room = min(self._room, max(0, limits.pipelined_bytes - self._waiting_bytes))
        elif b"expect" in fields and version == "1.1" and self.transport is not None:
            self._check_head(request)
            self._checked = True
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body) + data
        if len(self._body) > self._room:
            self._out_of_room()

    def on_message_complete(self) -> None:
        request = self._reading
        self._reading = None
        if request is None:
            return  # it had an offer: the parser stops here, and `_stopped` goes on
        self._in_message = False
        self._messages += 1
        if self._body:
            request.body = bytes(self._body)  # no copy where it is bytes already
            self._body = b""
            if not request.count_body(len(request.body)):
                request.drop_body()
                raise self._bodies.too_large()
        if self._active is None and not self._paused:
            self._hand_over(request)
            return
        self._waiting.append(request)
        self._waiting_bytes += size_of(request)
        if (
            len(self._waiting) > self._limits.pipelined
            or self._waiting_bytes > self._limits.pipelined_bytes
        ):
            raise InvalidRequest(429, "too many pipelined requests")

    # Inside

    def _handle_cached_head(self, data: bytes) -> bool:
        """Take a read that begins with a head that was read before, without the parser; return
        whether it is one.
        """
        cached = self._heads.find(data, self._last_head)
        if cached is None:
            return False
        self._last_head, begins, length = cached
        value = self._last_head.value
        missing = begins + length - len(data)
        if missing < 0 or length > self._limits.body_bytes:
            return False
        bodies = self._bodies
        request = ServerRequest(
            self, value.method, value.target, value.headers, value.memo, bodies
        )
        if missing:
            self._in_message = True
            self._reading = request
            self._checked = False
            self._gathering = PartialBody(memoryview(data)[begins:], missing)
            self._hold(request, self._gathering.size)
            return True
        request.body = data[begins:]
        request.counted = length
        bodies.bytes += length
        if bodies.bytes > bodies.limit:
            request.drop_body()
            self._refuse(bodies.too_large())
            return True
        self._messages += 1
        self._hand_over(request)
        return True

    def _hold(self, request: ServerRequest, size: int) -> None:
        """Count so much of a body, of which more is to come; refuse a client who may not send it
        before the rest is read.
        """
        try:
            if not self._checked:
                self._check_head(request)
                self._checked = True
            if not request.count_body(size):
                raise self._bodies.too_large()
        except InvalidRequest as refusal:
            self._refuse(refusal)

    def _gather(self, gathering: PartialBody, data: bytes) -> None:
        gathering.add(data)
        request = self._reading
        assert request is not None
        self._hold(request, gathering.size)
        if gathering.missing > 0 or self._ended:
            return
        self._reading = self._gathering = None
        request.body = gathering.body()
        self._in_message = False
        self._messages += 1
        self._hand_over(request)
        if gathering.missing < 0:
            self.data_received(data[gathering.missing :])

    def _hand_over(self, request: ServerRequest) -> None:
        self._active = request
        if self._leaving:
            request.keep_alive = False
        self._handler(request)
        if self._paused and request is self._active and request.on_pause is not None:
            request.on_pause()

    def _hand_over_next(self) -> None:
        request = self._waiting.popleft()
        self._waiting_bytes -= size_of(request)
        self._hand_over(request)

    def _feed(self, data: bytes | memoryview) -> Exception | None:
        """Have the parser read `data`, and return what stopped it.

        Returned, not raised: an exception on its way would hide the next one's context.
        """
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as stop:
            return cast("Exception", stop)
        return None

    def _stopped(self, stop: Exception | None, data: bytes) -> None:
        """Go on where the parser did not take all of the read: pass over an offer, or end this
        connection.
        """
        rest = memoryview(data)
        while isinstance(stop, httptools.HttpParserUpgrade):
            rest = rest[stop.args[0] :]
            request = self._offered
            self._offered = None
            assert request is not None
            # The parser takes what follows such a head for the other protocol; a new one reads it
            # as the body it is.
            self._parser = httptools.HttpRequestParser(self)
            stop = self._feed(head_without_offer(request)) or self._feed(rest)
        if stop is None:
            return
        if not isinstance(stop, httptools.HttpParserCallbackError):
            self._refuse(InvalidRequest(400, f"malformed request: {stop}"))
        elif isinstance(stop.__context__, InvalidRequest):
            self._refuse(stop.__context__)
        else:
            self._ended = True  # the handler's own failure; the parser is of no use any more
            raise stop

    def _count_raw(self, *, began: bool) -> None:
        """Bound what was read of a request that is not whole and has become neither headers nor
        body.
        """
        limits = self._limits
        body_bytes = len(self._body)
        if began:
            # The read may hold the end of another request; its own part is bounded by the read.
            self._spans = True
            self._raw = 0
            self._quiet = 0
            self._seen_body = 0
            return
        self._raw += self._read
        if self._reading is None:
            if self._raw > limits.head_bytes:
                self._refuse(limits.head_too_large())
            return
        if body_bytes != self._seen_body:
            self._quiet = 0
        else:
            self._quiet += self._read
        self._seen_body = body_bytes
        overhead_bytes = self._raw - body_bytes
        if (
            self._quiet > limits.head_bytes
            or overhead_bytes > 2 * limits.head_bytes + OVERHEAD_PER_BYTE * body_bytes
        ):
            self._refuse(
                InvalidRequest(400, "the chunks of the body carry more overhead than body")
            )

    def _out_of_room(self) -> None:
        """Refuse a body that is too large, or measure its room again: the answer that it waited
        behind may be finished by now.
        """
        if self._active is not None and self._room < self._limits.body_bytes:
            raise InvalidRequest(429, "the client sent too much while an answer was in progress")
        self._room = self._limits.body_bytes
        if len(self._body) > self._room:
            raise self._limits.body_too_large()

    def _refuse(self, refusal: InvalidRequest) -> None:
        """Answer once and close.

        What is being answered already is finished first, and is then the last answer.
        """
        if self._ended:
            return
        self._ended = True
        self._forget_unread()
        if self.transport is None:
            return
        if self._active is not None:
            self._active.keep_alive = False
            return
        self.transport.write(refusal.to_bytes())
        self._end()

    def _end(self) -> None:
        """Close after what is written has left.

        Closing with unread bytes would reset the connection and lose the answer: only our side
        ends, and the rest may arrive, until the client closes too or the sweep does it. TLS reads
        on by itself while it closes."""
        self._ended = True
        if self.transport is None or self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _forget_unread(self) -> None:
        self._in_message = False
        for unread in (self._reading, self._offered, *self._waiting):
            if unread is not None:
                unread.drop_body()
        self._reading = self._offered = self._gathering = None
        self._headers = []
        self._body = b""
        self._waiting.clear()
        self._waiting_bytes = 0

    def _stage(self) -> ConnectionStage:
        if self._active is not None:
            return ConnectionStage.ANSWERING
        if self._ended:
            return ConnectionStage.ENDED
        if self._in_message:
            if self._reading is None:
                return ConnectionStage.HEAD
            return ConnectionStage.BODY
        if self._messages:
            return ConnectionStage.IDLE
        return ConnectionStage.NEW
