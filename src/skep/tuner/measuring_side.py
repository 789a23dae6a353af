"""One configuration that is up, with the load on it: warmed, read, and watched all the while.

A side that dies, answers with errors or falls silent raises `SideFailed` at once, with what its log says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from skep.bench.driver import Driver, Meter
from skep.bench.endpoint import Endpoint
from skep.bench.limits import TOLERATED_FAILURES
from skep.bench.pace import Pace
from skep.bench.recording import Recording
from skep.bench.request import Task
from skep.bench.tasks import TaskMaker
from skep.bench.warming import warm_up
from skep.errors import EndpointError, first_of
from skep.records import Request
from skep.tuner.house import Served, of_these_knobs
from skep.tuner.ports import BenchProgress, OnProgress
from skep.tunings import Config, Failure

_T = TypeVar("_T")

LOOK_EVERY_S = 0.25
FIND_OUT_S = 3.0  # for a dead engine's log to be read before its errors are taken for all there is to know
FEW_FAILURES = 1  # of a reading: may happen to anybody


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what may take."""

    reading_s: float = 6.0  # at least, by as many tasks as that takes
    warm_up_s: float = 45.0  # at most; then it is taken as warm
    hang_s: float = 120.0  # without a token of anybody, where prompts are not long
    request_s: float = 3600.0  # silence ends it before


class SideFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Side:
    """`reading` and `readings` are told to who watches."""

    def __init__(
        self,
        config: Config,
        served: Served,
        driver: Driver,
        recording: Recording,
        hang_s: float,
        on_progress: OnProgress,
    ) -> None:
        self.config = config
        self.recording = recording
        self._served = served
        self._driver = driver
        self._hang_s = hang_s
        self._on_progress = on_progress
        self._pace = Pace()
        self._what, self._place = "warming up", (0, 0)
        self._total = self._done = self._failed = 0
        self._error: str | None = None
        self._asked = 0

    def __repr__(self) -> str:
        return f"<Side {self.config.key} {self._what}, {self._done}/{self._total}, {self._failed} failed>"

    async def warm_up(self, maker: TaskMaker, width: int, limit_s: float) -> list[Request]:
        """Its last batch."""
        self._begin("warming up", 0, (0, 0))
        work = warm_up(self._driver, maker, width, on_row=self._took, limit_s=limit_s)
        try:
            await self._watched(work)
        except EndpointError as error:
            raise await self._errors(error.message) from None
        return self.recording.rows[-width:]

    async def take(
        self, level: int, repeat: int, tasks: Sequence[Task], width: int, place: tuple[int, int]
    ) -> tuple[list[Request], bool]:
        """The rows, and whether the client was the limit."""
        self._begin("measuring", len(tasks), place)
        rows, limited = await self._watched(self._driver.run_tasks(level, repeat, tasks, width, self._took))
        if self._too_many:
            raise await self._errors(self._error)
        if self.recording.broken is not None:
            raise self.recording.broken
        return rows, limited

    def joules(self, level: int, repeat: int) -> float | None:
        facts = [one.fact for one in self.recording.facts if (one.level, one.repeat) == (level, repeat)]
        return next((float(fact["joules"]) for fact in facts if "joules" in fact), None)

    def _begin(self, what: str, total: int, place: tuple[int, int]) -> None:
        self._what, self._total, self._place = what, total, place
        self._done = self._failed = 0
        self._pace.reset()
        self._tell()

    def _took(self, row: Request) -> None:
        self._done += 1
        if not row.ok:
            self._failed += 1
            self._error = self._error or row.error or row.error_kind
        self._pace.ended(len(row.arrivals_s))
        self._asked += len(row.arrivals_s) + 1

    @property
    def _too_many(self) -> bool:
        return self._failed > max(FEW_FAILURES, TOLERATED_FAILURES * self._total)

    async def _watched(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                found = await work
                watching.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        return found

    async def _watch(self) -> None:
        sender = self._driver.sender
        seen, since = -1, time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            if (failure := self._served.trouble()) is not None:
                raise SideFailed(of_these_knobs(failure, self.config))
            if self._too_many:
                raise await self._errors(self._error)
            moved = self._asked + sender.reads()
            if moved != seen:
                seen, since = moved, now
            elif now - since > self._hang_s:
                words = f"no token came for {self._hang_s:g} s with {len(sender.in_flight)} requests under way"
                raise SideFailed(Failure("hang", words, self._served.last_words()))
            self._pace.seen(sender.reads(), now)
            self._tell()

    def _tell(self) -> None:
        with suppress(Exception):  # a picture that cannot be drawn is no reason to lose a reading
            self._on_progress(BenchProgress(self.config, self._what, *self._place, self._pace.per_s))

    async def _errors(self, said: str | None) -> SideFailed:
        """Errors of a dead engine are told as its death, once its log has been read."""
        until = time.monotonic() + FIND_OUT_S
        while time.monotonic() < until:
            if (failure := self._served.trouble()) is not None:
                return SideFailed(of_these_knobs(failure, self.config))
            await asyncio.sleep(LOOK_EVERY_S)
        of = f"{self._failed} of {self._total} requests" if self._total else "the requests of the warm-up"
        return SideFailed(
            Failure("errors-under-load", f"{of} failed: {said or 'no reason was given'}", self._served.last_words())
        )


@asynccontextmanager
async def driven(
    endpoint: Endpoint, recording: Recording, width: int, patience: Patience, meter: Meter | None
) -> AsyncIterator[Driver]:
    driver = Driver(
        endpoint,
        recording,
        timeout_s=patience.request_s,
        keep_text=False,
        most_connections=width,
        processes=None,
        meter=meter,
    )
    try:
        yield driver
    finally:
        await driver.close()
