"""The gateway's own answers, in the dialect its clients know: OpenAI's or Anthropic's, told by the path."""

from __future__ import annotations

import json
import math

from skep.gateway.queue import Reject, RejectCode
from skep.wire.heads import Headers

JSON = (b"content-type", b"application/json")
LONGEST_NAME = 256  # characters of a model's name that are repeated to a client

# Every code the gateway answers with: HTTP status, OpenAI error type, Anthropic error type. docs/errors.md has a
# heading for each.
ERRORS: dict[str, tuple[int, str, str]] = {
    "queue_full": (429, "rate_limit_error", "rate_limit_error"),
    "queue_timeout": (503, "server_error", "overloaded_error"),
    "rate_limited": (429, "rate_limit_error", "rate_limit_error"),
    "too_many_requests_of_key": (429, "rate_limit_error", "rate_limit_error"),
    "too_many_connections": (503, "server_error", "overloaded_error"),
    "too_many_bytes": (503, "server_error", "overloaded_error"),
    "model_not_found": (404, "invalid_request_error", "not_found_error"),
    "model_load_failed": (503, "server_error", "overloaded_error"),
    "engine_refused": (502, "server_error", "api_error"),
    "shutting_down": (503, "server_error", "overloaded_error"),
    "replica_lost": (502, "server_error", "api_error"),
    "replica_timeout": (504, "server_error", "timeout_error"),
    "stream_cut": (502, "server_error", "api_error"),
    "bad_request": (400, "invalid_request_error", "invalid_request_error"),
    "admin_path": (403, "invalid_request_error", "permission_error"),
    "origin_refused": (403, "invalid_request_error", "permission_error"),
    "host_refused": (403, "invalid_request_error", "permission_error"),
    "invalid_api_key": (401, "invalid_request_error", "authentication_error"),
}


class RequestRefused(Exception):
    """A request that comes no further than the border. `code` is one of `ERRORS`."""

    def __init__(self, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


def limit_reached(key: str, code: str, retry_after_s: float | None) -> RequestRefused:
    return RequestRefused(code, f"the key `{key}` has reached its limit ({code})", retry_after_s)


def owners_path(path: str) -> RequestRefused:
    advice = "use `skep` on the machine itself, or call the engine there"
    return RequestRefused("admin_path", f"clients may not request {path} from the engine; {advice}")


def speaks_anthropic(path: str) -> bool:
    return path in ("/v1/messages", "/v1/complete") or path.startswith("/v1/messages/")


def error_body(code: str, message: str, path: str = "") -> bytes:
    _, openai, anthropic = ERRORS[code]
    if speaks_anthropic(path):
        said = {"type": "error", "error": {"type": anthropic, "message": message, "code": code}}
        return json.dumps({**said, "source": "gateway"}).encode()
    error = {"message": message, "type": openai, "param": None, "code": code}
    return json.dumps({"error": error, "source": "gateway"}).encode()


def error_event(code: str, message: str, path: str = "") -> bytes:
    """The last event of a stream that could not be finished. A blank line first: the event before may be cut short."""
    return event_of(error_body(code, message, path), path)


def event_of(body: bytes, path: str) -> bytes:
    """Return the same for an error body that is there already."""
    if speaks_anthropic(path):
        return b"\n\nevent: error\ndata: " + body + b"\n\n"
    if path.startswith("/v1/responses"):
        document = json.loads(body)
        error = document["error"]
        said = {"type": "error", "code": error["code"], "message": error["message"], "param": None}
        return b"\n\nevent: error\ndata: " + json.dumps({**said, "sequence_number": 0, **document}).encode() + b"\n\n"
    return b"\n\ndata: " + body + b"\n\n"


def rejection(
    reject: Reject, path: str, *, model: str, models: tuple[str, ...], loading: bool = False
) -> tuple[int, Headers, bytes]:
    """`loading`: it has no replica yet."""
    code, name = reject.code.value, model[:LONGEST_NAME]
    wait = math.ceil(reject.retry_after_s) if reject.retry_after_s is not None else None
    again = f"; try again in {wait} s" if wait is not None else ""
    messages = {
        RejectCode.QUEUE_FULL: f"the queue of `{name}` is full{again}",
        RejectCode.QUEUE_TIMEOUT: f"`{name}` is still being loaded{again}"
        if loading
        else f"no slot of `{name}` became free in time{again}",
        RejectCode.UNKNOWN_MODEL: f"the model `{name}` is not served here; known: {', '.join(models) or 'none'}",
        RejectCode.SHUTTING_DOWN: f"the endpoint is shutting down{again}",
        RejectCode.REPLICA_LOST: f"no replica of `{name}` could be reached{again}",
        RejectCode.LOAD_FAILED: f"the model `{name}` cannot be loaded: {reject.why or 'it did not start'}{again}",
    }
    return ERRORS[code][0], retry_headers(wait), error_body(code, messages[reject.code], path)


def retry_headers(wait_s: float | None) -> Headers:
    return [JSON] if wait_s is None else [JSON, (b"retry-after", b"%d" % math.ceil(wait_s))]
