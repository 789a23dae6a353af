"""Request and response heads as bytes. Knows the syntax of HTTP/1.1 heads; does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

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

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode()) for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Origin:
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


class HeadMemo:
    """A place for what somebody worked out from a head; it is found again with the next head of the same bytes."""

    __slots__ = ("note",)

    def __init__(self) -> None:
        self.note: Any = None


@dataclass(slots=True)
class ResponseHead:
    """Nobody changes it; it is not frozen because one is made for every answer."""

    status: int
    headers: Headers = field(default_factory=list)  # names in lower case
    length: int | None = None  # of the body; None: until the last chunk or the end of the connection
    memo: HeadMemo = field(default_factory=HeadMemo)

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def ends_with_connection(self) -> bool:
        """Nothing else says where the body ends."""
        return self.length is None and b"chunked" not in (self.get(b"transfer-encoding") or b"").lower()


def parse_url(url: str, *, name: str = "--url") -> tuple[Origin, str]:
    """`http://host:8000/v1/` → its origin and the path `/v1`."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{name} `{url}` is not an http(s) URL", hint="write it as http://127.0.0.1:8400")
    tls = parts.scheme == "https"
    return Origin(parts.hostname, port or (443 if tls else 80), tls), parts.path.rstrip("/")


def lines_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """As they stand in a head, each with its line end."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def request_bytes(
    method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], version: bytes = b"1.1"
) -> bytes:
    return _head_bytes(b"%b %b HTTP/%b" % (method, target, version), headers)


def response_bytes(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return _head_bytes(status_line(status), headers)


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status" % status


def _head_bytes(first_line: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [first_line]
    lines.extend([b": ".join(pair) for pair in headers])
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
