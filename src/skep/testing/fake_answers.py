"""What was asked and which words answer it: request bodies in, tokens out. One word is one token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skep.errors import UserError

# Some words hold characters of two and three bytes, so that a stream can be cut inside one.
WORDS = (
    "the", "bees", "carry", "nectar", "home", "naïve", "drones", "wait", "—", "a", "queen", "lays",
    "eggs", "日本", "and", "wax", "is", "built", "in", "hexagons", "while", "café", "smoke", "drifts",
)  # fmt: skip
DO_NOT_KNOW = "I do not know."


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """One generation request, read and counted."""

    chat: bool
    stream: bool
    include_usage: bool
    prompt: str
    prompt_tokens: int
    max_tokens: int | None
    last: str = ""  # the last user message alone; the prompt, where there are no messages

    def room(self, *, default_tokens: int, ctx: int) -> int:
        """Tokens that an answer may have: never past the context."""
        return min(self.max_tokens or default_tokens, ctx - self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """`wrong`: what is said instead where this one is answered wrongly; one of them."""

    prompt: str  # the last user message, or a part of the prompt
    text: str
    wrong: tuple[str, ...] = (DO_NOT_KNOW,)


@dataclass(frozen=True, slots=True)
class FakeAnswer:
    tokens: tuple[str, ...]
    finish_reason: str


def parse_request(body: bytes, *, chat: bool) -> FakeRequest:
    try:
        fields = json.loads(body)
    except ValueError:
        raise UserError("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise UserError("the body is not a JSON object")
    name = "messages" if chat else "prompt"
    if not fields.get(name):
        raise UserError(f"`{name}` is missing")
    prompt = " ".join(_texts(fields[name]))
    return FakeRequest(
        chat=chat,
        stream=bool(fields.get("stream")),
        include_usage=bool((fields.get("stream_options") or {}).get("include_usage")),
        prompt=prompt,
        prompt_tokens=len(prompt.split()),
        max_tokens=_max_tokens(fields),
        last=_last_user_message(fields["messages"]) if chat else prompt,
    )


def answer(ask: FakeRequest, *, default_tokens: int, ctx: int, answers: Sequence[tuple[str, str]] = ()) -> FakeAnswer:
    """The first stored answer whose key the prompt holds, or the word list over and over; never past the context."""
    words = next((split_words(text) or [""] for key, text in answers if key in ask.prompt), None)
    limit = ask.room(default_tokens=default_tokens, ctx=ctx)
    if words is None:
        natural = default_tokens if ask.max_tokens is None else limit + 1
        words = [WORDS[i % len(WORDS)] if i == 0 else " " + WORDS[i % len(WORDS)] for i in range(limit)]
    else:
        natural = len(words)
    return FakeAnswer(tuple(words[:limit]), "stop" if natural <= limit else "length")


def split_words(text: str) -> list[str]:
    """Pieces that join to the text again, one word each with the white space before it."""
    return re.findall(r"\s*\S+(?:\s+$)?", text)


def read_answers(path: Path) -> tuple[StoredAnswer, ...]:
    """Return lines of `{"prompt": "part of the prompt", "answer": "text", "wrong": "text" or a list of texts}`."""
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
    return tuple(StoredAnswer(row["prompt"], row["answer"], _wrong(row.get("wrong"))) for row in rows)


def _wrong(value: Any) -> tuple[str, ...]:
    texts = [DO_NOT_KNOW] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts) or not texts:
        raise UserError(f"`wrong` is {value!r}, not a text or a list of texts")
    return tuple(texts)


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    value = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise UserError(f"`max_tokens` is {value!r}, not a positive number")
    return value


def _last_user_message(messages: Any) -> str:
    """Empty where nobody asked, or where messages are not what they should be: then no exact answer is found."""
    several = messages if isinstance(messages, list) else []
    asked = [one for one in several if isinstance(one, dict) and one.get("role") == "user"]
    return " ".join(_texts(asked[-1:]))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, dict):
        return _texts(value.get("content") or value.get("text"))
    return []
