"""What surrounds the requests of a judged run: the driver, the warm-up, and how far it has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.load_generator import EnergyMeter, LoadGenerator, TokenPace
from skep.bench.recording import Recording
from skep.bench.tasks import TaskMaker, Workload
from skep.errors import EndpointError
from skep.store.records import Request

TICK_S = 0.25
WARM_UP_TOKENS = 16
WARM_UP_WIDTH = 16  # requests at once, at most


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """Where a judged run stands; level 0 is the warm-up."""

    stage: str  # "warming up" | "asking" | "judging"
    level: int = 0
    arm: str = ""  # "base" | "again" | "load"; of a mixed run, which of its rounds
    done: int = 0  # requests of this level, all its arms and rounds; or answers judged
    total: int = 0  # 0: not known before
    failed: int = 0  # requests, of the whole run
    in_flight: int = 0
    tok_s: float | None = None
    left_s: float | None = None  # of this level


OnProgress = Callable[[TrialProgress], None]


class RunShell:
    """Drives the requests of one run and tells `on_progress` four times a second where it stands."""

    def __init__(
        self,
        endpoint: Endpoint,
        recording: Recording,
        on_progress: OnProgress,
        *,
        timeout_s: float,
        widest: int,
        meter: EnergyMeter | None,
        left_s: Callable[[TrialProgress], float | None] = lambda _: None,
    ) -> None:
        self._endpoint = endpoint
        self._recording = recording
        self._on_progress = on_progress
        self._widest = widest
        self._left_s = left_s
        self._pace = TokenPace()
        self.now = TrialProgress("warming up")
        self.driver = LoadGenerator(
            endpoint,
            recording,
            timeout_s=timeout_s,
            keep_text=True,
            most_connections=widest,
            meter=meter,
        )

    @asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[None]:
        """Warmed up, and telling, until the block ends."""
        ticker = asyncio.create_task(self._tick())
        try:
            await self._warm_up(seed)
            yield
        finally:
            ticker.cancel()
            await self.driver.close()

    def begin(self, **now: Any) -> None:
        self.now = replace(self.now, **now)
        self._pace.reset()
        self.tell()

    def took(self, row: Request) -> None:
        failed = self.now.failed + (not row.ok and row.level > 0)
        self.now = replace(self.now, done=self.now.done + 1, failed=failed)
        self._pace.ended(len(row.arrivals_s))

    def judged(self, done: int) -> None:
        self.now = replace(self.now, done=done)

    def tell(self) -> None:
        in_flight = len(self.driver.sender.in_flight)
        self._on_progress(replace(self.now, in_flight=in_flight, tok_s=self._pace.per_s, left_s=self._left_s(self.now)))

    def check_recording(self) -> None:
        """Raise what kept rows from being written."""
        if self._recording.broken is not None:
            raise self._recording.broken

    async def _warm_up(self, seed: int) -> None:
        """Other prompts than the items', so that none of those is known beforehand; one alone, then some at once."""
        maker = TaskMaker(Workload(seed=seed))
        begin = 0
        for width in (1, min(WARM_UP_WIDTH, self._widest)):
            tasks = maker.warm_up(width, begin, WARM_UP_TOKENS)
            begin += width
            rows, _ = await self.driver.run_tasks(0, 0, tasks, width, self.took)
            if not any(row.ok for row in rows):
                raise EndpointError(
                    f"{self._endpoint.url} answered no request of the warm-up: {rows[0].error}",
                    hint="look at its log; `skep doctor` checks this machine",
                )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._pace.seen(self.driver.sender.reads(), time.monotonic())
            with suppress(Exception):  # a picture that cannot be drawn is no reason to lose a run
                self.tell()
