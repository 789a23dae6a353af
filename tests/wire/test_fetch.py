"""Plain requests: what a server may do to those who only want the answer."""

import asyncio
import contextlib

import pytest

from skep.wire.client import WireFailure
from skep.wire.fetch import fetch_once
from skep.wire.heads import parse_url


async def _endless(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"1," * 50_000)
            await writer.drain()


async def _asked():
    async with await asyncio.start_server(_endless, "127.0.0.1", 0) as server:
        origin, _ = parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await fetch_once(origin, "GET", "/v1/models", most_bytes=1 << 20)


def test_an_answer_that_never_ends_is_given_up_before_it_fills_the_memory():
    with pytest.raises(WireFailure, match="more than 1,048,576 bytes"):
        asyncio.run(_asked())
