"""Load processes on this machine, kept from one run to the next.

A run has two steps. Each process gets its job, prepares it and says so; when all have, they are told when to begin. So
nothing of a job's way to a process falls into a measurement, however large the job is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Self

from skep.bench.client_health import ClientHealth
from skep.bench.loads import OnRow
from skep.bench.worker import Begin, Job, News, decode_news, framed, read_frame
from skep.errors import SkepError

STREAM_LIMIT = 1 << 26
LEAD_S = 0.5  # for the word to arrive that they begin


class Witness:
    """Told when the load of a run begins, and when its last request has ended, unless it breaks off. Does nothing."""

    def began(self) -> None: ...
    def ended(self) -> None: ...


NOBODY = Witness()


class LoadProcess:
    """One `skep.bench.worker`. Ends when it is killed, and when this process ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Self:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "skep.bench.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=STREAM_LIMIT,
            env=dict(os.environ),
            start_new_session=True,  # Ctrl-C is the parent's to answer
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        """Ready for a job when it returns: nothing of its start falls into a measurement."""
        assert self._process.stdout is not None
        if await read_frame(self._process.stdout) is None:
            raise SkepError("a load process did not start", hint="try --processes 1")

    async def prepare(self, job: Job) -> None:
        """When it returns, nothing is left but to begin."""
        self._tell(job)
        await self._heard()

    async def work(self, begin: Begin) -> AsyncIterator[News]:
        """What it tells of the job it has prepared, to the last of it."""
        self._tell(begin)
        while True:
            news = await self._heard()
            yield news
            if news.last:
                return

    def _tell(self, message: Job | Begin) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(framed(message))

    async def _heard(self) -> News:
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

    async def run(self, jobs: Sequence[Job], on_row: OnRow, witness: Witness = NOBODY) -> ClientHealth:
        health = ClientHealth()
        try:
            await self._grow(len(jobs))
            at_work = self.processes[: len(jobs)]
            async with asyncio.TaskGroup() as group:
                for process, job in zip(at_work, jobs, strict=True):
                    group.create_task(process.prepare(job))
            begins = beginnings(jobs, time.monotonic())
            async with asyncio.TaskGroup() as group:
                group.create_task(_at_beginning(begins, witness))
                for process, begin in zip(at_work, begins, strict=True):
                    group.create_task(_follow(process.work(begin), on_row, health))
            witness.ended()
        except BaseExceptionGroup as group_error:
            await self.close()
            raise group_error.exceptions[0] from None
        except BaseException:
            await self.close()  # they work on for nobody
            raise
        return health

    async def _grow(self, number: int) -> None:
        fresh = [await LoadProcess.start() for _ in range(number - len(self.processes))]
        self.processes += fresh
        for process in fresh:
            await process.ready()

    async def close(self) -> None:
        processes, self.processes = self.processes, []
        for process in processes:
            process.kill()
        for process in processes:
            await process.wait()


def beginnings(jobs: Sequence[Job], now_s: float) -> list[Begin]:
    """Those that follow a clock, in several processes: all count from one moment, which is yet to come."""
    together = len(jobs) > 1
    return [Begin(now_s + LEAD_S - job.origin_s if together and job.follows_clock else None) for job in jobs]


async def _at_beginning(begins: Sequence[Begin], witness: Witness) -> None:
    """Says so when the first of them begins: at once, unless all wait for the moment that is yet to come."""
    if all(one.at_s is not None for one in begins):
        await asyncio.sleep(LEAD_S)
    witness.began()


async def _follow(told: AsyncIterator[News], on_row: OnRow, health: ClientHealth) -> None:
    """Hands rows on as they come."""
    got = 0
    async for news in told:
        for row in news.rows:
            on_row(row)
        got += len(news.rows)
    if got != news.made:
        raise SkepError(f"a load process told of {got} of {news.made} requests", hint="please report it")
    health.add_worst(news.lag_p99_ms, news.lag_max_ms, news.cpu_share, news.late_ms)
