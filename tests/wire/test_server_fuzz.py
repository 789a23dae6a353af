"""Requests, whole and damaged, in any pieces: the server handles what a strict reading allows, and never more.

`SKEP_FUZZ_EXAMPLES=100000 pytest tests/wire/test_server_fuzz.py --timeout=0` searches for long.
"""

import os
import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skep.wire.heads import HeadCache
from skep.wire.server import HttpServer, ServerConnection
from skep.wire.server_request import METHODS

EXAMPLES = int(os.environ.get("SKEP_FUZZ_EXAMPLES", "60"))
SEARCH = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
FINAL = b"GET /final HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


# A strict reading of HTTP/1.1, written for this test: no streaming, no limits, no leniency but the three of `rules`.

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIRST = re.compile(rb"[\r\n]*([A-Z]+) +([!-~]+) +(?:HTTP|RTSP)/(1\.[01])\r\n")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*)\r\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]+)(?:;[\t -~\x80-\xff]*)?\r\n")
_HOST = re.compile(rb"([A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


class NotOneMore(Exception):
    """What follows is malformed or not whole."""


def strict_reading(data):
    """The requests (method, target, body) that may be handled when these bytes arrive and then the connection ends."""
    requests, at, goes_on = [], 0, True
    try:
        while goes_on:
            request, at, goes_on = _one(data, at)
            requests.append(request)
    except NotOneMore:
        pass
    return requests


def _one(data, at):
    first = _FIRST.match(data, at)
    need(first is not None and first[1] in METHODS)
    method, target, version = first.groups()
    fields, at = _fields(data, first.end())
    named = {}
    for name, value in fields:
        need(name not in named or name not in (b"host", b"content-length", b"transfer-encoding", b"authorization"))
        need(name != b"expect" or version == b"1.0" or value.lower() == b"100-continue")
        named[name] = value
    need(b"host" in named or version == b"1.0")
    need(b"host" not in named or _HOST.fullmatch(named[b"host"]))
    target = _path(target, named.get(b"host"))
    wishes = [wish.strip() for name, value in fields if name == b"connection" for wish in value.lower().split(b",")]
    goes_on = b"close" not in wishes and (version == b"1.1" or b"keep-alive" in wishes)
    if b"transfer-encoding" in named:
        need(version == b"1.1" and b"content-length" not in named and named[b"transfer-encoding"].lower() == b"chunked")
        body, at = _chunks(data, at)
    else:
        length = named.get(b"content-length", b"0")
        need(re.fullmatch(rb"[0-9]{1,19}", length) and at + int(length) <= len(data))
        body, at = data[at : at + int(length)], at + int(length)
    return (method, target, body), at, goes_on


def _fields(data, at):
    fields = []
    while not data.startswith(b"\r\n", at):
        field = _FIELD.match(data, at)
        need(field is not None)
        fields.append((field[1].lower(), field[2]))
        at = field.end()
    return fields, at + 2


def _path(target, host):
    need(b"#" not in target)
    if target.startswith(b"/"):
        return target
    absolute = re.fullmatch(rb"https?://([^/?]+)([^ ]*)", target, re.IGNORECASE)
    need(absolute is not None and host is not None and absolute[1].lower() == host.lower())
    return absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]


def _chunks(data, at):
    body = b""
    while True:
        chunk = _CHUNK.match(data, at)
        need(chunk is not None)
        size, at = int(chunk[1], 16), chunk.end()
        if size == 0:
            trailers, at = _fields(data, at)
            need(not {name for name, _ in trailers} & {b"content-length", b"transfer-encoding"})
            return body, at
        need(data.startswith(b"\r\n", at + size))
        body += data[at : at + size]
        at += size + 2


def need(fact):
    if not fact:
        raise NotOneMore


# Requests


@st.composite
def chunked_bodies(draw):
    parts = draw(st.lists(st.binary(min_size=1, max_size=30), max_size=4))
    extension = draw(st.sampled_from([b"", b"", b";a=b", b';a="b c"']))
    trailer = draw(st.sampled_from([b"", b"", b"X-T: v\r\n", b"Authorization: Bearer t\r\n"]))
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n" + trailer + b"\r\n"


@st.composite
def whole_requests(draw):
    """One legal request that leaves the connection open."""
    target = draw(st.sampled_from([b"/", b"/v1/chat/completions", b"/a?b=c", b"http://a/x", b"/%20~"]))
    lines = [b"Host: a"]
    lines += draw(
        st.lists(
            st.sampled_from(
                [b"X-A: 1", b"Accept: */*", b"x-b:", b"X-C: \xc3\xbc  ", b"Connection: keep-alive", b"Cookie: a=b; c"]
            ),
            max_size=3,
        )
    )
    lines += draw(st.sampled_from([[]] * 4 + [[b"Connection: upgrade, http2-settings", b"Upgrade: h2c"]]))
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
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b"#", b"0", b"0\r\n\r\n", b"\r\n\r\n", b"Host: b\r\n",
    b"Content-Length: 3\r\n", b"Content-Length: +3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
    b"Transfer-Encoding: gzip\r\n", b"Upgrade: h2c\r\n", b"Connection: upgrade\r\n", b"Expect: x\r\n", b" folded\r\n",
    b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n",
)  # fmt: skip


@st.composite
def damaged(draw):
    """Several requests in a row, hurt in a few places."""
    data = bytearray(b"".join(draw(st.lists(whole_requests(), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "insert", "insert at a line", "delete", "double", "truncate"])):
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


# The server's side of one connection


class Sink:
    """A transport that keeps what is written."""

    def __init__(self):
        self.written = b""
        self.closing = False

    def write(self, data):
        self.written += data

    def can_write_eof(self):
        return False

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def get_write_buffer_size(self):
        return 0


KNOWN = HeadCache()  # grows over all examples, as a server's does


def fed(pieces, heads, *, later=False):
    """What one connection makes of these reads: requests handed over, bytes written, and whether it ended.

    `later`: what a read brought is answered when all of it has been looked at.
    """
    handled, waiting, sink = [], [], Sink()

    def handle(request):
        handled.append((request.method, request.target, request.headers, request.body))
        if later:
            waiting.append(request)
        else:
            request.respond(200, [], b"ok")

    server = HttpServer(handle)
    server.heads = heads
    connection = ServerConnection(server)
    connection.connection_made(sink)
    for piece in pieces:
        connection.data_received(piece)
        while waiting:
            waiting.pop(0).respond(200, [], b"ok")
    closing = sink.closing
    connection.connection_lost(None)
    assert server.bodies.bytes == 0
    return handled, sink.written, closing


def as_read(handled):
    return [(method, target, body) for method, target, _, body in handled]


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
