"""Answers of `/v1/responses`, in the order of events that Codex and OpenAI's libraries expect."""

from __future__ import annotations

from typing import Any

from skep.testing.fake_answers import AnswerHead, FakeAnswer, to_json
from skep.testing.part_encoder import AnswerPart, PartEncoder, parts_of

TEXT_EVENTS = {
    "thinking": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}


def usage(head: AnswerHead, output: int) -> dict[str, Any]:
    return {
        "input_tokens": head.prompt_tokens,
        "input_tokens_details": {"cached_tokens": head.cached_tokens},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": head.prompt_tokens + output,
    }


def response(
    head: AnswerHead, status: str, output: list[Any], tokens: int | None
) -> dict[str, Any]:
    """Return the document of a response. `tokens`: None until their number is known."""
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": status,
        "model": head.model,
        "output": output,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if tokens is None else usage(head, tokens),
    }


def item(head: AnswerHead, place: int, part: AnswerPart, *, whole: bool) -> dict[str, Any]:
    """Return an item, with an id that is the same in all of its events."""
    text = part.text if whole else ""
    status = "completed" if whole else "in_progress"
    content: list[dict[str, Any]] = []
    if part.kind == "thinking":
        if whole:
            content.append({"type": "reasoning_text", "text": text})
        return {
            "type": "reasoning",
            "id": f"rs_{head.id}_{place}",
            "summary": [],
            "content": content,
        }
    if part.kind == "text":
        if whole:
            content.append({"type": "output_text", "text": text, "annotations": []})
        fields = {"type": "message", "id": f"msg_{head.id}_{place}", "role": "assistant"}
        return {**fields, "status": status, "content": content}
    call = {
        "type": "function_call",
        "id": f"fc_{head.id}_{place}",
        "call_id": part.id,
        "name": part.name,
    }
    if part.namespace is not None:
        call["namespace"] = part.namespace
    return {**call, "arguments": text, "status": status}


def status_of(finish: str) -> str:
    if finish == "length":
        return "incomplete"
    return "completed"


def whole_response(head: AnswerHead, answer: FakeAnswer) -> bytes:
    items = [
        item(head, place, part, whole=True) for place, part in enumerate(parts_of(answer, head))
    ]
    return to_json(response(head, status_of(answer.finish_reason), items, len(answer.tokens)))


class ResponsesEncoder(PartEncoder):
    _sequence = 0

    def begin_answer(self) -> bytes:
        empty = response(self.head, "in_progress", [], None)
        created = self._event("response.created", response=empty)
        return created + self._event("response.in_progress", response=empty)

    def begin_part(self, place: int, part: AnswerPart) -> bytes:
        empty = item(self.head, place, part, whole=False)
        data = self._event("response.output_item.added", output_index=place, item=empty)
        if part.kind == "text":
            data += self._in_item(
                "response.content_part.added", place, part, part=self._content("")
            )
        return data

    def say(self, place: int, part: AnswerPart, text: str) -> bytes:
        return self._in_item(f"{TEXT_EVENTS[part.kind]}.delta", place, part, delta=text)

    def end_part(self, place: int, part: AnswerPart) -> bytes:
        name = "arguments" if part.kind == "call" else "text"
        data = self._in_item(f"{TEXT_EVENTS[part.kind]}.done", place, part, **{name: part.text})
        if part.kind == "text":
            data += self._in_item(
                "response.content_part.done", place, part, part=self._content(part.text)
            )
        whole = item(self.head, place, part, whole=True)
        return data + self._event("response.output_item.done", output_index=place, item=whole)

    def ending(self, finish: str, timings: dict[str, Any]) -> bytes:  # noqa: ARG002
        status = status_of(finish)
        items = [item(self.head, place, part, whole=True) for place, part in enumerate(self.parts)]
        return self._event(
            f"response.{status}", response=response(self.head, status, items, self.produced)
        )

    def _content(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": []}

    def _in_item(self, kind: str, place: int, answer_part: AnswerPart, /, **fields: Any) -> bytes:
        item_id = item(self.head, place, answer_part, whole=False)["id"]
        where = {"item_id": item_id, "output_index": place}
        if answer_part.kind != "call":
            where["content_index"] = 0
        return self._event(kind, **where, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json(event))
