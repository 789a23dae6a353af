"""Answers of a hostile upstream to the HTTP client: one meaning in whatever pieces, and nothing of
them in the next.
"""

import asyncio
import socket

import h11

from fuzz.http_words import HTTP_WORDS
from fuzz.pieces import split_input, ways_to_cut
from skep.wire.client import Pool
from skep.wire.heads import Origin, strip_chunk_headers

# Bits of the choice: what the receiver can do.
TAKES_CHUNKS = 1
TAKES_WHOLE = 2
PASSES_ON = 4
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
NEXT_BODY = b"the next answer"
NEXT_ANSWER = b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r\n%b" % (len(NEXT_BODY), NEXT_BODY)
TURNS = 50  # of the event loop until a closed connection is noticed
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
SEEDS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: "
        b"chunked\r\n\r\n2\r\nok\r\n3;x=y\r\nabc\r\n0\r\nx: y\r\n\r\n"
    ),
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    (
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: "
        b"3\r\n\r\nbad"
    ),
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    STREAM_HEAD + b"9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n9\r\ndata: c\n\n\r\n0\r\n\r\n",
]
WORDS = [
    *HTTP_WORDS,
    b"content-length: 3\r\n",
    b"transfer-encoding: chunked, gzip\r\n",
    b"1\r\nx\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0",
    b"HTTP/1.1 304 Not Modified\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\n\r\n",
    b"FFFFFFFFFFFFFFFF\r\n",
    b"-1\r\n",
]


class AnswerLog:
    """A receiver that notes what an answer was, however many pieces it came in."""

    def __init__(self, choice):
        self._accepts_chunks = bool(choice & TAKES_CHUNKS)
        self._passes_on = bool(choice & PASSES_ON)
        self.takes_chunks = False
        self.head = None
        self.body = b""
        self.ends = []
        self.call = None

    def on_head(self, head, _at):
        assert self.head is None, "two heads for one request"
        assert not self.ends, "a head after the end"
        self.head = (head.status, list(head.headers), head.length)
        self.takes_chunks = self._accepts_chunks

    def on_body(self, data, _at):
        assert self.head is not None, "a body without a head"
        assert not self.ends, "a body after the end"
        self.body += data

    def on_chunks(self, raw, carried, _at):
        assert self.takes_chunks
        before = len(self.body)
        self.write(raw)
        assert len(self.body) - before == carried
        if self._passes_on:
            self.call.pass_on(self.write, [])

    def write(self, raw):
        assert not self.ends, "chunks after the end"
        self.body += strip_chunk_headers(raw)

    def on_whole(self, head, body, at):
        self.on_head(head, at)
        self.head = (head.status, head.headers, len(body))
        self.on_body(body, at)
        self.on_end(at)

    def on_end(self, _at):
        self.ends.append("whole")

    def on_failure(self, failure, _at):
        self.ends.append(failure.kind)

    @property
    def result(self):
        return self.head, self.body, self.ends


async def receive(pieces, choice, heads=None):
    """What a call got from these reads, and what the next call got on the same connection; None:
    it was given up.
    """
    ends = []

    def connect():
        ours, theirs = socket.socketpair()
        ends.append(theirs)
        return ours

    pool = Pool(Origin("upstream", 80), connect=connect)
    if heads is not None:
        pool.heads = heads
    await pool.prepare(1)
    (connection,) = pool.open
    log = send(pool, choice)
    for piece in pieces:
        if connection.is_closing():
            break
        connection.data_received(piece)
    following = None
    if pool.has_idle():
        following = send(pool, choice)
        connection.data_received(NEXT_ANSWER)
    ends[0].close()
    for _ in range(TURNS):
        if not pool.open:
            break
        await asyncio.sleep(0)
    await pool.close()
    return log.result, following.result if following is not None else None


def send(pool, choice):
    log = AnswerLog(choice)
    log.call = pool.send(REQUEST, log, on_whole=log.on_whole if choice & TAKES_WHOLE else None)
    return log


def reference(payload):
    """Status and body as h11 reads them; None where it finds no whole answer, or more than one."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    status = None
    body = b""
    try:
        connection.receive_data(payload)
        connection.receive_data(b"")
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return status, body
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None


async def check(data):
    choice, payload = split_input(data)
    whole, following = await receive([payload], choice)
    (head, body, ends) = whole
    assert len(ends) == 1, f"an answer has one end: {ends}"
    expected = reference(payload)
    if ends == ["whole"] and expected is not None:
        assert (head[0], body) == expected
    if following is not None:
        assert following[1] == NEXT_BODY, following
        assert following[2] == ["whole"]
    for pieces in ways_to_cut(payload, choice):
        again, following = await receive(pieces, choice)
        assert again == whole, pieces
        assert following is None or following[1] == NEXT_BODY, following
    pool = Pool(Origin("upstream", 80))
    for _ in range(2):
        again, _ = await receive([payload], choice, pool.heads)
        assert again == whole, "a head that was read before"
