"""What a request's head says, worked out once, as clients send the same head again and again; and
the gateway's own answers, in the dialect its clients know: OpenAI's or Anthropic's, told by the
path."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import msgspec

from skep.config.keys import PRIORITIES, KeySpec, Priority, class_for
from skep.errors import UserError
from skep.gateway.replica_table import Reject, RejectCode
from skep.gateway.session_names import (
    NAMING_HEADERS,
    agent_of_headers,
    session_flow,
    session_of_headers,
)
from skep.units import parse_seconds
from skep.wire.heads import HOP_BY_HOP, Headers
from skep.wire.server_request import ServerRequest

JSON = (b"content-type", b"application/json")
LONGEST_NAME_TOLD = 256  # characters of a model's name that are repeated to a client

_POLICY = tomllib.loads(Path(__file__).with_name("policy.toml").read_text(encoding="utf-8"))
ERRORS: dict[str, tuple[int, str, str]] = {
    code: tuple(answer) for code, answer in _POLICY["errors"].items()
}
LIGHT, FOR_CLIENTS, STREAM_PATHS = (
    frozenset(_POLICY["paths"][name]) for name in ("light", "for_clients", "streams")
)
ADMIN = tuple(_POLICY["paths"]["admin"])
COMMENT_PATHS = frozenset(_POLICY["paths"]["comments"])
LATE_COMMENT_PATHS = frozenset(_POLICY["paths"]["late_comments"])
CONTEXT_PATHS = frozenset(_POLICY["paths"]["context"])


# What the gateway answers by itself, by method and path; one that ends with a slash is for all
# below it.
HEALTH_PATHS = ("/health", "/healthz")
BATCH_ROUTES = [
    (method, f"/v1/{what}") for method in (b"GET", b"POST") for what in ("files", "batches")
]
BATCH_ROUTES += [
    (b"GET", "/v1/files/"),
    (b"DELETE", "/v1/files/"),
    (b"GET", "/v1/batches/"),
    (b"POST", "/v1/batches/"),
]
OWN_ROUTES = [(b"GET", path) for path in ("/v1/models", "/v1/models/", "/models", "/models/")]
OWN_ROUTES += [(b"GET", "/metrics"), (b"GET", "/metrics/engines"), *BATCH_ROUTES]


def answer_health(request: ServerRequest) -> None:
    request.respond(200, [JSON], b'{"status":"ok"}')


# Claude Code sends a key that was refused again for more than a minute, unless it reads this.
NO_RETRY = (b"x-should-retry", b"false")


class RequestRefused(Exception):
    """A request that comes no further than the border. `code` is one of `ERRORS`."""

    def __init__(self, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s

    def answer(self, path: str) -> tuple[int, Headers, bytes]:
        status = ERRORS[self.code][0]
        headers = retry_headers(self.retry_after_s)
        if status == 401:
            headers.append(NO_RETRY)
        return status, headers, error_body(self.code, str(self), path)


def limit_reached(key: str, code: str, retry_after_s: float | None) -> RequestRefused:
    if code == "invalid_api_key":
        state = "is no longer valid"
    else:
        state = f"has reached its limit ({code})"
    return RequestRefused(code, f"the key `{key}` {state}", retry_after_s)


def owners_path(path: str) -> RequestRefused:
    advice = "use `skep` on the machine itself, or call the engine there"
    return RequestRefused(
        "admin_path", f"clients may not request {path} from the engine; {advice}"
    )


def no_such_path(path: str) -> RequestRefused:
    usual = (
        "/v1/chat/completions, /v1/responses, /v1/messages, /v1/completions, /v1/embeddings and "
        "/v1/models"
    )
    return RequestRefused(
        "path_not_found", f"there is no {path[:LONGEST_NAME_TOLD]} here; clients use {usual}"
    )


def speaks_anthropic(path: str) -> bool:
    return path in ("/v1/messages", "/v1/complete") or path.startswith("/v1/messages/")


def error_body(code: str, message: str, path: str = "") -> bytes:
    _, openai, anthropic = ERRORS[code]
    if speaks_anthropic(path):
        document = {
            "type": "error",
            "error": {"type": anthropic, "message": message, "code": code},
        }
        return json.dumps({**document, "source": "gateway"}).encode()
    error = {"message": message, "type": openai, "param": None, "code": code}
    return json.dumps({"error": error, "source": "gateway"}).encode()


def event_of(body: bytes, path: str) -> bytes:
    """Return the last event of a stream that could not be finished.

    A blank line first: the one before may be cut.
    """
    if speaks_anthropic(path):
        return b"\n\nevent: error\ndata: " + body + b"\n\n"
    if path.startswith("/v1/responses"):
        document = json.loads(body)
        error = document["error"]
        event = {
            "type": "error",
            "code": error["code"],
            "message": error["message"],
            "param": None,
        }
        return (
            b"\n\nevent: error\ndata: "
            + json.dumps({**event, "sequence_number": 0, **document}).encode()
            + b"\n\n"
        )
    return b"\n\ndata: " + body + b"\n\n"


def rejection(
    reject: Reject, path: str, *, model: str, models: tuple[str, ...], loading: bool = False
) -> tuple[int, Headers, bytes]:
    """`loading`: it has no replica yet."""
    code = reject.code.value
    name = model[:LONGEST_NAME_TOLD]
    if reject.retry_after_s is not None:
        wait = math.ceil(reject.retry_after_s)
    else:
        wait = None
    again = f"; try again in {wait} s" if wait is not None else ""
    messages = {
        RejectCode.QUEUE_FULL: f"the queue of `{name}` is full{again}",
        RejectCode.WAIT_TOO_LONG: (
            f"a slot of `{name}` is expected to be free later than this client waits{again}"
        ),
        RejectCode.QUEUE_TIMEOUT: f"`{name}` is still being loaded{again}"
        if loading
        else f"no slot of `{name}` became free in time{again}",
        RejectCode.UNKNOWN_MODEL: (
            f"the model `{name}` is not served here; known: {', '.join(models) or 'none'}"
        ),
        RejectCode.SHUTTING_DOWN: f"the endpoint is shutting down{again}",
        RejectCode.REPLICA_LOST: f"no replica of `{name}` could be reached{again}",
        RejectCode.LOAD_FAILED: (
            f"the model `{name}` cannot be loaded: {reject.why or 'it did not start'}{again}"
        ),
    }
    return ERRORS[code][0], retry_headers(wait), error_body(code, messages[reject.code], path)


def retry_headers(wait_s: float | None) -> Headers:
    if wait_s is None:
        return [JSON]
    return [JSON, (b"retry-after", b"%d" % math.ceil(wait_s))]


RESPONSES = "/v1/responses/"  # what is stored of one, and its end
# Engines differ in what they make of these.
AMBIGUOUS = re.compile(r"\.\.|/\.(?:/|$)|//|\\|%2f|%5c|%2e|%25|;", re.IGNORECASE)
BATCH_FLOW = "batch"  # of batches without a key
AMBIGUOUS_NAMES = "`.` and `..` as parts, `//`, `;`, backslashes and their %-forms"


@dataclass(slots=True)
class RequestPlan:
    """Everything about a request but its body.

    `rules` is the policy it was made under: another one, another plan.
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
    """`flow`: the key's own, where several keys share fairly. Raises RequestRefused."""
    method = request.method
    path = request.path
    if AMBIGUOUS.search(path):
        message = f"the path {path} is ambiguous; write it without {AMBIGUOUS_NAMES}"
        raise RequestRefused("bad_request", message)
    plain = unquote(path).lower()  # however it is written: `/%73lots` is `/slots`
    if plain.startswith(ADMIN) or (plain.startswith("/props") and method not in (b"GET", b"HEAD")):
        raise owners_path(path)
    skep_headers = {
        name: value.decode("utf-8", "replace") for name, value in headers.skep_headers.items()
    }
    try:
        priority = PRIORITIES[class_for(key, skep_headers.get(b"priority"))]
        if b"max-wait" in skep_headers:
            max_wait_s = parse_seconds(skep_headers[b"max-wait"][:40], key="x-skep-max-wait")
        else:
            max_wait_s = None
    except (ValueError, UserError) as error:
        raise RequestRefused("bad_request", str(error)) from None
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
        seconds = entry["seconds"]
        if not name.startswith(client):
            continue
        first = entry.get("heeds_comments_from", "")
        return ClientTimeLimit(seconds, version_of(name.removeprefix(client)) >= version_of(first))
    return ClientTimeLimit(None, heeds_comments=True)


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: (2, 1, 226) of `2.1.226 (external, cli)`."""
    numbers = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}", text)
    if numbers:
        return tuple(int(number) for number in numbers[0].split("."))
    return ()


def batch_plan(rules: object, path: str, key: KeySpec | None, owner: str) -> RequestPlan:
    """Of a request that the gateway makes by itself, for a batch.

    `key`: the one whose requests it counts among.
    """
    lines = b"content-type: application/json\r\naccept: application/json\r\n"
    return RequestPlan(rules, path, lines, key, Priority.BATCH, owner or BATCH_FLOW)


KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
_OWN = b"x-skep-"
_REWRITTEN = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_HARMLESS = frozenset((b"close", b"keep-alive"))  # what `Connection` nearly always says


def is_preflight(request: ServerRequest) -> bool:
    """A browser asks whether a page may call."""
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
    """`hide_keys`: the keys are the gateway's and stay here. Otherwise they are the replica's and
    go on.

    Names are lower case, values without CR, LF and NUL: the server sees to that. What a
    `Connection` names is still read here, it only does not go on: a client must not talk its way
    past the check of its origin."""
    lines: list[bytes] = []
    sorted_headers = SortedHeaders()
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection" and value.lower() not in _HARMLESS:
            named |= {token.strip().lower() for token in value.split(b",")}
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
        if name not in named:
            lines.append(b"%b: %b\r\n" % (name, value))
    sorted_headers.lines = b"".join(lines)
    return sorted_headers
