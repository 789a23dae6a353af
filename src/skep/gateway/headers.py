"""One pass over a request's headers: what is the gateway's own, what goes on to the replica, what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from skep.wire.heads import HOP_BY_HOP
from skep.wire.incoming import Incoming

KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
_OWN = b"x-skep-"
_REWRITTEN = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_HARMLESS = frozenset((b"close", b"keep-alive"))  # what `Connection` nearly always says


def is_preflight(request: Incoming) -> bool:
    """A browser asks whether a page may call."""
    return request.method == b"OPTIONS" and request.get(b"access-control-request-method") is not None


def host_of(host: bytes) -> str:
    """The name in a `Host` header, without its port and brackets."""
    name = host.decode("latin-1").lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


@dataclass(slots=True)
class Sorted:
    lines: bytes  # for the replica, each with its line end
    own: dict[bytes, bytes] = field(default_factory=dict)  # x-skep-…, without that prefix
    origin: bytes | None = None
    content_type: bytes = b""


def sort_headers(headers: Sequence[tuple[bytes, bytes]], *, hide_keys: bool) -> Sorted:
    """`hide_keys`: the keys are the gateway's and stay here. Otherwise they are the replica's and go on.

    Names are lower case, values without CR, LF and NUL: the server sees to that. What a `Connection` names is still
    read here, it only does not go on: a client must not talk its way past the check of its origin.
    """
    lines: list[bytes] = []
    found = Sorted(b"")
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection" and value.lower() not in _HARMLESS:
            named |= {token.strip().lower() for token in value.split(b",")}
    for name, value in headers:
        if name in _REWRITTEN:
            continue
        if name.startswith(_OWN):
            found.own[name[len(_OWN) :]] = value
            continue
        if hide_keys and name in KEY_HEADERS:
            continue
        if name == b"content-type":
            found.content_type = value
        elif name == b"origin":
            found.origin = value
            continue  # the gateway has decided; engines answer an origin with leave of their own
        if name not in named:
            lines.append(b"%b: %b\r\n" % (name, value))
    found.lines = b"".join(lines)
    return found
