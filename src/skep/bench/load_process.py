"""A process of its own that makes load: reads jobs on its input, writes rows to its output, ends when the input ends.

    python -m skep.bench.load_process

Frames are a length in four bytes and MessagePack. A job is prepared when it comes, and begun when that is told.
"""

from __future__ import annotations

import asyncio
import resource
import struct
import sys
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from skep.bench.endpoint import Endpoint
from skep.bench.load_shapes import TimeWindow, TrafficStream, run_streams, wait_for_begin
from skep.bench.meters import ClientHealth, garbage_kept, watch_client
from skep.bench.request import Sender
from skep.store.records import Request
from skep.wire.client import Pool

LENGTH = struct.Struct(">I")
SEND_EVERY_S = 0.25
FRESH_S = 2.0  # a connection is not kept much longer than that while nothing is sent, here or by a server


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
