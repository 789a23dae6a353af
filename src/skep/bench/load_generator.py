"""Runs one load once, with the client watched and counters and energy read around it; and the warm-up before it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self

from skep.bench.endpoint import Endpoint
from skep.bench.load_process import Begin, LoadJob, LoadUpdate, decode_news, framed, read_frame
from skep.bench.load_shapes import Load, OnRow, TimeWindow, TrafficStream, run_streams, split_between_workers
from skep.bench.meters import LEAST_DELIVERED, ClientHealth, counted, garbage_kept, read_counters, watch_client
from skep.bench.metrics import delivered, repeat_of
from skep.bench.recording import Recording
from skep.bench.request import BenchTask, Sender
from skep.bench.tasks import TaskMaker
from skep.errors import EndpointError, SkepError
from skep.stats.sequential import WarmUpDetector
from skep.store.records import ClientSample, LevelFact, Request
from skep.wire.client import Pool

STREAM_LIMIT = 1 << 26
LEAD_S = 0.5  # for the word to arrive that they begin
BUSY = 0.7  # of a core
WINDOW_S = 3.0
WARM_UP_TOKENS, WARM_UP_BATCHES = 16, 12
_RunLoad = Callable[[OnRow], Awaitable[ClientHealth]]


class EnergyMeter(Protocol):
    """What the machine draws. `end` gives the facts since `begin`, or None where nothing was measured."""

    def begin(self) -> None: ...
    def end(self) -> Mapping[str, Any] | None: ...


class NoMeter:
    """Where nothing measures the energy."""

    def begin(self) -> None: ...
    def end(self) -> None: ...


class LoadProcess:
    """One `skep.bench.load_process`. Ends when it is killed, and when this process ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Self:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "skep.bench.load_process",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            limit=STREAM_LIMIT, start_new_session=True,  # Ctrl-C is the parent's to answer
        )  # fmt: skip
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        """Wait until the process takes jobs, so that its start is not measured."""
        assert self._process.stdout is not None
        if await read_frame(self._process.stdout) is None:
            raise SkepError("a load process did not start", hint="try --processes 1")

    async def prepare(self, job: LoadJob) -> None:
        """Send the job and wait until the process is ready to begin it."""
        self._tell(job)
        await self._heard()

    async def work(self, begin: Begin, on_row: OnRow, health: ClientHealth) -> None:
        """Start the prepared job, hand its rows on as they come, and check that none is missing."""
        self._tell(begin)
        got, news = 0, None
        while news is None or not news.last:
            news = await self._heard()
            for row in news.rows:
                on_row(row)
            got += len(news.rows)
        if got != news.made:
            raise SkepError(f"a load process reported {got} of {news.made} requests", hint="please report it")
        health.add_worst(news.lag_p99_ms, news.lag_max_ms, news.cpu_share, news.late_ms)

    def _tell(self, message: LoadJob | Begin) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(framed(message))

    async def _heard(self) -> LoadUpdate:
        assert self._process.stdout is not None
        frame = await read_frame(self._process.stdout)
        if frame is None:
            code = await self._process.wait()
            raise SkepError(f"a load process ended by itself (exit code {code})", hint="try --processes 1")
        return decode_news(frame)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> None:
        await self._process.wait()


class LoadProcesses:
    """`run` starts as many as there are jobs. `close` ends them; so does a run that breaks off."""

    def __init__(self) -> None:
        self.processes: list[LoadProcess] = []

    async def run(self, jobs: Sequence[LoadJob], on_row: OnRow, meter: EnergyMeter | None = None) -> ClientHealth:
        health, meter = ClientHealth(), meter or NoMeter()

        async def begin_to_measure() -> None:
            """When the first process begins: at once, unless all wait for a common moment."""
            if all(one.at_s is not None for one in begins):
                await asyncio.sleep(LEAD_S)
            meter.begin()

        try:
            fresh = [await LoadProcess.start() for _ in range(len(jobs) - len(self.processes))]
            self.processes += fresh
            for process in fresh:
                await process.ready()
            at_work = self.processes[: len(jobs)]
            async with asyncio.TaskGroup() as group:
                for process, job in zip(at_work, jobs, strict=True):
                    group.create_task(process.prepare(job))
            begins = beginnings(jobs, time.monotonic())
            async with asyncio.TaskGroup() as group:
                group.create_task(begin_to_measure())
                for process, begin in zip(at_work, begins, strict=True):
                    group.create_task(process.work(begin, on_row, health))
            health.energy = meter.end()
        except BaseExceptionGroup as group_error:
            await self.close()
            raise group_error.exceptions[0] from None
        except BaseException:
            await self.close()  # they work on for nobody
            raise
        return health

    async def close(self) -> None:
        processes, self.processes = self.processes, []
        for process in processes:
            process.kill()
        for process in processes:
            await process.wait()


def beginnings(jobs: Sequence[LoadJob], now_s: float) -> list[Begin]:
    """Return when each job begins: several processes that follow a schedule share one moment, shortly ahead."""
    together = len(jobs) > 1
    return [Begin(now_s + LEAD_S - job.origin_s if together and job.follows_clock else None) for job in jobs]


