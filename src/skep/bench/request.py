"""One measured request: the task, the body sent for it, and the row it becomes."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.store.records import EngineTimings, Request
from skep.store.rows import storable
from skep.wire.client import Call, Pool
from skep.wire.stream_reader import StreamReader

OPENAI_CHAT = "/chat/completions"
OLLAMA_CHAT = "/api/chat"
LARGEST = 2**53  # of a count or a time; what is beyond is nonsense
_NANOSECONDS_IN_MS = 1e6


@dataclass(frozen=True, slots=True)
class BenchTask:
    """One request to be made."""

    level: int
    repeat: int
    index: int
    kind: str
    messages: list[dict[str, str]]
    max_tokens: int
    fixed_output: bool = False  # ask the engine to go on to max_tokens (llama.cpp and vLLM know how)
    temperature: float = 0.0
    traffic: str = ""
    priority: str | None = None  # of skep's gateway; other servers do not see it
    scheduled_s: float | None = None  # on the run's clock
    session: int | None = None
    turn: int | None = None
    body: Mapping[str, Any] = field(default_factory=dict)  # sent as it is, over the fields above: a recorded request


def body_of(task: BenchTask, endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.api == "ollama":
        options: dict[str, Any] = {"num_predict": task.max_tokens, "temperature": task.temperature}
        return {"model": endpoint.model, "messages": task.messages, "stream": True, "options": options}
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": task.messages,
        "max_tokens": task.max_tokens,
        "temperature": task.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if task.fixed_output:
        body["ignore_eos"] = True
    if task.body:
        body.pop("max_tokens" if "max_completion_tokens" in task.body else "", None)
        body |= {**task.body, "model": endpoint.model, "stream": True, "stream_options": {"include_usage": True}}
    return body


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A task as it goes over the wire."""

    task: BenchTask
    head: bytes
    body: bytes


class Sender:
    """Sends tasks to one endpoint and makes rows of the answers.

    An answer that has ended waits at the desk until nothing else is to be done: when a hundred end at once, the next
    hundred requests go out first, and bytes that arrive meanwhile get their true times.
    """

    def __init__(
        self, endpoint: Endpoint, pool: Pool, origin_s: float, *, timeout_s: float, keep_text: bool = False
    ) -> None:
        self.endpoint = endpoint
        self.pool = pool
        self.origin_s = origin_s  # rows count their seconds from here, on `time.monotonic()`
        self.in_flight: set[StreamReader] = set()
        self._timeout_s = timeout_s
        self._keep_text = keep_text
        self._lines = _header_lines(endpoint, pool)
        self._loop = asyncio.get_running_loop()
        self._finished_answers: deque[tuple[BenchTask, StreamReader, float, float, Callable[[Request], None]]] = deque()
        self._row_task: asyncio.Task[None] | None = None

    def now(self) -> float:
        return time.monotonic() - self.origin_s

    def reads(self) -> int:
        """Network reads of the answers under way: about as many as their tokens."""
        return sum(reading.reads for reading in self.in_flight)

    def letter(self, task: BenchTask) -> EncodedRequest:
        body = json.dumps(body_of(task, self.endpoint), ensure_ascii=False).encode("utf-8", "replace")
        priority = b"x-skep-priority: %b\r\n" % task.priority.encode() if task.priority else b""
        return EncodedRequest(task, b"%b%bcontent-length: %d\r\n\r\n" % (self._lines, priority, len(body)), body)

    async def send(self, letter: EncodedRequest, on_row: Callable[[Request], None]) -> None:
        """Returns when the answer has ended; its row comes soon after. Does not raise for faults."""
        reading, started, ended = await self._exchange(letter)
        self._finished_answers.append((letter.task, reading, started, ended, on_row))
        if self._row_task is None or self._row_task.done():
            if self._row_task is not None:
                self._row_task.result()  # what went wrong with a row ends the load
            self._row_task = self._loop.create_task(self._flush_rows_when_idle())

    async def ask(self, letter: EncodedRequest) -> tuple[Request, str]:
        """Return the row and the answer's text."""
        reading, started, ended = await self._exchange(letter)
        row = self._row(letter.task, reading, started, ended)
        return row, storable("".join(reading.text)) or ""

    async def settle(self) -> None:
        """Wait until every row has been handed on."""
        clerk, self._row_task = self._row_task, None
        if clerk is not None:
            await clerk

    def flush_rows(self) -> None:
        """Hand on all rows at once, because the load was broken off and its measurements are kept."""
        clerk, self._row_task = self._row_task, None
        if clerk is not None:
            clerk.cancel()
        while self._finished_answers:
            self._emit_next_row()

    async def _exchange(self, letter: EncodedRequest) -> tuple[StreamReader, float, float]:
        reading = StreamReader(self._loop.create_future())
        if not self.pool.has_idle():
            await self.pool.prepare(1)  # the time to connect is not the engine's
        self.in_flight.add(reading)
        started = time.monotonic()
        call = self.pool.send(letter.head, reading, letter.body)
        timer = self._loop.call_later(self._timeout_s, self._time_out, reading, call)
        try:
            ended = await reading.done
        except asyncio.CancelledError:
            call.abort()
            raise
        finally:
            timer.cancel()
            self.in_flight.discard(reading)
        return reading, started, ended

    async def _flush_rows_when_idle(self) -> None:
        while self._finished_answers:
            self._emit_next_row()
            await asyncio.sleep(0)  # whatever has arrived comes first

    def _emit_next_row(self) -> None:
        task, reading, started, ended, on_row = self._finished_answers.popleft()
        on_row(self._row(task, reading, started, ended))

    def _time_out(self, reading: StreamReader, call: Call) -> None:
        call.abort()
        reading.give_up("timeout", f"no complete answer within {self._timeout_s:g} s", time.monotonic())

    def _row(self, task: BenchTask, reading: StreamReader, started: float, ended: float) -> Request:
        reading.digest()
        output_tokens = _count(reading.usage.get("completion_tokens"))
        kind, error = reading.error_kind, reading.error
        if kind is None and output_tokens is None:
            kind, error = "no_usage", "the server sent no `usage`, so its tokens are unknown"
        origin = self.origin_s
        arrivals = tuple([at - origin for at in reading.arrivals])
        head = reading.head
        replica = head.get(b"x-skep-replica") if head else None
        queued = head.get(b"x-skep-queue-ms") if head else None
        return Request(
            level=task.level,
            repeat=task.repeat,
            index=task.index,
            kind=task.kind,
            started_s=started - origin,
            ended_s=ended - origin,
            first_byte_s=None if reading.first_byte is None else reading.first_byte - origin,
            first_token_s=arrivals[0] if arrivals else None,
            last_token_s=arrivals[-1] if arrivals else None,
            prompt_tokens=_count(reading.usage.get("prompt_tokens")),
            output_tokens=output_tokens,
            status=reading.status,
            error_kind=kind,
            error=storable(error),
            finish_reason=storable(reading.finish_reason),
            replica=replica.decode("latin-1") if replica else None,
            queued_ms=_milliseconds(queued),
            engine=timings_of(reading),
            arrivals_s=arrivals,
            prompt=storable("\n".join(str(one.get("content")) for one in task.messages)) if self._keep_text else None,
            answer=storable("".join(reading.text)) if self._keep_text else None,
            reasoning=storable("".join(reading.reasoning)) or None if self._keep_text else None,
            traffic=task.traffic,
            scheduled_s=task.scheduled_s,
            session=task.session,
            turn=task.turn,
        )


