"""What one connection of the server makes of bytes, and a strict reading of them to hold against
it.
"""

import re

from skep.wire.server import HttpServer
from skep.wire.server_connection import ServerConnection
from skep.wire.server_request import METHODS

# A strict reading of HTTP/1.1, written for this test: no streaming, no limits, no leniency but the
# three of `rules`.

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIRST = re.compile(rb"[\r\n]*([A-Z]+) +([!-~]+) +(?:HTTP|RTSP)/(1\.[01])\r\n")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*)\r\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]+)(?:;[\t -~\x80-\xff]*)?\r\n")
_HOST = re.compile(rb"([A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


class NotOneMore(Exception):
    """What follows is malformed or not whole."""


def strict_reading(data):
    """The requests (method, target, body) that may be handled when these bytes arrive and then the
    connection ends.
    """
    requests = []
    at = 0
    goes_on = True
    try:
        while goes_on:
            request, at, goes_on = _request(data, at)
            requests.append(request)
    except NotOneMore:
        pass
    return requests


def _request(data, at):
    """The request that begins there, where it ends, and whether another may follow."""
    first = _FIRST.match(data, at)
    need(first is not None and first[1] in METHODS)
    method, target, version = first.groups()
    fields, at = _fields(data, first.end())
    named = {}
    for name, value in fields:
        need(
            name not in named
            or name not in (b"host", b"content-length", b"transfer-encoding", b"authorization")
        )
        need(name != b"expect" or version == b"1.0" or value.lower() == b"100-continue")
        named[name] = value
    need(b"host" in named or version == b"1.0")
    need(b"host" not in named or _HOST.fullmatch(named[b"host"]))
    target = _path(target, named.get(b"host"))
    wishes = [
        wish.strip()
        for name, value in fields
        if name == b"connection"
        for wish in value.lower().split(b",")
    ]
    goes_on = b"close" not in wishes and (version == b"1.1" or b"keep-alive" in wishes)
    if b"transfer-encoding" in named:
        need(version == b"1.1" and b"content-length" not in named)
        need(named[b"transfer-encoding"].lower() == b"chunked")
        body, at = _chunks(data, at)
    else:
        length = named.get(b"content-length", b"0")
        need(re.fullmatch(rb"[0-9]{1,19}", length) and at + int(length) <= len(data))
        body = data[at : at + int(length)]
        at += int(length)
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
    if absolute[2].startswith(b"/"):
        return absolute[2]
    return b"/" + absolute[2]


def _chunks(data, at):
    body = b""
    while True:
        chunk = _CHUNK.match(data, at)
        need(chunk is not None)
        size = int(chunk[1], 16)
        at = chunk.end()
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


def fed(pieces, heads, *, later=False):
    """What one connection makes of these reads: requests handed over, bytes written, and whether
    it ended.

    `later`: what a read brought is answered when all of it has been looked at.
    """
    handled = []
    waiting = []
    sink = Sink()

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
