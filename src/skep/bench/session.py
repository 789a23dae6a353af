"""One run under way: its load, its warm-up and its progress. Sweeps, timed loads and judged runs are made with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.load_generator import LoadGenerator, TokenPace, warm_up
from skep.bench.recording import Recording
from skep.bench.records import SweepSummary
from skep.bench.summary import summarise
from skep.bench.tasks import TaskMaker
from skep.stats.slo import SloLimits
from skep.store.records import Request

TICK_S = 0.25


class SessionProgress(msgspec.Struct, frozen=True):
    """Progress of a run; level 0 is the warm-up."""

    stage: str = "warming up"  # "asking" | "judging", of a judged run
    level: int = 0
    repeat: int = 0
    label: str = ""  # of the level, where it is no concurrency; of a judged run, which of its arms or rounds
    done: int = 0  # requests of this part of the run; or answers judged
    total: int = 0  # 0: not known before
    failed: int = 0  # requests of the whole run, without its warm-up
    in_flight: int = 0
    tok_s: float | None = None  # now, from the reads of the last seconds
    left_s: float | None = None  # of the run; of a judged run, of this level
    runs_done: int = 0
    runs_left: float = 0.0
    figures: Mapping[int, Sequence[float]] = {}  # effective tok/s of the runs of each level
    ended: bool = False  # this run of the level
    run_id: str = ""


OnProgress = Callable[[SessionProgress], None]


class RunSession:
    """Drives the requests of one run and tells `on_progress` four times a second where it stands."""

    def __init__(
        self, endpoint: Endpoint, recording: Recording, on_progress: OnProgress, *, widest: int, keep_text: bool = True,
        more: Callable[[], Mapping[str, Any]] = dict, **load: Any,
    ) -> None:  # fmt: skip
        """`more`: fields of the progress that only the caller knows. `load`: as `LoadGenerator` takes it."""
        self.recording = recording
        self.now = SessionProgress(run_id=recording.run_id)
        self.driver = LoadGenerator(endpoint, recording, keep_text=keep_text, most_connections=widest, **load)
        self._on_progress = on_progress
        self._more = more
        self._pace = TokenPace()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Tell the progress regularly while the block runs, and close the connections after it."""
        ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticker.cancel()
            await self.driver.close()

    async def warm_up(self, maker: TaskMaker, width: int, *, limit_s: float | None = None, quick: bool = True) -> None:
        """One request alone, then `width` at once; again until they are alike, unless it is to be `quick`."""

        def begin_batch(count: int) -> None:
            self.begin(level=0, repeat=0, done=0, total=count)

        await warm_up(self.driver, maker, width, on_row=self.took, on_batch=begin_batch, limit_s=limit_s, quick=quick)

    def begin(self, **now: Any) -> None:
        self.now = replace(self.now, **now)
        self._pace = TokenPace()
        self.tell()

    def took(self, row: Request) -> None:
        self._pace.ended(len(row.arrivals_s))
        self.now = replace(self.now, done=self.now.done + 1, failed=self.now.failed + (not row.ok and row.level > 0))

    def judged(self, done: int) -> None:
        self.now = replace(self.now, done=done)

    def tell(self, **now: Any) -> None:
        in_flight, tok_s = len(self.driver.sender.in_flight), self._pace.per_s
        self._on_progress(replace(self.now, in_flight=in_flight, tok_s=tok_s, **self._more(), **now))

    def summary(self, *, closed: bool = True, slo: SloLimits | None = None) -> SweepSummary:
        run = self.recording
        stored = (run.rows, run.samples, run.facts)
        return summarise(run.run_id, *stored, closed=closed, slo=slo, simulated=run.simulated)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._pace.seen(self.driver.sender.reads(), time.monotonic())
            with suppress(Exception):  # a display that fails must not end a run
                self.tell()
