"""One measured request: the task, the body sent for it, and the row it becomes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from skep.bench.endpoint import Endpoint
from skep.store.records import EngineTimings, Request
from skep.store.rows import storable
from skep.wire.client import Pool
from skep.wire.openai import CHAT, OpenAIClient, StreamReader

OLLAMA_CHAT = "/api/chat"


class BenchTask(msgspec.Struct, frozen=True):
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
    body: Mapping[str, Any] = {}  # sent as it is, over the fields above: a recorded request


EncodedRequest = tuple[BenchTask, tuple[bytes, bytes]]  # a task, and its head and body as they go over the wire


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


class Sender:
    """Sends tasks to one endpoint and makes rows of the answers, when nothing else is to be done: requests go first."""

    def __init__(
        self, endpoint: Endpoint, pool: Pool, origin_s: float, *, timeout_s: float, keep_text: bool = False
    ) -> None:
        self.endpoint = endpoint
        self.pool = pool
        self.origin_s = origin_s  # rows count their seconds from here, on `time.monotonic()`
        path = OLLAMA_CHAT if endpoint.api == "ollama" else f"{endpoint.base}{CHAT}"
        self._client = OpenAIClient(pool, path, endpoint.headers, timeout_s=timeout_s)
        self._keep_text = keep_text
        self._finished_answers: deque[tuple[BenchTask, StreamReader, Callable[[Request], None]]] = deque()
        self._row_task: asyncio.Task[None] | None = None

    def now(self) -> float:
        return time.monotonic() - self.origin_s

    @property
    def in_flight(self) -> set[StreamReader]:
        return self._client.in_flight

    def reads(self) -> int:
        """Network reads of the answers under way: about as many as their tokens."""
        return sum(reading.reads for reading in self._client.in_flight)

    def encode(self, task: BenchTask) -> EncodedRequest:
        return task, self._client.encode(body_of(task, self.endpoint), {"x-skep-priority": task.priority})

    async def send(self, encoded: EncodedRequest, on_row: Callable[[Request], None]) -> None:
        """Returns when the answer has ended; its row comes soon after. Does not raise for faults."""
        task, request = encoded
        self._finished_answers.append((task, await self._exchange(request), on_row))
        if self._row_task is None or self._row_task.done():
            if self._row_task is not None:
                self._row_task.result()  # what went wrong with a row ends the load
            self._row_task = asyncio.get_running_loop().create_task(self._flush_rows_when_idle())

    async def ask(self, task: BenchTask) -> tuple[Request, str]:
        """Return the row and the answer's text."""
        reading = await self._exchange(self.encode(task)[1])
        return self._row(task, reading), storable("".join(reading.text)) or ""

    async def settle(self) -> None:
        """Wait until every row has been handed on."""
        emitting, self._row_task = self._row_task, None
        if emitting is not None:
            await emitting

    def flush_rows(self) -> None:
        """Hand on all rows at once, because the load was broken off and its measurements are kept."""
        emitting, self._row_task = self._row_task, None
        if emitting is not None:
            emitting.cancel()
        while self._finished_answers:
            self._emit_next_row()

    async def _exchange(self, request: tuple[bytes, bytes]) -> StreamReader:
        if not self.pool.has_idle():
            await self.pool.prepare(1)  # the time to connect is not the engine's
        return await self._client.send(request)

    async def _flush_rows_when_idle(self) -> None:
        while self._finished_answers:
            self._emit_next_row()
            await asyncio.sleep(0)  # whatever has arrived comes first

    def _emit_next_row(self) -> None:
        task, reading, on_row = self._finished_answers.popleft()
        on_row(self._row(task, reading))

    def _row(self, task: BenchTask, reading: StreamReader) -> Request:
        reading.digest()
        output_tokens = reading.output_tokens
        kind, error = reading.error_kind, reading.error
        if kind is None and output_tokens is None:
            kind, error = "no_usage", "the server sent no `usage`, so its tokens are unknown"
        origin = self.origin_s
        arrivals = tuple([at - origin for at in reading.arrivals])
        return Request(
            level=task.level,
            repeat=task.repeat,
            index=task.index,
            kind=task.kind,
            started_s=reading.started_at - origin,
            ended_s=reading.ended_at - origin,
            first_byte_s=None if reading.first_byte is None else reading.first_byte - origin,
            first_token_s=arrivals[0] if arrivals else None,
            last_token_s=arrivals[-1] if arrivals else None,
            prompt_tokens=reading.prompt_tokens,
            output_tokens=output_tokens,
            status=reading.status,
            error_kind=kind,
            error=storable(error),
            finish_reason=storable(reading.finish_reason),
            replica=reading.replica,
            queued_ms=reading.queued_ms,
            engine=EngineTimings(**reading.engine_figures()),
            arrivals_s=arrivals,
            prompt=storable("\n".join(str(one.get("content")) for one in task.messages)) if self._keep_text else None,
            answer=storable("".join(reading.text)) if self._keep_text else None,
            reasoning=storable("".join(reading.reasoning)) or None if self._keep_text else None,
            traffic=task.traffic,
            scheduled_s=task.scheduled_s,
            session=task.session,
            turn=task.turn,
        )
