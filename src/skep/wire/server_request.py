"""One request and the means to answer it, as handlers see it. Knows framing; does not know sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from skep.wire.heads import Headers, HeadMemo, lines_of, status_line
from skep.wire.limits import InvalidRequest

_OFFER = frozenset((b"connection", b"upgrade", b"http2-settings"))
_BODILESS = frozenset((204, 304))


@dataclass(slots=True)
class HeldBodies:
    """The bytes of all bodies that one server holds."""

    limit: int
    bytes: int = 0

    def too_large(self) -> InvalidRequest:
        message = f"the bodies of the requests in progress exceed {self.limit} bytes together; try again in 1 s"
        return InvalidRequest(503, message, code="too_many_bytes")


class RequestConnection(Protocol):
    """The connection a request came on."""

    def send(self, request: ServerRequest, data: bytes) -> None: ...
    def finished(self, request: ServerRequest) -> None: ...
    def abort(self) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class ServerRequest:
    """One request and the means to answer it. Exactly one of `respond` or `start`…`finish` is called.

    `on_gone` is called once if the client leaves before the answer is complete; writes after that are dropped.
    `on_pause` and `on_resume` tell that the client reads slower than we write.
    """

    carrier: RequestConnection
    method: bytes
    target: bytes  # in origin form: begins with a slash
    headers: Headers  # names in lower case
    version: str = "1.1"
    keep_alive: bool = True
    memo: HeadMemo = field(default_factory=HeadMemo)
    bodies: HeldBodies | None = None
    body: bytes = b""
    on_gone: Callable[[], None] | None = None
    on_pause: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None
    extra: Headers | None = None  # headers for any answer, whoever gives it
    chunked: bool = False
    started: bool = False  # the answer has begun: it can be finished or cut, not replaced
    _counted: int = 0  # bytes of its body among those held
    _held: bytes = b""  # the head, until the body begins
    _mute: bool = False  # the answer has no body, whatever is written
    _done: bool = False

    @property
    def path(self) -> str:
        return self.target.split(b"?", 1)[0].decode("latin-1")

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def count_body(self, size: int) -> bool:
        """Count so much of its body among what is held. False: with it, all bodies together are too large."""
        if self.bodies is None:
            return True
        self.bodies.bytes += size - self._counted
        self._counted = size
        return self.bodies.bytes <= self.bodies.limit

    def drop_body(self) -> None:
        """Nobody needs it any more. Repeats have no effect."""
        self.body = b""
        self.uncount_body()

    def uncount_body(self) -> None:
        if self._counted and self.bodies is not None:
            self.bodies.bytes -= self._counted
            self._counted = 0

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        head = self._head(status, lines_of(headers), len(body))
        self.carrier.send(self, head if self._mute else head + body)
        self._done = True
        self.carrier.finished(self)

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]], length: int | None) -> None:
        self.start_with(status, lines_of(headers), length)

    def start_with(self, status: int, lines: bytes, length: int | None) -> None:
        """Send the head: with a length, together with the first bytes of the body; without one, at once.

        The body without a length goes out in chunks, or until the close for HTTP/1.0. `lines` are headers, each with
        its line end.
        """
        head = self._head(status, lines, length)
        if length and not self._mute:
            self._held = head
        else:
            self.carrier.send(self, head)

    def write_chunks(self, raw: bytes) -> None:
        """Whole chunks, ready to be sent. Only where it `takes_chunks`."""
        self.carrier.send(self, raw)

    @property
    def takes_chunks(self) -> bool:
        return self.chunked and not self._mute

    def write(self, data: bytes) -> None:
        if not data or self._mute:
            return
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self._held:
            data, self._held = self._held + data, b""
        self.carrier.send(self, data)

    def finish(self) -> None:
        if self._done:
            return
        if self.chunked and not self._mute:
            self.carrier.send(self, b"0\r\n\r\n")
        elif self._held:
            self.carrier.send(self, self._held)
        self._done = True
        self.carrier.finished(self)

    def cut(self) -> None:
        """Break off: the client sees that the answer is not whole."""
        self._done = True
        self.carrier.abort()

    def _head(self, status: int, lines: bytes, length: int | None) -> bytes:
        self.started = True
        framing = b""
        if self.extra is not None:
            lines += lines_of(self.extra)
        bodiless = status in _BODILESS
        self._mute = bodiless or self.method == b"HEAD"
        if bodiless:
            pass  # no word about a length either
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self.version == "1.0":
            self.keep_alive = False
        else:
            self.chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        elif self.version == "1.0":
            framing += b"connection: keep-alive\r\n"
        return b"%b\r\n%b%b\r\n" % (status_line(status), lines, framing)


def size_of(request: ServerRequest) -> int:
    """Return what a request that waits takes up."""
    return len(request.body) + len(request.target) + sum(len(name) + len(value) for name, value in request.headers)


def head_without_offer(request: ServerRequest) -> bytes:
    """Return the head again, without its offer to speak another protocol (h2c, from `curl --http2` or Java)."""
    kept = [field for field in request.headers if field[0] not in _OFFER]
    kept.append((b"connection", b"keep-alive" if request.keep_alive else b"close"))
    first = (request.method, request.target, request.version.encode())
    return b"%b %b HTTP/%b\r\n%b\r\n" % (*first, lines_of(kept))
