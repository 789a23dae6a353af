"""Requests to a simulated engine, read and counted, and the errors vLLM gives for those it does
not take.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from skep.engines.simulated_tokens import (
    TOKEN_BYTES,
    Message,
    answer_stream,
    prompt_stream,
    text_of,
    word,
)

# of an answer that nothing limits: 280 tokens on average, few beyond 1,000
_SHORTEST = 40
_MEAN_MORE = 240


class SimulatedText(msgspec.Struct, frozen=True):
    """What will be said."""

    seed: int
    tokens: int
    finish_reason: str  # stop, length

    def text(self, first: int, last: int) -> str:
        """Return the text of the tokens from `first` up to and without `last`."""
        return "".join(word(self.seed, place) for place in range(first, last))


def seed_of(prompt: str) -> int:
    return zlib.crc32(prompt.encode("utf-8", "replace"))


def natural_tokens(seed: int) -> int:
    """Return how long an answer is that may end when it likes: most are short, some are long."""
    share = ((seed >> 8) % 9973 + 0.5) / 9973
    return round(_SHORTEST - _MEAN_MORE * math.log(1.0 - share))


def script(seed: int, limit: int, *, ignore_eos: bool = False) -> SimulatedText:
    """Return the answer to be given. `limit`: tokens that the client or the context leaves."""
    natural = natural_tokens(seed)
    ends = natural <= limit and not ignore_eos
    return SimulatedText(seed, natural if ends else limit, "stop" if ends else "length")


INSTRUCTIONS = ("system", "developer")  # roles of what comes before the task
_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    503: "ServiceUnavailableError",
}


class SimulatedRefusal(Exception):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class SimulatedQuery(msgspec.Struct, frozen=True):
    """`tokens` are those of the prompt and of the answer behind it, each as four bytes."""

    stream: bool
    include_usage: bool
    prompt_tokens: int
    script: SimulatedText
    tokens: bytes


class _Chat(msgspec.Struct):
    """The fields of a request that matter here."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    model: str | None = None
    n: Literal[1] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    ignore_eos: bool | None = None
    tools: Any = None


def error_document(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "InternalServerError")
    return {
        "error": {"message": message, "type": kind, "param": None, "code": status},
        "simulated": True,
    }


def parse_query(body: bytes, *, model: str, context_tokens: int) -> SimulatedQuery:
    """Return what a request asks for; raise `SimulatedRefusal` with what the client is told."""
    try:
        chat = msgspec.json.decode(body, type=_Chat)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SimulatedRefusal(
            f"the simulated engine cannot answer this request: {error}"
        ) from None
    if chat.model not in (None, model):
        raise SimulatedRefusal(f"The model `{chat.model}` does not exist.", 404)
    stream = prompt_stream(chat.messages, chat.tools)
    tokens = len(stream) // TOKEN_BYTES
    requested = chat.max_completion_tokens or chat.max_tokens
    if tokens >= context_tokens or tokens + (requested or 0) > context_tokens:
        completion = requested or 1
        raise SimulatedRefusal(
            f"This model's maximum context length is {context_tokens} tokens. However, you "
            f"requested {tokens + completion} tokens ({tokens} in the messages, {completion} in "
            "the completion). Please reduce the length of the messages or completion."
        )
    # the same task gets the same answer, also behind other instructions: a load begins them anew
    # so that no cache helps
    tasks = [message for message in chat.messages if message.role not in INSTRUCTIONS]
    seed = seed_of(text_of(tasks) or text_of(chat.messages))
    limit = requested or context_tokens - tokens
    answer = script(seed, limit, ignore_eos=bool(chat.ignore_eos))
    usage = bool((chat.stream_options or {}).get("include_usage"))
    return SimulatedQuery(
        stream=bool(chat.stream),
        include_usage=usage,
        prompt_tokens=tokens,
        script=answer,
        tokens=stream + answer_stream(seed, answer.tokens),
    )


DONE = b"data: [DONE]\n\n"


class SimulatedAnswer:
    """One answer under way: tokens in, bytes out.

    What all its events have in common is written once.
    """

    __slots__ = ("_ask", "_fields", "_prefix", "_sent", "_suffix", "cached_tokens")

    def __init__(self, ask: SimulatedQuery, number: int, model: str, created: int) -> None:
        kind = "chat.completion.chunk" if ask.stream else "chat.completion"
        self._ask = ask
        self._fields: Mapping[str, Any] = {
            "id": f"chatcmpl-simulated-{number}",
            "object": kind,
            "created": created,
            "model": model,
            "simulated": True,
        }
        before, _, after = self._event({"content": "\0"}).partition(b'"\\u0000"')
        self._prefix = before
        self._suffix = after
        self._sent = 0
        self.cached_tokens = 0  # of the prompt

    def more(self, count: int) -> bytes:
        """Return the event of so many tokens more; the first one has the role before it."""
        first = self._sent
        self._sent = self._sent + count
        if first == 0:
            opening = self._event({"role": "assistant", "content": ""})
        else:
            opening = b""
        return (
            opening
            + self._prefix
            + json.dumps(self._ask.script.text(first, self._sent)).encode()
            + self._suffix
        )

    def ending(self) -> bytes:
        last = self._event({}, self._ask.script.finish_reason)
        if self._ask.include_usage:
            last += _event({**self._fields, "choices": [], "usage": self._usage()})
        return last + DONE

    def whole(self) -> bytes:
        script = self._ask.script
        message = {"role": "assistant", "content": script.text(0, script.tokens)}
        choice = {
            "index": 0,
            "finish_reason": script.finish_reason,
            "logprobs": None,
            "message": message,
        }
        return json.dumps({**self._fields, "choices": [choice], "usage": self._usage()}).encode()

    def _usage(self) -> dict[str, Any]:
        prompt = self._ask.prompt_tokens
        output = self._ask.script.tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def _event(self, delta: Mapping[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**self._fields, "choices": [choice]})


def _event(fields: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"
