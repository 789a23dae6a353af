"""Every legal form of an event stream gives the same payloads, however it is cut into reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.wire.stream_reader import SseParser

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
