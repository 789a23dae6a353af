"""Requests to a simulated engine, read and counted, and the errors vLLM gives for those it does
not take.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

MARK = "[simulated]"
_STORY = """
bees leave the skep at first light and carry word of clover beyond the hedge
a drone waits by the entrance while wax is warmed and drawn into even cells
nectar is passed from mouth to mouth and fanned until the water has gone
the queen walks the comb and leaves an egg in every cell that is clean
smoke drifts over the frames and the keeper lifts them one after the other
"""
_CYCLE = tuple(
    ("\n\n" if place == 0 else " ") + word
    for line in _STORY.strip().splitlines()
    for place, word in enumerate(line.split())
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


def word(seed: int, place: int) -> str:
    if place == 0:
        return MARK
    return _CYCLE[(seed + place) % len(_CYCLE)]


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
BYTES_PER_TOKEN = 4.0  # what is not written in Latin letters takes more tokens a character
_TEMPLATE_TOKENS = 3.0  # a chat begins and ends with some of its own
_MESSAGE_TOKENS = 4.0  # role and separators
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
    stream: bool
    include_usage: bool
    prompt_tokens: int
    script: SimulatedText


class _Message(msgspec.Struct):
    role: str
    content: Any = ""
    tool_calls: Any = None


class _Chat(msgspec.Struct):
    """The fields of a request that matter here."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
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


def _text_of(messages: Sequence[_Message]) -> str:
    parts = [
        part for message in messages for part in (message.content, message.tool_calls) if part
    ]
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts)


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
    text = _text_of(chat.messages)
    size = len(text.encode("utf-8", "replace"))
    if chat.tools:
        size += len(json.dumps(chat.tools))
    in_template = _TEMPLATE_TOKENS + _MESSAGE_TOKENS * len(chat.messages)
    tokens = round(in_template + size / BYTES_PER_TOKEN)
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
    seed = seed_of(_text_of(tasks) or text)
    limit = requested or context_tokens - tokens
    answer = script(seed, limit, ignore_eos=bool(chat.ignore_eos))
    usage = bool((chat.stream_options or {}).get("include_usage"))
    return SimulatedQuery(bool(chat.stream), usage, tokens, answer)


DONE = b"data: [DONE]\n\n"


class SimulatedAnswer:
    """One answer under way: tokens in, bytes out.

    What all its events have in common is written once.
    """

    __slots__ = ("_ask", "_fields", "_prefix", "_sent", "_suffix")

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
        }

    def _event(self, delta: Mapping[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**self._fields, "choices": [choice]})


def _event(fields: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"
