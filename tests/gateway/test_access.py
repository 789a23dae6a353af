"""What those get who may not call, before and after a key is looked at, and what they cost the
gateway.
"""

import http.client
import json
import socket
import sqlite3

import pytest
from gateway_client import body, call, metrics, read_all, refusal, status_of, until

from skep.config.keys import digest_of
from skep.gateway.body_inspection import LONG_BYTES
from skep.store.database import open_store

MIB = 1 << 20
KEYS = [{"name": "mine", "sha256": digest_of("k-mine")}]
PART = b'{"model":"fake-model","messages":[{"role":"user","content":"a"}],"x":"' + b"a" * (
    MIB * 7 // 8
)
# The model stands in the middle, between many brackets: neither end of the body tells it.
MANY = b'[{"a":"b"},' + b'["c",0],' * 80_000 + b"[]]"
FIELDS = b'"model":"fake-model","max_tokens":2,"messages":[{"role":"user","content":"a"}]'
HARD = b'{"x":%b,%b,"y":%b}' % (MANY, FIELDS, MANY)


def begin(gateway, length, *lines, sent=b""):
    """A request whose body has begun and not ended."""
    sock = socket.create_connection(("127.0.0.1", gateway.port), timeout=20)
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: localhost",
        f"content-length: {length}",
        *lines,
    ]
    sock.sendall("\r\n".join([*head, "", ""]).encode() + sent)
    return sock


def answer(sock):
    """The whole answer of a connection that the gateway closes."""
    head, _, text = read_all(sock).partition(b"\r\n\r\n")
    assert b"x-skep: id=" in head or b" 503 " in head
    return int(head.split()[1]), json.loads(text)["error"]["code"]


def test_a_body_is_neither_read_from_somebody_without_a_key_nor_asked_for(start_gateway):
    """40 strangers with 64 MiB each took 2.4 GB before anybody looked at their keys."""
    gateway = start_gateway(keys=KEYS)
    for lines in ((), ("authorization: Bearer wrong",)):
        with begin(gateway, 60 * MIB, *lines, sent=b"{") as sock:
            assert answer(sock) == (401, "invalid_api_key")
        with begin(gateway, 60 * MIB, "expect: 100-continue", *lines) as sock:
            assert answer(sock) == (401, "invalid_api_key")
    with begin(gateway, 60 * MIB, "expect: 100-continue", "x-api-key: k-mine") as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 100 Continue")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/models"])
def test_who_sends_a_wrong_key_is_told_not_to_try_it_again(start_gateway, path):
    method = "GET" if path == "/v1/models" else "POST"
    status, headers, _ = call(start_gateway(keys=KEYS), method, path, x_api_key="wrong")
    assert (status, headers["x-should-retry"]) == (401, "false")


def test_a_head_that_was_let_in_before_lets_nobody_in_after_its_key_is_gone(serving):
    gateway, _ = serving(keys=KEYS)
    lines = ("content-type: application/json", "x-api-key: k-mine")
    data = json.dumps(body()).encode()
    with begin(gateway, len(data), *lines, sent=data) as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
    gateway.send({"op": "settings", "keys": [{"name": "other", "sha256": digest_of("k-other")}]})
    assert gateway.ask(op="status")["id"] == 1  # it has read the message before
    with begin(gateway, MIB, *lines, sent=b"{") as sock:
        assert answer(sock) == (401, "invalid_api_key")


def test_the_bodies_of_all_requests_together_are_bounded(serving):
    """Of several workers each has its share, and room for two of the largest."""
    gateway, _ = serving(server={"body_bytes": MIB, "held_bytes": 2 * MIB}, workers=1)
    first, second = (begin(gateway, MIB, sent=PART) for _ in range(2))
    with first, second:
        with begin(gateway, MIB, sent=PART) as third:
            assert answer(third) == (503, "too_many_bytes")
        assert refusal(gateway) == (200, None)  # a small one has room
        first.close()
        with begin(gateway, len(PART) + 2, sent=PART + b'"}') as fourth:
            assert fourth.recv(100).startswith(b"HTTP/1.1 200")


