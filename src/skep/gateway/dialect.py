"""The gateway's own answers, in the dialect its clients know: OpenAI-shaped errors with a stable code."""

from __future__ import annotations

import json
import math

from skep.gateway.admission import Reject, RejectCode

JSON = (b"content-type", b"application/json")

# Every code the gateway answers with, its HTTP status and OpenAI error type. docs/errors.md has a heading for each.
ERRORS: dict[str, tuple[int, str]] = {
    "queue_full": (429, "rate_limit_error"),
    "queue_timeout": (503, "server_error"),
    "model_not_found": (404, "invalid_request_error"),
    "shutting_down": (503, "server_error"),
    "replica_lost": (502, "server_error"),
    "stream_cut": (502, "server_error"),
    "bad_request": (400, "invalid_request_error"),
    "not_found": (404, "invalid_request_error"),
    "invalid_api_key": (401, "invalid_request_error"),
}


def error_body(code: str, message: str) -> bytes:
    _, kind = ERRORS[code]
    error = {"message": message, "type": kind, "param": None, "code": code}
    return json.dumps({"error": error, "source": "gateway"}).encode()


def error_event(code: str, message: str) -> bytes:
    """The last event of a stream that could not be finished."""
    return b"data: " + error_body(code, message) + b"\n\n"


def rejection(reject: Reject, *, model: str, models: tuple[str, ...]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    code = reject.code.value
    wait = math.ceil(reject.retry_after_s) if reject.retry_after_s is not None else None
    messages = {
        RejectCode.QUEUE_FULL: f"the queue of `{model}` is full; try again in {wait} s",
        RejectCode.QUEUE_TIMEOUT: f"no slot of `{model}` became free in time; try again in {wait} s",
        RejectCode.UNKNOWN_MODEL: f"the model `{model}` is not served here; known: {', '.join(models) or 'none'}",
        RejectCode.SHUTTING_DOWN: "the endpoint is shutting down",
        RejectCode.REPLICA_LOST: f"no replica of `{model}` could be reached; try again in {wait} s",
    }
    headers = [JSON] if wait is None else [JSON, (b"retry-after", b"%d" % wait)]
    return ERRORS[code][0], headers, error_body(code, messages[reject.code])
