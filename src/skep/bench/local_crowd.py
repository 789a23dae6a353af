"""Load processes on this machine, kept from one run to the next."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Self

from skep.bench.client_health import ClientHealth
from skep.bench.crowd import NOBODY, Fared, Witness, at_beginning, beginnings, told
from skep.bench.loads import OnRow
from skep.bench.worker import Begin, Job, encode, is_last, length_before, read_frame
from skep.errors import SkepError

STREAM_LIMIT = 1 << 26


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

    async def prepare(self, job: bytes) -> None:
        """When it returns, nothing is left but to begin."""
        self._tell(job)
        await self._heard()

    async def work(self, begin: bytes) -> AsyncIterator[bytes]:
        """What it tells of the job it has prepared, to the last of it."""
        self._tell(begin)
        while True:
            frame = await self._heard()
            yield frame
            if is_last(frame):
                return

    def _tell(self, message: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(length_before(message))

    async def _heard(self) -> bytes:
        assert self._process.stdout is not None
        frame = await read_frame(self._process.stdout)
        if frame is None:
            code = await self._process.wait()
            raise SkepError(f"a load process ended by itself (exit code {code})", hint="try --processes 1")
        return frame

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> None:
        await self._process.wait()


class LocalCrowd:
    def __init__(self) -> None:
        self.processes: list[LoadProcess] = []

    @property
    def few(self) -> int:
        return 1

    @property
    def most(self) -> int:
        return os.cpu_count() or 1

    async def run(self, jobs: Sequence[Job], on_row: OnRow, witness: Witness = NOBODY) -> Fared:
        health = ClientHealth()
        try:
            await self._grow(len(jobs))
            at_work = self.processes[: len(jobs)]
            async with asyncio.TaskGroup() as group:
                for process, job in zip(at_work, jobs, strict=True):
                    group.create_task(process.prepare(encode(job)))
            begins = beginnings(jobs, time.monotonic())
            async with asyncio.TaskGroup() as group:
                group.create_task(at_beginning(begins, witness))
                for process, begin in zip(at_work, begins, strict=True):
                    group.create_task(_follow(process, begin, on_row, health))
            witness.ended()
        except BaseExceptionGroup as group_error:
            await self.close()
            raise group_error.exceptions[0] from None
        except BaseException:
            await self.close()  # they work on for nobody
            raise
        return Fared(health)

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


async def _follow(process: LoadProcess, begin: Begin, on_row: OnRow, health: ClientHealth) -> None:
    news = await told(process.work(encode(begin)), on_row)
    assert news is not None  # `work` ends with the last news, or raises
    health.add_worst(news.lag_p99_ms, news.lag_max_ms, news.cpu_share, news.late_ms)
