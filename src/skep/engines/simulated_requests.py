"""Requests to a simulated engine, read and counted, and the errors vLLM gives for those it does not take."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

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
_LONGEST_STOP = 500  # tokens that one is looked for beyond its first word
_SHORTEST, _MEAN_MORE = 40, 240  # of an answer that nothing limits: 280 tokens on average, few beyond 1,000


class SimulatedText(msgspec.Struct, frozen=True):
    """What will be said: `tokens` words, of which the client sees `shown` characters where a stop string cut them."""

    seed: int
    tokens: int
    finish_reason: str  # stop, length
    shown: int | None = None  # None: all of it

    def text(self, first: int, last: int) -> str:
        """Of the tokens `first` up to and without `last`."""
        return "".join(word(self.seed, place) for place in range(first, last))


def word(seed: int, place: int) -> str:
    return MARK if place == 0 else _CYCLE[(seed + place) % len(_CYCLE)]


def seed_of(prompt: str) -> int:
    return zlib.crc32(prompt.encode("utf-8", "replace"))


def natural_tokens(seed: int) -> int:
    """Return how long an answer is that may end when it likes: most are short, some are long."""
    share = ((seed >> 8) % 9973 + 0.5) / 9973
    return round(_SHORTEST - _MEAN_MORE * math.log(1.0 - share))


def script(
    seed: int, limit: int, *, min_tokens: int = 0, ignore_eos: bool = False, stop: Sequence[str] = ()
) -> SimulatedText:
    """`limit`: tokens that the client or the context leaves."""
    natural = limit if ignore_eos else max(natural_tokens(seed), min_tokens)
    tokens = min(natural, limit)
    finish = "stop" if natural <= limit and not ignore_eos else "length"
    cut = _first_stop(seed, tokens, min_tokens, stop) if stop else None
    return SimulatedText(seed, tokens, finish) if cut is None else SimulatedText(seed, cut[0], "stop", cut[1])


def _first_stop(seed: int, tokens: int, min_tokens: int, stop: Sequence[str]) -> tuple[int, int] | None:
    """Tokens up to the end of the first stop string, and characters before it. The words repeat: two rounds tell."""
    text, ends = "", []
    for place in range(min(tokens, min_tokens + 2 * len(_CYCLE) + _LONGEST_STOP)):
        text += word(seed, place)
        ends.append(len(text))
    start = ends[min_tokens - 1] if 0 < min_tokens <= len(ends) else 0
    found = [(place, len(one)) for one in stop if one and (place := text.find(one, start)) >= 0]
    if not found:
        return None
    place, length = min(found)
    return next(number for number, end in enumerate(ends, 1) if end >= place + length), place


BYTES_PER_TOKEN = 4.0
_TEMPLATE_TOKENS = 3.0  # a chat begins and ends with some of its own
_MESSAGE_TOKENS = 4.0  # role and separators
_PICTURE_TOKENS = 256.0
_KINDS = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 503: "ServiceUnavailableError"}


class SimulatedRefusal(Exception):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class SimulatedQuery(msgspec.Struct, frozen=True):
    chat: bool
    stream: bool
    include_usage: bool
    prompt_tokens: int
    script: SimulatedText


def error_document(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}, "simulated": True}


def parse_query(body: bytes, *, chat: bool, model: str, context_tokens: int) -> SimulatedQuery:
    """Raises `SimulatedRefusal` with what the client is told."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise SimulatedRefusal("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise SimulatedRefusal("the body is not a JSON object")
    wanted = fields.get("model")
    if wanted is not None and wanted != model:
        raise SimulatedRefusal(f"The model `{wanted}` does not exist.", 404)
    if fields.get("n") not in (None, 1):
        raise SimulatedRefusal(f"`n` is {fields['n']!r}: the simulated engine gives one choice")
    text, tokens = _chat_prompt(fields) if chat else _plain_prompt(fields.get("prompt"))
    asked = _count(fields, "max_completion_tokens", 1) or _count(fields, "max_tokens", 1)
    if asked is None and not chat:
        asked = 16  # the completions API has always had so few
    least = _count(fields, "min_tokens", 0) or 0
    if asked is not None and least > asked:
        raise SimulatedRefusal(f"min_tokens must be less than or equal to max_tokens={asked}, got {least}.")
    if tokens >= context_tokens or tokens + (asked or 0) > context_tokens:
        where = "messages" if chat else "prompt"
        raise SimulatedRefusal(
            f"This model's maximum context length is {context_tokens} tokens. However, you requested "
            f"{tokens + (asked or 1)} tokens ({tokens} in the {where}, {asked or 1} in the completion). "
            f"Please reduce the length of the {where} or completion."
        )
    stop = fields.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise SimulatedRefusal("`stop` is neither text nor a list of texts")
    limit, eos = asked or context_tokens - tokens, bool(fields.get("ignore_eos"))
    said = script(seed_of(text), limit, min_tokens=min(least, limit), ignore_eos=eos, stop=[*filter(None, stops)])
    options = fields.get("stream_options")
    usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return SimulatedQuery(chat, bool(fields.get("stream")), usage, tokens, said)


