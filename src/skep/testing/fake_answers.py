"""What was asked, which words answer it, well or badly, and the bytes they become. One word is one token.

Pure but for `QualityPolicy`'s one source of chance, `Random(seed)`, drawn in the order in which requests come: the same
requests in the same order meet the same fate, while clients that race each other meet another one each time.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec

from skep.errors import UserError

DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_name("fake_options.toml").read_text(encoding="utf-8"))
WORDS: list[str] = DATA["words"]
DO_NOT_KNOW = "I do not know."


class FakeRequest(msgspec.Struct, frozen=True):
    chat: bool
    stream: bool
    include_usage: bool
    prompt: str
    prompt_tokens: int
    max_tokens: int | None
    last: str = ""  # the last user message alone; the prompt, where there are no messages

    def room(self, *, default_tokens: int, ctx: int) -> int:
        return min(self.max_tokens or default_tokens, ctx - self.prompt_tokens)

    def answer(self, *, default_tokens: int, ctx: int, text: str | None = None) -> FakeAnswer:
        """Return the words of `text`, or the word list over and over; never past the context."""
        limit = self.room(default_tokens=default_tokens, ctx=ctx)
        if text is not None:  # pieces that join to the text again, one word each with the white space before it
            words = re.findall(r"\s*\S+(?:\s+$)?", text) or [""]
            natural = len(words)
        else:
            words = [WORDS[i % len(WORDS)] if i == 0 else " " + WORDS[i % len(WORDS)] for i in range(limit)]
            natural = default_tokens if self.max_tokens is None else limit + 1
        return FakeAnswer(tuple(words[:limit]), "stop" if natural <= limit else "length")


class StoredAnswer(msgspec.Struct, frozen=True):
    """`wrong`: what is said instead where this one is answered wrongly; one of them."""

    prompt: str  # the last user message, or a part of the prompt
    text: str
    wrong: tuple[str, ...] = (DO_NOT_KNOW,)


class FakeAnswer(msgspec.Struct, frozen=True):
    tokens: tuple[str, ...]
    finish_reason: str
    thought: int = 0  # the first so many are reasoning

    def halved(self) -> FakeAnswer:
        """Half of its tokens, rounded down, but at least one; it ended at a limit."""
        return FakeAnswer(self.tokens[: max(1, len(self.tokens) // 2)], "length")

    def after_thinking(self, text: str, *, room: int) -> FakeAnswer:
        """Return the reasoning, a third as many tokens as the answer has (a quarter of all), then what fits of it."""
        kept = len(self.tokens)
        while kept + max(1, kept // 3) > room and kept:
            kept -= 1
        count = max(1, kept // 3)
        places = [len(text) * part // count for part in range(count + 1)]
        thoughts = tuple(text[begin:end] for begin, end in pairwise(places))
        finish = self.finish_reason if kept == len(self.tokens) else "length"
        return FakeAnswer(thoughts + self.tokens[:kept], finish, count)


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


def read_answers(path: Path | str) -> tuple[StoredAnswer, ...]:
    """Return lines of `{"prompt": "part of the prompt", "answer": "text", "wrong": "text" or a list of texts}`."""
    found = []
    for line in Path(path).read_text("utf-8").split("\n"):
        if line.strip():
            row = json.loads(line)
            wrong = row.get("wrong", DO_NOT_KNOW)
            texts = (wrong,) if isinstance(wrong, str) else tuple(wrong)
            found.append(StoredAnswer(row["prompt"], row["answer"], texts))
    return tuple(found)


class LoadShare(msgspec.Struct, frozen=True):
    """Strikes a share of the requests that find more than `load` inside, themselves counted."""

    load: int
    share: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """`4:0.15`."""
        load, _, share = text.partition(":")
        return cls(int(load), float(share))


class Quality(msgspec.Struct, frozen=True):
    """`wrong_share` is of prompts, the same ones at every request; all else is chance, request by request."""

    wrong_share: float = 0.0
    flip_share: float = 0.0
    worse: LoadShare | None = None
    truncate: LoadShare | None = None
    error: LoadShare | None = None
    seed: int = 0


class AnswerDecision(msgspec.Struct, frozen=True):
    text: str | None = None  # None: nothing is stored for the prompt
    cut: bool = False
    fails: bool = False


class QualityPolicy:
    """Decides each request once, when it comes. A prompt without a stored answer is never answered wrongly."""

    def __init__(self, stored: Sequence[StoredAnswer], quality: Quality) -> None:
        self._stored, self._quality = stored, quality
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


class AnswerHead(msgspec.Struct, frozen=True):
    """What all chunks of one answer have in common."""

    id: str
    model: str
    created: int
    chat: bool
    prompt_tokens: int

    def usage(self, tokens: int) -> dict[str, Any]:
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens}
        return {**counts, "total_tokens": sum(counts.values()), "prompt_tokens_details": {"cached_tokens": 0}}

    def fields(self, *, whole: bool) -> dict[str, Any]:
        kind = "text_completion" if not self.chat else "chat.completion" if whole else "chat.completion.chunk"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole_answer(self, answer: FakeAnswer, timings: dict[str, Any], *, usage: bool) -> bytes:
        thought, text = answer.thought, "".join(answer.tokens[answer.thought :])
        choice: dict[str, Any] = {"index": 0, "finish_reason": answer.finish_reason, "logprobs": None}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
            if thought:
                choice["message"]["reasoning_content"] = "".join(answer.tokens[:thought])
        else:
            choice["text"] = text
        body = self.fields(whole=True) | {"choices": [choice]}
        if usage:
            body["usage"] = self.usage(len(answer.tokens))
        return to_json({**body, "timings": timings})


class StreamEncoder:
    """One streamed answer. Call `token` for each token, `ending` once. `per_chunk`: tokens of one event."""

    def __init__(self, head: AnswerHead, *, thought: int = 0, per_chunk: int = 1, usage: bool = True) -> None:
        self._head, self._thought, self._per_chunk, self._usage = head, thought, per_chunk, usage
        self._seen = 0
        self._role_sent = not head.chat
        self._tokens: list[str] = []  # of the chunk being filled

    def token(self, text: str) -> bytes:
        self._seen += 1
        self._tokens.append(text)
        return b"" if len(self._tokens) < self._per_chunk and self._seen != self._thought else self._content()

    def ending(self, finish: str, timings: dict[str, Any]) -> bytes:
        last: list[dict[str, Any]] = [{"choices": [self._choice({}, finish)]}]
        if self._usage:
            last.append({"choices": [], "usage": self._head.usage(self._seen)})
        last[-1]["timings"] = timings
        content = self._content() if self._tokens else b""
        return content + b"".join(map(self._event, last)) + b"data: [DONE]\n\n"

    def _content(self) -> bytes:
        text, self._tokens = "".join(self._tokens), []
        opening = b""
        if not self._role_sent:
            self._role_sent = True
            opening = self._event({"choices": [self._choice({"role": "assistant", "content": ""}, None)]})
        name = "reasoning_content" if self._seen <= self._thought else "content"
        return opening + self._event({"choices": [self._choice({name: text}, None)]})

    def _choice(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        if self._head.chat:
            return {"index": 0, "delta": delta, "finish_reason": finish}
        return {"index": 0, "text": delta.get("content", ""), "finish_reason": finish}

    def _event(self, fields: dict[str, Any]) -> bytes:
        return b"data: %b\n\n" % to_json(self._head.fields(whole=False) | fields)


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
