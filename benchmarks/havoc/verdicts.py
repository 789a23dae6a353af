"""What became of one request, from what its client received. Pure: bytes in, one verdict out.

Every request gets exactly one. Six are honest ends; `WRONG` is any other, and fails the run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from havoc.asks import Ask
from havoc.line import Head

# The gateway's own refusals in this run: status, OpenAI's type, Anthropic's type. As
# docs/errors.md has them.
CODES = {
    "queue_full": (429, "rate_limit_error", "rate_limit_error"),
    "queue_timeout": (503, "server_error", "overloaded_error"),
    "rate_limited": (429, "rate_limit_error", "rate_limit_error"),
    "too_many_requests_of_key": (429, "rate_limit_error", "rate_limit_error"),
    "replica_lost": (502, "server_error", "api_error"),
    "replica_timeout": (504, "server_error", "timeout_error"),
    "engine_refused": (
        502,
        "server_error",
        "api_error",
    ),  # in a stream that had its head before its engine answered
    "invalid_api_key": (401, "invalid_request_error", "authentication_error"),
}
CUT = (502, "server_error", "api_error")
FAULT_WORDS = (
    b"as asked",
    b"It works",
    b"Loading model",
)  # of the fake engine's own errors, which are handed on


class End(Enum):
    ANSWERED = "answered"
    HANDED_ON = "engine's own error"
    REFUSED = "refused"
    CUT = "cut, and said so"
    LEFT = "client left"
    UNTAKEN = "not taken"  # sent behind an answer that was its connection's last
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Verdict:
    end: End
    what: str = ""  # the code of a refusal, or what is wrong


@dataclass(slots=True)
class Stream:
    """A server-sent stream, read to the end."""

    text: str = ""
    finish: str | None = None
    done: bool = False
    error: Any = None
    odd: int = 0  # events that cannot be read
    odd_last: bool = False  # the event before the error was one of them: cut short
    after: bool = False  # something came after its end
    comment_bytes: int = (
        0  # of what the gateway says while a stream waits, and its row does not count
    )


def judge(ask: Ask, head: Head, body: bytes, *, whole: bool) -> Verdict:
    """`whole`: the body came to its promised end."""
    if "x-skep" not in head.fields:
        return Verdict(End.WRONG, f"{head.status} without a request id")
    if head.status == 200 and head.fields.get("content-type", "").startswith("text/event-stream"):
        return _of_stream(ask, read_stream(body), whole=whole)
    if not whole:
        if head.status == 200:
            return Verdict(End.CUT, "connection")
        return Verdict(End.WRONG, f"half a {head.status}")
    if head.status != 200 or any(word in body[:300] for word in FAULT_WORDS):
        return _of_error(ask, head, body)
    if _is_its_own(ask, body):
        return Verdict(End.ANSWERED)
    return Verdict(End.WRONG, f"not its answer: {body[:200]!r}")


def _is_its_own(ask: Ask, body: bytes) -> bool:
    if ask.echo:
        return body == ask.body
    try:
        document = json.loads(body)
        if ask.counts:
            return int(document["input_tokens"]) > 0
        if ask.anthropic and ask.expected is not None:
            text = "".join(
                block["text"] for block in document["content"] if block["type"] == "text"
            )
            return document["type"] == "message" and text == ask.expected and not ask.streamed
        if ask.expected is None:
            return (
                bool(document["type"] == "message" and document["stop_reason"])
                and not ask.streamed
            )
        return text_of(document["choices"][0], "message") == ask.expected and not ask.streamed
    except (ValueError, LookupError, TypeError):
        return False


def _of_error(ask: Ask, head: Head, body: bytes) -> Verdict:
    if any(word in body[:300] for word in FAULT_WORDS):
        return Verdict(End.HANDED_ON, str(head.status))
    try:
        document = json.loads(body)
        code = document["error"]["code"]
    except (ValueError, LookupError, TypeError):
        return Verdict(End.WRONG, f"{head.status} with {body[:200]!r}")
    wrong = f"{head.status} {body[:300]!r}"
    if (
        code not in CODES
        or not _speaks(ask, document, CODES[code])
        or head.status != CODES[code][0]
    ):
        return Verdict(End.WRONG, wrong)
    if code == "invalid_api_key" and ask.key != "cub":
        return Verdict(End.WRONG, wrong)
    if code not in {"invalid_api_key", "too_many_requests_of_key"} and not _retry_after(head):
        return Verdict(End.WRONG, f"no retry-after: {wrong}")
    return Verdict(End.REFUSED, code)


def _retry_after(head: Head) -> bool:
    return head.fields.get("retry-after", "").isdigit() and int(head.fields["retry-after"]) >= 1


def _speaks(ask: Ask, said: dict[str, Any], code: tuple[int, str, str]) -> bool:
    _, openai, anthropic = code
    if said.get("source") != "gateway" or not said["error"].get("message"):
        return False
    if ask.anthropic:
        return said.get("type") == "error" and said["error"]["type"] == anthropic
    return "type" not in said and said["error"]["type"] == openai


def _of_stream(ask: Ask, stream: Stream, *, whole: bool) -> Verdict:
    if not ask.streamed:
        return Verdict(End.WRONG, "a stream that nobody asked for")
    if ask.expected is not None and not ask.expected.startswith(stream.text):
        return Verdict(
            End.WRONG, f"not its answer: {stream.text[:200]!r} instead of {ask.expected[:60]!r}"
        )
    if not whole:
        return Verdict(
            End.WRONG,
            f"the stream's connection broke without a word, after {len(stream.text)} characters",
        )
    if stream.after or stream.odd > stream.odd_last:
        return Verdict(End.WRONG, f"events that make no sense: {stream}")
    if stream.error is not None:
        if isinstance(stream.error, dict):
            error = stream.error.get("error", {})
        else:
            error = {}
        code = error.get("code")
        if code == "stream_cut" and _speaks(ask, stream.error, CUT) and not stream.done:
            return Verdict(End.CUT, "event")
        if (
            stream.comment_bytes
            and not stream.text
            and code in CODES
            and _speaks(ask, stream.error, CODES[code])
        ):
            return Verdict(End.REFUSED, code)  # it had its head while it waited
        return Verdict(End.WRONG, f"an error in the stream: {stream.error}")
    if not stream.done or stream.finish is None:
        return Verdict(End.WRONG, f"the stream ended silently after {len(stream.text)} characters")
    if ask.expected is not None and stream.text != ask.expected:
        return Verdict(
            End.WRONG, f"words are missing: {len(stream.text)} of {len(ask.expected)} characters"
        )
    return Verdict(End.ANSWERED)


def read_stream(body: bytes) -> Stream:
    stream = Stream()
    for event in body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n"):
        if event.startswith(":"):
            stream.comment_bytes += len(event.encode()) + len("\n\n")
            continue
        data = "\n".join(
            line[5:].strip() for line in event.split("\n") if line.startswith("data:")
        )
        if not data:
            stream.odd_last = stream.odd_last or bool(event.strip())
            stream.odd += bool(event.strip())
            continue
        stream.after = stream.after or stream.done or stream.error is not None
        if data == "[DONE]":
            stream.done = True
            continue
        try:
            fields = json.loads(data)
        except ValueError:
            stream.odd = stream.odd + 1
            stream.odd_last = True
            continue
        if "error" in fields:
            stream.error = fields
            continue
        stream.odd_last = False
        stream.done = stream.done or fields.get("type") == "message_stop"
        delta = fields.get("delta", {})
        stream.finish = delta.get("stop_reason") or stream.finish
        if delta.get("type") == "text_delta":
            stream.text += delta["text"]
        for choice in fields.get("choices", ()):
            stream.text += text_of(choice, "delta")
            stream.finish = choice.get("finish_reason") or stream.finish
    return stream


def text_of(choice: dict[str, Any], where: str) -> str:
    if where in choice:
        return choice[where].get("content") or ""
    return choice.get("text") or ""
