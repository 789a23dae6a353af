"""An engine's words about a prompt that is too long, in the words that agents' clients know.

Claude Code knows "prompt is too long: N tokens > M maximum" (`claude -p` 2.1.327 compacts at it,
2.1.197 ended), and asks for a shorter answer when it reads "input length and `max_tokens` exceed
context limit: N + A > M". Clients of OpenAI's API look for the code `context_length_exceeded`.
Everything else of the answer stays as the engine said it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from skep.wire.openai import json_object, message_of

ERROR_CODE = "context_length_exceeded"
# With which engines say so; vLLM says 500 on /v1/messages.
ENGINE_STATUSES = frozenset((400, 413, 422, 500))
ERROR_STATUS = 400  # with which clients hear of it
LONGEST_MESSAGE = 4000  # characters of an engine's words that are looked at
_ABOUT_CONTEXT = re.compile(
    r"context (?:length|size|window)|maximum model length|max_model_len|exceed_context_size",
    re.IGNORECASE,
)
_MAXIMUM = re.compile(
    r"(?:context length is only|context length is|context length of|context length \("
    r"|context size \(|maximum model length of|max_model_len \(|max_model_len of)\s?([0-9]{1,9})",
    re.IGNORECASE,
)
_PROMPT = (
    re.compile(r"\(([0-9]{1,9}) in the (?:messages|prompt)"),
    re.compile(r"([0-9]{1,9}) tokens from the input"),
    re.compile(r"([0-9]{1,9}) input tokens"),
    re.compile(r"contains at least ([0-9]{1,9})"),
    re.compile(r"(?:input|request|prompt) \((?:length )?([0-9]{1,9})", re.IGNORECASE),
    re.compile(r"prompt \(length ([0-9]{1,9})"),
    re.compile(r"requested ([0-9]{1,9}) tokens"),
)
_ANSWER = (
    re.compile(r"([0-9]{1,9}) in the completion"),
    re.compile(r"([0-9]{1,9}) tokens for the completion"),
    re.compile(r"requested ([0-9]{1,9}) output tokens"),
    re.compile(r"max_(?:completion_)?tokens'? is too large: ([0-9]{1,9})"),
)


class ContextExceeded(msgspec.Struct, frozen=True):
    """An engine's words about a request that does not fit. Numbers are None where it gave none."""

    message: str
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    maximum_tokens: int | None = None
    is_at_least: bool = False  # the engine stopped counting the prompt where it no longer fitted

    def anthropic_words(self) -> str:
        prompt = self.prompt_tokens
        answer = self.answer_tokens
        maximum = self.maximum_tokens
        if prompt is None or maximum is None:
            return f"prompt is too long: {self.message}"
        if prompt > maximum or answer is None or self.is_at_least:
            return (
                f"prompt is too long: {max(prompt, maximum + 1)} tokens > {maximum} maximum; "
                f"{self.message}"
            )
        sum_words = f"{prompt} + {answer} > {maximum}"
        return (
            f"input length and `max_tokens` exceed context limit: {sum_words}, decrease either; "
            f"{self.message}"
        )


def context_exceeded(body: bytes) -> ContextExceeded | None:
    """Return what the engine's error says of the context; None: it is about something else."""
    document = json_object(body)
    if document is None:
        return None
    message = message_of(document)[:LONGEST_MESSAGE]
    error = document.get("error")
    facts: dict[str, Any] = error if isinstance(error, dict) else document
    if not _ABOUT_CONTEXT.search(message) and facts.get("type") != "exceed_context_size_error":
        return None
    return ContextExceeded(
        message,
        prompt_tokens=_count(facts.get("n_prompt_tokens")) or _first_number(_PROMPT, message),
        answer_tokens=_first_number(_ANSWER, message),
        maximum_tokens=_count(facts.get("n_ctx")) or _first_number((_MAXIMUM,), message),
        is_at_least="at least" in message,
    )


def in_clients_words(body: bytes, exceeded: ContextExceeded, *, anthropic: bool) -> bytes:
    """Return the engine's answer with the words or the code that the client knows."""
    document = json_object(body) or {}
    error = document.get("error")
    if anthropic:
        engine_error = error if isinstance(error, dict) else {}
        changed = {
            **engine_error,
            "type": "invalid_request_error",
            "message": exceeded.anthropic_words(),
        }
        return json.dumps({**document, "type": "error", "error": changed}).encode()
    if not isinstance(error, dict):
        error = {"message": exceeded.message, "type": "invalid_request_error", "param": None}
    return json.dumps({**document, "error": {**error, "code": ERROR_CODE}}).encode()


def _count(value: object) -> int | None:
    if isinstance(value, int) and value > 0:
        return value
    return None


def _first_number(expressions: tuple[re.Pattern[str], ...], text: str) -> int | None:
    for expression in expressions:
        if (match := expression.search(text)) is not None:
            return int(match[1])
    return None
