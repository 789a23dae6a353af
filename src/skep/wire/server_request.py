"""One request and the means to answer it, as handlers see it; what it must be, what a client may
use up, and when the patience with it ends. Knows framing; does no I/O, reads no clock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Protocol

import msgspec

from skep.units import KIB, MIB
from skep.wire.heads import STATUS_LINES, Headers, HeadMemo, lines_of


class ServerLimits(msgspec.Struct, frozen=True):
    """Times are kept by a sweep over all connections every `sweep_s`: each may be exceeded by two
    such steps.
    """

    # Target and headers; also for what stands between the chunks of a body.
    head_bytes: int = 64 * KIB
    headers: int = 256
    body_bytes: int = 64 * MIB
    # Of all bodies being read or waiting for an answer; at least two of the largest.
    held_bytes: int = 512 * MIB
    pipelined: int = 16  # requests waiting behind the one being answered
    pipelined_bytes: int = MIB  # their heads and bodies, together with the one being read
    max_connections: int = 10_000  # fewer where the process may not open so many files
    address_share: float = 0.5  # of the connections, for one address of another machine at most
    # From a request's first byte to the end of its head; also for a new connection.
    head_timeout_s: float = 30.0
    body_idle_s: float = 30.0  # without a byte of the body
    request_timeout_s: float = 300.0  # from a request's first byte to its last
    idle_timeout_s: float = 300.0  # of a keep-alive connection between requests
    # A client is given up that takes fewer than `write_bytes` of an answer in `write_idle_s`
    # while more is waiting: nobody reads a token a second, and a slot waits behind it.
    write_idle_s: float = 120.0
    write_bytes: int = 32 * KIB
    linger_s: float = 2.0  # after a refusal, for what the client still sends
    sweep_s: float = 0.5

    def check_head_size(self, target: bytes, headers: Headers) -> None:
        if len(headers) > self.headers:
            raise InvalidRequest(431, f"the request has more than {self.headers} headers")
        size = len(target) + sum(len(name) + len(value) + 4 for name, value in headers)
        if size > self.head_bytes:
            raise self.head_too_large()

    def head_too_large(self) -> InvalidRequest:
        return InvalidRequest(431, f"the request's head is larger than {self.head_bytes} bytes")

    def body_too_large(self) -> InvalidRequest:
        message = f"the body is larger than {self.body_bytes} bytes"
        return InvalidRequest(413, f"{message}; `body_limit` in skep.toml raises it")


class ConnectionStage(Enum):
    """Where a connection stands, as the sweep finds it."""

    NEW = "new"  # not a byte yet
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWERING = "answering"
    ENDED = "ended"  # nothing more is read: refused, or closing


class SweepAction(Enum):
    CLOSE = "close"
    TIMED_OUT = "timed out"  # say so (408), then close
    ABORT = "abort"


class ClientTimeouts:
    """One connection's clocks, asked by the sweep only: a request on its way sets no timer and
    reads no clock.
    """

    __slots__ = (
        "_arrived",
        "_limits",
        "_message",
        "_message_at",
        "_since",
        "_stage",
        "_taken",
        "_taken_at",
    )

    def __init__(self, limits: ServerLimits, now: float) -> None:
        self._limits = limits
        self._stage = ConnectionStage.NEW
        self._message = 0
        self._message_at = now  # when the message was first seen
        self._since = now  # when the stage was entered, or last got on
        self._arrived = 0
        # bytes the client had taken when it was last found waiting for nothing, or quick enough
        self._taken = 0
        self._taken_at = now

    def look(
        self,
        now: float,
        stage: ConnectionStage,
        *,
        message: int,
        arrived: int,
        unsent: int,
        taken: int,
    ) -> SweepAction | None:
        """Return what is to be done about the client; None: nothing.

        `message` counts whole requests, `arrived` bytes of the body being read, `unsent` bytes
        that wait for the client, `taken` bytes that it took.
        """
        if self._is_write_stalled(now, unsent=unsent, taken=taken):
            return SweepAction.ABORT
        was_in_message = self._stage in (ConnectionStage.HEAD, ConnectionStage.BODY)
        if message != self._message or not was_in_message:
            self._message_at = now
        has_moved = (
            stage is not self._stage or message != self._message or arrived != self._arrived
        )
        if has_moved or unsent:
            self._since = now
        self._stage = stage
        self._message = message
        self._arrived = arrived
        return self._action(waited_s=now - self._since, message_s=now - self._message_at)

    def _is_write_stalled(self, now: float, *, unsent: int, taken: int) -> bool:
        """Return whether the client takes too little of what waits for it."""
        limits = self._limits
        if unsent > 0 and now - self._taken_at <= limits.write_idle_s:
            return False
        if unsent > 0 and taken - self._taken < limits.write_bytes:
            return True
        self._taken = taken
        self._taken_at = now
        return False

    def _action(self, *, waited_s: float, message_s: float) -> SweepAction | None:
        limits = self._limits
        head_timeout_s = min(limits.head_timeout_s, limits.request_timeout_s)
        is_body_late = waited_s > limits.body_idle_s or message_s > limits.request_timeout_s
        match self._stage:
            case ConnectionStage.NEW if waited_s > limits.head_timeout_s:
                return SweepAction.CLOSE
            case ConnectionStage.IDLE if waited_s > limits.idle_timeout_s:
                return SweepAction.CLOSE
            case ConnectionStage.HEAD if message_s > head_timeout_s:
                return SweepAction.TIMED_OUT
            case ConnectionStage.BODY if is_body_late:
                return SweepAction.TIMED_OUT
            case ConnectionStage.ENDED if waited_s > limits.linger_s:
                return SweepAction.ABORT
        return None


# What a request must be, beyond what the parser insists on. Each refusal names its status.
#
# llhttp refuses by itself: bare CR or LF at line ends, folded lines, control bytes, spaces around
# names, doubled, signed, hexadecimal or overflowing lengths, a length beside a transfer coding,
# anything after `chunked`. It lets pass: missing or doubled Host, HTTP/0.9 and 2.0, codings before
# `chunked`, chunks on HTTP/1.0, fragments, methods of other protocols, heads and chunk extensions
# without end. tests/wire/test_server_hardening.py holds both lists against the real server.
# Tolerated, as they hide nothing: blank lines before a request, several spaces in its first line,
# `RTSP/1.0` for `HTTP/1.0`.

METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))

# Twice the same of these could be read differently by whoever stands before or behind us.
_SINGLE = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"expect", b"authorization")
)
_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_ABSOLUTE = re.compile(rb"https?://([^/?]+)(.*)", re.IGNORECASE | re.DOTALL)
_MAX_LENGTH_DIGITS = 19


class InvalidRequest(Exception):
    """A request that is answered with `status` and whose connection is closed.

    `answer`: headers and body, where a handler made them.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "bad_request",
        answer: tuple[Headers, bytes] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.answer = answer

    def to_bytes(self) -> bytes:
        headers, body = self.answer or self._error_answer()
        length = b"%d" % len(body)
        lines = lines_of([*headers, (b"content-length", length), (b"connection", b"close")])
        return b"".join((STATUS_LINES[self.status], lines, b"\r\n", body))

    def _error_answer(self) -> tuple[Headers, bytes]:
        error: dict[str, str | None] = {
            "message": str(self),
            "type": "",
            "param": None,
            "code": self.code,
        }
        headers = [(b"content-type", b"application/json")]
        if self.status >= 500 and self.status != 501:  # the server's fault
            error["type"] = "server_error"
            headers.append((b"retry-after", b"1"))
        else:
            error["type"] = "invalid_request_error"
        return headers, json.dumps({"error": error, "source": "gateway"}).encode()


