"""Whole chunks, told from everything else."""

import httptools
import hypothesis.strategies as st
from hypothesis import given

from skep.wire.client import chunked_body_size, strip_chunk_headers

bodies = st.lists(st.binary(min_size=1, max_size=600), min_size=1, max_size=5)


def chunk(body):
    return b"%x\r\n%b\r\n" % (len(body), body)


@given(bodies)
def test_whole_chunks_carry_what_was_put_in(parts):
    data = b"".join(map(chunk, parts))
    assert chunked_body_size(data) == sum(map(len, parts))
    assert strip_chunk_headers(data) == b"".join(parts)


@given(bodies, st.data())
def test_a_read_that_ends_inside_a_chunk_is_left_to_the_parser(parts, data):
    whole = b"".join(map(chunk, parts))
    ends = {0}
    for part in parts:
        ends.add(max(ends) + len(chunk(part)))
    cut = data.draw(st.integers(1, len(whole)).filter(lambda at: at not in ends))
    assert chunked_body_size(whole[:cut]) == 0


class Parsed:
    """What httptools makes of it, in the place of a chunked body."""

    def __init__(self, data):
        self.body = b""
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        parser.feed_data(data)
        parser.feed_data(b"0\r\n\r\n")  # refused unless what came before was whole

    def on_body(self, data):
        self.body += data


pieces = st.sampled_from(
    [b"0", b"1", b"3", b"a", b"A", b"10", b"\r\n", b"\n", b"\r", b";", b" ", b"abc", b"x", b"+", b"_"]
)


@given(st.lists(pieces, max_size=14).map(b"".join) | st.binary(max_size=60))
def test_what_passes_for_chunks_is_read_the_same_by_a_parser(data):
    carried = chunked_body_size(data)
    if carried:
        assert strip_chunk_headers(data) == Parsed(data).body
        assert carried == len(strip_chunk_headers(data))


def test_what_the_parser_would_refuse_or_end_with_is_not_a_chunk():
    for data in (b"", b"0\r\n\r\n", b"0x3\r\nabc\r\n", b"+3\r\nabc\r\n", b"3 \r\nabc\r\n", b"3;x=1\r\nabc\r\n",
                 b"3\r\nabc\n\n", b"1_0\r\n" + b"a" * 16 + b"\r\n", b"3\nabc\r\n"):  # fmt: skip
        assert chunked_body_size(data) == 0, data
