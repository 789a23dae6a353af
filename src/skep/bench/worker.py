"""A process of its own that makes load: reads jobs on its input, writes rows to its output, ends when the input ends.

    python -m skep.bench.worker

One process keeps about a thousand streams; beyond that, or beside a client that needs its core, several share a level.
Frames are a length in four bytes and MessagePack. All processes of a machine share one monotonic clock; whoever gives
a job to another machine gives its origin on that machine's clock (`skep.bench.timebase`).
"""

from __future__ import annotations

import asyncio
import resource
import struct
import sys
from dataclasses import dataclass, field

import msgspec

from skep.bench.client_health import ClientHealth, watch_client
from skep.bench.endpoint import Endpoint
from skep.bench.request import Sender
from skep.bench.strands import Span, Strand, beginning, carry
from skep.records import Request
from skep.wire.client import Pool

LENGTH = struct.Struct(">I")
SEND_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Job:
    """A share of one run of one level."""

    endpoint: Endpoint
    strands: list[Strand]
    origin_s: float
    timeout_s: float
    keep_text: bool
    span: Span = field(default_factory=Span)

    @property
    def width(self) -> int:
        return sum(strand.width for strand in self.strands)

    @property
    def follows_clock(self) -> bool:
        return self.span.for_s is not None or any(strand.offsets is not None for strand in self.strands)


@dataclass(frozen=True, slots=True)
class News:
    """Rows that ended; with the last of them, how the process fared."""

    rows: list[Request]
    lag_p99_ms: float = 0.0
    lag_max_ms: float = 0.0
    cpu_share: float = 0.0
    made: int = 0  # rows of the whole job; said with the last
    last: bool = False


@dataclass(frozen=True, slots=True)
class _End:
    """As much of `News` as whoever only hands it on needs."""

    last: bool = False


encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_news = msgspec.msgpack.Decoder(News).decode
_decode_end = msgspec.msgpack.Decoder(_End).decode


def is_last(news: bytes) -> bool:
    return _decode_end(news).last


def framed(message: Job | News) -> bytes:
    return length_before(encode(message))


def length_before(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


async def read_frame(stream: asyncio.StreamReader) -> bytes | None:
    """None when the other side has ended."""
    try:
        (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
        return await stream.readexactly(length)
    except asyncio.IncompleteReadError:
        return None


async def carry_out(job: Job, send: _Outbox) -> ClientHealth:
    pool = Pool(job.endpoint.origin, max_idle=max(job.width, 1))
    sender = Sender(job.endpoint, pool, job.origin_s, timeout_s=job.timeout_s, keep_text=job.keep_text)
    try:
        await pool.prepare(job.width)
        await beginning(sender, job.span)
        async with watch_client() as health:
            await carry(sender, send.took, job.strands, job.span)
    finally:
        await pool.close()
    return health


class _Outbox:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._rows: list[Request] = []
        self._made = 0

    def greet(self) -> None:
        """Ready for a job."""
        self._writer.write(framed(News([])))

    def took(self, row: Request) -> None:
        self._rows.append(row)
        self._made += 1

    def flush(self, health: ClientHealth | None = None) -> None:
        rows, self._rows = self._rows, []
        if health is not None:
            made, self._made = self._made, 0
            news = News(rows, health.lag_p99_ms, health.lag_max_ms, health.cpu_share, made, last=True)
            self._writer.write(framed(news))
        elif rows:
            self._writer.write(framed(News(rows)))

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
    outbox.greet()
    frame = await read_frame(reader)
    while frame is not None:
        work = asyncio.create_task(carry_out(decode_job(frame), outbox))
        following = asyncio.create_task(read_frame(reader))
        flusher = asyncio.create_task(outbox.flush_often())
        await asyncio.wait((work, following, flusher), return_when=asyncio.FIRST_COMPLETED)
        if flusher.done():
            flusher.result()  # rows that cannot be told end the process, and the one that gave the job says so
        flusher.cancel()
        if not work.done():  # whoever gave the job is gone, or wants it no longer
            work.cancel()
            return
        outbox.flush(await work)
        frame = await following


def main() -> None:
    import uvloop

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a stream is a file, and 1024 are few
    uvloop.run(serve())


if __name__ == "__main__":
    main()