def check_head(
    method: bytes,
    target: bytes,
    version: str,
    headers: Headers,
    fields: dict[bytes, bytes],
    limits: ServerLimits,
) -> bytes:
    """Raise InvalidRequest, or return the target in origin form. `fields` is `dict(headers)`."""
    if version not in ("1.1", "1.0"):
        raise InvalidRequest(400, f"this server speaks HTTP/1.1, not HTTP/{version}")
    if method not in METHODS:
        raise InvalidRequest(501, f"the method {method.decode('latin-1')} is not supported")
    if len(fields) != len(headers):
        _check_repeats(headers)
    host = fields.get(b"host")
    if host is None:
        if version == "1.1":
            raise InvalidRequest(400, "a Host header is required")
    elif not _is_host(host):
        raise InvalidRequest(400, "the Host header names no host")
    if target[:1] != b"/" or b"#" in target:
        target = _origin_form(target, host)
    _check_framing(version, fields, limits)
    if b"expect" in fields and version == "1.1" and fields[b"expect"].lower() != b"100-continue":
        raise InvalidRequest(417, "the only supported expectation is 100-continue")
    return target


def _check_repeats(headers: Headers) -> None:
    names = [name for name, _ in headers]
    for name in names:
        if name in _SINGLE and names.count(name) > 1:
            raise InvalidRequest(400, f"the header {name.decode('latin-1')} came twice")


def _check_framing(version: str, fields: dict[bytes, bytes], limits: ServerLimits) -> None:
    length = fields.get(b"content-length")
    if length is not None:
        if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
            raise InvalidRequest(400, "the Content-Length is not a plain number")
        if int(length) > limits.body_bytes:
            raise limits.body_too_large()
    elif b"transfer-encoding" in fields:
        if version == "1.0":
            raise InvalidRequest(400, "HTTP/1.0 has no Transfer-Encoding")
        if fields[b"transfer-encoding"].lower() != b"chunked":
            raise InvalidRequest(501, "the only supported Transfer-Encoding is `chunked`")


