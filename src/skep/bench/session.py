"""One run under way: what is stored of it, its load, its warm-up and its progress."""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from skep import __version__
from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import Load, OnRow, garbage_kept, steady, watch_client
from skep.bench.metrics import SweepSummary, delivered, repeat_of
from skep.bench.summary import LEAST_DELIVERED, counted, summarise
from skep.bench.tasks import BenchTask, Sender, TaskMaker
from skep.catalog.gpus import HostFacts
from skep.errors import EndpointError
from skep.host.facts import host_json, lasting_json
from skep.host.power import PowerMeter
from skep.stats.sequential import WarmUpDetector
from skep.stats.slo import SloLimits
from skep.stats.stream_tokens import TokensPerEvent
from skep.store.database import Store
from skep.store.records import ClientSample, LevelFact, Request, RunState
from skep.wire.client import Pool, WireFailure
from skep.wire.engine_state import fetch_state
from skep.wire.prometheus import parse_metrics

FLUSH_EVERY_S = 0.5  # of rows to the store
TICK_S = 0.25  # of the progress
# Facts an endpoint tells of itself that change nothing of what runs there.
NAMES_ONLY = ("model_path", "preset")
GATEWAY_MARK = "skep_build_info"  # a metric that only skep's gateway has
WINDOW_S = 3.0  # over which the present speed is counted
WARM_UP_TOKENS = 16
WARM_UP_BATCHES = 12


class Identity(msgspec.Struct, frozen=True):
    """Kind, fingerprint and configuration of a run, known before its first request."""

    kind: str
    fingerprint: str
    config: Mapping[str, Any]


