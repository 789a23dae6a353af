"""The protocols of clients, by path: how each request is read and each answer is written."""

from __future__ import annotations

from typing import Any

from skep.testing.fake_answers import (
    AnswerHead,
    FakeAnswer,
    FakeRequest,
    StreamEncoder,
    parse_agent_request,
    parse_request,
)
from skep.testing.messages_api import MessagesEncoder, whole_message
from skep.testing.part_encoder import PartEncoder
from skep.testing.responses_api import ResponsesEncoder, whole_response

DIALECTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
}
COUNT_PATH = "/v1/messages/count_tokens"
ID_BEGINNINGS = {"chat": "chatcmpl", "completions": "cmpl", "messages": "msg", "responses": "resp"}


def parse(body: bytes, dialect: str) -> FakeRequest:
    """Return the request. Raise UserError for one that cannot be read."""
    if dialect in ("chat", "completions"):
        return parse_request(body, chat=dialect == "chat")
    return parse_agent_request(body, dialect)


def stream_encoder(
    dialect: str, head: AnswerHead, answer: FakeAnswer, *, per_chunk: int, usage: bool
) -> StreamEncoder | PartEncoder:
    if dialect == "messages":
        return MessagesEncoder(head, answer, per_chunk=per_chunk)
    if dialect == "responses":
        return ResponsesEncoder(head, answer, per_chunk=per_chunk)
    return StreamEncoder(
        head, thought=answer.thought, per_chunk=per_chunk, usage=usage, calls=answer.calls
    )


def whole_answer(
    dialect: str, head: AnswerHead, answer: FakeAnswer, timings: dict[str, Any], *, usage: bool
) -> bytes:
    if dialect == "messages":
        return whole_message(head, answer)
    if dialect == "responses":
        return whole_response(head, answer)
    return head.whole_answer(answer, timings, usage=usage)
