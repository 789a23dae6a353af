"""What a request's head says, worked out once, as clients send the same head again and again.

Knows paths, headers and what clients bear; knows nothing of bodies, replicas and queues."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import msgspec

from skep.config.keys import PRIORITIES, KeySpec, Priority, class_for
from skep.errors import UserError
from skep.gateway.error_format import RequestRefused, owners_path
from skep.gateway.session_names import (
    NAMING_HEADERS,
    agent_of_headers,
    session_flow,
    session_of_headers,
)
from skep.units import parse_seconds
from skep.wire.heads import HOP_BY_HOP, Headers
from skep.wire.server_request import ServerRequest

_POLICY = tomllib.loads(Path(__file__).with_name("policy.toml").read_text(encoding="utf-8"))
LIGHT, FOR_CLIENTS, STREAM_PATHS = (
    frozenset(_POLICY["paths"][name]) for name in ("light", "for_clients", "streams")
)
ADMIN_PATHS = tuple(_POLICY["paths"]["admin"])
COMMENT_PATHS = frozenset(_POLICY["paths"]["comments"])
LATE_COMMENT_PATHS = frozenset(_POLICY["paths"]["late_comments"])
CONTEXT_PATHS = frozenset(_POLICY["paths"]["context"])

RESPONSES = "/v1/responses/"  # what is stored of one, and its end
# Engines differ in what they make of these.
AMBIGUOUS_PATH = re.compile(r"\.\.|/\.(?:/|$)|//|\\|%2f|%5c|%2e|%25|;", re.IGNORECASE)
BATCH_FLOW = "batch"  # of batches without a key
AMBIGUOUS_NAMES = "`.` and `..` as parts, `//`, `;`, backslashes and their %-forms"


@dataclass(slots=True)
class RequestPlan:
    """Everything about a request but its body.

    `rules` is the policy under which the plan was made: when that changes, the plan is stale.
    """

    rules: object
    path: str
    lines: bytes  # of the head for a replica: all headers but the host's and the body's length
    key: KeySpec | None
    priority: Priority
    flow: str
    session: int | None = None  # the digest of the session that the headers name
    agent: int | None = None  # the digest of the agent inside of it
    patience_s: float | None = None  # what its client bears without an answer; None: not known
    heeds_comments: bool = True  # its client holds out longer when it gets comments
    model: str | None = None  # by header
    max_wait_s: float | None = None
    form: bool = False  # the body is a multipart form
    may_be_other: bool = False  # the body need not be JSON
    cross_origin: Headers | None = None  # headers for a web page that may call
    light: bool = False
    for_clients: bool = True  # an engine that skep started may be asked for this path
    lengthy: bool = True  # a body's length is told even if there is none
    # For each replica, up to the length of the body.
    heads: dict[str, bytes] = field(default_factory=dict)


def make_plan(
    rules: object, request: ServerRequest, headers: SortedHeaders, key: KeySpec | None, flow: str
) -> RequestPlan:
    """Return the plan of a request. Raises RequestRefused.

    `flow`: the key's own, where several keys share fairly.
    """
    method = request.method
    path = request.path
    require_path(method, path)
    skep_headers = {
        name: value.decode("utf-8", "replace") for name, value in headers.skep_headers.items()
    }
    priority, max_wait_s = _priority_and_wait(key, skep_headers)
    if headers.encoding not in (b"", b"identity"):
        encoding = headers.encoding[:40].decode("latin-1")
        raise RequestRefused(
            "unsupported_encoding", f"a body in `{encoding}` is not understood; send it as it is"
        )
    kind = headers.content_type.split(b";")[0].strip().lower()
    session = session_of_headers(headers.naming)
    patience = patience_of(headers.user_agent)
    return RequestPlan(
        rules=rules,
        path=path,
        lines=headers.lines,
        key=key,
        priority=priority,
        flow=flow or skep_headers.get(b"agent", "") or flow_without_key(session, key),
        session=session,
        agent=agent_of_headers(headers.naming),
        patience_s=patience.seconds if max_wait_s is None else None,  # else the client has said it
        heeds_comments=patience.heeds_comments,
        model=skep_headers.get(b"model"),
        max_wait_s=max_wait_s,
        form=kind == b"multipart/form-data",
        may_be_other=bool(kind) and kind != b"application/json" and not kind.endswith(b"+json"),
        cross_origin=request.extra,
        light=method not in (b"POST", b"PUT", b"PATCH") or path in LIGHT,
        # As it is written: an engine takes no other spelling of these, and what it does not take
        # is refused here.
        for_clients=path in FOR_CLIENTS or path.startswith(RESPONSES),
        lengthy=method not in (b"GET", b"HEAD"),
    )


def require_path(method: bytes, path: str) -> None:
    """Raise RequestRefused for a path that engines may read in several ways, and for one that only
    the owner of an engine may ask for.
    """
    if AMBIGUOUS_PATH.search(path):
        message = f"the path {path} is ambiguous; write it without {AMBIGUOUS_NAMES}"
        raise RequestRefused("bad_request", message)
    plain = unquote(path).lower()  # however it is written: `/%73lots` is `/slots`
    changes_props = plain.startswith("/props") and method not in (b"GET", b"HEAD")
    if changes_props or plain.startswith(ADMIN_PATHS):
        raise owners_path(path)


def _priority_and_wait(
    key: KeySpec | None, skep_headers: dict[bytes, str]
) -> tuple[Priority, float | None]:
    """Return the class of a request, and how long it waits at most, where its client says so."""
    try:
        priority = PRIORITIES[class_for(key, skep_headers.get(b"priority"))]
        if b"max-wait" not in skep_headers:
            return priority, None
        return priority, parse_seconds(skep_headers[b"max-wait"][:40], key="x-skep-max-wait")
    except (ValueError, UserError) as error:
        raise RequestRefused("bad_request", str(error)) from None


def flow_without_key(session: int | None, key: KeySpec | None) -> str:
    """Return whose turn a request takes where no keys share: its session's, else that of the only
    key.
    """
    if session is not None:
        return session_flow(session)
    return key.name if key is not None else ""


class ClientTimeLimit(msgspec.Struct, frozen=True):
    """How long a client waits for an answer. `seconds` is None where it is not known."""

    seconds: float | None
    heeds_comments: bool


def patience_of(user_agent: bytes) -> ClientTimeLimit:
    name = user_agent[:40].decode("latin-1")
    for entry in _POLICY["patience"]:
        client = entry["client"]
        if name.startswith(client):
            version = version_of(name.removeprefix(client))
            first_version = version_of(entry.get("heeds_comments_from", ""))
            return ClientTimeLimit(entry["seconds"], heeds_comments=version >= first_version)
    return ClientTimeLimit(None, heeds_comments=True)


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: (2, 1, 226) of `2.1.226 (external, cli)`."""
    numbers = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}", text)
    if numbers:
        return tuple(int(number) for number in numbers[0].split("."))
    return ()


