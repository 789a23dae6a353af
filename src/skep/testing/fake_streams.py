"""Tokens to bytes: OpenAI answers, whole or as server-sent events, in every odd form that was seen in the wild.

Pure. A list of bytes is a list of writes: the server sends each as one HTTP chunk.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from skep.errors import UserError


@dataclass(frozen=True, slots=True)
class StreamForm:
    early_role: bool = False  # head and role chunk go out before prefill
    reasoning: bool = False  # the first quarter of the tokens is `reasoning_content`
    tokens_per_chunk: int = 1
    events_per_write: int = 1
    cut: bool = False  # the end of each write is held back until the next: an event spans two writes
    crlf: bool = False
    comments: bool = False
    multi_line: bool = False  # one JSON object over several `data:` lines
    done: bool = True
    usage: str = "asked"  # asked, never, every
    empty_choices: bool = False  # a chunk with `"choices": []` first and before the end


FORMS: dict[str, dict[str, Any]] = {
    "normal": {},
    "early-role": {"early_role": True},
    "reasoning": {"reasoning": True},
    "several-tokens": {"tokens_per_chunk": 3},
    "coalesced": {"events_per_write": 4},
    "cut": {"cut": True},
    "crlf": {"crlf": True},
    "comments": {"comments": True},
    "multi-line": {"multi_line": True},
    "no-done": {"done": False},
    "no-usage": {"usage": "never"},
    "usage-every": {"usage": "every"},
    "empty-choices": {"empty_choices": True},
}


def parse_form(text: str) -> StreamForm:
    """Return names of `FORMS` joined by commas: `cut,crlf`."""
    fields: dict[str, Any] = {}
    for name in text.split(","):
        if name not in FORMS:
            raise UserError(f"stream form `{name}` is unknown", hint=f"one or more of {', '.join(FORMS)}")
        fields |= FORMS[name]
    return StreamForm(**fields)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all chunks of one answer have in common."""

    id: str
    model: str
    created: int
    chat: bool
    prompt_tokens: int

    def usage(self, tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def fields(self, *, whole: bool) -> dict[str, Any]:
        kind = "text_completion" if not self.chat else "chat.completion" if whole else "chat.completion.chunk"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def reasoning_tokens(form: StreamForm, *, chat: bool, total: int) -> int:
    return max(1, total // 4) if form.reasoning and chat else 0


def whole_answer(
    head: AnswerHead, form: StreamForm, tokens: tuple[str, ...], finish: str, timings: dict[str, Any]
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
    if form.usage != "never":
        body["usage"] = head.usage(len(tokens))
    return to_json({**body, "timings": timings})


class StreamEncoder:
    """One streamed answer. Call `opening` once, `token` for each token, `ending` once."""

    def __init__(self, form: StreamForm, head: AnswerHead, *, total: int, include_usage: bool) -> None:
        self._form = form
        self._head = head
        self._thought = reasoning_tokens(form, chat=head.chat, total=total)
        self._include_usage = include_usage and form.usage != "never"
        self._newline = "\r\n" if form.crlf else "\n"
        self._seen = 0
        self._role_sent = not head.chat
        self._tokens: list[str] = []  # of the chunk being filled
        self._events: list[bytes] = []  # of the write being filled
        self._held = b""  # tail of the last write, in the form `cut`
        self._cuts = 0

    def opening(self) -> list[bytes]:
        """Writes before the first token: none in the usual form."""
        events = [f": ping{self._newline * 2}".encode()] if self._form.comments else []
        if self._form.empty_choices:
            events.append(self._event({"choices": []}))
        if self._form.early_role:
            events += self._role()
        return self._writes(events, flush=True) if events else []

    def token(self, text: str) -> list[bytes]:
        self._seen += 1
        self._tokens.append(text)
        last_thought = self._seen == self._thought
        if len(self._tokens) < self._form.tokens_per_chunk and not last_thought:
            return []
        return self._writes(self._content())

    def ending(self, finish: str, timings: dict[str, Any]) -> list[bytes]:
        events = self._content() if self._tokens else []
        if self._form.empty_choices:
            events.append(self._event({"choices": []}))
        last: list[dict[str, Any]] = [{"choices": [self._choice({}, finish)]}]
        if self._include_usage:
            last.append({"choices": [], "usage": self._head.usage(self._seen)})
        last[-1]["timings"] = timings
        events += [self._event(fields) for fields in last]
        if self._form.done:
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
        events = [f": ping{self._newline * 2}".encode()] if self._form.comments else []
        return [*events, *self._role(), self._event({"choices": [self._choice({name: text}, None)]})]

    def _choice(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        if self._head.chat:
            return {"index": 0, "delta": delta, "finish_reason": finish}
        return {"index": 0, "text": delta.get("content", ""), "finish_reason": finish}

    def _event(self, fields: dict[str, Any]) -> bytes:
        payload = self._head.fields(whole=False) | fields
        if self._form.usage == "every":
            payload["usage"] = self._head.usage(self._seen)
        text = json.dumps(payload, ensure_ascii=False, indent=0) if self._form.multi_line else _compact(payload)
        lines = [f"data: {line}" for line in text.split("\n")]
        return (self._newline.join(lines) + self._newline * 2).encode()

    def _writes(self, events: list[bytes], *, flush: bool = False) -> list[bytes]:
        self._events += events
        if len(self._events) < self._form.events_per_write and not flush:
            return []
        data, self._events = self._held + b"".join(self._events), []
        self._held = b""
        if self._form.cut and not flush:
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
    return _compact(value).encode()


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
