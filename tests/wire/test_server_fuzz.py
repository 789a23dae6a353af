"""Requests, whole and damaged, in any pieces: the server handles what a strict reading allows, and
never more.

`SKEP_FUZZ_EXAMPLES=100000 pytest tests/wire/test_server_fuzz.py --timeout=0` searches for long.
"""

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.server_reading import as_read, fed, strict_reading
from skep.wire.heads import HeadCache

EXAMPLES = int(os.environ.get("SKEP_FUZZ_EXAMPLES", "60"))
SEARCH = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
FINAL = b"GET /final HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


# Requests


@st.composite
def chunked_bodies(draw):
    parts = draw(st.lists(st.binary(min_size=1, max_size=30), max_size=4))
    extension = draw(st.sampled_from([b"", b"", b";a=b", b';a="b c"']))
    trailer = draw(st.sampled_from([b"", b"", b"X-T: v\r\n", b"Authorization: Bearer t\r\n"]))
    return (
        b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        + b"0\r\n"
        + trailer
        + b"\r\n"
    )


@st.composite
def whole_requests(draw):
    """One legal request that leaves the connection open."""
    target = draw(
        st.sampled_from([b"/", b"/v1/chat/completions", b"/a?b=c", b"http://a/x", b"/%20~"])
    )
    lines = [b"Host: a"]
    lines += draw(
        st.lists(
            st.sampled_from(
                [
                    b"X-A: 1",
                    b"Accept: */*",
                    b"x-b:",
                    b"X-C: \xc3\xbc  ",
                    b"Connection: keep-alive",
                    b"Cookie: a=b; c",
                ]
            ),
            max_size=3,
        )
    )
    lines += draw(
        st.sampled_from([[]] * 4 + [[b"Connection: upgrade, http2-settings", b"Upgrade: h2c"]])
    )
    lines += draw(st.sampled_from([[]] * 6 + [[b"Expect: 100-continue"]]))
    kind = draw(st.sampled_from(["none", "length", "chunks"]))
    body = b""
    if kind == "length":
        inner = b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n"
        body = draw(st.one_of(st.binary(max_size=100), st.just(inner)))
        lines.append(b"Content-Length: %d" % len(body))
    elif kind == "chunks":
        body = draw(chunked_bodies())
        lines.append(b"Transfer-Encoding: chunked")
    method = b"GET" if kind == "none" else b"POST"
    order = draw(st.permutations(lines))
    return b"\r\n".join([b"%b %b HTTP/1.1" % (method, target), *order, b"", b""]) + body


INSERTED = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b"#", b"0", b"0\r\n\r\n", b"\r\n\r\n",
    b"Host: b\r\n", b"Content-Length: 3\r\n", b"Content-Length: +3\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Transfer-Encoding: gzip\r\n",
    b"Upgrade: h2c\r\n", b"Connection: upgrade\r\n", b"Expect: x\r\n", b" folded\r\n",
    b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\n",
)  # fmt: skip


@st.composite
def damaged(draw):
    """Several requests in a row, hurt in a few places."""
    data = bytearray(b"".join(draw(st.lists(whole_requests(), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(
            st.sampled_from(["flip", "insert", "insert at a line", "delete", "double", "truncate"])
        ):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "insert":
                data[at:at] = draw(st.sampled_from(INSERTED))
            case "insert at a line":
                line = data.find(b"\r\n", at) + 2
                data[line:line] = draw(st.sampled_from(INSERTED))
            case "delete":
                del data[at : at + draw(st.integers(1, 10))]
            case "double":
                end = data.find(b"\r\n", at) + 2
                start = data.rfind(b"\r\n", 0, at) + 2
                data[end:end] = data[start:end]
            case "truncate":
                del data[at:]
    return bytes(data)


@st.composite
def in_pieces(draw, sources):
    data = draw(sources)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return data, [data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)]


KNOWN = HeadCache()  # grows over all examples, as a server's does


@SEARCH
@given(in_pieces(st.lists(whole_requests(), min_size=1, max_size=5).map(b"".join)), st.booleans())
def test_legal_requests_are_all_handled_whatever_the_pieces(sent, later):
    data, pieces = sent
    expected = [*strict_reading(data), (b"GET", b"/final", b"")]
    handled, written, closing = fed([*pieces, FINAL], HeadCache(), later=later)
    assert (as_read(handled), closing) == (expected, True)
    assert written.count(b"HTTP/1.1 200 OK\r\n") == len(expected)


@SEARCH
@given(in_pieces(damaged()), st.booleans())
def test_damaged_requests_are_handled_as_far_as_they_are_legal_and_no_further(sent, later):
    data, pieces = sent
    handled, written, _ = fed(pieces, HeadCache(), later=later)
    assert as_read(handled) == strict_reading(data)[: len(handled)]
    assert written.count(b"HTTP/1.1 200 OK\r\n") <= len(handled)


@SEARCH
@given(in_pieces(damaged()))
def test_how_the_bytes_are_cut_changes_nothing(sent):
    """Nor does it matter whether a head was seen before, on this connection or another."""
    data, pieces = sent
    whole = fed([data], HeadCache())
    assert fed(pieces, HeadCache()) == whole
    assert fed([data[i : i + 1] for i in range(len(data))], HeadCache()) == whole
    for _ in range(2):
        assert fed([data], KNOWN) == whole
        assert fed(pieces, KNOWN) == whole
