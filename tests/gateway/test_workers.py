"""Several relay workers behind one decider: for clients and engines as good as one process."""

import http.client
import json
import os
import signal
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
from gateway_client import (
    body,
    call,
    metrics,
    open_post,
    post,
    read_all,
    read_until,
    status_of,
    told,
    until,
)

from skep.config.keys import digest_of
from skep.store.database import open_store
from skep.supervisor.main import default_workers

WORKERS = 3
PEM = Path(__file__).parents[1] / "wire" / "localhost.pem"


@pytest.fixture
def relayed(serving):
    def start(*engines, **setup):
        return serving(*engines, workers=WORKERS, **setup)

    return start


def worker_pids(gateway):
    """By number."""
    ids = {}
    for pid in (
        Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children")
        .read_text()
        .split()
    ):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "--number" in words:  # else it is being started
            ids[int(words[words.index("--number") + 1])] = int(pid)
    return ids


def connections(gateway, stack, count):
    clients = [
        http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30) for _ in range(count)
    ]
    for client in clients:
        stack.callback(client.close)
    return clients


def ask(connection, document=None, **headers):
    connection.request("POST", "/v1/chat/completions", json.dumps(document or body()), headers)
    answer = connection.getresponse()
    return answer, answer.read()


OWN_PATHS = {"/health": b"ok", "/v1/models": b"fake-model", "/": b"fake-model"}


def test_connections_are_shared_out_evenly_and_all_requests_are_counted_once(relayed, tmp_path):
    gateway, _ = relayed(slots=8, store=str(tmp_path / "store"))
    count = 3 * WORKERS
    workers = []
    with ExitStack() as stack:
        for client in connections(gateway, stack, count):
            answer, _ = ask(client)
            assert answer.status == 200
            workers.append(int(told(answer.headers, "id").split("-")[1]))
        counted = metrics(gateway)
    requests = {name: n for name, n in counted.items() if name.startswith("skep_requests_total{")}
    assert sorted(workers) == sorted(list(range(WORKERS)) * 3)
    assert sum(requests.values()) == count
    assert counted["skep_client_connections"] >= count
    assert status_of(gateway)["ended"] == {"answered": count}
    with open_store(tmp_path / "store", read_only=True) as store:
        rows = until(lambda: len(stored := store.gateway_requests()) >= count and stored)
    assert len({row.id for row in rows}) == len(rows) == count


def test_every_worker_answers_for_the_gateways_own_paths(relayed):
    gateway, _ = relayed()
    with ExitStack() as stack:
        for client in connections(gateway, stack, 3 * WORKERS):
            for path, expected in OWN_PATHS.items():
                client.request("GET", path)
                assert expected in client.getresponse().read()
            client.request("HEAD", "/v1/models")
            assert client.getresponse().read() == b""


def test_limits_of_a_key_hold_over_all_of_them_and_a_change_reaches_all(relayed):
    def keys(limit):
        return [{"name": "one", "sha256": digest_of("sk-one"), "max_concurrent": limit}]

    gateway, _ = relayed(slots=8, keys=keys(2))
    bearer = {"authorization": "Bearer sk-one"}
    with ExitStack() as stack:
        for _ in range(2):
            held = open_post(
                gateway, body(stream=True, max_tokens=4000), lines=["authorization: Bearer sk-one"]
            )
            read_until(stack.enter_context(held), b"data:")
        clients = connections(gateway, stack, WORKERS)
        refused = [ask(client, **bearer) for client in clients]
        assert [
            (answer.status, json.loads(text)["error"]["code"]) for answer, text in refused
        ] == [(429, "too_many_requests_of_key")] * WORKERS
        gateway.send({"op": "settings", "workers": WORKERS, "keys": keys(3)})
        until(lambda: ask(clients[0], **bearer)[0].status == 200)
        assert [ask(client, **bearer)[0].status for client in clients] == [200] * WORKERS
        gateway.send({"op": "settings", "workers": WORKERS, "keys": [], "keys_wanted": True})
        until(lambda: ask(clients[0], **bearer)[0].status == 401)
        assert [ask(client, **bearer)[0].status for client in clients] == [401] * WORKERS


def test_a_worker_that_is_killed_gives_its_slots_back_and_is_replaced(relayed, tmp_path):
    """Its clients see that their answer is not whole, others notice nothing."""
    gateway, engine = relayed(slots=WORKERS, store=str(tmp_path / "store"))
    with ExitStack() as stack:
        streams = {}
        for _ in range(WORKERS):
            sock = stack.enter_context(open_post(gateway, body(stream=True, max_tokens=4000)))
            head = read_until(sock, b"\r\n\r\n")
            streams[int(head.split(b"x-skep: id=")[1].split(b"-")[1])] = sock
        before = worker_pids(gateway)
        os.kill(before[2], signal.SIGKILL)
        assert not read_all(streams.pop(2)).endswith(b"0\r\n\r\n")
        assert post(gateway)[0] == 200
        for sock in streams.values():
            read_until(sock, b"data:")
        after = until(lambda: len(now := worker_pids(gateway)) == WORKERS and now)
        assert after[2] != before[2]
    assert until(lambda: status_of(gateway)["in_flight"] == 0)
    engine.wait_for(running=0)
    assert all(post(gateway)[0] == 200 for _ in range(2 * WORKERS))
    with open_store(tmp_path / "store", read_only=True) as store:
        until(lambda: len(store.gateway_requests()) == 1 + WORKERS + 2 * WORKERS)
        assert [row.code for row in store.gateway_requests() if row.outcome == "broken"] == [
            "stream_cut"
        ]


@pytest.mark.parametrize("workers", [1, WORKERS])
def test_where_no_replica_can_the_client_gets_the_last_ones_own_answer(serving, workers):
    gateway, *engines = serving({}, {}, workers=workers)
    for engine in engines:
        engine.fault(kind="503", times=None)
    status, headers, text = post(gateway)
    assert (status, "source" in json.loads(text), "replica=" in headers["x-skep"]) == (
        503,
        False,
        True,
    )


def test_workers_speak_tls(relayed):
    gateway, _ = relayed(tls={"certificate": str(PEM), "key": str(PEM)})
    trusted = ssl.create_default_context(cafile=PEM)
    connection = http.client.HTTPSConnection(
        "localhost", gateway.port, timeout=30, context=trusted
    )
    assert ask(connection)[0].status == 200
    connection.close()
    with socket.create_connection(("127.0.0.1", gateway.port)) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" not in plain.recv(100)


def test_without_a_number_one_worker_serves_up_to_256_slots():
    assert [default_workers(slots, 64) for slots in (1, 256, 257, 1024, 100_000)] == [
        1,
        1,
        2,
        4,
        16,
    ]
    assert [default_workers(1024, cores) for cores in (1, 2, 4, 8)] == [1, 1, 1, 2]


def test_uploads_reach_the_decider_whole_from_any_worker(relayed, tmp_path):
    gateway, _ = relayed(
        batches={"store": str(tmp_path / "store"), "files": str(tmp_path / "files")}
    )
    request = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions",'
    lines = (request + b'"body":{"model":"fake-model"}}\n') * 20_000
    parts = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    parts += (
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        + lines
        + b"\r\n--x--\r\n"
    )
    status, _, text = call(
        gateway, path="/v1/files", document=parts, content_type="multipart/form-data; boundary=x"
    )
    assert status == 200, text
    assert call(gateway, "GET", f"/v1/files/{json.loads(text)['id']}/content")[2] == lines
