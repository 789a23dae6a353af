"""Clients in a closed loop: each asks, reads to the end or hangs up, notes what it got, and asks
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from havoc.asks import Ask, Asker, Manners
from havoc.line import Ended, Head, Line, Nonsense, Silent
from havoc.verdicts import End, Verdict, judge, read_stream

PIPELINED = 0.02  # of the requests come with three others, all at once on one connection
THINK_S = 0.05
REFUSED_S = 0.4  # before one who was refused comes again
SLOW_RECEIVE_BYTES = 4096
SLOW_STEP_BYTES = 24_576
SLOW_PACE_S = 0.04


@dataclass(slots=True)
class Note:
    """One request as its client saw it."""

    ask: Ask
    at_s: float
    verdict: Verdict = field(default_factory=lambda: Verdict(End.WRONG, "never ended"))
    head: Head | None = None
    body_bytes: int = 0
    comment_bytes: int = 0  # of these, what the gateway said while the stream waited
    first_s: float | None = None
    ended_s: float = 0.0
    silence_s: float = 0.0  # the longest wait for a byte

    @property
    def id(self) -> str | None:
        if self.head is not None:
            return self.head.told.get("id")
        return None


class Crowd:
    """All clients of a run and all notes they took."""

    def __init__(
        self, port: int, asker: Asker, rng: Random, *, silence_s: float, scale: float = 1.0
    ) -> None:
        self._port = port
        self._asker = asker
        self._rng = rng
        self._silence_s = silence_s
        self._slow_pace_s = SLOW_PACE_S * scale
        self.notes: list[Note] = []
        self.closed = (
            0  # connections that the gateway closed between two requests without having said so
        )
        self.stopping = asyncio.Event()

    async def run(
        self, clients: int, *, patient: bool = False, asks_each: int | None = None
    ) -> None:
        """Until `stopping` is set, or each has asked so often."""
        self.stopping.clear()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(
                    self._client(Random(self._rng.random()), patient=patient, asks=asks_each)
                )

    async def _client(self, rng: Random, *, patient: bool, asks: int | None) -> None:
        line: Line | None = None
        try:
            while not self.stopping.is_set() and asks != 0:
                if rng.random() < PIPELINED:
                    await self._pipeline([self._note(patient=True, small=True) for _ in range(3)])
                note = self._note(patient=patient)
                if note.ask.fresh and line is not None:
                    line.close()
                    line = None
                line = await self._ask(note, line)
                asks = asks - 1 if asks is not None else None
                if note.verdict.end is End.REFUSED:
                    think_s = REFUSED_S
                else:
                    think_s = THINK_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(think_s * rng.random() * 2):
                        await self.stopping.wait()
        finally:
            if line is not None:
                line.close()

    def _note(self, *, patient: bool, small: bool = False) -> Note:
        note = Note(self._asker.next(patient=patient, small=small), time.monotonic())
        self.notes.append(note)
        return note

    async def _ask(self, note: Note, line: Line | None) -> Line | None:
        """The connection, if it may be used again."""
        ask = note.ask
        odd = line.surplus() if line is not None else b""
        if line is not None and odd is None:
            line.close()
            line = None
            self.closed += 1
        elif line is not None and odd:
            line.close()
            note.verdict = Verdict(End.WRONG, f"bytes before the request was sent: {odd[:200]!r}")
            return None
        if line is None:
            if ask.manners is Manners.SLOW:
                size = SLOW_RECEIVE_BYTES
            else:
                size = None
            line = await Line.open(self._port, silence_s=self._silence_s, receive_bytes=size)
        line.longest_s = 0.0
        if ask.manners is Manners.SLOW:
            line.pace_s = self._slow_pace_s
            line.step_bytes = SLOW_STEP_BYTES
        try:
            keep = await self._exchange(note, line)
        except TimeoutError:
            note.verdict = Verdict(End.LEFT)
            keep = False
        except asyncio.CancelledError:
            line.close()
            raise
        note.ended_s = time.monotonic() - note.at_s
        note.silence_s = line.longest_s
        if keep and ask.manners is not Manners.SLOW:
            return line
        line.close(reset=ask.reset and note.verdict.end is End.LEFT)
        return None

    async def _pipeline(self, notes: Sequence[Note]) -> None:
        """All sent at once; the answers come in their order."""
        line = await Line.open(self._port, silence_s=self._silence_s)
        try:
            await line.send(b"".join(note.ask.head + note.ask.body for note in notes))
            keep = True
            for note in notes:
                if keep:
                    keep = await self._exchange(note, line, send=False)
                else:
                    note.verdict = Verdict(End.UNTAKEN)
                note.ended_s = time.monotonic() - note.at_s
                note.silence_s = line.longest_s
        finally:
            line.close()

    async def _exchange(self, note: Note, line: Line, *, send: bool = True) -> bool:
        """Whether the connection may be used again."""
        ask = note.ask
        if ask.manners is Manners.LEAVES_SOON:
            leaves_s = ask.leaves_s
        else:
            leaves_s = None
        body = bytearray()
        try:
            if ask.manners is Manners.HALF:
                await line.send(ask.head + ask.body[: len(ask.body) // 2])
                note.verdict = Verdict(End.LEFT, "half a request")
                return False
            if send:
                await line.send(ask.head + ask.body)
            async with asyncio.timeout(leaves_s):
                note.head = await line.head()
                async for piece in line.pieces(note.head):
                    if note.first_s is None:
                        note.first_s = time.monotonic() - note.at_s
                    body += piece
                    note.body_bytes = len(body)
                    if ask.manners is Manners.LEAVES_INSIDE and len(body) >= ask.leaves_bytes:
                        note.verdict = Verdict(End.LEFT)
                        return False
        except Silent:
            note.verdict = Verdict(End.WRONG, "hung: not a byte for too long")
            return False
        except Nonsense as error:
            note.verdict = Verdict(End.WRONG, f"no HTTP: {error}")
            return False
        except Ended as error:
            if note.head is None:
                note.verdict = Verdict(End.WRONG, f"no answer at all: {error}")
            else:
                note.verdict = judge(ask, note.head, bytes(body), whole=False)
            return False
        note.verdict = judge(ask, note.head, bytes(body), whole=True)
        if ask.streamed:
            note.comment_bytes = read_stream(bytes(body)).comment_bytes
        return not note.head.last and note.verdict.end is not End.CUT
