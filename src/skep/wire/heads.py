"""Request and response heads as bytes, and the chunks of a body. Knows the syntax of HTTP/1.1;
does no I/O.

Heads that were read before are kept: peers send the same head again and again, but for the length
of the body. A head is looked up by its own bytes with the digits of its Content-Length cut out, so
it means what it meant when the parser read it. Only heads without any other framing than a
Content-Length are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from skep.errors import UserError

Headers = list[tuple[bytes, bytes]]

# Names that belong to one connection and never pass a proxy (RFC 9110, 7.6.1).
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES = {
    n: f"HTTP/1.1 {n} {_PHRASES.get(n, 'Status')}\r\n".encode() for n in range(100, 1000)
}


class Origin(msgspec.Struct, frozen=True):
    """Where a server listens: scheme, host and port of a URL."""

    host: str
    port: int
    tls: bool = False

    @property
    def authority(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode()

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority.decode()}"


@dataclass(slots=True)
class HeadMemo:
    """Holds what somebody worked out from a head, for the next head of the same bytes."""

    note: Any = None


class ResponseHead(msgspec.Struct):
    """The head of an answer. Nobody changes it; it is not frozen because one is made for every
    answer.
    """

    status: int
    headers: Headers = msgspec.field(default_factory=list)  # names in lower case
    # Of the body; None: until the last chunk or the end of the connection.
    length: int | None = None
    memo: HeadMemo = msgspec.field(default_factory=HeadMemo)

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def ends_with_connection(self) -> bool:
        """Return whether nothing else says where the body ends."""
        if self.length is not None:
            return False
        return b"chunked" not in (self.get(b"transfer-encoding") or b"").lower()


def parse_url(url: str, *, name: str = "--url") -> tuple[Origin, str]:
    """Return the origin and the path of a URL: of `http://host:8000/v1/` the path `/v1`."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts = urlsplit("")
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"{name} `{url}` is not an http(s) URL", hint="write it as http://127.0.0.1:8400"
        )
    tls = parts.scheme == "https"
    if not port:
        port = 443 if tls else 80
    return Origin(parts.hostname, port, tls), parts.path.rstrip("/")


def lines_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return headers as they stand in a head, each with its line end."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def gateway_fields(header: bytes | str | None) -> dict[str, str]:
    """Return the fields of `x-skep`, by which skep's gateway tells the request's `id`, and of an
    answer its `replica` and `queue-ms`.
    """
    if isinstance(header, bytes):
        text = header.decode("latin-1")
    else:
        text = header or ""
    pairs = [part.partition("=") for part in text.split("; ")]
    return {name: value for name, _, value in pairs}


T = TypeVar("T")

HEADS_KEPT = 512  # kept at most; then all are forgotten
HEAD_BYTES = 4096  # longer ones are not kept
LENGTH_DIGITS = 9

_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?(0|[1-9][0-9]{0,8})\r\n")


@dataclass(slots=True, eq=False)
class CachedHead(Generic[T]):
    """A head: the bytes before and behind the digits of its Content-Length, and what it is."""

    before: bytes
    behind: bytes
    value: T


class HeadCache(Generic[T]):
    """Finds what a head means by its bytes, whatever the length of the body behind it."""

    def __init__(self) -> None:
        self._cached: dict[tuple[bytes, bytes], CachedHead[T]] = {}

    def __len__(self) -> int:
        return len(self._cached)

    def find(
        self, data: bytes, last: CachedHead[T] | None
    ) -> tuple[CachedHead[T], int, int] | None:
        """Return the known head that `data` begins with, where its body begins, how long it is.

        `last`: tried first.
        """
        if last is not None and data.startswith(last.before):
            at = len(last.before)
            end = data.find(b"\r", at, at + LENGTH_DIGITS + 1)
            digits = data[at:end]
            if data.startswith(last.behind, end) and digits.isdigit():
                return last, end + len(last.behind), int(digits)
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES)
        if end < 0:
            return None
        length = _LENGTH.search(data, 0, end + 2)
        if length is None:
            return None
        at, behind = length.span(1)
        cached = self._cached.get((data[:at], data[behind : end + 4]))
        if cached is None:
            return None
        return (cached, end + 4, int(length[1]))

    def keep(self, data: bytes, value: T | None) -> None:
        """Keep what the head that `data` begins with means, as the parser read it; None: nothing.

        The caller vouches for its framing.
        """
        if value is None:
            return
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES)
        if end < 0:
            return
        length = _LENGTH.search(data, 0, end + 2)
        if length is None:
            return
        if len(self._cached) >= HEADS_KEPT:
            self._cached.clear()
        before = data[: length.start(1)]
        behind = data[length.end(1) : end + 4]
        self._cached[before, behind] = CachedHead(before, behind, value)


@dataclass(slots=True)
class RequestHead:
    method: bytes
    target: bytes
    headers: Headers
    memo: HeadMemo


class PartialBody:
    """A body of known length that comes in several reads.

    `missing` below zero: more came than belongs to it.
    """

    __slots__ = ("_length", "_parts", "missing")

    def __init__(self, first: memoryview, missing: int) -> None:
        self._parts = [first]
        self._length = len(first) + missing
        self.missing = missing

    @property
    def size(self) -> int:
        """Return how many bytes of the body are there."""
        return self._length - max(0, self.missing)

    def add(self, data: bytes) -> None:
        self._parts.append(memoryview(data))
        self.missing -= len(data)

    def body(self) -> bytes:
        if self.missing < 0:
            self._parts[-1] = self._parts[-1][: self.missing]
        return b"".join(self._parts)


SIZE_DIGITS = 8
SHORT_CHUNK = 2048  # longer ones are measured


def _frame_chunks() -> tuple[list[bytes], list[int]]:
    """Return by the length of a whole chunk with its framing its first line, and how many bytes of
    a body it carries.
    """
    lines = [b" " * SHORT_CHUNK] * SHORT_CHUNK  # where no chunk has that length, nothing begins so
    carried = [0] * SHORT_CHUNK
    for size in range(1, SHORT_CHUNK):
        line = b"%x\r\n" % size
        if (whole := len(line) + size + 2) < SHORT_CHUNK:
            lines[whole] = line
            carried[whole] = size
    return lines, carried


SIZE_LINES, CARRIED = _frame_chunks()


def chunked_body_size(data: bytes) -> int:
    """Return how many bytes of body the chunks carry, if `data` is one or more whole ones and none
    is the last; else 0.
    """
    length = len(data)
    if length < SHORT_CHUNK and data.startswith(SIZE_LINES[length]) and data.endswith(b"\r\n"):
        return CARRIED[length]  # one chunk, as nearly always
    return _sum_chunks(data)


def _sum_chunks(data: bytes) -> int:
    carried = 0
    at = 0
    total = len(data)
    while at < total:
        line = data.find(b"\r\n", at, at + SIZE_DIGITS + 2)
        digits = data[at:line]
        if line <= at or not digits.isalnum():
            return 0
        try:
            size = int(digits, 16)
        except ValueError:
            return 0
        at = line + size + 4
        if not size or at > total or data[at - 2 : at] != b"\r\n" or digits[1:2] in (b"x", b"X"):
            return 0
        carried += size
    return carried


def strip_chunk_headers(data: bytes) -> bytes:
    """Return the bytes of body that chunks carry. `data` has passed `chunked_body_size`."""
    parts = []
    at = 0
    while at < len(data):
        line = data.index(b"\r\n", at)
        size = int(data[at:line], 16)
        parts.append(data[line + 2 : line + 2 + size])
        at = line + size + 4
    return b"".join(parts)
