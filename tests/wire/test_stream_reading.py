"""Streams as the client reads them: whole chunks told from everything else, and every legal form of events."""

import httptools
import hypothesis.strategies as st
import pytest
from hypothesis import given

from skep.wire.heads import chunked_body_size, strip_chunk_headers
from skep.wire.openai import SseParser

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


FORMS = {
    "plain": b"data: a\n\ndata: b\n\n",
    "crlf": b"data: a\r\n\r\ndata: b\r\n\r\n",
    "no space": b"data:a\n\ndata:b\n\n",
    "comments": b": ping\n\ndata: a\n: more\n\n\ndata: b\n\n",
    "other fields": b"event: x\nid: 7\ndata: a\n\nretry: 5\ndata: b\n\n",
}


@pytest.mark.parametrize("stream", FORMS.values(), ids=FORMS.keys())
def test_each_form_gives_the_same_payloads(stream):
    assert SseParser().feed(stream) == [b"a", b"b"]


def test_several_data_lines_are_one_payload():
    assert SseParser().feed(b"data: {\ndata: }\n\n") == [b"{\n}"]


def test_an_event_without_its_empty_line_is_not_complete():
    assert SseParser().feed(b"data: a\n") == []


@given(st.lists(st.text(min_size=1).filter(lambda t: not set(t) & set("\r\n")), max_size=5), st.data())
def test_cutting_the_stream_anywhere_changes_nothing(texts, data):
    """Also inside a character, and between CR and LF."""
    stream = b"".join(b"data: " + text.encode() + b"\r\n\r\n" for text in texts)
    parser, got, rest = SseParser(), [], stream
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        got += parser.feed(rest[:size])
        rest = rest[size:]
    assert [payload.decode() for payload in got] == texts