def fingerprint_of(work: Sequence[Any], endpoint: Endpoint, host: HostFacts) -> str:
    """Return a digest that is equal for repeats of `work` on the same model, engine and machine.

    The endpoint's address may differ.
    """
    engine = {name: value for name, value in endpoint.engine.items() if name not in NAMES_ONLY}
    text = json.dumps(
        [*work, endpoint.model, engine, lasting_json(host)], sort_keys=True, default=str
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Recording:
    """What is stored of a run while it goes on.

    Leaving `async with Recording(...) as recording` ends the run, as done or as failed with the
    reason.
    """

    def __init__(
        self, store: Store, endpoint: Endpoint, host: HostFacts, identity: Identity
    ) -> None:
        self.rows: list[Request] = []
        self.facts: list[LevelFact] = []
        self.samples: list[ClientSample] = []
        self.simulated = endpoint.simulated
        self._store = store
        self._unsaved: list[Request] = []
        self._in_hand: list[Request] = []  # being written by a thread
        self._saver: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self.run_id = store.begin_run(
            kind=identity.kind,
            created_at=time.time(),
            model=endpoint.model,
            url=endpoint.url,
            fingerprint=identity.fingerprint,
            config=identity.config,
            host=host_json(host),
            engine=endpoint.engine,
            simulated=endpoint.simulated,
            skep_version=__version__,
        )
        self.origin_s = time.monotonic()

    async def __aenter__(self) -> Self:
        self._saver = asyncio.create_task(self._save_often())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failed = await self._stop_saving()
        fault = error or failed
        try:
            self.save()
        except Exception as unsaved:
            self._end("failed", str(unsaved))
            raise
        if fault is None:
            self._store.end_run(self.run_id, time.time(), "done")
            return
        inner = fault
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        if isinstance(fault, asyncio.CancelledError):
            self._end("failed", RunState.INTERRUPTED.value)
        else:
            self._end("failed", str(inner))
        if error is None:
            raise fault

    def add_row(self, row: Request) -> None:
        self.rows.append(row)
        self._unsaved.append(row)

    def add_sample(self, sample: ClientSample) -> None:
        self.samples.append(sample)
        self._store.append_client_sample(self.run_id, sample)

    def add_fact(self, fact: LevelFact) -> None:
        self.facts.append(fact)
        self._store.append_level_facts(self.run_id, [fact])

    def save(self) -> None:
        rows = self._unsaved
        self._unsaved = []
        self._store.append_requests(self.run_id, rows)

    def check(self) -> None:
        """Raise the error that keeps rows from being written: a run must not go on unrecorded."""
        if self.broken is not None:
            raise self.broken

    @property
    def broken(self) -> BaseException | None:
        """Return the error that keeps rows from being written, such as a full disk; or None."""
        saver = self._saver
        if saver is not None and saver.done() and not saver.cancelled():
            return saver.exception()
        return None

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            self._in_hand = self._unsaved
            self._unsaved = []
            work = asyncio.to_thread(self._store.append_requests, self.run_id, self._in_hand)
            self._writing = asyncio.ensure_future(work)
            await asyncio.shield(self._writing)
            self._in_hand = []

    async def _stop_saving(self) -> BaseException | None:
        """Wait for the thread that writes, and return the error that it met.

        After the end of the run its rows would be refused.
        """
        tasks = [task for task in (self._saver, self._writing) if task is not None]
        if self._saver is not None:
            self._saver.cancel()
        if tasks:
            await asyncio.wait(tasks)
        faults = [task.exception() for task in tasks if not task.cancelled()]
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is not None:  # all of a batch are written or none
            self._unsaved = self._in_hand + self._unsaved
        return fault

    def _end(self, outcome: Any, why: str) -> None:
        """Store how the run ended, if the store still takes it.

        A store that takes no more rows may still take the end. If not, the run has none, and
        counts as incomplete.
        """
        with suppress(Exception):  # the first fault is the one to report
            self._store.end_run(self.run_id, time.time(), outcome, why)


class LoadGenerator:
    """Sends the load of one level after another to an endpoint, and records every request."""

    def __init__(
        self,
        endpoint: Endpoint,
        recording: Recording,
        *,
        timeout_s: float,
        keep_text: bool,
        most_connections: int,
        meter: PowerMeter | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.recording = recording
        self.pool = Pool(endpoint.origin, max_idle=most_connections)
        self.sender = Sender(
            endpoint, self.pool, recording.origin_s, timeout_s=timeout_s, keep_text=keep_text
        )
        self._meter = meter
        # Each stream is an open file, and the usual limit of 1024 is low.
        _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))

    async def close(self) -> None:
        await self.pool.close()

    async def run_tasks(
        self,
        level: int,
        repeat: int,
        tasks: Sequence[BenchTask],
        width: int,
        on_row: OnRow,
        until_s: float | None = None,
    ) -> tuple[list[Request], bool]:
        """Run the tasks, `width` at once; none begins after `until_s` on the run's clock.

        Return the rows, and whether the client was the limit.
        """
        load = partial(steady, tasks=tasks, width=min(width, len(tasks)), until_s=until_s)
        return await self.run_load(
            level=level, repeat=repeat, load=load, width=width, on_row=on_row
        )

    async def run_load(
        self,
        *,
        level: int,
        repeat: int,
        load: Load,
        width: int,
        on_row: OnRow,
        is_closed: bool = True,
    ) -> tuple[list[Request], bool]:
        """Run a load of any shape. Return the rows, and whether the client was the limit.

        `is_closed`: `width` requests are in flight all the time.
        """
        rows: list[Request] = []

        def record(row: Request) -> None:
            rows.append(row)
            self.recording.add_row(row)
            on_row(row)

        before = await read_counters(self.pool, self.endpoint.headers, self.endpoint.model)
        await self.pool.prepare(width)
        energy = None
        with garbage_kept():
            if self._meter is not None:
                self._meter.begin()
            async with watch_client() as health:
                await load(self.sender, record)
            if self._meter is not None:
                energy = self._meter.end()
        self.pool.trim()
        after: dict[str, float] = {}
        if before:
            after = await read_counters(self.pool, self.endpoint.headers, self.endpoint.model)
        # A request that is refused at once leaves its place empty for a while, so a share of
        # requests in flight says something only where all were answered.
        share = None
        if is_closed and rows and all(row.ok for row in rows):
            share = delivered(rows, width)
        limited = health.limited or (share is not None and share < LEAST_DELIVERED)
        if level:
            self.recording.save()
            self.recording.add_sample(
                ClientSample(
                    level=level,
                    repeat=repeat,
                    loop_lag_p99_ms=health.lag_p99_ms,
                    loop_lag_max_ms=health.lag_max_ms,
                    cpu_share=health.cpu_share,
                    client_limited=limited,
                    delivered=share,
                )
            )
            facts = {"counters": counted(before, after), "energy": energy}
            for name, fact in facts.items():
                if fact:
                    self.recording.add_fact(LevelFact(level, repeat, name, fact))
        return rows, limited


