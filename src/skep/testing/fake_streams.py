"""Tokens to bytes: OpenAI answers, whole or as events, in every odd form that was seen. Each of a list is one write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from skep.errors import UserError

FORMS = {
    "normal": "",
    "early-role": "head and role chunk go out before prefill",
    "reasoning": "the first quarter of the tokens is `reasoning_content`",
    "several-tokens": "three a chunk",
    "coalesced": "four events a write",
    "cut": "the end of each write is held back until the next: an event spans two writes",
    "crlf": "line ends",
    "comments": "before each chunk",
    "multi-line": "one JSON object over several `data:` lines",
    "no-done": "the stream just ends",
    "no-usage": "even if asked",
    "usage-every": "in each chunk",
    "empty-choices": 'a chunk with `"choices": []` first and before the end',
}


def parse_form(text: str) -> frozenset[str]:
    """Return names of `FORMS` joined by commas: `cut,crlf`."""
    for name in text.split(","):
        if name not in FORMS:
            raise UserError(f"stream form `{name}` is unknown", hint=f"one or more of {', '.join(FORMS)}")
    return frozenset(text.split(","))


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all chunks of one answer have in common."""

    id: str
    model: str
    created: int
    chat: bool
    prompt_tokens: int

    def usage(self, tokens: int) -> dict[str, Any]:
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens}
        total = self.prompt_tokens + tokens
        return {**counts, "total_tokens": total, "prompt_tokens_details": {"cached_tokens": 0}}

    def fields(self, *, whole: bool) -> dict[str, Any]:
        kind = "text_completion" if not self.chat else "chat.completion" if whole else "chat.completion.chunk"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def reasoning_tokens(form: frozenset[str], *, chat: bool, total: int) -> int:
    return max(1, total // 4) if "reasoning" in form and chat else 0


def whole_answer(
    head: AnswerHead, form: frozenset[str], tokens: tuple[str, ...], finish: str, timings: dict[str, Any]
) -> bytes:
    thought = reasoning_tokens(form, chat=head.chat, total=len(tokens))
    text = "".join(tokens[thought:])
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
    if head.chat:
        choice["message"] = {"role": "assistant", "content": text}
        if thought:
            choice["message"]["reasoning_content"] = "".join(tokens[:thought])
    else:
        choice["text"] = text
    body = head.fields(whole=True) | {"choices": [choice]}
    if "no-usage" not in form:
        body["usage"] = head.usage(len(tokens))
    return to_json({**body, "timings": timings})


class StreamEncoder:
    """One streamed answer. Call `opening` once, `token` for each token, `ending` once."""

    def __init__(self, form: frozenset[str], head: AnswerHead, *, total: int, include_usage: bool) -> None:
        self._form = form
        self._head = head
        self._thought = reasoning_tokens(form, chat=head.chat, total=total)
        self._include_usage = include_usage and "no-usage" not in form
        self._newline = "\r\n" if "crlf" in form else "\n"
        self._seen = 0
        self._role_sent = not head.chat
        self._tokens: list[str] = []  # of the chunk being filled
        self._events: list[bytes] = []  # of the write being filled
        self._held = b""  # tail of the last write, in the form `cut`
        self._cuts = 0

    def opening(self) -> list[bytes]:
        """Writes before the first token: none in the usual form."""
        events = [f": ping{self._newline * 2}".encode()] if "comments" in self._form else []
        if "empty-choices" in self._form:
            events.append(self._event({"choices": []}))
        if "early-role" in self._form:
            events += self._role()
        return self._writes(events, flush=True) if events else []

    def token(self, text: str) -> list[bytes]:
        self._seen += 1
        self._tokens.append(text)
        last_thought = self._seen == self._thought
        if len(self._tokens) < (3 if "several-tokens" in self._form else 1) and not last_thought:
            return []
        return self._writes(self._content())

    def ending(self, finish: str, timings: dict[str, Any]) -> list[bytes]:
        events = self._content() if self._tokens else []
        if "empty-choices" in self._form:
            events.append(self._event({"choices": []}))
        last: list[dict[str, Any]] = [{"choices": [self._choice({}, finish)]}]
        if self._include_usage:
            last.append({"choices": [], "usage": self._head.usage(self._seen)})
        last[-1]["timings"] = timings
        events += [self._event(fields) for fields in last]
        if "no-done" not in self._form:
            events.append(f"data: [DONE]{self._newline * 2}".encode())
        return self._writes(events, flush=True)

    def _role(self) -> list[bytes]:
        if self._role_sent:
            return []
        self._role_sent = True
        return [self._event({"choices": [self._choice({"role": "assistant", "content": ""}, None)]})]

    def _content(self) -> list[bytes]:
        text, self._tokens = "".join(self._tokens), []
        name = "reasoning_content" if self._seen <= self._thought else "content"
        events = [f": ping{self._newline * 2}".encode()] if "comments" in self._form else []
        return [*events, *self._role(), self._event({"choices": [self._choice({name: text}, None)]})]

    def _choice(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        if self._head.chat:
            return {"index": 0, "delta": delta, "finish_reason": finish}
        return {"index": 0, "text": delta.get("content", ""), "finish_reason": finish}

    def _event(self, fields: dict[str, Any]) -> bytes:
        payload = self._head.fields(whole=False) | fields
        if "usage-every" in self._form:
            payload["usage"] = self._head.usage(self._seen)
        text = to_json(payload).decode()
        if "multi-line" in self._form:
            text = json.dumps(payload, ensure_ascii=False, indent=0)
        lines = [f"data: {line}" for line in text.split("\n")]
        return (self._newline.join(lines) + self._newline * 2).encode()

    def _writes(self, events: list[bytes], *, flush: bool = False) -> list[bytes]:
        self._events += events
        if len(self._events) < (4 if "coalesced" in self._form else 1) and not flush:
            return []
        data, self._events = self._held + b"".join(self._events), []
        self._held = b""
        if "cut" in self._form and not flush:
            self._cuts += 1
            place = odd_place(data, self._cuts)
            data, self._held = data[:place], data[place:]
        return [data]


def odd_place(data: bytes, turn: int) -> int:
    """Inside the last character of several bytes; without one, near the end: also between the two line ends."""
    for place in range(len(data) - 1, 0, -1):
        if data[place] & 0xC0 == 0x80:
            return place
    return max(1, len(data) - 1 - turn % 4)


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
