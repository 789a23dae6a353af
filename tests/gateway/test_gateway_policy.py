"""Priorities, keys, aliases, timeouts, health and accounts of a real gateway process in front of real fake engines."""

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from skep.config.keys import digest_of
from skep.testing.process import FakeEngine


def body(**fields):
    return {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "one two three"}],
        "max_tokens": 4,
        **fields,
    }


def play_engine(listener, read, lines):
    """A plain socket as the engine: the first POST goes into `read`, word for word. Ends with it."""

    def play():
        while not read:
            peer, _ = listener.accept()
            data = peer.recv(65536)
            if data.startswith(b"POST"):
                read.append(data.lower())
            peer.sendall(b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: 2\r\n\r\nok")
            peer.close()

    player = threading.Thread(target=play)
    player.start()
    return player


def call(door, method="POST", path="/v1/chat/completions", document=None, **headers):
    """The status, the headers and the body; header names with underscores."""
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
    data = None if document is None else document if isinstance(document, bytes) else json.dumps(document).encode()
    connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, answer.headers, text


def post(door, document=None, **headers):
    return call(door, document=body() if document is None else document, **headers)


def code(text):
    return json.loads(text)["error"]["code"]


def open_stream(door, **fields):
    """A streamed request on a plain socket, its first bytes read."""
    data = json.dumps(body(stream=True, **fields)).encode()
    sock = socket.create_connection(("127.0.0.1", door.port), timeout=30)
    sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    assert sock.recv(100)
    return sock


def until(condition, timeout_s=15.0):
    """Ask again and again: for what nobody announces."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        threading.Event().wait(0.02)
    return found


def metrics(door, **headers):
    lines = call(door, "GET", "/metrics", **headers)[2].decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def replica(engine, name="r0", **more):
    return {"name": name, "model": "fake-model", "url": engine.url, "slots": 2, "confirms": "slots", **more}


# Priority


def test_an_interactive_request_is_next_although_batch_waits_longer(gateway):
    with FakeEngine(slots=1, token_ms=20) as engine, ThreadPoolExecutor(8) as crowd:
        door = gateway()
        door.serve(engine, slots=1)
        with open_stream(door, max_tokens=40) as running:
            ended = []

            def ask(priority):
                assert post(door, x_skep_priority=priority)[0] == 200
                ended.append(priority)

            asked = [crowd.submit(ask, "batch") for _ in range(3)]
            until(lambda: door.ask(op="status")["queues"]["fake-model"]["batch"] == 3)
            asked.append(crowd.submit(ask, "interactive"))
            until(lambda: door.ask(op="status")["queues"]["fake-model"]["interactive"] == 1)
            while running.recv(65536).find(b"0\r\n\r\n") < 0:
                pass
            for each in asked:
                each.result()
        assert ended == ["interactive", "batch", "batch", "batch"]


@pytest.mark.parametrize(("header", "value"), [("priority", "urgent"), ("max_wait", "soon"), ("max_wait", "-1")])
def test_a_header_of_ours_that_makes_no_sense_is_told_so(gateway, header, value):
    with FakeEngine() as engine:
        door = gateway()
        door.serve(engine)
        status, _, text = post(door, **{f"x_skep_{header}": value})
        assert (status, code(text)) == (400, "bad_request")


def test_a_request_says_how_long_it_would_wait(gateway):
    with FakeEngine(slots=1, token_ms=20) as engine:
        door = gateway()
        door.serve(engine, slots=1)
        with open_stream(door, max_tokens=500):
            status, headers, text = post(door, x_skep_max_wait="0.2")
        assert (status, code(text)) == (503, "queue_timeout")
        assert int(headers["retry-after"]) >= 1


# Models and routing


def test_several_models_stand_behind_one_endpoint(gateway):
    with FakeEngine(model="one", token_ms=1) as first, FakeEngine(model="two", token_ms=1) as second:
        door = gateway(aliases={"gpt-*": "two"})
        table = [{**replica(first), "model": "one"}, {**replica(second, "r1"), "model": "two", "context": 2048}]
        super(type(door), door).serve(table)
        listed = json.loads(call(door, "GET", "/v1/models")[2])["data"]
        assert [(model["id"], model["skep"].get("context")) for model in listed] == [("one", None), ("two", 2048)]
        assert post(door, body(model="one"))[1]["x-skep-replica"] == "r0"
        assert post(door, body(model="two"))[1]["x-skep-replica"] == "r1"
        assert post(door, body(model="gpt-4o"))[1]["x-skep-replica"] == "r1"
        status, _, text = post(door, body(model="three"))
        assert status == 404
        assert "known: one, two" in json.loads(text)["error"]["message"]
        status, _, text = post(door, {"messages": []})
        assert (status, code(text)) == (400, "bad_request")
        assert post(door, {"messages": [], "max_tokens": 1}, x_skep_model="one")[1]["x-skep-replica"] == "r0"


def test_a_conversation_returns_to_its_replica(gateway):
    with FakeEngine(slots=4, token_ms=1) as one, FakeEngine(slots=4, token_ms=1) as other:
        door = gateway()
        door.serve(one, other, slots=4)
        for number in range(6):
            first = {"role": "user", "content": f"conversation {number}"}
            messages, homes = [{"role": "system", "content": "shared by all"}, first], set()
            for turn in range(4):
                homes.add(post(door, body(messages=messages))[1]["x-skep-replica"])
                messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"more {turn}"}]
            assert len(homes) == 1
        sessions = [{post(door, x_skep_session=name)[1]["x-skep-replica"] for _ in range(4)} for name in "abcdefgh"]
        assert all(len(homes) == 1 for homes in sessions)
        assert min(engine.state()["requests"] for engine in (one, other)) > 0


# Paths and headers


def test_any_path_passes_and_an_owners_path_does_not(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(engine)
        assert call(door, "POST", "/v1/anything/new", {"model": "fake-model", "x": 1})[0] == 200
        assert json.loads(call(door, "GET", "/v1/models/fake-model")[2])["id"] == "fake-model"
        status, _, text = call(door, "GET", "/v1/models/nobody")
        assert (status, code(text)) == (404, "model_not_found")
        status, _, text = call(door, "GET", "/unknown/path")
        assert status == 404
        assert "source" not in json.loads(text)  # the engine's own word
        for path in ("//slots", "/v1/../slots", "/v1/%2e%2e/slots", "/x%2f..%2fslots", "/v1;x/slots"):
            status, _, text = call(door, "POST", path, {"model": "fake-model"})
            assert (status, code(text)) == (400, "bad_request")
        paths = ("/slots", "/slots/0?action=erase", "/reset_prefix_cache", "/v1/load_lora_adapter", "/%73lots")
        for path in (*paths, "/props", "/Slots"):
            status, _, text = call(door, "POST", path, {"model": "fake-model"})
            assert (status, code(text)) == (403, "admin_path")
        assert call(door, "HEAD", "/v1/models")[0] == 200
        assert engine.state()["requests"] == 1


def test_the_key_and_headers_of_one_hop_stay_behind(gateway):
    """What the engine read, word for word: a plain socket plays the engine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = gateway(api_key="secret")
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        super(type(door), door).serve(
            [{"name": "r0", "model": "m", "url": url, "slots": 1, "authorization": "Bearer own"}]
        )
        read = []
        player = play_engine(listener, read, b"x-private: 1\r\nconnection: x-private\r\n")
        status, headers, _ = call(
            door, "POST", "/v1/x", {"model": "m"}, authorization="Bearer secret", x_api_key="secret", keep_alive="5",
            connection="keep-alive, X-Hop", x_hop="1", x_kept="yes", x_skep_agent="me", te="trailers",
            proxy_authorization="p",
        )  # fmt: skip
        player.join()
        assert status == 200
        head = read[0].partition(b"\r\n\r\n")[0]
        assert b"secret" not in head
        assert b"authorization: bearer own" in head
        assert b"x-kept: yes" in head
        for name in (b"x-hop", b"x-skep", b"keep-alive", b"te:", b"proxy-", b"connection"):
            assert name not in head, name
        assert headers["connection"] is None


def test_web_pages_may_not_call_unless_they_are_named(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway(origins=["http://localhost:3000"])
        door.serve(engine)
        status, _, text = post(door, origin="http://evil.example")
        assert (status, code(text)) == (403, "origin_refused")
        asked = {"origin": "http://localhost:3000", "access_control_request_method": "POST"}
        status, headers, _ = call(door, "OPTIONS", **asked, access_control_request_headers="x-skep-agent")
        assert (status, headers["access-control-allow-headers"]) == (204, "x-skep-agent")
        for _ in range(2):  # the second time the head is known
            status, headers, _ = post(door, origin="http://localhost:3000")
            assert (status, headers["access-control-allow-origin"]) == (200, "http://localhost:3000")
        assert call(door, "GET", "/v1/models", origin="http://localhost:3000")[1]["vary"] == "origin"


def test_an_engines_own_leave_for_web_pages_is_not_handed_on(gateway):
    """llama.cpp and vLLM allow every page; two such headers are none, and only the gateway may give leave."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        door = gateway(origins=["http://a.example"])
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        super(type(door), door).serve([{"name": "r0", "model": "m", "url": url, "slots": 1}])
        read = []
        player = play_engine(listener, read, b"access-control-allow-origin: *\r\n")
        _, headers, _ = call(door, "POST", "/v1/x", {"model": "m"}, origin="http://a.example")
        player.join()
        assert headers.get_all("access-control-allow-origin") == ["http://a.example"]
        assert b"origin:" not in read[0]


# Keys


def test_keys_have_a_class_a_cap_and_a_rate(gateway):
    keys = [
        {"name": "slow", "sha256": digest_of("k-slow"), "priority": "batch", "max_concurrent": 1},
        {"name": "rare", "sha256": digest_of("k-rare"), "rate_per_s": 0.01, "burst": 1},
    ]
    with FakeEngine(slots=4, token_ms=20) as engine, ThreadPoolExecutor(2) as crowd:
        door = gateway(keys=keys)
        door.serve(engine, slots=4)
        assert post(door)[0] == 401
        assert post(door, authorization="Bearer wrong")[0] == 401
        running = crowd.submit(
            post, door, body(max_tokens=50), authorization="Bearer k-slow", x_skep_priority="interactive"
        )
        engine.wait_for(running=1)
        status, _, text = post(door, x_api_key="k-slow")
        assert (status, code(text)) == (429, "too_many_requests_of_key")
        assert running.result()[0] == 200
        assert post(door, x_api_key="k-rare")[0] == 200
        status, headers, text = post(door, x_api_key="k-rare")
        assert (status, code(text)) == (429, "rate_limited")
        assert 90 <= int(headers["retry-after"]) <= 101
        assert (
            'skep_requests_total{model="fake-model",class="batch",replica="r0",outcome="answered",status="200",code=""}'
            in metrics(door, x_api_key="k-slow")
        )
        door.send({"op": "settings", "keys": keys[:1]})
        until(lambda: code(post(door, x_api_key="k-rare")[2]) == "invalid_api_key")
        assert post(door, x_api_key="k-slow")[0] == 200


# Failure


def test_a_replica_that_says_503_is_passed_over_for_another_one(gateway):
    with FakeEngine(token_ms=1, fault='{"kind": "503", "times": 50}') as bad, FakeEngine(token_ms=1) as good:
        door = gateway()
        door.serve(bad, good)
        until(lambda: not any(door.ask(op="status")["busy"].values()))  # both have said that they are free
        assert [post(door)[0] for _ in range(10)] == [200] * 10
        assert good.state()["requests"] >= 10


def test_one_429_of_a_replica_does_not_shut_it_out(gateway):
    with FakeEngine(token_ms=1, fault='{"kind": "429", "times": 1}') as busy, FakeEngine(token_ms=1) as other:
        door = gateway()
        door.serve(busy, other)
        until(lambda: not any(door.ask(op="status")["busy"].values()))
        assert [post(door)[0] for _ in range(6)] == [200] * 6
        assert {each["state"] for each in door.ask(op="status")["replicas"]} == {"up"}


def test_a_replica_that_talks_nonsense_may_still_work_so_its_slot_is_kept(gateway):
    with FakeEngine(slots=1, token_ms=1, deaf_ms=600, fault="garbage") as engine:
        door = gateway(limits={"attempts": 1})
        door.serve(engine, slots=1)
        assert post(door)[0] == 502
        assert post(door)[0] == 200
        assert engine.state()["max_inside"] <= 1


def test_without_another_replica_its_own_words_are_passed_on(gateway):
    with FakeEngine(token_ms=1, fault='{"kind": "503", "times": 1}') as engine:
        door = gateway()
        door.serve(engine)
        status, _, text = post(door)
        assert status == 503
        assert "source" not in json.loads(text)


def test_a_silent_replica_is_given_up_after_the_first_byte_timeout(gateway):
    with FakeEngine(token_ms=1, fault="hang-first") as engine:
        door = gateway(timeouts={"first_byte_s": 0.3})
        door.serve(engine)
        status, _, text = post(door)
        assert (status, code(text)) == (504, "replica_timeout")
        engine.wait_for(running=0)


def test_a_stream_that_falls_silent_ends_with_an_error_event(gateway):
    with FakeEngine(token_ms=1, fault='{"kind": "hang-mid", "after_tokens": 2}') as engine:
        door = gateway(timeouts={"idle_s": 0.3})
        door.serve(engine)
        status, _, text = post(door, body(max_tokens=50, stream=True))
        assert status == 200
        last = text.decode().strip().splitlines()[-1]
        assert code(last.removeprefix("data: ")) == "stream_cut"
        engine.wait_for(running=0)


def test_a_frozen_replica_loses_its_requests_to_another_one_and_comes_back(gateway):
    """SIGSTOP: its connections stay open, nothing comes. Health checks see it; when it wakes it is tried again."""
    with (
        FakeEngine(slots=2, token_ms=5) as one,
        FakeEngine(slots=2, token_ms=5) as other,
        ThreadPoolExecutor(4) as crowd,
    ):
        door = gateway(limits={"dead_after_s": 2.0}, watch={"health_every_s": 0.3, "health_timeout_s": 0.3})
        door.serve(one, other)
        first = crowd.submit(post, door, body(max_tokens=200))
        until(lambda: door.ask(op="status")["in_flight"] == 1)
        busy = door.ask(op="status")["busy"]
        frozen = one if busy["r0"] else other
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            status, headers, _ = first.result(timeout=30)
            assert status == 200
            assert headers["x-skep-replica"] == ("r1" if frozen is one else "r0")
            states = {each["name"]: each["state"] for each in door.ask(op="status")["replicas"]}
            assert states["r0" if frozen is one else "r1"] in ("open", "half-open")
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        until(lambda: all(each["state"] == "up" for each in door.ask(op="status")["replicas"]))
        until(lambda: not any(door.ask(op="status")["busy"].values()))


def test_drain_undrain_add_and_remove_break_no_stream(gateway):
    with FakeEngine(slots=2, token_ms=10) as one, FakeEngine(slots=2, token_ms=10) as other:
        door = gateway()
        serve = super(type(door), door).serve
        serve([replica(one)])
        with open_stream(door, max_tokens=100) as stream:
            serve([replica(one, draining=True), replica(other, "r1")])
            assert {post(door)[1]["x-skep-replica"] for _ in range(4)} == {"r1"}
            serve([replica(other, "r1")])
            assert post(door)[1]["x-skep-replica"] == "r1"
            text = b""
            while b"0\r\n\r\n" not in text:
                text += stream.recv(65536)
            assert b"[DONE]" in text
        serve([replica(one), replica(other, "r1", draining=True)])
        assert {post(door)[1]["x-skep-replica"] for _ in range(3)} == {"r0"}


# Eyes


def test_every_request_is_a_row_a_line_and_a_count(gateway, tmp_path):
    store, log = tmp_path / "skep.sqlite3", tmp_path / "requests.log"
    with FakeEngine(slots=1, token_ms=1) as engine:
        door = gateway(store=str(store), log=str(log))
        door.serve(engine, slots=1)
        post(door, x_skep_agent="builder-1")
        post(
            door, body(stream=True, max_tokens=6, stream_options={"include_usage": True}), x_skep_priority="interactive"
        )
        post(door, body(model="nobody"))
        open_stream(door, max_tokens=5000).close()
        engine.wait_for(hangups=1)
        until(lambda: sum("requests_total" in name for name in metrics(door)) == 4)
        counted = metrics(door)
        door.close()
    columns = "outcome, priority, flow, status, output_tokens, streamed"
    with contextlib.closing(sqlite3.connect(store)) as connection:
        found = connection.execute(f"SELECT {columns} FROM gateway_requests ORDER BY arrived_at").fetchall()
    assert found == [
        ("answered", "normal", "builder-1", 200, 4, 0),
        ("answered", "interactive", None, 200, 6, 1),
        ("refused", "normal", None, 404, None, 0),
        ("hung_up", "normal", None, 200, None, 1),
    ]
    lines = log.read_text().splitlines()
    assert len(lines) == 4
    assert all(line.startswith("request.done id=") for line in lines)
    assert counted['skep_output_tokens_total{model="fake-model",class="normal",replica="r0"}'] == 4
    assert (
        counted[
            'skep_requests_total{model="unknown",class="normal",replica="",outcome="refused",status="404",code="model_not_found"}'
        ]
        == 1
    )
    assert counted['skep_slots{model="fake-model",replica="r0"}'] == 1


# What clients may ask engines for

OWN = {"name": "r0", "model": "fake-model", "slots": 2, "own_engine": True}


def refusal_of(door, method, path):
    status, _, text = call(door, method, path, {"model": "fake-model"})
    return status, code(text)


def test_an_engine_that_skep_started_is_asked_only_for_what_clients_ask(gateway):
    """A list of what is forbidden missed vLLM's weight transfer, and every path that an engine adds."""
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        super(type(door), door).serve([{**OWN, "url": engine.url}])
        assert post(door)[0] == 200
        assert call(door, "POST", "/tokenize", {"model": "fake-model", "content": "a"})[0] in (200, 404)
        for path in ("/init_weight_transfer_engine", "/v1/anything/new", "/slots", "/", "/v1/chat/completions/x"):
            for method in ("GET", "POST"):
                assert refusal_of(door, method, path) == (403, "admin_path")
        assert engine.state()["requests"] == 1


def test_another_engine_is_not_asked_for_what_is_its_owners(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(engine)
        paths = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/is_paused")
        assert {refusal_of(door, "POST", path) for path in paths} == {(403, "admin_path")}
        for path in ("/./slots", "/v1/./chat/completions", "/slots/."):
            assert refusal_of(door, "GET", path) == (400, "bad_request")
        assert call(door, "POST", "/v1/anything.v2/new", {"model": "fake-model"})[0] == 200


def test_a_key_called_as_the_variable_is_opens_beside_it(gateway):
    """Two keys of one name ended the gateway whenever it was started."""
    with FakeEngine(token_ms=1) as engine:
        door = gateway(api_key="k-variable", keys=[{"name": "SKEP_API_KEY", "sha256": digest_of("k-file")}])
        door.serve(engine)
        assert [post(door, x_api_key=key)[0] for key in ("k-variable", "k-file", "k-none")] == [200, 200, 401]