async def read_counters(pool: Pool, headers: Mapping[str, str], model: str) -> dict[str, float]:
    """Return every sample of the engine's `/metrics`, summed over its labels.

    Of skep's gateway, those of the engines behind it as well.
    """
    samples: dict[str, float] = {}
    for path in ("/metrics", f"/metrics/engines?model={quote(model)}"):
        with suppress(WireFailure):
            state = await fetch_state(pool, path, parse_metrics, headers=headers, timeout_s=10.0)
            samples |= state or {}
        if GATEWAY_MARK not in samples:
            break
    return samples


class ReadRate:
    """Network reads a second over the last seconds. A read carries one token or several."""

    def __init__(self) -> None:
        self._reads_of_ended = 0
        self._counts: deque[tuple[float, int]] = deque()  # reads so far, by moment

    def add_ended(self, reads: int) -> None:
        """Count the reads of an answer that has ended."""
        self._reads_of_ended += reads

    def add_moment(self, reads_under_way: int, at: float) -> None:
        """Take the reads of all answers that are under way at this moment."""
        self._counts.append((at, self._reads_of_ended + reads_under_way))
        while self._counts and at - self._counts[0][0] > WINDOW_S:
            self._counts.popleft()

    @property
    def per_s(self) -> float | None:
        if len(self._counts) < 2:
            return None
        first_at, first = self._counts[0]
        last_at, last = self._counts[-1]
        if last_at > first_at:
            return max(0.0, (last - first) / (last_at - first_at))
        return None


async def warm_up(
    driver: LoadGenerator,
    maker: TaskMaker,
    width: int,
    *,
    on_row: OnRow,
    on_batch: Callable[[int], None] = lambda _count: None,
    limit_s: float | None = None,
    quick: bool = False,
) -> None:
    """Send batches until their speed is steady, after one request that shows whether there is an
    answer at all.

    `quick`: one batch, however it went.
    """
    settling = WarmUpDetector(max_batches=WARM_UP_BATCHES)
    tokens = min(WARM_UP_TOKENS, maker.workload.max_tokens)
    began = time.monotonic()
    index = 0
    count = 1
    while True:
        on_batch(count)
        tasks = maker.warm_up(count, index, tokens)
        index += count
        rows, _ = await driver.run_tasks(0, 0, tasks, count, on_row)
        if not any(row.ok for row in rows):
            hint = "look at its log; `skep doctor` checks this machine"
            raise EndpointError(
                f"{driver.endpoint.url} answered no warm-up request: {rows[0].error}", hint=hint
            )
        if index > 1:
            settling.feed(repeat_of(0, rows, None).effective_tok_s)
        late = limit_s is not None and time.monotonic() - began > limit_s
        if settling.done or late or (quick and index > 1):
            return
        count = width


