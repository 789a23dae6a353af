"""Files and batches as their clients see them, and what a client may say when it makes one. Pure; no I/O, no clock.

The shapes are OpenAI's: https://platform.openai.com/docs/api-reference/batch and /files.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skep.gateway.batch.store import BatchCounts, BatchStatus, StoredBatch, StoredFile

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")  # those a client may name
BATCH_FILE_S = 30 * 86_400  # a file for batches goes after so long unless its client says otherwise
SHORTEST_EXPIRY_S, LONGEST_EXPIRY_S = 3600, 30 * 86_400
LONGEST_WINDOW_S = 86_400
MOST_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([hms])")
_UNITS = {"h": 3600, "m": 60, "s": 1}


class BatchApiError(Exception):
    """The answer to a request that cannot be met."""

    def __init__(self, status: int, message: str, *, code: str = "bad_request", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


_Metadata = dict[Annotated[str, Meta(max_length=LONGEST_KEY)], Annotated[str, Meta(max_length=LONGEST_VALUE)]]


class BatchSpec(msgspec.Struct, frozen=True):
    """A batch as its client asks for it."""

    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: Annotated[_Metadata, Meta(max_length=MOST_METADATA)] | None = None
    output_expires_after: Any = None

    @property
    def window_s(self) -> int:
        return window_seconds(self.completion_window)

    @property
    def output_expires_s(self) -> int | None:
        return expiry_seconds(self.output_expires_after, "output_expires_after")


def refusal_body(refusal: BatchApiError) -> bytes:
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    error = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
    return json.dumps({"error": error, "source": "gateway"}).encode()


def no_such(kind: str, name: str, param: str = "id") -> BatchApiError:
    """`kind`: "File" or "Batch". The same words for one that was never there and for one of another key."""
    return BatchApiError(
        404 if param == "id" else 400, f"No such {kind} object: {name[:64]}", code="not_found", param=param
    )


def file_document(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": _whole(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_document(batch: StoredBatch) -> dict[str, Any]:
    order, times, detail = batch.order, batch.times, batch.detail
    faults = detail.get("errors")
    return {
        "id": order.id,
        "object": "batch",
        "endpoint": order.endpoint,
        "model": detail.get("model"),
        "errors": None if faults is None else {"object": "list", "data": faults},
        "input_file_id": order.input_file_id,
        "completion_window": order.completion_window,
        "status": batch.status.value,
        "output_file_id": detail.get("output_file_id"),
        "error_file_id": detail.get("error_file_id"),
        "created_at": int(order.created_at),
        "expires_at": int(order.expires_at),
        **{f"{status}_at": _whole(times.get(status)) for status in BatchStatus if status is not BatchStatus.VALIDATING},
        "request_counts": {
            "total": detail.get("total", 0),
            "completed": batch.tally.completed,
            "failed": batch.tally.failed,
        },
        "usage": _usage(batch.tally) if batch.status.is_final else None,
        "metadata": None if order.metadata is None else dict(order.metadata),
    }


def page(documents: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    first, last = (documents[0]["id"], documents[-1]["id"]) if documents else (None, None)
    return {"object": "list", "data": documents, "first_id": first, "last_id": last, "has_more": more}


def parse_batch_spec(body: bytes) -> BatchSpec:
    """Return what a client says when it makes a batch. Raises BatchApiError."""
    try:
        spec = msgspec.json.decode(body, type=BatchSpec)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        param = next((name for name in BatchSpec.__struct_fields__ if name in str(error)), None)
        raise BatchApiError(400, f"the body is no order for a batch: {error}", param=param) from None
    if spec.endpoint not in ENDPOINTS:
        message = f"the endpoint `{spec.endpoint[:64]}` takes no batches; {', '.join(ENDPOINTS)} do"
        raise BatchApiError(400, message, param="endpoint")
    return spec


def window_seconds(window: str) -> int:
    """`24h` is what OpenAI takes; shorter ones are taken here too."""
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_WINDOW_S:
        message = f"the completion_window `{window[:32]}` is none of `24h` and shorter ones like `90m`"
        raise BatchApiError(400, message, param="completion_window")
    return seconds


def expiry_seconds(told: Any, param: str) -> int | None:
    """Of {"anchor": "created_at", "seconds": 3600}."""
    if told is None:
        return None
    if not isinstance(told, dict) or told.get("anchor") != "created_at":
        raise BatchApiError(400, f'`{param}` wants {{"anchor": "created_at", "seconds": …}}', param=param)
    seconds = told.get("seconds")
    if type(seconds) is not int or not SHORTEST_EXPIRY_S <= seconds <= LONGEST_EXPIRY_S:
        message = f"`{param}[seconds]` is a whole number from {SHORTEST_EXPIRY_S} to {LONGEST_EXPIRY_S}"
        raise BatchApiError(400, message, param=f"{param}[seconds]")
    return seconds


def _usage(tally: BatchCounts) -> dict[str, Any] | None:
    """None: no answer told its tokens. Details that were never told are given as 0, for clients expect a number."""
    if tally.prompt_tokens is None and tally.output_tokens is None:
        return None
    prompt, output = tally.prompt_tokens or 0, tally.output_tokens or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens or 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens or 0},
        "total_tokens": prompt + output,
    }


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)
