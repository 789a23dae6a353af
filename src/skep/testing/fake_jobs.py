"""One generation on a slot: waits for prefill, sends each token at its deadline, ends, hangs or is left alone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skep.testing.fake_answers import Answer, Ask
from skep.testing.fake_faults import Fault, FaultKind
from skep.testing.fake_http import Connection
from skep.testing.fake_slots import SlotTable
from skep.testing.fake_streams import AnswerHead, StreamEncoder, StreamForm, whole_answer
from skep.testing.fake_timing import DecodeClock, Speed

TIMER_STEP_S = 0.0005  # event loops fire timers to the millisecond: what is due within half of one is due


@dataclass(frozen=True, slots=True)
class Work:
    """What a job has to say, and how."""

    ask: Ask
    answer: Answer
    head: AnswerHead
    form: StreamForm
    fault: Fault | None
    timings: bool


class Job:
    """`left` is called once, when the slot is free again or the place in the queue is given up."""

    def __init__(
        self, work: Work, speed: Speed, connection: Connection, *, deaf_s: float, left: Callable[[Job], None]
    ) -> None:
        self._work = work
        self._speed = speed
        self._connection = connection
        self._deaf_s = deaf_s
        self._left = left
        self._table: SlotTable[Job] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stream: StreamEncoder | None = None
        self._opened = False  # the answer's head is out
        self._started_s = self._first_s = self._last_s = 0.0
        self.produced = 0

    @property
    def prompt_tokens(self) -> int:
        return self._work.ask.prompt_tokens

    def start(self, table: SlotTable[Job]) -> None:
        """A slot is ours: prefill begins."""
        self._table = table
        self._started_s = time.monotonic()
        if self._work.fault is not None and self._work.fault.kind is FaultKind.HANG_FIRST:
            return
        ask = self._work.ask
        self._clock = DecodeClock(self._speed, self._started_s, ask.prompt_tokens)
        if ask.stream:
            total = len(self._work.answer.tokens)
            self._stream = StreamEncoder(self._work.form, self._work.head, total=total, include_usage=ask.include_usage)
            if opening := self._stream.opening():
                self._connection.begin_stream()
                self._send(opening)
                self._opened = True
        self._wait()

    def hang_up(self) -> None:
        """The client has gone. A deaf engine does not hear it at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._table is not None and self._deaf_s:
            asyncio.get_running_loop().call_later(self._deaf_s, self._left, self)
        else:
            self._left(self)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._clock.deadline_s, self._tick)

    def _tick(self) -> None:
        """Send what is due, then wait for the next deadline."""
        assert self._table is not None
        while True:
            if self._stream is not None and not self._opened:
                self._connection.begin_stream()
                self._opened = True
            if self._struck():
                return
            self._produce()
            if self.produced == len(self._work.answer.tokens):
                self._finish()
                return
            due_s = self._clock.advance(self._last_s, busy=self._table.running, waiting=self._table.waiting)
            if due_s > self._last_s + TIMER_STEP_S:
                break
        self._wait()

    def _produce(self) -> None:
        self._last_s = time.monotonic()
        if self.produced == 0:
            self._first_s = self._last_s
        if self._stream is not None:
            self._send(self._stream.token(self._work.answer.tokens[self.produced]))
        self.produced += 1

    def _struck(self) -> bool:
        fault = self._work.fault
        if fault is None or not fault.kind.is_mid or self.produced < fault.after_tokens:
            return False
        if fault.kind is FaultKind.CRASH:
            os._exit(fault.exit_code)
        if fault.kind is FaultKind.CLOSE_MID:
            self._connection.close(reset=fault.reset)
            self._left(self)
        return True

    def _finish(self) -> None:
        timings = self._timings() if self._work.timings else None
        finish = self._work.answer.finish_reason
        self._left(self)
        if self._stream is None:
            work = self._work
            body = whole_answer(work.head, work.form, work.answer.tokens, finish, timings)
            self._connection.send(200, body)
        else:
            self._send(self._stream.ending(finish, timings))
            self._connection.end_stream()

    def _send(self, writes: list[bytes]) -> None:
        for data in writes:
            self._connection.chunk(data)

    def _timings(self) -> dict[str, Any]:
        """As llama.cpp reports them, from the moments at which tokens really left."""
        prompt_ms = (self._first_s - self._started_s) * 1000
        decode_ms = (self._last_s - self._first_s) * 1000
        timings = {
            "cache_n": 0,
            "prompt_n": self._work.ask.prompt_tokens,
            "prompt_ms": prompt_ms,
            "prompt_per_second": self._work.ask.prompt_tokens / max(prompt_ms, 0.001) * 1000,
            "predicted_n": self.produced,
            "predicted_ms": decode_ms,
        }
        if self.produced > 1 and decode_ms > 0:
            timings["predicted_per_token_ms"] = decode_ms / (self.produced - 1)
            timings["predicted_per_second"] = (self.produced - 1) / decode_ms * 1000
        return timings
