"""The client and the server of `wire` on real sockets,
against each other and against plain ones.
"""

import asyncio
import contextlib
import socket

import pytest
import uvloop
from wire_server import echo, serving

from skep.wire.client import Pool, WireFailure, fetch, fetch_once
from skep.wire.heads import Origin, parse_url


@contextlib.asynccontextmanager
async def plain_server(handler):
    """A server of asyncio's own, for answers that ours would not give."""
    writers = []

    async def handle(reader, writer):
        writers.append(writer)
        await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield Origin("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_requests_and_answers_pass_whole_over_one_connection():
    async with serving(echo) as service:
        pool = Pool(service.origin)
        for n in range(5):
            answer = await fetch(pool, "POST", f"/x?y={n}", body={"a": "ü"})
            assert (answer.status, answer.body.decode()) == (200, f'POST /x?y={n} {{"a": "ü"}}')
        assert repr(pool).endswith("1 open, 1 idle>")
        await pool.close()


def test_a_port_that_closes_during_the_handshake_is_said_to():
    """uvloop's error has no words."""

    async def close_at_once(_reader, _writer):
        pass

    async def ask():
        async with plain_server(close_at_once) as plain:
            pool = Pool(Origin(plain.host, plain.port, tls=True))
            try:
                await fetch(pool, "GET", "/")
            finally:
                await pool.close()

    with pytest.raises(
        WireFailure, match=r"cannot be reached: (it closed the connection|Connection reset)"
    ):
        uvloop.run(ask())


async def test_a_pooled_connection_that_died_is_replaced_without_the_caller_noticing():
    """llama.cpp closes idle connections after 5 s:
    the next request must not fail because of it.
    """
    bodies = []

    async def one_answer_per_connection(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        bodies.append(1)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        # The next request arrives on a connection about to close, and gets nothing.
        await reader.read(1)

    async with plain_server(one_answer_per_connection) as origin:
        pool = Pool(origin)
        for _ in range(3):
            assert (await fetch(pool, "GET", "/")).body == b"ok"
        assert len(bodies) == 3
        await pool.close()


def answering(data):
    async def handler(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)

    return handler


def with_length(line):
    """An answer of two bytes with one header more."""
    return b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n%b\r\n\r\nok" % line


def with_coding(coding):
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: %b\r\n\r\n2\r\nok\r\n0\r\n\r\n" % coding


# What could be read in two ways: lengths, line ends and names; codings that were not asked for.
DOUBTFUL_LINES = (
    b"content-length: 2",
    b"transfer-encoding: chunked",
    b"x: a\r\n folded",
    b"x : a",
    b"x: a\0b",
    b"x: a\nb: c",
)
OTHER_CODINGS = (
    b"gzip, chunked",
    b"chunked, gzip",
    b"xchunked",
    b"identity\r\ntransfer-encoding: chunked",
    b"chunked\r\ntransfer-encoding: identity",
)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"garbage that is no HTTP\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", "closed"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", "closed"),
        (b"", "closed"),
        (b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok", "protocol"),
        *((with_length(line), "protocol") for line in DOUBTFUL_LINES),
        *((with_coding(coding), "protocol") for coding in OTHER_CODINGS),
    ],
)
async def test_an_answer_that_is_not_whole_is_a_failure_of_a_known_kind_and_not_retried(
    answer, kind
):
    connections = []

    async def handler(reader, writer):
        connections.append(1)
        await answering(answer)(reader, writer)

    async with plain_server(handler) as origin:
        with pytest.raises(WireFailure) as caught:
            await fetch_once(origin, "GET", "/")
    assert (caught.value.kind, len(connections)) == (kind, 1)


async def test_a_transfer_coding_that_nobody_knows_is_named_in_few_words():
    """It may be as long as a head, and is a line of a log and of an error."""
    async with plain_server(answering(with_coding(b"x\x9b2J" + b"y" * 100_000))) as origin:
        with pytest.raises(WireFailure, match="used the transfer coding `x") as caught:
            await fetch_once(origin, "GET", "/")
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


async def test_an_answer_that_never_ends_is_given_up_before_it_fills_the_memory():
    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"1," * 50_000)
                await writer.drain()

    async with plain_server(endless) as origin:
        with pytest.raises(WireFailure, match="more than 1,048,576 bytes"):
            await fetch_once(origin, "GET", "/v1/models", most_bytes=1 << 20)


async def test_nobody_listening_is_one_clear_failure():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        origin = Origin("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(WireFailure, match="refused") as caught:
            await fetch_once(origin, "GET", "/")
    assert caught.value.kind == "connect"


async def test_a_caller_that_gives_up_or_is_cancelled_closes_its_connection():
    has_asked = asyncio.Event()
    has_left = asyncio.Event()

    def never(request):
        has_asked.set()
        request.on_gone = has_left.set

    async with serving(never) as service:
        with pytest.raises(WireFailure) as caught:
            await fetch_once(service.origin, "GET", "/", timeout_s=0.2)
        assert caught.value.kind == "timeout"
        await asyncio.wait_for(has_left.wait(), 5)
        for event in (has_asked, has_left):
            event.clear()
        task = asyncio.create_task(fetch_once(service.origin, "GET", "/"))
        await has_asked.wait()
        task.cancel()
        await asyncio.wait_for(has_left.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_stream_to_an_old_client_ends_with_the_connection():
    def stream(request):
        request.start(200, [], None)
        request.write(b"part")
        request.finish()

    async with serving(stream) as service:
        answer = await service.talk(b"GET / HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\npart")
    assert b"chunked" not in answer


async def test_a_body_that_ends_with_the_connection_is_whole():
    async with plain_server(answering(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as origin:
        assert (await fetch_once(origin, "GET", "/")).body == b"all of it"


async def test_an_answer_nobody_asked_for_reaches_no_other_request():
    """A server that sends more than was asked: the surplus dies with its connection."""
    double = (
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none"
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntwo"
    )
    async with plain_server(answering(double)) as origin:
        pool = Pool(origin)
        for _ in range(3):
            assert (await fetch(pool, "GET", "/")).body == b"one"
        await pool.close()


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("http://127.0.0.1:8400", Origin("127.0.0.1", 8400), ""),
        ("http://127.0.0.1:8400/v1/", Origin("127.0.0.1", 8400), "/v1"),
        ("localhost:9", Origin("localhost", 9), ""),
        ("https://api.example.com/v1", Origin("api.example.com", 443, tls=True), "/v1"),
        ("http://[::1]:80", Origin("::1", 80), ""),
    ],
)
def test_urls_are_taken_as_people_write_them(url, origin, path):
    assert parse_url(url) == (origin, path)