def test_what_was_answered_is_no_longer_counted(serving):
    """Whether it came in one read or in many, was refused, answered or left.

    Eight of a kind left counted would be too many; one whose end the gateway has yet to read is
    not."""
    gateway, _ = serving(
        server={"body_bytes": MIB // 2, "held_bytes": 2 * MIB}, strict_models=True
    )
    filled = body(pad="x" * (MIB // 3))
    for _ in range(8):
        assert refusal(gateway, filled) == (200, None)
        assert refusal(gateway, {**filled, "model": "unknown"}) == (404, "model_not_found")
        begin(gateway, MIB // 2, sent=b"x" * (MIB // 3)).close()
    with begin(gateway, MIB // 2, sent=b"x" * (MIB // 3)):
        assert refusal(gateway, filled) == (200, None)


def test_strangers_are_counted_and_leave_no_rows(serving, tmp_path):
    """A row for each 401 was 174 GB a day from one connection."""
    store = tmp_path / "skep.sqlite3"
    log = tmp_path / "requests.log"
    gateway, _ = serving(keys=KEYS, store=str(store), log=str(log), strict_models=True)
    for _ in range(5):
        assert refusal(gateway) == (401, "invalid_api_key")
    assert refusal(gateway, body(model="unknown"), x_api_key="k-mine") == (404, "model_not_found")
    assert refusal(gateway, x_api_key="k-mine") == (200, None)
    counted = metrics(gateway, x_api_key="k-mine")
    gateway.close()
    assert [count for name, count in counted.items() if "invalid_api_key" in name] == [5]
    with sqlite3.connect(store) as rows:
        codes = [
            code
            for (code,) in rows.execute("SELECT code FROM gateway_requests ORDER BY arrived_at")
        ]
    assert codes == ["model_not_found", None]
    assert "invalid_api_key" not in log.read_text()


def test_a_gateway_without_keys_answers_to_its_own_names_only(serving, start_gateway):
    """DNS rebinding: the browser takes the page and the gateway for one site, and lets the page
    read.
    """
    gateway, _ = serving(hosts=["localhost", "127.0.0.1", "::1", "box.lan"])
    guarded = start_gateway(hosts=["localhost"], keys=KEYS)
    for host in ("localhost", "127.0.0.1:8400", "[::1]:8400", "LOCALHOST:1", "box.lan"):
        assert refusal(gateway, host=host) == (200, None), host
    for host in ("evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "[::2]"):
        assert refusal(gateway, host=host) == (403, "host_refused"), host
        assert refusal(guarded, host=host) == (401, "invalid_api_key"), host
        assert refusal(guarded, host=host, x_api_key="k-mine") == (404, "model_not_found"), host


def test_others_are_served_while_a_long_body_is_searched_for_its_model(serving):
    """Decoding 60 MiB on the event loop stopped everybody for up to 1.4 s."""
    gateway, _ = serving()
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    with begin(gateway, len(HARD), sent=HARD) as long:
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


def leave_during_search(gateway):
    with begin(gateway, len(HARD), sent=HARD[:-1]) as leaving:
        leaving.send(HARD[-1:])


def test_somebody_who_leaves_while_the_long_body_is_searched_reaches_no_engine(serving):
    gateway, engine = serving(server={"held_bytes": 130 * MIB})
    leave_during_search(gateway)
    filled = body(pad="x" * LONG_BYTES)  # looked at behind the one that is gone
    until(lambda: refusal(gateway, filled)[0] == 200, 30.0)
    assert engine.state()["requests"] == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_who_leaves_while_the_long_body_is_searched_is_counted_and_has_a_row(
    serving, tmp_path, workers
):
    store = tmp_path / "skep.sqlite3"
    gateway, _ = serving(store=str(store), workers=workers)
    leave_during_search(gateway)
    until(lambda: status_of(gateway)["ended"].get("hung_up") == 1)
    gateway.close()
    with open_store(store, read_only=True) as opened:
        [row] = opened.gateway_requests()
    assert (row.outcome, row.replica, row.request_bytes) == ("hung_up", None, len(HARD))
