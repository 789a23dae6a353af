"""Streamed requests to one endpoint, and how many events of each answer have arrived so far. Knows
nothing of tasks and of what makes an answer right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.store.rows import storable
from skep.swarm.records import AttemptResult
from skep.wire.client import LARGEST_ANSWER_BYTES, Pool
from skep.wire.heads import ResponseHead
from skep.wire.openai import CHAT, OpenAIClient, StreamReader

MOST_IDLE = 1024  # connections; a server that minds has closed them by then


class SwarmClient:
    """One endpoint's connections."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, flow: str = "") -> None:
        """`flow`: whose requests these are, for a gateway that shares fairly between several."""
        self.endpoint = endpoint
        self.total = 0  # events of all answers: each carries one token or several
        # Events by lease, of the attempts that the runner has entered here.
        self.heard: dict[int, int] = {}
        # Called with an attempt's lease when every byte of its answer is here: another may take
        # its place while the answer is still being read.
        self.on_whole: Callable[[int], None] = lambda _: None
        self.is_gateway = "replicas" in endpoint.engine
        headers = dict(endpoint.headers)
        if flow and self.is_gateway:
            headers["x-skep-agent"] = flow
        self.pool = Pool(endpoint.origin, max_idle=MOST_IDLE)
        self._client = OpenAIClient(
            self.pool, f"{endpoint.base}{CHAT}", headers, timeout_s=timeout_s
        )

    async def aclose(self) -> None:
        await self.pool.close()

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        lease: int = 0,
        fields: Mapping[str, Any] | None = None,
        priority: str | None = None,
        session: str | None = None,
        timeout_s: float | None = None,
    ) -> AttemptResult:
        """Send one streamed request; a fault is returned in the result, not raised.

        `fields`: of the body; `session`: of skep's gateway.
        """
        body = {
            **(fields or {}),
            "model": self.endpoint.model,
            "messages": [dict(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers: dict[str, str | None] = {}
        if self.is_gateway:
            headers = {"x-skep-priority": priority, "x-skep-session": session}
        reading = CountingReader(asyncio.get_running_loop().create_future(), self, lease)
        epoch = time.time() - time.monotonic()
        await self._client.send(self._client.encode(body, headers), reading, timeout_s=timeout_s)
        if reading.status == 200 and not reading.is_given_up:  # it is whole
            self.on_whole(lease)
            # When many end at once, those that follow are sent before these are read.
            await asyncio.sleep(0)
        reading.digest()
        names = (
            "error_kind",
            "status",
            "prompt_tokens",
            "output_tokens",
            "queued_ms",
            "replica",
            "retry_after_s",
        )
        return AttemptResult(
            **{name: getattr(reading, name) for name in names},
            answer=storable("".join(reading.text)) or None,
            error=storable(reading.error),
            first_token_at=reading.arrivals[0] + epoch if reading.arrivals else None,
            decode_ms=reading.engine_figures()["decode_ms"],
            finish_reason=storable(reading.finish_reason),
        )

    def count_events(self, lease: int, events: int) -> None:
        self.total += events
        if lease in self.heard:
            self.heard[lease] += events


class CountingReader(StreamReader):
    """Counts events as they arrive: a read may hold several."""

    def __init__(self, done: asyncio.Future[float], client: SwarmClient, lease: int) -> None:
        super().__init__(done)
        self._client = client
        self._lease = lease
        self._received_bytes = 0

    def on_head(self, head: ResponseHead, at: float) -> None:
        super().on_head(head, at)
        self._mark = b"\n" if self._stream == "ndjson" else b"data:"

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        if self._has_room(carried, at):
            super().on_chunks(raw, carried, at)
            self._count(raw)

    def on_body(self, data: bytes, at: float) -> None:
        if self._has_room(len(data), at):
            super().on_body(data, at)
            if self._stream:
                self._count(data)

    def _has_room(self, size: int, at: float) -> bool:
        """Return whether the answer may go on; one that never ends is given up and forgotten."""
        self._received_bytes += size
        if self._received_bytes <= LARGEST_ANSWER_BYTES:
            return True
        for buffer in (self.text, self.reasoning, self._times, self._reads):
            buffer.clear()
        self.give_up("too_long", f"the answer has more than {LARGEST_ANSWER_BYTES:,} bytes", at)
        return False

    def _count(self, data: bytes) -> None:
        if not self.done.done():
            self._client.count_events(self._lease, data.count(self._mark))