def timings_of(reading: StreamReader) -> EngineTimings:
    """llama.cpp's `timings`, vLLM's `metrics`, Ollama's durations; cached tokens also where only `usage` tells them."""
    timings = reading.timings
    if "eval_duration" in timings:
        return _ollama_timings(timings)
    details = reading.usage.get("prompt_tokens_details")
    cached = timings.get("cache_n", details.get("cached_tokens") if isinstance(details, dict) else None)
    if "generation_time_ms" in timings:
        return _vllm_timings(timings, reading.usage, _count(cached))
    return EngineTimings(
        prompt_tokens=_count(timings.get("prompt_n")),
        cached_tokens=_count(cached),
        prompt_ms=_float(timings.get("prompt_ms")),
        output_tokens=_count(timings.get("predicted_n")),
        decode_ms=_float(timings.get("predicted_ms")),
        decode_tok_s=_float(timings.get("predicted_per_second")),
    )


def _vllm_timings(timings: Mapping[str, Any], usage: Mapping[str, Any], cached: int | None) -> EngineTimings:
    gap = _float(timings.get("mean_itl_ms"))
    return EngineTimings(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=cached,
        prompt_ms=_float(timings.get("time_to_first_token_ms")),
        output_tokens=_count(usage.get("completion_tokens")),
        decode_ms=_float(timings.get("generation_time_ms")),
        decode_tok_s=1000 / gap if gap else None,
        queue_ms=_float(timings.get("queue_time_ms")),
    )


def _ollama_timings(timings: Mapping[str, Any]) -> EngineTimings:
    count, spent = _count(timings.get("eval_count")), _float(timings.get("eval_duration"))
    prompt = _float(timings.get("prompt_eval_duration"))
    return EngineTimings(
        prompt_tokens=_count(timings.get("prompt_eval_count")),
        prompt_ms=None if prompt is None else prompt / _NANOSECONDS_IN_MS,
        output_tokens=count,
        decode_ms=None if spent is None else spent / _NANOSECONDS_IN_MS,
        decode_tok_s=count * 1e9 / spent if count and spent else None,
    )


def _header_lines(endpoint: Endpoint, pool: Pool) -> bytes:
    path = OLLAMA_CHAT if endpoint.api == "ollama" else f"{endpoint.base}{OPENAI_CHAT}"
    own = "".join(f"{name}: {value}\r\n" for name, value in endpoint.headers.items())
    fixed = "accept: */*\r\nuser-agent: skep\r\ncontent-type: application/json\r\n"
    return b"POST %b HTTP/1.1\r\n%b%b" % (path.encode(), pool.host_line, f"{fixed}{own}".encode())


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST else None


def _float(value: object) -> float | None:
    """Return the value as a float; None for text, NaN and what the store cannot hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= LARGEST:
        return None
    return float(value) if value == value else None  # noqa: PLR0124 - NaN is not itself


def _milliseconds(text: bytes | None) -> float | None:
    try:
        return _float(float(text)) if text else None
    except ValueError:
        return None
