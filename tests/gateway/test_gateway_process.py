"""The gateway as a real process in front of real fake engines, on real sockets."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from gateway_client import (
    body,
    call,
    error_of,
    open_post,
    open_stream,
    post,
    read_all,
    read_until,
    status_of,
    told,
    until,
)

from api_clients import openai
from skep.testing.process import FakeEngine

LARGE = b'{"model":"fake-model","pad":"' + b"x" * 3_000_000 + b'"}'


def test_the_openai_client_streams_or_not_and_answers_name_replica_wait_and_request(
    serving,
):
    gateway, _ = serving()
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["fake-model"]
        whole = client.chat.completions.create(**body())
        assert whole.usage.completion_tokens == 4
        chunks = list(
            client.chat.completions.create(
                **body(stream=True, stream_options={"include_usage": True})
            )
        )
        assert chunks[-1].usage.completion_tokens == 4
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
    (status, headers, _), (_, others, _) = post(gateway), post(gateway)
    assert (status, told(headers, "replica")) == (200, "r0")
    assert float(told(headers, "queue-ms")) >= 0
    assert told(headers, "id") != told(others, "id")


def test_body_bytes_pass_unchanged_both_ways_and_a_body_of_no_request_is_refused(serving):
    """Odd spacing, unknown fields, escapes: whatever the client wrote is what the engine reads,
    and back.
    """
    gateway, engine = serving()
    for size in (0, 1, 100_000, 3_000_000):
        sent = (
            b'{"model" :"fake-model",\t"unknown":[1e3,"\\u00fc \xc3\xbc"], "pad":"'
            + b"x" * size
            + b'"}'
        )
        status, _, got = call(gateway, path="/v1/echo/anything?q=1", document=sent)
        assert (status, got) == (200, sent)
        assert engine.state()["last_body_sha256"] == hashlib.sha256(sent).hexdigest()
    for data in (b"not json", b"[1]", b'{"model": 7}', b"\xff\xfe", b"[" * 200_000):
        status, _, text = post(gateway, data)
        assert (status, error_of(text)["code"]) == (400, "bad_request"), data[:20]


@pytest.mark.parametrize("workers", [1, 3])
def test_never_more_requests_in_a_replica_than_its_slots(serving, workers):
    gateway, *engines = serving(
        {"slots": 4, "token_ms": 2}, {"slots": 4, "token_ms": 2}, workers=workers
    )
    with ThreadPoolExecutor(24) as crowd:
        statuses = list(crowd.map(lambda _: post(gateway, body(max_tokens=8))[0], range(48)))
    assert statuses == [200] * 48
    states = [engine.state() for engine in engines]
    assert [state["max_inside"] for state in states] == [2, 2]
    assert min(state["requests"] for state in states) >= 12
    until(lambda: status_of(gateway)["in_flight"] == 0)
    status = status_of(gateway)
    assert (status["queued"], status["in_flight"], status["busy"]) == (0, 0, {"r0": 0, "r1": 0})
    assert status["ended"] == {"answered": 48}
    assert status["queues"] == {"fake-model": {"interactive": 0, "normal": 0, "batch": 0}}


def test_beyond_the_queue_a_request_is_told_when_to_come_back(serving):
    gateway, _ = serving({"token_ms": 10}, slots=1, limits={"max_queue": 2})
    post(gateway, body(max_tokens=1))
    with ThreadPoolExecutor(8) as crowd:
        answers = sorted(
            crowd.map(lambda _: post(gateway, body(max_tokens=40)), range(8)),
            key=lambda answer: answer[0],
        )
    assert [status for status, _, _ in answers] == [200] * 3 + [429] * 5
    _, headers, text = answers[-1]
    assert (error_of(text)["code"], error_of(text)["type"]) == ("queue_full", "rate_limit_error")
    assert int(headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("limits", "request_headers"), [({"max_wait_s": 0.2}, {}), ({}, {"x_skep_max_wait": "0.2"})]
)
def test_a_request_that_waits_longer_than_the_limit_or_than_it_would_is_told_so(
    serving, limits, request_headers
):
    gateway, _ = serving({"token_ms": 20}, slots=1, limits=limits)
    with open_stream(gateway, max_tokens=500):
        status, headers, text = post(gateway, **request_headers)
    assert (status, error_of(text)["code"]) == (503, "queue_timeout")
    assert int(headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request_in_the_engine(serving, stream):
    gateway, engine = serving({"token_ms": 20}, slots=1)
    sock = open_post(gateway, body(max_tokens=1000, stream=stream))
    engine.wait_for(running=1)
    sock.close()
    engine.wait_for(hangups=1, running=0)
    assert post(gateway)[0] == 200


def test_a_stream_cut_by_a_dead_replica_ends_with_an_error_event(serving):
    gateway, engine = serving({"token_ms": 5}, slots=1)
    with open_post(gateway, body(max_tokens=1000, stream=True)) as sock:
        read_until(sock, lambda text: text.count(b"data:") >= 3)
        os.kill(engine.pid, signal.SIGKILL)
        received = read_until(sock, b"0\r\n\r\n")
    assert b'"code": "stream_cut"' in received
    assert received.endswith(b"0\r\n\r\n")
    assert status_of(gateway)["in_flight"] == 0


def test_a_request_whose_replica_dies_before_a_byte_goes_to_another_or_is_refused(
    serving,
):
    gateway, *engines = serving({}, {})
    engines[0].fault(kind="close-first", times=None)
    assert [post(gateway)[0] for _ in range(6)] == [200] * 6
    engines[1].fault(kind="close-first", times=None)
    status, _, text = post(gateway)
    assert (status, error_of(text)["code"]) == (502, "replica_lost")


def test_a_gateway_whose_supervisor_is_gone_ends(start_gateway):
    gateway = start_gateway()
    gateway.link.shutdown(socket.SHUT_RDWR)
    assert gateway.process.wait(5) == 0


def test_draining_finishes_what_runs_and_refuses_what_comes(serving):
    gateway, _ = serving({"token_ms": 5}, slots=1)
    with open_stream(gateway, max_tokens=40) as sock:
        gateway.send({"id": 7, "op": "drain", "timeout_s": 10})
        status_of(gateway)
        status, _, text = post(gateway)
        assert (status, error_of(text)["code"]) == (503, "shutting_down")
        assert b"[DONE]" in read_until(sock, b"0\r\n\r\n")
    assert gateway.read() == {"id": 7, "event": "drained", "left": 0}


def test_a_slow_reader_leaves_no_deaf_connection_behind(serving):
    """The last bytes of an answer pause its upstream connection; the next request on it was never
    heard.
    """
    gateway, engine = serving()
    for _ in range(3):
        with open_post(
            gateway, LARGE, "/v1/echo", ["connection: close"], receive_bytes=4096
        ) as sock:
            engine.wait_for(running=0)
            assert len(read_all(sock)) > len(LARGE)
        assert post(gateway)[0] == 200


def test_a_gateway_that_ends_leaves_nobody_without_a_word(serving):
    """One stream under way and one request waiting when it is told to go."""
    gateway, _ = serving({"token_ms": 20}, slots=1)
    with open_stream(gateway, max_tokens=1000) as running, open_post(gateway, body()) as waiting:
        until(lambda: status_of(gateway)["queued"])
        gateway.send({"op": "exit"})
        assert b'"code": "stream_cut"' in read_all(running)
        assert b" 503 " in read_all(waiting)


def test_a_request_that_kills_engines_is_given_up_after_two(serving):
    """An engine that dies of a request is not fed the same request for ever."""
    gateway, *engines = serving({}, {}, {}, slots=1)
    for _ in range(6):  # every pool has a used connection
        assert post(gateway, body(max_tokens=1))[0] == 200
    for engine in engines:
        engine.fault(kind="crash", path="/v1/completions", times=None)
    poison = {"model": "fake-model", "prompt": "poison"}
    assert call(gateway, path="/v1/completions", document=poison)[0] == 502
    survivors = []
    for engine in engines:
        with contextlib.suppress(OSError):
            survivors.append(engine.state())
    assert len(survivors) == 1


def test_a_replaced_gateway_answers_an_upload_and_sends_all_of_an_answer(
    serving,
):
    """Handed to the kernel is not enough where the client reads slowly."""
    gateway, _ = serving()
    data = json.dumps(body()).encode()
    with (
        open_post(gateway, LARGE, "/v1/echo", receive_bytes=4096) as slow,
        socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as sock,
    ):
        begun = slow.recv(1000)
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
            % len(data)
        )
        status_of(gateway)
        gateway.send({"id": 9, "op": "drain", "hand_over": True, "timeout_s": 10})
        status_of(gateway)
        sock.sendall(data)
        answer = read_all(sock)
        assert len(begun + read_all(slow)) > len(LARGE)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


@pytest.mark.parametrize("ports", [(), (9, 11)], ids=["none in the table", "connections refused"])
def test_requests_outlive_the_death_of_all_replicas(start_gateway, ports):
    """A refused connection costs no attempt: the request waits for the restart."""
    with FakeEngine(token_ms=1) as engine, ThreadPoolExecutor(4) as crowd:
        gateway = start_gateway()
        dead = [
            {
                "name": f"d{port}",
                "model": "fake-model",
                "url": f"http://127.0.0.1:{port}",
                "slots": 2,
            }
            for port in ports
        ]
        gateway.serve(dead, ["fake-model"])
        waiting = [crowd.submit(post, gateway) for _ in range(4)]
        until(lambda: status_of(gateway)["queued"] == 4)
        gateway.serve_engines(engine)
        assert [future.result()[0] for future in waiting] == [200] * 4


def test_a_slow_reader_does_not_make_the_gateway_grow(serving):
    """Backpressure: what the client does not take is not read from the engine."""
    gateway, engine = serving({"token_ms": 0.05}, slots=1)
    with open_post(gateway, body(max_tokens=60_000, stream=True), receive_bytes=4096) as sock:
        assert sock.recv(100)
        # An engine that writes this fast hardly answers questions about its state.
        threading.Event().wait(1.5)
        with open(f"/proc/{gateway.process.pid}/status") as status:
            memory_kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert memory_kb < 120_000
    engine.wait_for(40, running=0)


def tokens_of(gateway):
    return status_of(gateway)["tokens"].get("r0", 0)


def ten_events(text):
    return text.count(b"data:") >= 10


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
def test_tokens_are_counted_as_they_pass_and_corrected_at_the_end(serving, usage):
    """`skep top` said 0.0 tok/s while all slots streamed:
    only ended answers with usage counted.
    """
    gateway, _ = serving({"token_ms": 10})
    assert tokens_of(gateway) == 0
    if usage:
        options = {"stream_options": {"include_usage": True}}
    else:
        options = {}
    with open_post(gateway, body(max_tokens=60, stream=True, **options)) as stream:
        read_until(stream, ten_events)
        assert 10 <= tokens_of(gateway) <= 65
        read_until(stream, b"[DONE]")
    settled = tokens_of(gateway)
    assert settled == 60 if usage else 60 <= settled <= 63
    with open_post(gateway, body(max_tokens=600, stream=True)) as post:
        read_until(post, ten_events)
    until(lambda: not status_of(gateway)["in_flight"])
    assert settled + 8 <= tokens_of(gateway) < settled + 600


def test_events_of_several_tokens_count_for_as_many_once_an_answer_has_ended(serving):
    """With speculation `skep top` counted an event as one token, until the answer's end."""
    gateway, _ = serving({"token_ms": 5, "chunk_tokens": 5})
    usage = {"stream_options": {"include_usage": True}}
    with open_post(gateway, body(max_tokens=200, stream=True, **usage)) as stream:
        read_until(stream, b"[DONE]")
    assert (settled := tokens_of(gateway)) == 200
    with open_post(gateway, body(max_tokens=600, stream=True)) as stream:
        read_until(stream, ten_events)
        assert tokens_of(gateway) >= settled + 40