class SessionProgress(msgspec.Struct, frozen=True):
    """Progress of a run; level 0 is the warm-up."""

    stage: str = "warming up"  # "asking" | "judging", of a judged run
    level: int = 0
    repeat: int = 0
    # Of the level, where it is no concurrency; of a judged run, which of its arms or rounds.
    label: str = ""
    done: int = 0  # requests of this part of the run; or answers judged
    total: int = 0  # 0: not known before
    failed: int = 0  # requests of the whole run, without its warm-up
    in_flight: int = 0
    tok_s: float | None = None  # at present, from the reads of the last seconds
    left_s: float | None = None  # time left of the run; of a judged run, of this level
    runs_done: int = 0
    runs_left: float = 0.0
    figures: Mapping[int, Sequence[float]] = {}  # effective tok/s of the runs of each level
    ended: bool = False  # this run of the level
    run_id: str = ""


OnProgress = Callable[[SessionProgress], None]


class RunSession:
    """Drives the requests of one run, and reports its progress four times a second."""

    def __init__(
        self,
        endpoint: Endpoint,
        recording: Recording,
        on_progress: OnProgress,
        *,
        widest: int,
        keep_text: bool = True,
        extra_fields: Callable[[], Mapping[str, Any]] = dict,
        **load: Any,
    ) -> None:
        """`extra_fields`: those of the progress that only the caller knows.

        `load`: further options of `LoadGenerator`.
        """
        self.recording = recording
        self.now = SessionProgress(run_id=recording.run_id)
        self.driver = LoadGenerator(
            endpoint, recording, keep_text=keep_text, most_connections=widest, **load
        )
        self._on_progress = on_progress
        self._extra_fields = extra_fields
        self._read_rate = ReadRate()
        self._tokens_per_read = TokensPerEvent()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Report the progress regularly while the block runs; close the connections after it."""
        ticker = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticker.cancel()
            await self.driver.close()

    async def warm_up(
        self, maker: TaskMaker, width: int, *, limit_s: float | None = None, quick: bool = True
    ) -> None:
        """Send one request alone, then `width` at once, again until their speeds are alike.

        `quick`: `width` at once a single time.
        """

        def begin_batch(count: int) -> None:
            self.begin(level=0, repeat=0, done=0, total=count)

        await warm_up(
            self.driver,
            maker,
            width,
            on_row=self.count_row,
            on_batch=begin_batch,
            limit_s=limit_s,
            quick=quick,
        )

    def begin(self, **fields: Any) -> None:
        """Begin a part of the run, with these fields of its progress."""
        self.now = replace(self.now, **fields)
        self._read_rate = ReadRate()
        self.report()

    def count_row(self, row: Request) -> None:
        self._read_rate.add_ended(len(row.arrivals_s))
        self._tokens_per_read.take(len(row.arrivals_s), row.output_tokens or 0)
        self.now = replace(
            self.now,
            done=self.now.done + 1,
            failed=self.now.failed + (not row.ok and row.level > 0),
        )

    def count_judged(self, done: int) -> None:
        self.now = replace(self.now, done=done)

    def report(self, **fields: Any) -> None:
        """Hand the progress on. `fields`: those that hold for this report only."""
        in_flight = len(self.driver.sender.in_flight)
        reads_per_s = self._read_rate.per_s
        tok_s = None
        if reads_per_s is not None:
            tok_s = reads_per_s * self._tokens_per_read.value
        self._on_progress(
            replace(self.now, in_flight=in_flight, tok_s=tok_s, **self._extra_fields(), **fields)
        )

    def summary(
        self, *, closed: bool = True, slo: SloLimits | None = None, burst: bool = False
    ) -> SweepSummary:
        recording = self.recording
        return summarise(
            recording.run_id,
            recording.rows,
            recording.samples,
            recording.facts,
            closed=closed,
            slo=slo,
            simulated=recording.simulated,
            burst=burst,
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._read_rate.add_moment(self.driver.sender.reads(), time.monotonic())
            with suppress(Exception):  # a display that fails must not end a run
                self.report()