def _chat_prompt(fields: Mapping[str, Any]) -> tuple[str, int]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise SimulatedRefusal("`messages` is missing or empty")
    texts, tokens = [], _TEMPLATE_TOKENS
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise SimulatedRefusal("each of `messages` needs a `role` and a `content`")
        text, more = _content(message.get("content"))
        calls = message.get("tool_calls")
        text += json.dumps(calls) if calls else ""
        texts.append(text)
        tokens += _tokens(text) + more + _MESSAGE_TOKENS
    if fields.get("tools"):
        tokens += _tokens(json.dumps(fields["tools"]))
    return "\n".join(texts), round(tokens)


def _content(value: Any) -> tuple[str, float]:
    """Return its text, and tokens of what is no text."""
    if value is None or isinstance(value, str):
        return value or "", 0.0
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise SimulatedRefusal("`content` is neither text nor a list of parts")
    texts = [part["text"] for part in value if isinstance(part.get("text"), str)]
    return " ".join(texts), _PICTURE_TOKENS * (len(value) - len(texts))


def _plain_prompt(prompt: Any) -> tuple[str, int]:
    """Text, a list of one text, or token ids."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return str(prompt[:64]), len(prompt)
    if isinstance(prompt, list) and prompt:
        raise SimulatedRefusal(f"`prompt` holds {len(prompt)} prompts: the simulated engine takes one at a time")
    if not isinstance(prompt, str) or not prompt:
        raise SimulatedRefusal("`prompt` is missing or empty")
    return prompt, max(1, round(_tokens(prompt)))


def _tokens(text: str) -> float:
    """By bytes: what is not written in Latin letters takes more tokens a character."""
    return len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN


def _count(fields: Mapping[str, Any], name: str, least: int) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        return value
    raise SimulatedRefusal(f"{name} must be at least {least}, got {value!r}.")


DONE = b"data: [DONE]\n\n"


class SimulatedAnswer:
    """One answer under way: tokens in, bytes out. What all its events have in common is written once."""

    __slots__ = ("_ask", "_chars", "_fields", "_made", "_prefix", "_suffix")

    def __init__(self, ask: SimulatedQuery, number: int, model: str, created: int) -> None:
        kind = ("chat.completion.chunk" if ask.stream else "chat.completion") if ask.chat else "text_completion"
        name = f"{'chatcmpl' if ask.chat else 'cmpl'}-simulated-{number}"
        self._ask = ask
        self._fields: Mapping[str, Any] = {
            "id": name, "object": kind, "created": created, "model": model, "simulated": True,
        }  # fmt: skip
        before, _, after = _event({**self._fields, "choices": [self._choice("\0", None)]}).partition(b'"\\u0000"')
        self._prefix, self._suffix = before, after
        self._made = self._chars = 0

    def more(self, count: int) -> bytes:
        """Return the event of so many tokens more; the first one of a chat has the role before it."""
        first, self._made, script = self._made, self._made + count, self._ask.script
        opening = b""
        if first == 0 and self._ask.chat:
            role = {"role": "assistant", "content": ""}
            choice = {"index": 0, "delta": role, "logprobs": None, "finish_reason": None}
            opening = _event({**self._fields, "choices": [choice]})
        text = script.text(first, self._made)
        if script.shown is not None:
            text = text[: max(0, script.shown - self._chars)]
        self._chars += len(text)
        return opening + self._prefix + json.dumps(text).encode() + self._suffix

    def ending(self) -> bytes:
        last = _event({**self._fields, "choices": [self._choice("", self._ask.script.finish_reason)]})
        if self._ask.include_usage:
            last += _event({**self._fields, "choices": [], "usage": self._usage()})
        return last + DONE

    def whole(self) -> bytes:
        script = self._ask.script
        text = script.text(0, script.tokens)[: script.shown]
        said = {"message": {"role": "assistant", "content": text}} if self._ask.chat else {"text": text}
        choice = {"index": 0, "finish_reason": script.finish_reason, "logprobs": None, **said}
        return json.dumps({**self._fields, "choices": [choice], "usage": self._usage()}).encode()

    def _usage(self) -> dict[str, Any]:
        prompt, output = self._ask.prompt_tokens, self._ask.script.tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _choice(self, text: str, finish: str | None) -> dict[str, Any]:
        said = {"delta": {"content": text} if text else {}} if self._ask.chat else {"text": text}
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish}


def _event(fields: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"
