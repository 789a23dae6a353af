"""What was asked and which words answer it: well or badly, always or under load. One word is one token.

Pure but for `QualityPolicy`'s one source of chance, `Random(seed)`, drawn in the order in which requests come: the same
requests in the same order meet the same fate, while clients that race each other meet another one each time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Self

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
    name = "messages" if chat else "prompt"
    if not isinstance(fields, dict) or not fields.get(name):
        raise UserError(f"`{name}` is missing")
    max_tokens = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise UserError(f"`max_tokens` is {max_tokens!r}, not a positive number")
    said = fields[name]
    prompt = last = " ".join(_texts(said))
    if chat:  # empty where messages are not what they should be: then no exact answer is found
        several = said if isinstance(said, list) else []
        asked = [one for one in several if isinstance(one, dict) and one.get("role") == "user"]
        last = " ".join(_texts(asked[-1:]))
    usage = bool((fields.get("stream_options") or {}).get("include_usage"))
    return FakeRequest(chat, bool(fields.get("stream")), usage, prompt, len(prompt.split()), max_tokens, last)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return _texts(value.get("content") or value.get("text"))
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def answer(ask: FakeRequest, *, default_tokens: int, ctx: int, text: str | None = None) -> FakeAnswer:
    """Return the words of `text`, or the word list over and over; never past the context."""
    limit = ask.room(default_tokens=default_tokens, ctx=ctx)
    if text is not None:  # pieces that join to the text again, one word each with the white space before it
        words = re.findall(r"\s*\S+(?:\s+$)?", text) or [""]
        natural = len(words)
    else:
        words = [WORDS[i % len(WORDS)] if i == 0 else " " + WORDS[i % len(WORDS)] for i in range(limit)]
        natural = default_tokens if ask.max_tokens is None else limit + 1
    return FakeAnswer(tuple(words[:limit]), "stop" if natural <= limit else "length")


def halved(answer: FakeAnswer) -> FakeAnswer:
    """Half of its tokens, rounded down, but at least one; it ended at a limit."""
    return FakeAnswer(answer.tokens[: max(1, len(answer.tokens) // 2)], "length")


def thinking(answer: FakeAnswer, text: str, *, room: int) -> FakeAnswer:
    """Return the reasoning before the answer, both within `room`.

    The stream form `reasoning` takes the first quarter of the tokens for reasoning, so the text is divided among a
    third as many tokens as the answer has, and is whole however many those are. What it costs is the answer's end.
    """
    kept = len(answer.tokens)
    while kept + max(1, kept // 3) > room and kept:
        kept -= 1
    count = max(1, kept // 3)
    places = [len(text) * part // count for part in range(count + 1)]
    thoughts = tuple(text[begin:end] for begin, end in pairwise(places))
    finish = answer.finish_reason if kept == len(answer.tokens) else "length"
    return FakeAnswer(thoughts + answer.tokens[:kept], finish)


def read_answers(path: Path | str) -> tuple[StoredAnswer, ...]:
    """Return lines of `{"prompt": "part of the prompt", "answer": "text", "wrong": "text" or a list of texts}`."""
    found = []
    for line in Path(path).read_text("utf-8").split("\n"):
        if line.strip():
            row = json.loads(line)
            wrong = row.get("wrong", DO_NOT_KNOW)
            texts = [wrong] if isinstance(wrong, str) else wrong
            if not (isinstance(texts, list) and texts and all(isinstance(one, str) and one.strip() for one in texts)):
                raise UserError(f"`wrong` is {wrong!r}, not a text or a list of texts")
            found.append(StoredAnswer(row["prompt"], row["answer"], tuple(texts)))
    return tuple(found)


def parse_share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(f"`{text}` is not a share from 0 to 1")
    return share


@dataclass(frozen=True, slots=True)
class LoadShare:
    """Strikes a share of the requests that find more than `load` inside, themselves counted."""

    load: int
    share: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """`4:0.15`."""
        load, colon, share = text.partition(":")
        if not colon or not load.isascii() or not load.isdigit():
            raise UserError(f"`{text}` is not C:S, such as 4:0.15")
        return cls(int(load), parse_share(share))


@dataclass(frozen=True, slots=True)
class Quality:
    """`wrong_share` is of prompts, the same ones at every request; all else is chance, request by request."""

    wrong_share: float = 0.0
    flip_share: float = 0.0
    worse: LoadShare | None = None
    truncate: LoadShare | None = None
    error: LoadShare | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class AnswerDecision:
    text: str | None = None  # None: nothing is stored for the prompt
    cut: bool = False
    fails: bool = False


class QualityPolicy:
    """Decides each request once, when it comes. A prompt without a stored answer is never answered wrongly."""

    def __init__(self, stored: Sequence[StoredAnswer], quality: Quality) -> None:
        self._stored = stored
        self._quality = quality
        self._chance = Random(quality.seed)
        self._by_message = {one.prompt: one for one in reversed(stored)}  # of two, the first

    def decide(self, ask: FakeRequest, *, inside: int) -> AnswerDecision:
        """Answer by what is stored for exactly this message, else by the first whose key the prompt holds."""
        if self._strikes(self._quality.error, inside):
            return AnswerDecision(fails=True)
        exact = self._by_message.get(ask.last)
        stored = exact or next((one for one in self._stored if one.prompt in ask.prompt), None)
        text = None if stored is None else self._text(stored, ask, inside)
        return AnswerDecision(text, cut=self._strikes(self._quality.truncate, inside))

    def _text(self, stored: StoredAnswer, ask: FakeRequest, inside: int) -> str:
        digest = hashlib.sha256(ask.prompt.encode("utf-8", "surrogatepass")).digest()
        by_nature = right = int.from_bytes(digest[:8]) / 2**64 >= self._quality.wrong_share
        if self._draw(self._quality.flip_share):
            right = not right
        if right and not self._strikes(self._quality.worse, inside):
            return stored.text
        number = int.from_bytes(digest[8:16])
        return self._chance.choice(stored.wrong) if by_nature else stored.wrong[number % len(stored.wrong)]

    def _strikes(self, above: LoadShare | None, inside: int) -> bool:
        return above is not None and inside > above.load and self._draw(above.share)

    def _draw(self, share: float) -> bool:
        return share > 0 and self._chance.random() < share
