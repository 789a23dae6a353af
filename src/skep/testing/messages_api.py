"""Answers of `/v1/messages`, as Anthropic's clients read them."""

from __future__ import annotations

import json
from typing import Any

from skep.testing.fake_answers import AnswerHead, FakeAnswer, to_json
from skep.testing.part_encoder import AnswerPart, PartEncoder, parts_of

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
SIGNATURE = "c2lnbmF0dXJl"


def usage(head: AnswerHead, output: int) -> dict[str, int]:
    fresh = head.prompt_tokens - head.cached_tokens
    return {
        "input_tokens": fresh,
        "cache_read_input_tokens": head.cached_tokens,
        "output_tokens": output,
    }


def message(
    head: AnswerHead, content: list[Any], stop_reason: str | None, output: int
) -> dict[str, Any]:
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage(head, output),
    }


def block(part: AnswerPart, *, whole: bool) -> dict[str, Any]:
    """Return the block of a part, whole, or empty as it begins in a stream."""
    text = part.text if whole else ""
    if part.kind == "thinking":
        return {"type": "thinking", "thinking": text, "signature": SIGNATURE if whole else ""}
    if part.kind == "text":
        return {"type": "text", "text": text}
    return {
        "type": "tool_use",
        "id": part.id,
        "name": part.name,
        "input": json_value(text) if whole else {},
    }


def json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # a call that was cut or is broken on purpose
        return {}


def whole_message(head: AnswerHead, answer: FakeAnswer) -> bytes:
    content = [block(part, whole=True) for part in parts_of(answer, head)]
    return to_json(message(head, content, STOP_REASONS[answer.finish_reason], len(answer.tokens)))


class MessagesEncoder(PartEncoder):
    def begin_answer(self) -> bytes:
        return event({"type": "message_start", "message": message(self.head, [], None, 0)})

    def begin_part(self, place: int, part: AnswerPart) -> bytes:
        empty = block(part, whole=False)
        return event({"type": "content_block_start", "index": place, "content_block": empty})

    def say(self, place: int, part: AnswerPart, text: str) -> bytes:
        kind, name = {
            "thinking": ("thinking_delta", "thinking"),
            "text": ("text_delta", "text"),
            "call": ("input_json_delta", "partial_json"),
        }[part.kind]
        return self._delta(place, {"type": kind, name: text})

    def end_part(self, place: int, part: AnswerPart) -> bytes:
        signed = b""
        if part.kind == "thinking":
            signed = self._delta(place, {"type": "signature_delta", "signature": SIGNATURE})
        return signed + event({"type": "content_block_stop", "index": place})

    def ending(self, finish: str, timings: dict[str, Any]) -> bytes:  # noqa: ARG002
        stop = {"stop_reason": STOP_REASONS[finish], "stop_sequence": None}
        last = {"type": "message_delta", "delta": stop, "usage": usage(self.head, self.produced)}
        return event(last) + event({"type": "message_stop"})

    def _delta(self, place: int, delta: dict[str, str]) -> bytes:
        return event({"type": "content_block_delta", "index": place, "delta": delta})


def event(fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (fields["type"].encode(), to_json(fields))
