"""Streams as the client reads them: whole chunks told from everything else, and every legal form
of events.
"""

import asyncio
from itertools import accumulate, pairwise

import httptools
import hypothesis.strategies as st
from hypothesis import given

from skep.wire.client import Pool
from skep.wire.heads import Origin, chunked_body_size, strip_chunk_headers

bodies = st.lists(st.binary(min_size=1, max_size=600), min_size=1, max_size=5)

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(body):
    return b"%x\r\n%b\r\n" % (len(body), body)


@given(bodies, st.data())
def test_whole_chunks_carry_what_was_put_in_and_broken_reads_are_left_to_the_parser(parts, data):
    whole = b"".join(map(chunk, parts))
    assert chunked_body_size(whole) == sum(map(len, parts))
    assert strip_chunk_headers(whole) == b"".join(parts)
    ends = {0, *accumulate(len(chunk(part)) for part in parts)}
    cut = data.draw(st.integers(1, len(whole)).filter(lambda at: at not in ends))
    assert chunked_body_size(whole[:cut]) == 0


class Parsed:
    """What httptools makes of it, in the place of a chunked body."""

    def __init__(self, data):
        self.body = b""
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(STREAM_HEAD)
        parser.feed_data(data)
        parser.feed_data(b"0\r\n\r\n")  # refused unless what came before was whole

    def on_body(self, data):
        self.body += data


pieces = st.sampled_from(
    [
        b"0",
        b"1",
        b"3",
        b"a",
        b"A",
        b"10",
        b"\r\n",
        b"\n",
        b"\r",
        b";",
        b" ",
        b"abc",
        b"x",
        b"+",
        b"_",
    ]
)


@given(st.lists(pieces, max_size=14).map(b"".join) | st.binary(max_size=60))
def test_what_passes_for_chunks_is_read_the_same_by_a_parser(data):
    carried = chunked_body_size(data)
    if carried:
        assert strip_chunk_headers(data) == Parsed(data).body
        assert carried == len(strip_chunk_headers(data))


def test_what_the_parser_would_refuse_or_end_with_is_not_a_chunk():
    for data in (
        b"",
        b"0\r\n\r\n",
        b"0x3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"3;x=1\r\nabc\r\n",
        b"3\r\nabc\n\n",
        b"1_0\r\n" + b"a" * 16 + b"\r\n",
        b"3\nabc\r\n",
    ):
        assert chunked_body_size(data) == 0, data


class PassingOn:
    """Gathers a body. Has chunks passed on as soon as a whole one came."""

    takes_chunks = True

    def __init__(self):
        self.body = b""
        self.passed = []
        self.ended = False

    def on_head(self, _head, _at):
        pass

    def on_body(self, data, _at):
        self.body += data

    def on_chunks(self, raw, _carried, _at):
        self.write(raw)
        self.call.pass_on(self.write, self.passed)

    def write(self, raw):
        self.body += strip_chunk_headers(raw)

    def on_end(self, _at):
        self.ended = True


async def receive(reads):
    event = asyncio.Event()

    async def listen(reader, writer):
        await reader.read()
        writer.close()
        event.set()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        pool = Pool(Origin("127.0.0.1", server.sockets[0].getsockname()[1]))
        await pool.prepare(1)
        receiver = PassingOn()
        receiver.call = pool.send(b"GET / HTTP/1.1\r\n\r\n", receiver)
        (connection,) = pool.open
        for data in reads:
            connection.data_received(data)
        await pool.close()
        await event.wait()
    return receiver


@given(
    st.lists(
        st.binary(min_size=1, max_size=600) | st.binary(min_size=2030, max_size=2060), min_size=1
    ),
    st.data(),
)
def test_what_is_passed_on_and_what_is_read_is_in_order_all_that_came(parts, data):
    """However the bytes are cut: at chunks, inside of them, several at once."""
    whole = b"".join(map(chunk, parts)) + b"0\r\n\r\n"
    borders = list(accumulate(len(chunk(part)) for part in parts))
    cuts = data.draw(st.sets(st.sampled_from(borders) | st.integers(1, len(whole) - 1)))
    places = [0, *sorted(cuts), len(whole)]
    reads = [whole[begin:end] for begin, end in pairwise(places)]
    received = asyncio.run(receive([STREAM_HEAD, *reads]))
    assert received.body == b"".join(parts)
    assert received.ended


async def test_chunks_that_come_one_by_one_are_passed_on_from_the_third():
    received = await receive(
        [STREAM_HEAD, *map(chunk, [b"one", b"two", b"three", b"four"]), b"0\r\n\r\n"]
    )
    assert (received.body, received.ended) == (b"onetwothreefour", True)
    assert received.passed == [chunk(b"three"), chunk(b"four")]
