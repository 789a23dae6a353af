"""Streams that must keep flowing while something else goes wrong, and the longest wait in any of
them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import TracebackType
from typing import Self

from havoc.audit import Check, check
from havoc.line import Ended, Line, Nonsense, Silent
from havoc.scenario import chat_request

SILENCE_S = 60.0


class SteadyStreams:
    """Streamed answers side by side from entry to exit, each asked for again on the same
    connection as it ends.
    """

    def __init__(self, port: int, model: str, count: int, tokens: int) -> None:
        self._port = port
        self._count = count
        self._request = chat_request(model, tokens)
        self._stopping = False
        self._clients: list[asyncio.Task[None]] = []
        self._flowing = asyncio.Event()  # each of them has had a chunk
        self._with_chunk: set[int] = set()
        self.longest_gap_s = 0.0  # between two chunks of one answer
        self.whole = 0  # answers that came to their end
        self.faults: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        self._clients = [asyncio.create_task(self._client(n)) for n in range(self._count)]
        async with asyncio.timeout(SILENCE_S):
            await self._flowing.wait()
        self.longest_gap_s = 0.0
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the answers under way come to their end, where nothing went wrong."""
        self._stopping = True
        if kind is not None:
            for client in self._clients:
                client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _client(self, number: int) -> None:
        try:
            await self._ask_again_and_again(number)
        except Silent:
            self.faults["nothing came for a minute"] += 1
        except (Ended, Nonsense, OSError) as error:
            self.faults[f"broken: {error}"] += 1

    async def _ask_again_and_again(self, number: int) -> None:
        connection = await Line.open(self._port, silence_s=SILENCE_S)
        try:
            while not self._stopping:
                await connection.send(self._request)
                await self._read_answer(connection, number)
        finally:
            connection.close()

    async def _read_answer(self, connection: Line, number: int) -> None:
        head = await connection.head()
        last_at = None
        tail = b""
        async for piece in connection.pieces(head):
            now = time.monotonic()
            if last_at is not None:
                self.longest_gap_s = max(self.longest_gap_s, now - last_at)
            last_at = now
            tail = (tail + piece)[-200:]
            self._note_chunk(number)
        if head.status != 200:
            self.faults[f"refused with {head.status}"] += 1
            await asyncio.sleep(0.1)
        elif b"[DONE]" not in tail:
            self.faults["cut with an error event"] += 1
        else:
            self.whole += 1

    def _note_chunk(self, number: int) -> None:
        if not self._flowing.is_set():
            self._with_chunk.add(number)
            if len(self._with_chunk) == self._count:
                self._flowing.set()

    def survival(self) -> Check:
        """Return the check that every answer came whole."""
        wrong = (f"{count} times {fault}" for fault, count in self.faults.items())
        return check("the other streams come whole", wrong, f"{self.whole} answers")

    @property
    def figures(self) -> dict[str, float | int]:
        return {
            "longest_gap_s": round(self.longest_gap_s, 2),
            "whole_answers": self.whole,
            "lost_answers": self.faults.total(),
        }
