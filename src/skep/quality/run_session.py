"""The frame of a judged run: the load generator, the warm-up and the progress reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.load_generator import EnergyMeter, LiveCounts, LoadGenerator, check_warm_up
from skep.bench.recording import Recording
from skep.bench.tasks import TaskMaker, Workload
from skep.store.records import Request

WARM_UP_TOKENS = 16
WARM_UP_WIDTH = 16  # requests at once, at most


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """Progress of a judged run; level 0 is the warm-up."""

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
        self._on_progress = on_progress
        self._widest = widest
        self._left_s = left_s
        self.now = TrialProgress("warming up")
        self.driver = LoadGenerator(
            endpoint,
            recording,
            timeout_s=timeout_s,
            keep_text=True,
            most_connections=widest,
            meter=meter,
        )
        self._counts = LiveCounts(self.driver, self.tell)

    @asynccontextmanager
    async def open(self, seed: int) -> AsyncIterator[None]:
        """Warm the server up, and report progress until the block ends."""
        try:
            async with self._counts.ticking():
                await self._warm_up(seed)
                yield
        finally:
            await self.driver.close()

    def begin(self, **now: Any) -> None:
        self.now = replace(self.now, **now)
        self._counts.begin()

    def took(self, row: Request) -> None:
        self._counts.took(row)
        self.now = replace(self.now, done=self.now.done + 1, failed=self._counts.failed)

    def judged(self, done: int) -> None:
        self.now = replace(self.now, done=done)

    def tell(self) -> None:
        counts, left_s = self._counts, self._left_s(self.now)
        self._on_progress(replace(self.now, in_flight=counts.in_flight, tok_s=counts.tok_s, left_s=left_s))

    async def _warm_up(self, seed: int) -> None:
        """Other prompts than the items', so that none of those is known beforehand; one alone, then some at once."""
        maker = TaskMaker(Workload(seed=seed))
        begin = 0
        for width in (1, min(WARM_UP_WIDTH, self._widest)):
            tasks = maker.warm_up(width, begin, WARM_UP_TOKENS)
            begin += width
            rows, _ = await self.driver.run_tasks(0, 0, tasks, width, self.took)
            check_warm_up(self._endpoint, rows)
