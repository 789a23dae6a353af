"""Processes of their own that make load, and the side that starts them (`LoadProcesses`).

    python -m skep.bench.load_process

Such a process reads jobs on its input, writes rows to its output, and ends when the input ends. Frames are a length in
four bytes and MessagePack. A job is prepared when it comes, and begun when that is told.
"""

from __future__ import annotations

import asyncio
import resource
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import (
    ClientHealth,
    OnRow,
    TimeWindow,
    garbage_kept,
    run_streams,
    wait_for_begin,
    watch_client,
)
from skep.bench.tasks import Sender, TrafficStream
from skep.errors import SkepError
from skep.host.power import PowerMeter
from skep.store.records import Request
from skep.wire.client import Pool

LENGTH = struct.Struct(">I")
SEND_EVERY_S = 0.25
FRESH_S = 2.0  # a connection is not kept much longer than that while nothing is sent, here or by a server
STREAM_LIMIT = 1 << 26
LEAD_S = 0.5  # for the word to arrive that they begin


class LoadJob(msgspec.Struct, frozen=True):
    """A share of one run of one level."""

    endpoint: Endpoint
    streams: list[TrafficStream]
    origin_s: float
    timeout_s: float
    keep_text: bool
    span: TimeWindow = msgspec.field(default_factory=TimeWindow)
    most_connections: int = 0  # kept while nothing is sent over them, if these are more than its agents

    @property
    def width(self) -> int:
        return sum(stream.width for stream in self.streams)

    @property
    def follows_clock(self) -> bool:
        return self.span.for_s is not None or any(stream.offsets is not None for stream in self.streams)


class Begin(msgspec.Struct, frozen=True):
    at_s: float | None = None  # on the run's clock; None: at once


class LoadUpdate(msgspec.Struct, frozen=True):
    """Rows that ended; with the last of them, how the process fared. Without any: ready for a job, or to begin it."""

    rows: list[Request]
    lag_p99_ms: float = 0.0
    lag_max_ms: float = 0.0
    cpu_share: float = 0.0
    made: int = 0  # rows of the whole job; said with the last
    last: bool = False
    late_ms: float = 0.0  # it began so long after it was told to


encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(LoadJob).decode
decode_begin = msgspec.msgpack.Decoder(Begin).decode
decode_news = msgspec.msgpack.Decoder(LoadUpdate).decode


def framed(message: LoadJob | Begin | LoadUpdate) -> bytes:
    data = encode(message)
    return LENGTH.pack(len(data)) + data


async def read_frame(stream: asyncio.StreamReader) -> bytes | None:
    """Return the next frame, or None when the other side has closed the pipe."""
    try:
        (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
        return await stream.readexactly(length)
    except asyncio.IncompleteReadError:
        return None


async def carry_out(
    job: LoadJob, orders: asyncio.Queue[bytes], send: _Outbox, *, fresh_s: float = FRESH_S
) -> ClientHealth:
    """Prepare a job, wait for the order to begin, and run it."""
    pool = Pool(job.endpoint.origin, max_idle=max(job.width, job.most_connections, 1))
    sender = Sender(job.endpoint, pool, job.origin_s, timeout_s=job.timeout_s, keep_text=job.keep_text)
    try:
        await pool.prepare(job.width)
        with garbage_kept():
            send.send_ready()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(fresh_s):
                        order = await orders.get()
                        break
                pool.trim()  # others take their time
                await pool.prepare(job.width)
            span = replace(job.span, begin_s=decode_begin(order).at_s)
            late_s = await wait_for_begin(sender, span)
            async with watch_client() as health:
                await run_streams(sender, send.took, job.streams, span)
    finally:
        await pool.close()
    health.late_ms = late_s * 1000
    return health


class _Outbox:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._rows: list[Request] = []
        self._made = 0

    def send_ready(self) -> None:
        self._writer.write(framed(LoadUpdate([])))

    def took(self, row: Request) -> None:
        self._rows.append(row)
        self._made += 1

    def flush(self, health: ClientHealth | None = None) -> None:
        rows, self._rows = self._rows, []
        if health is not None:
            made, self._made = self._made, 0
            told = (health.lag_p99_ms, health.lag_max_ms, health.cpu_share)
            self._writer.write(framed(LoadUpdate(rows, *told, made, last=True, late_ms=health.late_ms)))
        elif rows:
            self._writer.write(framed(LoadUpdate(rows)))

    async def flush_often(self) -> None:
        while True:
            await asyncio.sleep(SEND_EVERY_S)
            self.flush()


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

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class LoadProcesses:
    """`run` starts as many as there are jobs. `close` ends them; so does a run that breaks off."""

    def __init__(self) -> None:
        self.processes: list[LoadProcess] = []

    async def run(self, jobs: Sequence[LoadJob], on_row: OnRow, meter: PowerMeter | None = None) -> ClientHealth:
        health = ClientHealth()

        async def begin_to_measure() -> None:
            """When the first process begins: at once, unless all wait for a common moment."""
            if all(one.at_s is not None for one in begins):
                await asyncio.sleep(LEAD_S)
            if meter is not None:
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
            health.energy = meter.end() if meter is not None else None
        except BaseExceptionGroup as group_error:
            await self.close()
            raise group_error.exceptions[0] from None
        except BaseException:
            await self.close()  # they work on for nobody
            raise
        return health

    async def close(self) -> None:
        processes, self.processes = self.processes, []
        await asyncio.gather(*(process.end() for process in processes))


def beginnings(jobs: Sequence[LoadJob], now_s: float) -> list[Begin]:
    """Return when each job begins: several processes that follow a schedule share one moment, shortly ahead."""
    together = len(jobs) > 1
    return [Begin(now_s + LEAD_S - job.origin_s if together and job.follows_clock else None) for job in jobs]


async def serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    outbox = _Outbox(asyncio.StreamWriter(transport, protocol, None, loop))
    orders: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen() -> None:
        while (frame := await read_frame(reader)) is not None:
            orders.put_nowait(frame)

    async def work() -> None:
        outbox.send_ready()
        while True:
            outbox.flush(await carry_out(decode_job(await orders.get()), orders, outbox))

    tasks = [asyncio.create_task(part) for part in (listen(), work(), outbox.flush_often())]
    ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    for task in ended:
        task.result()  # rows that cannot be told end the process, and the one that gave the job says so


def main() -> None:
    import uvloop

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a stream is a file, and 1024 are few
    uvloop.run(serve())


if __name__ == "__main__":
    main()
