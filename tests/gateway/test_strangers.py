"""What those get who may not call, before and after a key is looked at, and what they cost the gateway."""

import http.client
import json
import socket
import sqlite3
import time

import pytest

from skep.config.keys import digest_of
from skep.gateway.body_inspection import LONG_BYTES
from skep.testing.process import FakeEngine

MIB = 1 << 20
KEYS = [{"name": "mine", "sha256": digest_of("k-mine")}]
ASK = {"model": "fake-model", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 2}
# The model stands in the middle, between many brackets: neither end of the body tells it.
MANY = b'[{"a":"b"},' + b'["c",0],' * 150_000 + b"[]]"
HARD = b'{"x":%b,"model":"fake-model","max_tokens":2,"messages":[{"role":"user","content":"a"}],"y":%b}' % (MANY, MANY)


def begin(door, length, *lines, sent=b"", path="/v1/chat/completions"):
    """A request whose body has begun and not ended."""
    sock = socket.create_connection(("127.0.0.1", door.port), timeout=20)
    head = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {length}", *lines]
    sock.sendall("\r\n".join([*head, "", ""]).encode() + sent)
    return sock


def answer(sock):
    """The whole answer of a connection that the gateway closes."""
    text = b""
    while more := sock.recv(65536):
        text += more
    head, _, body = text.partition(b"\r\n\r\n")
    assert b"x-skep-request-id" in head or b" 503 " in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def ask(door, document=ASK, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", "/v1/chat/completions", json.dumps(document).encode(), given)
    response = connection.getresponse()
    text = json.loads(response.read())
    connection.close()
    return response.status, text.get("error", {}).get("code")


@pytest.mark.parametrize("lines", [(), ("authorization: Bearer wrong",)], ids=["no key", "a wrong key"])
def test_a_body_is_not_read_from_somebody_without_a_key(gateway, lines):
    """40 strangers with 64 MiB each took 2.4 GB before anybody looked at their keys."""
    door = gateway(keys=KEYS)
    with begin(door, 60 * MIB, *lines, sent=b"{") as sock:
        assert answer(sock) == (401, "invalid_api_key")


def test_nobody_without_a_key_is_asked_to_go_on(gateway):
    door = gateway(keys=KEYS)
    with begin(door, 60 * MIB, "expect: 100-continue") as sock:
        assert answer(sock) == (401, "invalid_api_key")
    with begin(door, 60 * MIB, "expect: 100-continue", "x-api-key: k-mine") as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 100 Continue")


def test_a_head_that_was_let_in_before_lets_nobody_in_after_its_key_is_gone(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway(keys=KEYS)
        door.serve(engine)
        lines = ("content-type: application/json", "x-api-key: k-mine")
        data = json.dumps(ASK).encode()
        with begin(door, len(data), *lines, sent=data) as sock:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        door.send({"op": "settings", "keys": [{"name": "other", "sha256": digest_of("k-other")}]})
        assert door.ask(op="status")["id"] == 1  # it has read the message before
        with begin(door, MIB, *lines, sent=b"{") as sock:
            assert answer(sock) == (401, "invalid_api_key")


def test_the_bodies_of_all_requests_together_are_bounded(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway(server={"body_bytes": MIB, "held_bytes": 2 * MIB})
        door.serve(engine)
        part = b'{"model":"fake-model","messages":[{"role":"user","content":"a"}],"x":"' + b"a" * (MIB * 7 // 8)
        first, second = (begin(door, MIB, sent=part) for _ in range(2))
        with first, second:
            with begin(door, MIB, sent=part) as third:
                assert answer(third) == (503, "too_many_bytes")
            assert ask(door) == (200, None)  # a small one has room
            first.close()
            with begin(door, len(part) + 2, sent=part + b'"}') as fourth:
                assert fourth.recv(100).startswith(b"HTTP/1.1 200")


def test_what_was_answered_is_no_longer_counted(gateway):
    """Whether it came in one read or in many, was refused, answered or left.

    Eight of a kind left counted would be too many; one whose end the gateway has yet to read is not.
    """
    with FakeEngine(token_ms=1) as engine:
        door = gateway(server={"body_bytes": MIB // 2, "held_bytes": 2 * MIB})
        door.serve(engine)
        filled = {**ASK, "pad": "x" * (MIB // 3)}
        for _ in range(8):
            assert ask(door, filled) == (200, None)
            assert ask(door, {**filled, "model": "unknown"}) == (404, "model_not_found")
            begin(door, MIB // 2, sent=b"x" * (MIB // 3)).close()
        with begin(door, MIB // 2, sent=b"x" * (MIB // 3)):
            assert ask(door, filled) == (200, None)


def test_strangers_are_counted_and_leave_no_rows(gateway, tmp_path):
    """A row for each 401 was 174 GB a day from one connection."""
    store, log = tmp_path / "skep.sqlite3", tmp_path / "requests.log"
    with FakeEngine(token_ms=1) as engine:
        door = gateway(keys=KEYS, store=str(store), log=str(log))
        door.serve(engine)
        for _ in range(5):
            assert ask(door) == (401, "invalid_api_key")
        assert ask(door, {**ASK, "model": "unknown"}, x_api_key="k-mine") == (404, "model_not_found")
        assert ask(door, x_api_key="k-mine") == (200, None)
        connection = http.client.HTTPConnection("127.0.0.1", door.port)
        connection.request("GET", "/metrics", headers={"x-api-key": "k-mine"})
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        door.close()
    (refused,) = [line for line in lines if "invalid_api_key" in line]
    assert refused.endswith(" 5")
    with sqlite3.connect(store) as rows:
        assert [code for (code,) in rows.execute("SELECT code FROM gateway_requests ORDER BY arrived_at")] == [
            "model_not_found", None,
        ]  # fmt: skip
    assert "invalid_api_key" not in log.read_text()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8400", "[::1]:8400", "LOCALHOST:1", "box.lan"])
def test_a_gateway_without_keys_answers_to_its_own_names(gateway, host):
    with FakeEngine(token_ms=1) as engine:
        door = gateway(hosts=["localhost", "127.0.0.1", "::1", "box.lan"])
        door.serve(engine)
        assert ask(door, host=host) == (200, None)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "[::2]"])
def test_a_gateway_without_keys_answers_to_no_name_that_somebody_let_point_to_it(gateway, host):
    """DNS rebinding: the browser takes the page and the gateway for one site, and lets the page read."""
    door = gateway(hosts=["localhost", "127.0.0.1", "::1"])
    assert ask(door, host=host) == (403, "host_refused")
    with begin(door, MIB, sent=b"{") as sock:
        sock.shutdown(socket.SHUT_WR)
    guarded = gateway(hosts=["localhost"], keys=KEYS)
    assert ask(guarded, host=host) == (401, "invalid_api_key")
    assert ask(guarded, host=host, x_api_key="k-mine") == (404, "model_not_found")


def test_others_are_served_while_a_long_body_is_searched_for_its_model(gateway):
    """Decoding 60 MiB on the event loop stopped everybody for up to 1.4 s."""
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(engine)
        connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
        with begin(door, len(HARD), sent=HARD) as long:
            long.setblocking(False)
            answered = 0
            while True:
                connection.request("GET", "/health")
                assert connection.getresponse().read() == b'{"status":"ok"}'
                try:
                    head = long.recv(100)
                    break
                except BlockingIOError:
                    answered += 1
        connection.close()
        assert head.startswith(b"HTTP/1.1 200")
        assert answered >= 10


def test_somebody_who_leaves_while_the_long_body_is_searched_reaches_no_engine(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway(server={"held_bytes": 130 * MIB})
        door.serve(engine)
        begin(door, len(HARD), sent=HARD).close()
        deadline = time.monotonic() + 30
        while ask(door, {**ASK, "pad": "x" * LONG_BYTES})[0] != 200:  # looked at behind the one that is gone
            assert time.monotonic() < deadline
        assert engine.state()["requests"] == 1
