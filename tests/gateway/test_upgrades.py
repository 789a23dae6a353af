"""Offers of another protocol: h2c, a websocket, HTTP/2 without asking.

Each is a plain request or one clear refusal.
"""

import json
import socket
from contextlib import suppress

import pytest
from gateway_client import body, read_all, status_of, until

from recorded_server import recorded

H2C = [
    "connection: Upgrade, HTTP2-Settings",
    "upgrade: h2c",
    "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA",
]
WEBSOCKET = [
    "connection: Upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
]
OFFERS = {"h2c": H2C, "websocket": WEBSOCKET}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
SERVED = ["/v1/models", "/health", "/metrics", "/"]


@pytest.fixture(params=[1, 2], ids=["one process", "workers"])
def gateway(request, serving):
    return serving(workers=request.param)[0]


def talk(gateway, data):
    """All that is answered until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as client:
        with suppress(ConnectionResetError, BrokenPipeError):
            client.sendall(data)
        with suppress(ConnectionResetError):
            return read_all(client)
    return b""


def request(method, path, lines, content=b""):
    head = [
        f"{method} {path} HTTP/1.1",
        "host: 127.0.0.1",
        *lines,
        f"content-length: {len(content)}",
        "",
        "",
    ]
    return "\r\n".join(head).encode() + content


LAST = request("GET", "/health", ["connection: close"])


@pytest.mark.parametrize("offer", OFFERS)
def test_a_completion_with_an_offer_is_answered_as_one_without(gateway, offer):
    data = request("POST", "/v1/chat/completions", OFFERS[offer], json.dumps(body()).encode())
    answers = talk(gateway, data + LAST)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert b"HTTP/1.1 101" not in answers
    assert b"\r\nupgrade:" not in answers.lower()
    until(lambda: status_of(gateway)["in_flight"] == 0)


@pytest.mark.parametrize("path", SERVED)
@pytest.mark.parametrize("offer", OFFERS)
def test_what_the_gateway_answers_itself_is_answered_to_an_offer(gateway, path, offer):
    answers = talk(gateway, request("GET", path, OFFERS[offer]) + LAST)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert b"HTTP/1.1 101" not in answers


@pytest.mark.parametrize("path", ["/v1/realtime", "/ws"])
def test_a_websocket_at_an_engines_path_is_refused_once(gateway, path):
    answers = talk(gateway, request("GET", path, [*WEBSOCKET, "x-skep-model: fake-model"]) + LAST)
    first = answers.split(b"\r\n", 1)[0]
    assert first.startswith(b"HTTP/1.1 4"), first
    assert answers.count(b"HTTP/1.1 ") == 2


def test_http_2_without_asking_is_refused_with_one_answer(gateway):
    answer = talk(gateway, PREFACE)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 ")), answer[:100]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


def test_http_2_after_a_request_is_refused_and_the_request_answered(gateway):
    answers = talk(gateway, request("GET", "/health", H2C) + PREFACE)
    assert answers.startswith(b"HTTP/1.1 200 OK")
    assert answers.count(b"HTTP/1.1 ") == 2


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("offer", OFFERS)
def test_an_offer_is_never_passed_on_to_an_engine(start_gateway, offer, workers):
    """It is for this connection alone: an engine that took it would speak past every check."""
    heads = []

    def answer(_path, headers, _body):
        heads.append({name.lower() for name in headers})
        return b'{"choices":[]}'

    with recorded(answer) as engine:
        gateway = start_gateway(workers=workers)
        gateway.serve(
            [{"name": "r0", "model": "fake-model", "url": engine.url, "slots": 1, "confirms": ""}]
        )
        content = json.dumps(body()).encode()
        answers = talk(
            gateway, request("POST", "/v1/chat/completions", OFFERS[offer], content) + LAST
        )
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    (names,) = heads
    assert not names & {"upgrade", "http2-settings"}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_engine_that_switches_to_another_protocol_by_itself_is_no_answer(
    start_gateway, workers
):
    """The client gets an error, and not a byte of the other protocol.

    Of two slots the second is tried at once.
    """
    with recorded(
        lambda *_: (101, b""), lines=[("connection", "upgrade"), ("upgrade", "h2c")]
    ) as engine:
        gateway = start_gateway(workers=workers)
        gateway.serve(
            [{"name": "r0", "model": "fake-model", "url": engine.url, "slots": 2, "confirms": ""}]
        )
        content = json.dumps(body()).encode()
        answers = talk(gateway, request("POST", "/v1/chat/completions", H2C, content) + LAST)
    assert answers.startswith((b"HTTP/1.1 502 ", b"HTTP/1.1 503 ")), answers[:200]
    assert b"HTTP/1.1 101" not in answers
