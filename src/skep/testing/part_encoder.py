"""An answer as parts (thinking, text, calls of tools), encoded token by token in a client's
dialect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from skep.testing.fake_answers import AnswerHead, FakeAnswer


class AnswerPart(msgspec.Struct, frozen=True):
    kind: str  # thinking, text or call
    tokens: tuple[str, ...]
    name: str = ""
    id: str = ""  # of a call
    namespace: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.tokens)


def parts_of(answer: FakeAnswer, head: AnswerHead) -> list[AnswerPart]:
    """Return the parts in the order in which they are sent, none of them empty."""
    first_call = answer.calls[0].first if answer.calls else len(answer.tokens)
    parts = [
        AnswerPart("thinking", answer.tokens[: answer.thought]),
        AnswerPart("text", answer.tokens[answer.thought : first_call]),
    ]
    for number, (call, tokens) in enumerate(answer.arguments()):
        parts.append(
            AnswerPart("call", tokens, call.name, f"{head.call_id}_{number}", call.namespace)
        )
    return [part for part in parts if part.tokens]


class PartEncoder(ABC):
    """Encodes one streamed answer: call `token` for each token and `ending` once.

    A dialect implements how a part begins, continues and ends.
    """

    def __init__(self, head: AnswerHead, answer: FakeAnswer, *, per_chunk: int = 1) -> None:
        self.head = head
        self.parts = parts_of(answer, head)
        self.produced = 0
        self._per_chunk = per_chunk
        self._place = 0  # of the part that is being sent
        self._tokens_sent = 0  # of this part
        self._unsent: list[str] = []

    def token(self, text: str) -> bytes:
        part = self.parts[self._place]
        data = b""
        if self.produced == 0:
            data += self.begin_answer()
        if self._tokens_sent == 0:
            data += self.begin_part(self._place, part)
        self.produced += 1
        self._tokens_sent += 1
        self._unsent.append(text)
        is_last = self._tokens_sent == len(part.tokens)
        if is_last or len(self._unsent) == self._per_chunk:
            data += self.say(self._place, part, "".join(self._unsent))
            self._unsent = []
        if is_last:
            data += self.end_part(self._place, part)
            self._place += 1
            self._tokens_sent = 0
        return data

    @abstractmethod
    def begin_answer(self) -> bytes: ...

    @abstractmethod
    def begin_part(self, place: int, part: AnswerPart) -> bytes: ...

    @abstractmethod
    def say(self, place: int, part: AnswerPart, text: str) -> bytes: ...

    @abstractmethod
    def end_part(self, place: int, part: AnswerPart) -> bytes: ...

    @abstractmethod
    def ending(self, finish: str, timings: dict[str, Any]) -> bytes: ...
