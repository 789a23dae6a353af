"""Requests to a gateway as clients send them: whole, on a socket that can be hung up, and read
back.
"""

import contextlib
import http.client
import json
import socket

from commands import eventually
from skep.wire.heads import gateway_fields

MODEL = "fake-model"
ASKED = [{"role": "user", "content": "one two three"}]
until = eventually


def body(**fields):
    return {"model": MODEL, "messages": ASKED, "max_tokens": 4, **fields}


def call(gateway, method="POST", path="/v1/chat/completions", document=None, **headers):
    """Return the status, the headers and the body of the answer; header names are given with
    underscores.
    """
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    if document is None:
        data = None
    elif isinstance(document, bytes):
        data = document
    else:
        data = json.dumps(document).encode()
    with contextlib.closing(connection):
        connection.request(
            method, path, data, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def post(gateway, document=None, **headers):
    return call(gateway, document=body() if document is None else document, **headers)


def told(headers, name):
    """What the gateway says of an answer in its own header."""
    return gateway_fields(headers["x-skep"])[name]


def error_of(text):
    return json.loads(text)["error"]


def refusal(gateway, document=None, **headers):
    """Return the status and the error code; None for an answer that is none."""
    status, _, text = post(gateway, document, **headers)
    return status, json.loads(text).get("error", {}).get("code")


def open_post(gateway, document, path="/v1/chat/completions", lines=(), receive_bytes=None):
    """Send a request on a plain socket, to be hung up at will.

    `receive_bytes`: the client's buffer.
    """
    if isinstance(document, bytes):
        data = document
    else:
        data = json.dumps(document).encode()
    head = [f"POST {path} HTTP/1.1", "host: x", *lines, f"content-length: {len(data)}", "", ""]
    sock = socket.socket()
    sock.settimeout(30)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.connect(("127.0.0.1", gateway.port))
    sock.sendall("\r\n".join(head).encode() + data)
    return sock


def open_stream(gateway, **fields):
    """Open a streamed request of which the first bytes have come."""
    sock = open_post(gateway, body(stream=True, **fields))
    assert sock.recv(100)
    return sock


def read_until(sock, mark, received=b""):
    """Read up to the mark: bytes, or what is true of all that was received."""
    is_there = mark if callable(mark) else lambda text: mark in text
    while not is_there(received):
        part = sock.recv(65536)
        assert part, received
        received += part
    return received


def read_all(sock):
    received = b""
    while part := sock.recv(65536):
        received += part
    return received


def status_of(gateway):
    return gateway.ask(op="status")


def metrics(gateway, **headers):
    lines = call(gateway, "GET", "/metrics", **headers)[2].decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#")
    }
