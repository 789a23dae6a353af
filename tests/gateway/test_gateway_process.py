"""The gateway as a real process in front of real fake engines, on real sockets."""

import hashlib
import http.client
import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from skep.testing.process import FakeEngine


def body(**fields):
    return {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "one two three"}],
        "max_tokens": 4,
        **fields,
    }


def post(gateway, document, path="/v1/chat/completions", headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    connection.request("POST", path, data, headers or {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer, text


def open_post(gateway, document):
    """A request sent on a plain socket, to be hung up at will."""
    data = json.dumps(document).encode()
    sock = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock


def test_the_openai_client_streams_and_does_not_stream_through_it(gateway):
    with FakeEngine(slots=2, token_ms=1) as engine, openai.OpenAI(base_url="http://x", api_key="k") as unused:
        door = gateway()
        door.serve(engine)
        client = unused.with_options(base_url=f"{door.url}/v1", max_retries=0)
        assert [model.id for model in client.models.list()] == ["fake-model"]
        whole = client.chat.completions.create(**body())
        assert whole.usage.completion_tokens == 4
        chunks = list(client.chat.completions.create(**body(stream=True, stream_options={"include_usage": True})))
        assert chunks[-1].usage.completion_tokens == 4
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content


def test_an_answer_names_its_replica_its_wait_and_its_request(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(engine)
        answer, _ = post(door, body())
        assert answer.status == 200
        assert answer.headers["x-skep-replica"] == "r0"
        assert float(answer.headers["x-skep-queue-ms"]) >= 0
        other, _ = post(door, body())
        assert answer.headers["x-skep-request-id"] != other.headers["x-skep-request-id"]


@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_body_bytes_pass_unchanged_both_ways(gateway, size):
    """Odd spacing, unknown fields, escapes: whatever the client wrote is what the engine reads, and back."""
    sent = b'{"model" :"fake-model",\t"unknown":[1e3,"\\u00fc \xc3\xbc"], "pad":"' + b"x" * size + b'"}'
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(engine)
        answer, got = post(door, sent, path="/v1/echo/anything?q=1")
        assert answer.status == 200
        assert got == sent
        assert engine.state()["last_body_sha256"] == hashlib.sha256(sent).hexdigest()


def test_never_more_requests_in_a_replica_than_its_slots(gateway):
    with FakeEngine(slots=4, token_ms=2) as one, FakeEngine(slots=4, token_ms=2) as other:
        door = gateway()
        door.serve(one, other, slots=2)
        with ThreadPoolExecutor(24) as crowd:
            statuses = list(crowd.map(lambda _: post(door, body(max_tokens=8))[0].status, range(48)))
        assert statuses == [200] * 48
        states = [one.state(), other.state()]
        assert [state["max_inside"] for state in states] == [2, 2]
        assert min(state["requests"] for state in states) >= 12
        status = door.ask(op="status")
        assert (status["queued"], status["in_flight"], status["busy"]) == (0, 0, {"r0": 0, "r1": 0})
        assert status["ended"] == {"answered": 48}


def test_beyond_the_queue_a_request_is_told_when_to_come_back(gateway):
    with FakeEngine(slots=1, token_ms=25) as engine:
        door = gateway(limits={"max_queue": 2})
        door.serve(engine, slots=1)
        post(door, body(max_tokens=1))
        with ThreadPoolExecutor(8) as crowd:
            answers = list(crowd.map(lambda _: post(door, body(max_tokens=40)), range(8)))
        by_status = sorted(answer.status for answer, _ in answers)
        assert by_status == [200] * 3 + [429] * 5
        refused, text = next((answer, text) for answer, text in answers if answer.status == 429)
        error = json.loads(text)["error"]
        assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        assert int(refused.headers["retry-after"]) >= 1


def test_a_request_that_waits_too_long_is_told_so(gateway):
    with FakeEngine(slots=1, token_ms=20) as engine:
        door = gateway(limits={"max_wait_s": 0.3})
        door.serve(engine, slots=1)
        with open_post(door, body(max_tokens=500, stream=True)) as first:
            first.recv(100)
            answer, text = post(door, body())
        assert answer.status == 503
        assert json.loads(text)["error"]["code"] == "queue_timeout"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request_in_the_engine(gateway, stream):
    with FakeEngine(slots=1, token_ms=20) as engine:
        door = gateway()
        door.serve(engine, slots=1)
        sock = open_post(door, body(max_tokens=1000, stream=stream))
        engine.wait_for(running=1)
        sock.close()
        engine.wait_for(hangups=1, running=0)
        answer, _ = post(door, body())
        assert answer.status == 200


def test_a_client_that_leaves_the_queue_never_reaches_an_engine(gateway):
    with FakeEngine(slots=1, token_ms=5) as engine:
        door = gateway()
        door.serve(engine, slots=1)
        with open_post(door, body(max_tokens=60, stream=True)) as first:
            received = first.recv(100)
            second = open_post(door, body())
            while not door.ask(op="status")["queued"]:
                pass
            second.close()
            while door.ask(op="status")["queued"]:
                pass
            while b"0\r\n\r\n" not in received:
                received += first.recv(65536)
        assert engine.state()["requests"] == 1


def test_a_slot_is_given_out_again_only_when_the_engine_has_freed_it(gateway):
    """Engines work on for a while after a hang-up; the next request must not be put on top."""
    with FakeEngine(slots=4, token_ms=5, deaf_ms=400) as engine:
        door = gateway()
        door.serve(engine, slots=1)
        sock = open_post(door, body(max_tokens=1000, stream=True))
        engine.wait_for(running=1)
        sock.close()
        answer, _ = post(door, body())
        assert answer.status == 200
        assert engine.state()["max_inside"] == 1
        assert float(answer.headers["x-skep-queue-ms"]) > 200


def test_a_stream_cut_by_a_dead_replica_ends_with_an_error_event(gateway):
    with FakeEngine(slots=1, token_ms=5) as engine:
        door = gateway()
        door.serve(engine, slots=1)
        with open_post(door, body(max_tokens=1000, stream=True)) as sock:
            received = sock.recv(65536)
            while received.count(b"data:") < 3:
                received += sock.recv(65536)
            os.kill(engine.pid, signal.SIGKILL)
            while data := sock.recv(65536):
                received += data
        assert b'"code": "stream_cut"' in received
        assert received.endswith(b"0\r\n\r\n")
        assert door.ask(op="status")["in_flight"] == 0


def test_a_request_whose_replica_dies_before_a_byte_is_answered_by_another_one(gateway):
    with FakeEngine(slots=2, token_ms=1) as dead, FakeEngine(slots=2, token_ms=1) as alive:
        door = gateway()
        door.serve(dead, alive)
        dead.fault(kind="close-first", times=None)
        statuses = [post(door, body())[0].status for _ in range(6)]
        assert statuses == [200] * 6


def test_when_no_replica_answers_the_client_gets_one_clear_error(gateway):
    with FakeEngine(slots=2) as engine:
        door = gateway()
        door.serve(engine)
        engine.fault(kind="close-first", times=None)
        answer, text = post(door, body())
        assert answer.status == 502
        assert json.loads(text)["error"]["code"] == "replica_lost"


def test_an_engine_error_passes_as_it_is(gateway):
    with FakeEngine(slots=2, ctx=10) as engine:
        door = gateway()
        door.serve(engine)
        answer, text = post(door, body(messages=[{"role": "user", "content": "word " * 50}]))
        assert answer.status == 400
        assert "source" not in json.loads(text)


def test_an_unknown_model_is_refused_with_the_known_ones(gateway):
    with FakeEngine() as engine:
        door = gateway()
        door.serve(engine)
        answer, text = post(door, body(model="gpt-7"))
        error = json.loads(text)["error"]
        assert (answer.status, error["code"]) == (404, "model_not_found")
        assert "fake-model" in error["message"]


@pytest.mark.parametrize("data", [b"not json", b"[1]", b'{"model": 7}', b"\xff\xfe"])
def test_a_body_that_is_no_request_is_refused(gateway, data):
    with FakeEngine() as engine:
        door = gateway()
        door.serve(engine)
        answer, text = post(door, data)
        assert (answer.status, json.loads(text)["error"]["code"]) == (400, "bad_request")


def test_requests_wait_for_a_replica_that_is_being_restarted(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(models=["fake-model"])
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(post, door, body())
            while not door.ask(op="status")["queued"]:
                pass
            door.serve(engine)
            assert waiting.result()[0].status == 200


def test_a_gateway_whose_supervisor_is_gone_ends(gateway):
    door = gateway()
    door.link.shutdown(socket.SHUT_RDWR)
    assert door.process.wait(5) == 0


def test_an_api_key_is_wanted_and_not_passed_on(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway(api_key="honey")
        door.serve(engine)
        assert post(door, body())[0].status == 401
        assert post(door, body(), headers={"authorization": "Bearer wrong"})[0].status == 401
        assert post(door, body(), headers={"authorization": "Bearer honey"})[0].status == 200
        assert post(door, body(), headers={"x-api-key": "honey"})[0].status == 200
        assert "honey" not in json.dumps(engine.state())


def test_draining_finishes_what_runs_and_refuses_what_comes(gateway):
    with FakeEngine(slots=1, token_ms=5) as engine:
        door = gateway()
        door.serve(engine, slots=1)
        with open_post(door, body(max_tokens=40, stream=True)) as sock:
            received = sock.recv(100)
            door.send({"id": 7, "op": "drain", "timeout_s": 10})
            door.ask(op="status")
            answer, text = post(door, body())
            assert (answer.status, json.loads(text)["error"]["code"]) == (503, "shutting_down")
            while b"0\r\n\r\n" not in received:
                received += sock.recv(65536)
            assert b"[DONE]" in received
        assert door.read() == {"id": 7, "event": "drained", "left": 0}


def test_a_slow_reader_leaves_no_deaf_connection_behind(gateway):
    """The last bytes of an answer pause its upstream connection; the next request on it was never heard."""
    sent = b'{"model":"fake-model","pad":"' + b"x" * 3_000_000 + b'"}'
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(engine)
        for _ in range(3):
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.connect(("127.0.0.1", door.port))
                head = b"POST /v1/echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
                    sent
                )
                sock.sendall(head + sent)
                engine.wait_for(running=0)
                received = 0
                while data := sock.recv(65536):
                    received += len(data)
                assert received > len(sent)
            assert post(door, body())[0].status == 200


def test_json_nested_without_end_is_a_bad_request(gateway):
    with FakeEngine() as engine:
        door = gateway()
        door.serve(engine)
        assert post(door, b"[" * 200_000)[0].status == 400


def test_a_gateway_that_ends_leaves_nobody_without_a_word(gateway):
    """One stream under way and one request waiting when it is told to go."""
    with FakeEngine(slots=1, token_ms=20) as engine:
        door = gateway()
        door.serve(engine, slots=1)
        with open_post(door, body(max_tokens=1000, stream=True)) as running, open_post(door, body()) as waiting:
            received = running.recv(1000)
            while not door.ask(op="status")["queued"]:
                pass
            door.send({"op": "exit"})
            while data := running.recv(65536):
                received += data
            answer = b""
            while data := waiting.recv(65536):
                answer += data
        assert b'"code": "stream_cut"' in received
        assert b" 503 " in answer


def test_a_request_that_kills_engines_is_given_up_after_two(gateway):
    """An engine that dies of a request is not fed the same request for ever."""
    crash = {"kind": "crash", "path": "/v1/completions", "times": None}
    with FakeEngine(slots=1) as one, FakeEngine(slots=1) as two, FakeEngine(slots=1) as three:
        door = gateway()
        door.serve(one, two, three, slots=1)
        for _ in range(6):  # every pool has a used connection
            assert post(door, body(max_tokens=1))[0].status == 200
        for engine in (one, two, three):
            engine.fault(**crash)
        answer, _ = post(door, {"model": "fake-model", "prompt": "poison"}, path="/v1/completions")
        assert answer.status == 502
        survivors = [engine for engine in (one, two, three) if post_alive(engine)]
        assert len(survivors) == 1


def post_alive(engine):
    try:
        return bool(engine.state())
    except OSError:
        return False


def test_an_upload_under_way_is_answered_before_a_replaced_gateway_ends(gateway):
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(engine)
        data = json.dumps(body()).encode()
        with socket.create_connection(("127.0.0.1", door.port), timeout=30) as sock:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data))
            door.ask(op="status")
            door.send({"id": 9, "op": "drain", "hand_over": True, "timeout_s": 10})
            door.ask(op="status")
            sock.sendall(data)
            answer = b""
            while part := sock.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer


def test_a_drained_gateway_has_sent_all_of_an_answer(gateway):
    """Handed to the kernel is not enough where the client reads slowly."""
    sent = b'{"model":"fake-model","pad":"' + b"x" * 3_000_000 + b'"}'
    with FakeEngine(token_ms=1) as engine:
        door = gateway()
        door.serve(engine)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", door.port))
            sock.sendall(b"POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(sent) + sent)
            received = len(sock.recv(1000))
            door.send({"id": 9, "op": "drain", "hand_over": True, "timeout_s": 10})
            while part := sock.recv(65536):
                received += len(part)
        assert received > len(sent)


def test_requests_outlive_the_death_of_all_replicas(gateway):
    """A refused connection costs no attempt: the request waits for the restart."""
    with FakeEngine(slots=2, token_ms=1) as engine:
        door = gateway()
        door.send(
            {
                "op": "replicas",
                "replicas": [
                    {"name": name, "model": "fake-model", "url": f"http://127.0.0.1:{port}", "slots": 2}
                    for name, port in (("dead", 9), ("gone", 11))
                ],
                "models": ["fake-model"],
            }
        )
        with ThreadPoolExecutor(4) as crowd:
            waiting = [crowd.submit(post, door, body()) for _ in range(4)]
            while door.ask(op="status")["queued"] < 4:
                pass
            door.serve(engine)
            assert [future.result()[0].status for future in waiting] == [200] * 4


def test_a_slow_reader_does_not_make_the_gateway_grow(gateway):
    """Backpressure: what the client does not take is not read from the engine."""
    with FakeEngine(slots=1, token_ms=0.05) as engine:
        door = gateway()
        door.serve(engine, slots=1)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", door.port))
        data = json.dumps(body(max_tokens=60_000, stream=True)).encode()
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        assert sock.recv(100)
        threading.Event().wait(1.5)  # an engine that writes this fast hardly answers questions about its state
        with open(f"/proc/{door.process.pid}/status") as status:
            memory_kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        sock.close()
        assert memory_kb < 120_000
        engine.wait_for(40, running=0)


def tokens_of(door):
    return door.ask(op="status")["tokens"].get("r0", 0)


def read_until(stream, there):
    text = b""
    while not there(text):
        text += stream.recv(65536)


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
def test_tokens_are_counted_as_they_pass_and_corrected_at_the_end(gateway, usage):
    """`skep top` said 0.0 tok/s while all slots streamed: only ended answers with usage counted."""
    with FakeEngine(slots=2, token_ms=20) as engine:
        door = gateway()
        door.serve(engine, slots=2)
        assert tokens_of(door) == 0
        options = {"stream_options": {"include_usage": True}} if usage else {}
        with open_post(door, body(max_tokens=60, stream=True, **options)) as stream:
            read_until(stream, lambda text: text.count(b"data:") >= 10)
            assert 10 <= tokens_of(door) <= 65
            read_until(stream, lambda text: b"[DONE]" in text)
        settled = tokens_of(door)
        assert settled == 60 if usage else 60 <= settled <= 63
        with open_post(door, body(max_tokens=600, stream=True)) as left:
            read_until(left, lambda text: text.count(b"data:") >= 10)
        while door.ask(op="status")["in_flight"]:
            threading.Event().wait(0.02)
        assert settled + 10 <= tokens_of(door) < settled + 600
