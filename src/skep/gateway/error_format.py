"""The gateway's own answers, in the dialect its clients know: OpenAI's or Anthropic's, told by the
path. Knows every error code, and nothing of the request but its path."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

from skep.gateway.admission_messages import Reject, RejectCode
from skep.wire.heads import Headers

JSON = (b"content-type", b"application/json")
LONGEST_NAME_TOLD = 256  # characters of a model's name that are repeated to a client

_ERRORS_FILE = Path(__file__).with_name("errors.toml")
# By code: HTTP status, OpenAI's type of error, Anthropic's.
ERRORS: dict[str, tuple[int, str, str]] = {
    code: tuple(answer)
    for code, answer in tomllib.loads(_ERRORS_FILE.read_text(encoding="utf-8")).items()
}

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