class LoadGenerator:
    def __init__(
        self, endpoint: Endpoint, recording: Recording, *, timeout_s: float, keep_text: bool, most_connections: int,
        processes: int | None = 1, meter: EnergyMeter | None = None, load_processes: LoadProcesses | None = None,
    ) -> None:  # fmt: skip
        """`processes` None: one, and more for a level at which one was not enough."""
        self.endpoint = endpoint
        self.recording = recording
        self.pool = Pool(endpoint.origin, max_idle=most_connections)
        self.sender = Sender(endpoint, self.pool, recording.origin_s, timeout_s=timeout_s, keep_text=keep_text)
        self._timeout_s, self._keep_text, self._most_connections = timeout_s, keep_text, most_connections
        self._load_processes = load_processes or LoadProcesses()
        self._processes = processes or 1
        self._may_grow = processes is None
        self._meter = meter or NoMeter()

    async def close(self) -> None:
        await self._load_processes.close()
        await self.pool.close()

    async def run_tasks(
        self, level: int, repeat: int, tasks: Sequence[BenchTask], width: int, on_row: OnRow,
        until_s: float | None = None,
    ) -> tuple[list[Request], bool]:  # fmt: skip
        """`width` at once, none begun after `until_s` on the run's clock. The rows, and if the client was the limit."""
        streams, span = [TrafficStream([*tasks], width)], TimeWindow(until_s=until_s)
        return await self.run_streams_at_level(level, repeat, streams, on_row, span, is_closed=True)

    async def run_streams_at_level(
        self, level: int, repeat: int, streams: Sequence[TrafficStream], on_row: OnRow, span: TimeWindow, *,
        is_closed: bool = False,
    ) -> tuple[list[Request], bool]:  # fmt: skip
        """Run prepared traffic. `is_closed`: its agents have a request in flight all the time."""
        width = sum(stream.width for stream in streams)
        if self._processes == 1:
            load = partial(run_streams, streams=streams, span=span)
            return await self.run_load(level, repeat, load, width, on_row, is_closed=is_closed)
        jobs = [
            LoadJob(self.endpoint, hand, self.recording.origin_s, self._timeout_s, self._keep_text, span=span,
                    most_connections=self._most_connections)
            for hand in split_between_workers(streams, self._processes)
        ]  # fmt: skip
        spread = partial(self._load_processes.run, jobs, meter=self._meter)
        return await self._measured(level, repeat, spread, width, on_row, is_closed=is_closed)

    async def run_load(
        self, level: int, repeat: int, load: Load, width: int, on_row: OnRow, *, is_closed: bool = True
    ) -> tuple[list[Request], bool]:
        """Run a load that only this process can make. `is_closed`: `width` requests are in flight all the time."""

        async def here(took: OnRow) -> ClientHealth:
            await self.pool.prepare(width)
            with garbage_kept():
                self._meter.begin()
                async with watch_client() as health:
                    await load(self.sender, took)
                health.energy = self._meter.end()
            self.pool.trim()
            return health

        return await self._measured(level, repeat, here, width, on_row, is_closed=is_closed)

    async def _measured(
        self, level: int, repeat: int, run: _RunLoad, width: int, on_row: OnRow, *, is_closed: bool
    ) -> tuple[list[Request], bool]:
        rows: list[Request] = []

        def took(row: Request) -> None:
            rows.append(row)
            self.recording.took(row)
            on_row(row)

        before = await read_counters(self.pool, self.endpoint.headers, self.endpoint.model)
        health = await run(took)
        after = await read_counters(self.pool, self.endpoint.headers, self.endpoint.model) if before else {}
        # One refused at once leaves its place empty for a while.
        share = delivered(rows, width) if is_closed and rows and all(row.ok for row in rows) else None
        limited = health.limited or (share is not None and share < LEAST_DELIVERED)
        if level:
            self.recording.save()
            lags = health.lag_p99_ms, health.lag_max_ms
            sample = ClientSample(level, repeat, *lags, health.cpu_share, limited, share, self._processes)
            self.recording.sampled(sample)
            late = {"late_ms": health.late_ms} if health.late else None
            facts = {"counters": counted(before, after), "energy": health.energy, "late": late}
            for name, fact in facts.items():
                if fact:
                    self.recording.found(LevelFact(level, repeat, name, fact))
        if limited and self._may_grow and health.cpu_share > BUSY:  # a machine busy with others is not helped by more
            self._processes = max(self._processes, min(2 * self._processes, os.cpu_count() or 1))
        return rows, limited


class TokenPace:
    """Tokens a second over the last seconds, by network reads."""

    def __init__(self) -> None:
        self._ended = 0
        self._seen: deque[tuple[float, int]] = deque()

    def ended(self, reads: int) -> None:
        self._ended += reads

    def seen(self, under_way: int, at: float) -> None:
        self._seen.append((at, self._ended + under_way))
        while self._seen and at - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    @property
    def per_s(self) -> float | None:
        if len(self._seen) < 2:
            return None
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return max(0.0, (last - first) / (last_at - first_at)) if last_at > first_at else None


async def warm_up(
    driver: LoadGenerator, maker: TaskMaker, width: int, *, on_row: OnRow,
    on_batch: Callable[[int], None] = lambda _count: None, limit_s: float | None = None, quick: bool = False,
) -> None:  # fmt: skip
    """The first request finds out whether there is an answer at all. `quick`: one batch, however it went."""
    settling = WarmUpDetector(most=WARM_UP_BATCHES)
    tokens = min(WARM_UP_TOKENS, maker.workload.max_tokens)
    began, index, count = time.monotonic(), 0, 1
    while True:
        on_batch(count)
        tasks = maker.warm_up(count, index, tokens)
        index += count
        rows, _ = await driver.run_tasks(0, 0, tasks, count, on_row)
        if not any(row.ok for row in rows):
            hint = "look at its log; `skep doctor` checks this machine"
            raise EndpointError(f"{driver.endpoint.url} answered no warm-up request: {rows[0].error}", hint=hint)
        if index > 1:
            settling.feed(repeat_of(0, rows, None).effective_tok_s)
        late = limit_s is not None and time.monotonic() - began > limit_s
        if settling.done or late or (quick and index > 1):
            return
        count = width
