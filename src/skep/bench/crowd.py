"""Several load processes that share a level, kept from one run to the next."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import TypeVar

from skep.bench.client_health import ClientHealth
from skep.bench.loads import OnRow
from skep.bench.worker import Job, decode_news, framed, read_frame
from skep.errors import SkepError

STREAM_LIMIT = 1 << 26
T = TypeVar("T")


class Crowd:
    """`run` hands each process its job at the same moment. `close` ends them; so does the end of this process."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []

    async def run(self, jobs: Sequence[Job], on_row: OnRow) -> ClientHealth:
        health = ClientHealth()
        try:
            await self._grow(len(jobs))
            async with asyncio.TaskGroup() as group:
                for process, job in zip(self._processes, jobs, strict=False):
                    group.create_task(self._follow(process, job, on_row, health))
        except BaseExceptionGroup as group_error:
            await self.close()
            raise group_error.exceptions[0] from None
        except BaseException:
            await self.close()  # they work on for nobody
            raise
        return health

    async def _grow(self, number: int) -> None:
        """Ready for a job when it returns: nothing of their start falls into a measurement."""
        fresh = [await _start() for _ in range(number - len(self._processes))]
        self._processes += fresh
        for process in fresh:
            assert process.stdout is not None
            if await read_frame(process.stdout) is None:
                raise SkepError("a load process did not start", hint="try --processes 1")

    async def close(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            if process.returncode is None:
                process.kill()
        for process in processes:
            await process.wait()

    async def _follow(self, process: asyncio.subprocess.Process, job: Job, on_row: OnRow, health: ClientHealth) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(framed(job))
        got = 0
        while True:
            frame = await read_frame(process.stdout)
            if frame is None:
                code = await process.wait()
                raise SkepError(f"a load process ended by itself (exit code {code})", hint="try --processes 1")
            news = decode_news(frame)
            for row in news.rows:
                on_row(row)
            got += len(news.rows)
            if news.last:
                if got != len(job.tasks):
                    raise SkepError(
                        f"a load process told of {got} of {len(job.tasks)} requests", hint="please report it"
                    )
                health.add_worst(news.lag_p99_ms, news.lag_max_ms, news.cpu_share)
                return


def shared(width: int, tasks: Sequence[T], processes: int) -> list[tuple[int, list[T]]]:
    """For each process its places and its tasks: as many more tasks as it has places, and some of every kind."""
    parts = max(1, min(processes, width, len(tasks)))
    places = [len(range(part, width, parts)) for part in range(parts)]
    return [
        (places[part], [task for number, task in enumerate(tasks) if number % width % parts == part])
        for part in range(parts)
    ]


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
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