def batch_plan(rules: object, path: str, key: KeySpec | None, owner: str) -> RequestPlan:
    """Return the plan of a request that the gateway makes by itself, for a batch.

    `key`: the one whose requests it counts among.
    """
    lines = b"content-type: application/json\r\naccept: application/json\r\n"
    return RequestPlan(rules, path, lines, key, Priority.BATCH, owner or BATCH_FLOW)


KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
_OWN = b"x-skep-"
_REWRITTEN = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_HARMLESS = frozenset((b"close", b"keep-alive"))  # what `Connection` nearly always says


def is_preflight(request: ServerRequest) -> bool:
    """Return whether a browser asks if a page may call."""
    return (
        request.method == b"OPTIONS" and request.get(b"access-control-request-method") is not None
    )


def host_of(host: bytes) -> str:
    """Return the name in a `Host` header, without its port and brackets."""
    name = host.decode("latin-1").lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


@dataclass(slots=True)
class SortedHeaders:
    lines: bytes = b""  # for the replica, each with its line end
    skep_headers: dict[bytes, bytes] = field(default_factory=dict)  # x-skep-…, without that prefix
    # Those that name a session or an agent.
    naming: dict[bytes, bytes] = field(default_factory=dict)
    user_agent: bytes = b""
    encoding: bytes = b""  # of the body
    origin: bytes | None = None
    content_type: bytes = b""


def sort_headers(headers: Headers, *, hide_keys: bool) -> SortedHeaders:
    """Return the headers as a request plan needs them.

    `hide_keys`: the keys are the gateway's and stay here. Otherwise they are the replica's and go
    on.

    Names are lower case, values without CR, LF and NUL: the server sees to that. What a
    `Connection` names is still read here, it only does not go on: a client must not talk its way
    past the check of its origin."""
    lines: list[bytes] = []
    sorted_headers = SortedHeaders()
    hop_by_hop = _named_by_connection(headers)
    for name, value in headers:
        if name in _REWRITTEN:
            continue
        if name in NAMING_HEADERS:
            sorted_headers.naming[name] = value
        if name.startswith(_OWN):
            sorted_headers.skep_headers[name[len(_OWN) :]] = value
            continue
        if hide_keys and name in KEY_HEADERS:
            continue
        if name == b"content-type":
            sorted_headers.content_type = value
        elif name == b"user-agent":
            sorted_headers.user_agent = value
        elif name == b"content-encoding":
            sorted_headers.encoding = value.strip().lower()
        elif name == b"origin":
            sorted_headers.origin = value
            continue  # the gateway has decided; engines answer an origin with leave of their own
        if name not in hop_by_hop:
            lines.append(b"%b: %b\r\n" % (name, value))
    sorted_headers.lines = b"".join(lines)
    return sorted_headers


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    """Return the headers that a `Connection` names: they go no further than this hop."""
    names: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection" and value.lower() not in _HARMLESS:
            names |= {token.strip().lower() for token in value.split(b",")}
    return names
