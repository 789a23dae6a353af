"""Requests of one agent, over a connection of its own: streamed, with the tools that the model calls.

An agent's requests go to the same replica one after the other, which has its conversation in the cache.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skep.bench.reading import Reading
from skep.bench.request import LARGEST, OPENAI_CHAT, timings_of
from skep.store.rows import storable
from skep.swarm.line import Line
from skep.wire.client import Pool
from skep.wire.fetch import json_request

MOST_CALLS = 16  # of one answer
LONGEST_ARGUMENTS = 200_000  # characters


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the model wants used; `arguments` as it wrote them."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """What came of one request. Faults are told, not raised. Times are unix seconds."""

    text: str
    calls: tuple[Call, ...]
    started_at: float
    ended_at: float
    error_kind: str | None
    error: str | None
    status: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    first_token_at: float | None
    queued_ms: float | None
    decode_ms: float | None
    finish_reason: str | None
    replica: str | None
    retry_after_s: float | None


class AgentLine:
    def __init__(self, line: Line, attempt: tuple[str, int], *, headers: Mapping[str, str], timeout_s: float) -> None:
        """`line`: the run's own, which is told how much was heard; `headers`: of skep's gateway."""
        self._line = line
        self._attempt = attempt
        self._pool = Pool(line.endpoint.origin)
        self._headers = {**line.endpoint.headers, **headers}
        self._timeout_s = timeout_s

    async def close(self) -> None:
        await self._pool.close()

    async def ask(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> Said:
        endpoint = self._line.endpoint
        body = {
            **fields,
            "model": endpoint.model,
            "messages": [dict(one) for one in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        target = f"{self._pool.prefix.decode()}{endpoint.base}{OPENAI_CHAT}"
        loop = asyncio.get_running_loop()
        reading = _Listening(loop.create_future(), self._line, self._attempt)
        epoch, started = time.time() - time.monotonic(), time.monotonic()
        data = json_request(endpoint.origin, "POST", target, _sound(body), self._headers)
        call = self._pool.send(data, reading)
        timer = loop.call_later(self._timeout_s, self._time_out, reading, call.abort)
        try:
            ended = await reading.done
        except asyncio.CancelledError:
            call.abort()
            raise
        finally:
            timer.cancel()
        return _said(reading, started + epoch, ended + epoch, epoch)

    def _time_out(self, reading: Reading, abort: Any) -> None:
        abort()
        reading.give_up("timeout", f"no complete answer within {self._timeout_s:g} s", time.monotonic())


def _sound(body: dict[str, Any]) -> dict[str, Any]:
    """Half characters cannot be sent."""
    loaded: dict[str, Any] = json.loads(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
    return loaded


@dataclass(slots=True)
class _Growing:
    """A call whose parts are still coming."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class _Listening(Reading):
    """Keeps what belongs to tools, and counts events for the run as they arrive."""

    def __init__(self, done: asyncio.Future[float], line: Line, attempt: tuple[str, int]) -> None:
        super().__init__(done)
        self._told_line = line
        self._told_attempt = attempt
        self.growing: dict[int, _Growing] = {}

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        super().on_chunks(raw, carried, at)
        self._told_line.took(self._told_attempt, raw.count(b"data:"))

    def on_body(self, data: bytes, at: float) -> None:
        super().on_body(data, at)
        if self._stream:
            self._told_line.took(self._told_attempt, data.count(b"data:"))

    def _event(self, payload: bytes, at: float) -> None:
        super()._event(payload, at)
        if b'"tool_calls"' in payload:
            self._take_calls(payload, "delta")

    def _whole(self, at: float) -> None:
        """Of a server that does not stream."""
        raw = b"".join(one[0] if isinstance(one, tuple) else one for one in self._reads)
        super()._whole(at)
        if b'"tool_calls"' in raw:
            self._take_calls(raw, "message")

    def _take_calls(self, payload: bytes, where: str) -> None:
        try:
            document = json.loads(payload)
            calls = document["choices"][0][where]["tool_calls"] or []
        except (ValueError, RecursionError, LookupError, TypeError):
            return
        for place, one in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(one, dict):
                self._take_call(one, place)

    def _take_call(self, one: dict[str, Any], place: int) -> None:
        index = one.get("index")
        index = index if isinstance(index, int) else place
        if index not in self.growing and len(self.growing) >= MOST_CALLS:
            return
        call = self.growing.setdefault(index, _Growing())
        function = one.get("function")
        function = function if isinstance(function, dict) else {}
        if isinstance(one.get("id"), str) and one["id"]:
            call.id = one["id"]
        if isinstance(function.get("name"), str):
            call.name = function["name"] or call.name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # Ollama's way
            arguments = json.dumps(arguments)
        if isinstance(arguments, str) and sum(map(len, call.arguments)) < LONGEST_ARGUMENTS:
            call.arguments.append(arguments)


def _said(reading: _Listening, started_at: float, ended_at: float, epoch: float) -> Said:
    reading.digest()
    head = reading.head
    replica = head.get(b"x-skep-replica") if head else None
    calls = [
        Call(storable(one.id) or f"call-{index}", storable(one.name) or "", storable("".join(one.arguments)) or "")
        for index, one in sorted(reading.growing.items())
        if one.name
    ]
    return Said(
        text=storable("".join(reading.text)) or "",
        calls=tuple(calls),
        started_at=started_at,
        ended_at=ended_at,
        error_kind=reading.error_kind,
        error=storable(reading.error),
        status=reading.status,
        prompt_tokens=_count(reading.usage.get("prompt_tokens")),
        output_tokens=_count(reading.usage.get("completion_tokens")),
        first_token_at=reading.arrivals[0] + epoch if reading.arrivals else None,
        queued_ms=_number(head.get(b"x-skep-queue-ms")) if head else None,
        decode_ms=timings_of(reading).decode_ms,
        finish_reason=storable(reading.finish_reason),
        replica=replica.decode("latin-1") if replica else None,
        retry_after_s=_number(head.get(b"retry-after")) if head else None,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST else None


def _number(text: bytes | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < 3600_000 else None
