"""Answers that go on without end beside their body: the client ends the connection, and keeps
nothing of them.
"""

import pytest
from hostile_server import ENOUGH_BYTES, hostile
from test_client_server import answering, plain_server

from skep.wire.client import Pool, WireFailure, fetch, fetch_once
from skep.wire.client_connection import HEAD_BYTES, OVERHEAD_BYTES

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
TRAILERS = "more than 65536 bytes of trailers or chunk extensions"
HEADERS = "more than 262144 bytes of headers"
KERNEL_BYTES = 16 << 20  # what two sockets hold at most, and a few reads more


@pytest.mark.parametrize(
    ("begin", "piece", "why"),
    [
        (CHUNKED + b"2\r\nok\r\n0\r\n", b"x-more: and more\r\n", TRAILERS),
        (CHUNKED + b"2\r\nok\r\n0\r\nx-more: ", b"x" * 1000, TRAILERS),
        (CHUNKED + b"2;", b"x=1;", TRAILERS),
        (CHUNKED, b"1;" + b"x" * 500 + b"\r\na\r\n", TRAILERS),
        (CHUNKED, b"1;x=1234567\r\na\r\n", TRAILERS),
        (CHUNKED, b"0" * 500, TRAILERS),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", HEADERS),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", HEADERS),
        (OK, b"x-more: and more\r\n", HEADERS),
        (OK + b"x-more: ", b"x" * 1000, HEADERS),
    ],
    ids=[
        "trailers",
        "one trailer",
        "one extension",
        "extensions",
        "short extensions",
        "digits of a size",
        "early hints",
        "continue",
        "headers",
        "one header",
    ],
)
async def test_what_goes_on_beside_the_body_ends_the_connection(begin, piece, why):
    with hostile(begin, piece) as server, pytest.raises(WireFailure, match=why) as caught:
        await fetch_once(server.origin, "GET", "/metrics", timeout_s=60.0)
    assert caught.value.kind == "protocol"
    assert server.sent < KERNEL_BYTES < ENOUGH_BYTES


async def test_trailers_are_read_and_belong_to_nobody():
    """An answer's headers are those before its body: a trailer cannot add to them."""
    trailers = b"x-skep: id=of-somebody\r\n" * 1000
    async with plain_server(
        answering(CHUNKED + b"2;a=b\r\nok\r\n0\r\n" + trailers + b"\r\n")
    ) as origin:
        answer = await fetch_once(origin, "GET", "/")
    assert (answer.body, answer.head.headers) == (b"ok", [(b"transfer-encoding", b"chunked")])


async def test_an_answer_in_many_small_chunks_has_no_bound_on_its_framing():
    """A stream of tokens is mostly framing."""
    chunks = b"00000001\r\na\r\n" * 50_000
    assert len(chunks) > 2 * max(OVERHEAD_BYTES, HEAD_BYTES)
    async with plain_server(answering(CHUNKED + chunks + b"0\r\n\r\n")) as origin:
        pool = Pool(origin)
        try:
            assert len((await fetch(pool, "GET", "/")).body) == 50_000
        finally:
            await pool.close()