@lru_cache(maxsize=256)  # clients name the same few hosts again and again
def _is_host(host: bytes) -> bool:
    return _HOST.fullmatch(host) is not None


def _origin_form(target: bytes, host: bytes | None) -> bytes:
    """Return the path of `http://host/path` for our own host; refuse every other form."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or b"#" in target:
        raise InvalidRequest(400, "the request's target is not a path")
    authority, path = absolute.groups()
    if host is None or authority.lower() != host.lower():
        raise InvalidRequest(400, "the request's target names another host than its Host header")
    if path.startswith(b"/"):
        return path
    return b"/" + path


_OFFER = frozenset((b"connection", b"upgrade", b"http2-settings"))
_BODILESS = frozenset((204, 304))


@dataclass(slots=True)
class HeldBodies:
    """The bytes of all bodies that one server holds."""

    limit: int
    bytes: int = 0

    def too_large(self) -> InvalidRequest:
        message = f"the bodies of the requests in progress exceed {self.limit} bytes together"
        return InvalidRequest(503, f"{message}; try again in 1 s", code="too_many_bytes")


class RequestConnection(Protocol):
    """The connection a request came on."""

    def send(self, request: ServerRequest, data: bytes) -> None: ...
    def finished(self, request: ServerRequest) -> None: ...
    def abort(self) -> None: ...


class ServerRequest(msgspec.Struct, eq=False):
    """One request and the means to answer it. Exactly one of `respond` or `start`…`finish` is
    called.

    `on_gone` is called once if the client leaves before the answer is complete; writes after that
    are dropped. `on_pause` and `on_resume` tell that the client reads slower than we write."""

    carrier: RequestConnection
    method: bytes
    target: bytes  # in origin form: begins with a slash
    headers: Headers  # names in lower case
    memo: HeadMemo = msgspec.field(default_factory=HeadMemo)
    bodies: HeldBodies | None = None
    body: bytes = b""
    counted: int = 0  # bytes of its body among those held
    version: str = "1.1"
    keep_alive: bool = True
    on_gone: Callable[[], object] | None = None
    on_pause: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None
    extra: Headers | None = None  # headers for any answer, whoever gives it
    chunked: bool = False
    started: bool = False  # the answer has begun: it can be finished or cut, not replaced
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
        """Count so much of its body among what is held; return whether all bodies together are
        small enough.
        """
        if self.bodies is None:
            return True
        self.bodies.bytes += size - self.counted
        self.counted = size
        return self.bodies.bytes <= self.bodies.limit

    def drop_body(self) -> None:
        """Forget the body, which nobody needs any more. Repeats have no effect."""
        self.body = b""
        self.uncount_body()

    def uncount_body(self) -> None:
        if self.counted and self.bodies is not None:
            self.bodies.bytes -= self.counted
            self.counted = 0

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        self.send_whole(status, lines_of(headers), body)
        self.carrier.finished(self)

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a whole answer; the caller tells the carrier that it is finished.

        `lines` are headers, each with its line end.
        """
        head = self._head(status, lines, len(body))
        self.carrier.send(self, head if self._mute else head + body)
        self._done = True

    def start(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], length: int | None
    ) -> None:
        self.start_with(status, lines_of(headers), length)

    def start_with(self, status: int, lines: bytes, length: int | None) -> None:
        """Send the head: with a length, together with the first bytes of the body; else at once.

        A body without a length goes out in chunks, with HTTP/1.0 until the connection is closed.
        `lines` are headers, each with its line end."""
        head = self._head(status, lines, length)
        if length and not self._mute:
            self._held = head
        else:
            self.carrier.send(self, head)

    @property
    def takes_chunks(self) -> bool:
        """Return whether whole chunks may be handed to its carrier as they are."""
        return self.chunked and not self._mute

    def write(self, data: bytes) -> None:
        if not data or self._mute:
            return
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self._held:
            data = self._held + data
            self._held = b""
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
        return b"".join((STATUS_LINES[status], lines, framing, b"\r\n"))


Handler = Callable[[ServerRequest], None]


def size_of(request: ServerRequest) -> int:
    """Return what a request that waits takes up."""
    return (
        len(request.body)
        + len(request.target)
        + sum(len(name) + len(value) for name, value in request.headers)
    )


def head_without_offer(request: ServerRequest) -> bytes:
    """Return the head again, without its offer to speak another protocol (h2c, from `curl --http2`
    or Java).
    """
    headers = [field for field in request.headers if field[0] not in _OFFER]
    headers.append((b"connection", b"keep-alive" if request.keep_alive else b"close"))
    first = (request.method, request.target, request.version.encode())
    return b"%b %b HTTP/%b\r\n%b\r\n" % (*first, lines_of(headers))
