"""One measured request: the body sent, and a receiver that keeps the arrival time of every byte that matters.

Tokens come from `usage`, never from counting chunks; times are taken when bytes arrive, before they are parsed.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.records import EngineTimings, Request
from skep.wire.client import Pool, Unchunked, WireFailure
from skep.wire.fetch import json_request
from skep.wire.heads import ResponseHead
from skep.wire.sse import SseParser

MAX_ERROR_TEXT = 300


@dataclass(frozen=True, slots=True)
class Task:
    """One request to be made."""

    level: int
    repeat: int
    index: int
    kind: str
    messages: list[dict[str, str]]
    max_tokens: int
    fixed_output: bool = False  # ask the engine to go on to max_tokens (llama.cpp and vLLM know how)
    temperature: float = 0.0


def body_of(task: Task, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": task.messages,
        "max_tokens": task.max_tokens,
        "temperature": task.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if task.fixed_output:
        body["ignore_eos"] = True
    return body


@dataclass(slots=True)
class Reading(Unchunked):
    """Receives one streamed answer. `done` is set when it has ended, in whatever way."""

    done: asyncio.Future[float]
    first_byte: float | None = None
    status: int | None = None
    head: ResponseHead | None = None
    arrivals: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    error_kind: str | None = None
    error: str | None = None
    text: list[str] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)  # of an answer that is no event stream
    streaming: bool = False
    finished: bool = False  # [DONE] or a finish_reason was seen
    parser: SseParser = field(default_factory=SseParser)

    def on_head(self, head: ResponseHead, at: float) -> None:
        self.first_byte = at
        self.head = head
        self.status = head.status
        self.streaming = (head.get(b"content-type") or b"").startswith(b"text/event-stream")

    def on_body(self, data: bytes, at: float) -> None:
        if not self.streaming or self.status != 200:
            if len(self.raw) < 1_000_000:
                self.raw += data
            return
        for payload in self.parser.feed(data):
            if payload == b"[DONE]":
                self.finished = True
            else:
                self._event(payload, at)

    def on_end(self, at: float) -> None:
        if not self.streaming or self.status != 200:
            self._whole(at)
        elif not self.finished and self.error_kind is None:
            self._fail("cut", "the stream ended without a finish_reason and without [DONE]")
        self._end(at)

    def on_failure(self, failure: WireFailure, at: float) -> None:
        kind = "cut" if self.first_byte is not None and failure.kind == "closed" else failure.kind
        self._fail(kind, str(failure))
        self._end(at)

    def fail(self, kind: str, message: str, at: float) -> None:
        self._fail(kind, message)
        self._end(at)

    def _event(self, payload: bytes, at: float) -> None:
        try:
            event = json.loads(payload)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self._fail("garbage", f"an event is not a JSON object: {payload[:80]!r}")
            return
        if "error" in event:
            self._fail("engine_error", _message_of(event))
            return
        self._take_figures(event)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            piece = (
                delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or choice.get("text")
            )
            if piece or delta.get("tool_calls"):
                self.arrivals.append(at)
            if isinstance(piece, str):
                self.text.append(piece)
            if choice.get("finish_reason"):
                self.finish_reason = choice["finish_reason"]
                self.finished = True

    def _whole(self, at: float) -> None:
        """An error, or a server that does not stream: everything arrives at the end."""
        try:
            document = json.loads(self.raw)
        except ValueError:
            document = None
        if self.status != 200:
            text = (
                _message_of(document)
                if isinstance(document, dict)
                else self.raw[:MAX_ERROR_TEXT].decode(errors="replace")
            )
            self._fail(f"http_{self.status}", text or f"HTTP {self.status}")
        elif not isinstance(document, dict) or not document.get("choices"):
            self._fail("garbage", f"the answer is not a chat completion: {bytes(self.raw[:80])!r}")
        else:
            self._take_figures(document)
            choice = document["choices"][0]
            self.finish_reason = choice.get("finish_reason")
            self.text.append((choice.get("message") or {}).get("content") or "")
            self.arrivals.append(at)

    def _take_figures(self, document: dict[str, Any]) -> None:
        if isinstance(document.get("usage"), dict):
            self.usage = document["usage"]
        if isinstance(document.get("timings"), dict):
            self.timings = document["timings"]

    def _fail(self, kind: str, message: str) -> None:
        if self.error_kind is None:
            self.error_kind = kind
            self.error = message[:MAX_ERROR_TEXT]

    def _end(self, at: float) -> None:
        if not self.done.done():
            self.done.set_result(at)


async def measure(
    task: Task, endpoint: Endpoint, pool: Pool, origin_s: float, *, timeout_s: float, keep_text: bool
) -> Request:
    """Send one task and give its row; times count from `origin_s` on `time.monotonic()`. Does not raise for faults."""
    loop = asyncio.get_running_loop()
    reading = Reading(loop.create_future())
    target = f"{endpoint.base}/chat/completions"
    payload = json_request(endpoint.origin, "POST", target, body_of(task, endpoint.model), dict(endpoint.headers))
    started = time.monotonic()
    call = pool.send(payload, reading)
    try:
        async with asyncio.timeout(timeout_s):
            ended = await reading.done
    except TimeoutError:
        call.abort()
        ended = time.monotonic()
        reading.done = loop.create_future()
        reading.fail("timeout", f"no complete answer within {timeout_s:g} s", ended)
    except asyncio.CancelledError:
        call.abort()
        raise
    return _row(task, reading, (started, ended, origin_s), keep_text=keep_text)


def _row(task: Task, reading: Reading, clock: tuple[float, float, float], *, keep_text: bool) -> Request:
    started, ended, origin_s = clock
    output_tokens = _int(reading.usage.get("completion_tokens"))
    if reading.error_kind is None and output_tokens is None:
        reading.error_kind, reading.error = "no_usage", "the server sent no `usage`, so its tokens are unknown"
    arrivals = tuple(at - origin_s for at in reading.arrivals)
    head = reading.head
    replica = head.get(b"x-skep-replica") if head else None
    queued = head.get(b"x-skep-queue-ms") if head else None
    return Request(
        level=task.level,
        repeat=task.repeat,
        index=task.index,
        kind=task.kind,
        started_s=started - origin_s,
        ended_s=ended - origin_s,
        first_byte_s=None if reading.first_byte is None else reading.first_byte - origin_s,
        first_token_s=arrivals[0] if arrivals else None,
        last_token_s=arrivals[-1] if arrivals else None,
        prompt_tokens=_int(reading.usage.get("prompt_tokens")),
        output_tokens=output_tokens,
        status=reading.status,
        error_kind=reading.error_kind,
        error=reading.error,
        finish_reason=reading.finish_reason,
        replica=replica.decode("latin-1") if replica else None,
        queued_ms=float(queued) if queued else None,
        engine=_timings(reading),
        arrivals_s=arrivals,
        prompt="\n".join(message["content"] for message in task.messages) if keep_text else None,
        answer="".join(reading.text) if keep_text else None,
    )


def _timings(reading: Reading) -> EngineTimings:
    """llama.cpp's per-request `timings`; cached tokens also where only `usage` tells them."""
    timings = reading.timings
    details = reading.usage.get("prompt_tokens_details")
    cached = timings.get("cache_n", details.get("cached_tokens") if isinstance(details, dict) else None)
    return EngineTimings(
        prompt_tokens=_int(timings.get("prompt_n")),
        cached_tokens=_int(cached),
        prompt_ms=_float(timings.get("prompt_ms")),
        output_tokens=_int(timings.get("predicted_n")),
        decode_ms=_float(timings.get("predicted_ms")),
        decode_tok_s=_float(timings.get("predicted_per_second")),
    )


def _message_of(document: dict[str, Any]) -> str:
    error = document.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error or document.get("message") or document)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
