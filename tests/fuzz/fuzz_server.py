"""Requests to the HTTP server: none but those of a strict reading,
in whatever pieces they come.
"""

from fuzz.http_words import HTTP_WORDS
from fuzz.pieces import split_input, ways_to_cut
from fuzz.server_reading import as_read, fed, strict_reading
from skep.wire.heads import HeadCache

LATER = 1  # this bit of the choice: requests are answered after the read that brought them
LAST = b"GET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
SEEDS = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
        b"chunked\r\n\r\n3;x=1\r\nabc\r\n0\r\nx: y\r\n\r\n"
    ),
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + LAST,
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, http2-settings\r\nUpgrade: h2c\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
    b"GET http://a/x HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
]
WORDS = [
    *HTTP_WORDS,
    b"content-length: 3",
    b"transfer-encoding: gzip, chunked",
    b"Host: a\r\n",
    b"Expect: 100-continue\r\n",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"+3",
    b"0x3",
]


def check(data):
    choice, payload = split_input(data)
    later = bool(choice & LATER)
    whole = fed([payload], HeadCache(), later=later)
    handled = as_read(whole[0])
    legal = strict_reading(payload)
    assert handled == legal[: len(handled)], (handled, legal)
    assert whole[1].count(b"HTTP/1.1 200 OK\r\n") <= len(handled)
    if later:
        # what a read brings behind a bad request is dropped with it: there the cuts may matter
        return
    for pieces in ways_to_cut(payload, choice):
        assert fed(pieces, HeadCache(), later=later) == whole, pieces
    head_cache = HeadCache()
    for _ in range(2):
        assert fed([payload], head_cache, later=later) == whole, "a head that was read before"
