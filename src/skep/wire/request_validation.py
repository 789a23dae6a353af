"""What a request must be, beyond what the parser insists on. Pure functions; each refusal names its status.

llhttp refuses by itself: bare CR or LF at line ends, folded lines, control bytes, spaces around names, doubled, signed,
hexadecimal or overflowing lengths, a length beside a transfer coding, anything after `chunked`. It lets pass: missing
or doubled Host, HTTP/0.9 and 2.0, codings before `chunked`, chunks on HTTP/1.0, fragments, methods of other protocols,
heads and chunk extensions without end. tests/wire/test_server_hardening.py holds both lists against the real server.

Tolerated, as they hide nothing: blank lines before a request, several spaces in its first line, `RTSP/1.0` for
`HTTP/1.0`.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from skep.wire.heads import Headers, response_bytes
from skep.wire.limits import HeldBodies, ServerLimits

METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))

# Twice the same of these could be read differently by whoever stands before or behind us.
_SINGLE = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"authorization"))
_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_ABSOLUTE = re.compile(rb"https?://([^/?]+)(.*)", re.IGNORECASE | re.DOTALL)
_MAX_LENGTH_DIGITS = 19


class InvalidRequest(Exception):
    """The request is answered with this status and the connection closed.

    `answer`: headers and body of the answer, where the handler's side has made them.
    """

    def __init__(
        self, status: int, message: str, *, code: str = "bad_request", answer: tuple[Headers, bytes] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.answer = answer


def refusal_bytes(refusal: InvalidRequest) -> bytes:
    headers, body = refusal.answer or _own_answer(refusal)
    fields = [*headers, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    return response_bytes(refusal.status, fields) + body


def _own_answer(refusal: InvalidRequest) -> tuple[Headers, bytes]:
    ours = refusal.status >= 500 and refusal.status != 501
    kind = "server_error" if ours else "invalid_request_error"
    error = {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}
    headers = [(b"content-type", b"application/json"), *([(b"retry-after", b"1")] if ours else [])]
    return headers, json.dumps({"error": error, "source": "gateway"}).encode()


def check_head(
    method: bytes, target: bytes, version: str, headers: Headers, fields: dict[bytes, bytes], limits: ServerLimits
) -> bytes:
    """Raise Refusal, or return the target in origin form. `fields` is `dict(headers)`."""
    if version not in ("1.1", "1.0"):
        raise InvalidRequest(400, f"HTTP/1.1 is spoken here, not HTTP/{version}")
    if method not in METHODS:
        raise InvalidRequest(501, f"the method {method.decode('latin-1')} is not supported")
    if len(fields) != len(headers):
        _check_doubled(headers)
    host = fields.get(b"host")
    if host is None:
        if version == "1.1":
            raise InvalidRequest(400, "a Host header is needed")
    elif not _is_host(host):
        raise InvalidRequest(400, "the Host header names no host")
    if target[:1] != b"/" or b"#" in target:
        target = _origin_form(target, host)
    length = fields.get(b"content-length")
    if length is not None:
        _check_length(length, limits)
    elif b"transfer-encoding" in fields:
        _check_coding(fields[b"transfer-encoding"], version)
    if b"expect" in fields and version == "1.1" and fields[b"expect"].lower() != b"100-continue":
        raise InvalidRequest(417, "the only expectation met here is 100-continue")
    return target


def check_head_size(target: bytes, headers: Headers, limits: ServerLimits) -> None:
    if len(headers) > limits.headers:
        raise InvalidRequest(431, f"the request has more than {limits.headers} headers")
    if len(target) + sum(len(name) + len(value) + 4 for name, value in headers) > limits.head_bytes:
        raise head_too_large(limits)


def head_too_large(limits: ServerLimits) -> InvalidRequest:
    return InvalidRequest(431, f"the request's head is larger than {limits.head_bytes} bytes")


def body_too_large(limits: ServerLimits) -> InvalidRequest:
    return InvalidRequest(
        413, f"the body is larger than {limits.body_bytes} bytes; `body_limit` in skep.toml raises it"
    )


def bodies_too_large(bodies: HeldBodies) -> InvalidRequest:
    message = f"the bodies of the requests under way are larger than {bodies.limit} bytes together; try again in 1 s"
    return InvalidRequest(503, message, code="too_many_bytes")


@lru_cache(maxsize=256)  # clients name the same few hosts again and again
def _is_host(host: bytes) -> bool:
    return _HOST.fullmatch(host) is not None


def _check_doubled(headers: Headers) -> None:
    seen = set()
    for name, _ in headers:
        if name in _SINGLE and name in seen:
            raise InvalidRequest(400, f"the header {name.decode('latin-1')} came twice")
        seen.add(name)


def _origin_form(target: bytes, host: bytes | None) -> bytes:
    """`http://host/path` for our own host is `/path`; every other form is refused."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or b"#" in target:
        raise InvalidRequest(400, "the request's target is not a path")
    authority, path = absolute.groups()
    if host is None or authority.lower() != host.lower():
        raise InvalidRequest(400, "the request's target names another host than its Host header")
    return path if path.startswith(b"/") else b"/" + path


def _check_length(length: bytes, limits: ServerLimits) -> None:
    if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        raise InvalidRequest(400, "the Content-Length is not a plain number")
    if int(length) > limits.body_bytes:
        raise body_too_large(limits)


def _check_coding(coding: bytes, version: str) -> None:
    if version == "1.0":
        raise InvalidRequest(400, "HTTP/1.0 knows no Transfer-Encoding")
    if coding.lower() != b"chunked":
        raise InvalidRequest(501, "the only Transfer-Encoding understood here is `chunked`")
