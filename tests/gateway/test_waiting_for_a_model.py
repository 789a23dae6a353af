"""Requests for a model that is not loaded: told to the supervisor once, kept alive meanwhile, answered or refused."""

import contextlib
import http.client
import http.server
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import anthropic
import openai
import pytest

from skep.gateway.stream_keepalive import comment, wants_stream
from skep.gateway.unloaded_models import UnloadedModels
from skep.testing.process import FakeEngine

ASKED = [{"role": "user", "content": "one two three"}]
MODEL = "fake-model"


def body(**fields):
    return {"model": MODEL, "messages": ASKED, "max_tokens": 4, **fields}


class Supervisor:
    """The supervisor's side of a gateway's link: what it says by itself, and what it answers."""

    def __init__(self, door):
        self.door = door

    def table(self, engine=None, *, state=None, why=None, slots=2, more=()):
        engines = [] if engine is None else [engine, *more]
        replicas = [
            {"name": f"r{n}", "model": MODEL, "url": one.url, "slots": slots, "confirms": ""}
            for n, one in enumerate(engines)
        ]
        dormant = {MODEL: {"state": state, "why": why}} if state else {}
        self.door.send({"op": "replicas", "replicas": replicas, "models": [MODEL], "dormant": dormant})

    def wanted(self):
        assert self.door.read() == {"event": "wanted", "model": MODEL}

    def status(self, **wanted):
        """Asks until the model's figures are as wanted. Nothing but the answer may come."""
        while True:
            said = self.door.ask(op="status")
            assert "event" not in said
            if all(said["models"][MODEL][key] == value for key, value in wanted.items()):
                return said["models"][MODEL]

    def fail(self, why="no memory is left", retry_after_s=7.0):
        self.door.send({"op": "load_failed", "model": MODEL, "why": why, "retry_after_s": retry_after_s})


@pytest.fixture
def door(gateway):
    return gateway()


@pytest.fixture
def boss(door):
    boss = Supervisor(door)
    boss.table(state="unloaded")
    door.ask(op="status")
    return boss


def ask(door, document, path="/v1/chat/completions", method="POST"):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", door.port, timeout=20)) as connection:
        connection.request(method, path, json.dumps(document) if document else None)
        answer = connection.getresponse()
        return answer, answer.read()


def opened(door, document, path="/v1/chat/completions"):
    data = json.dumps(document).encode()
    sock = socket.create_connection(("127.0.0.1", door.port), timeout=20)
    sock.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    return sock


def until(sock, mark, received=b""):
    while mark not in received:
        part = sock.recv(65536)
        assert part, received
        received += part
    return received


def test_a_plain_request_waits_and_the_supervisor_is_told_once(door, boss):
    with FakeEngine(token_ms=1, slots=2) as engine, ThreadPoolExecutor(3) as crowd:
        answers = [crowd.submit(ask, door, body()) for _ in range(3)]
        boss.wanted()
        boss.status(queued=3, busy=0)
        boss.table(state="loading")
        boss.status(queued=3)
        boss.table(engine)
        assert [answer.result()[0].status for answer in answers] == [200] * 3
        assert b'skep_model_loads_total{model="fake-model",outcome="loaded"} 1' in ask(door, None, "/metrics", "GET")[1]
        assert boss.status(queued=0, busy=0)["idle_s"] < 20


def test_it_is_told_again_after_the_model_was_unloaded_again(door, boss):
    with FakeEngine(token_ms=1) as engine, ThreadPoolExecutor(1) as other:
        for _ in range(2):
            answer = other.submit(ask, door, body())
            boss.wanted()
            boss.table(state="waiting")
            boss.table(state="loading")
            boss.table(engine)
            assert answer.result()[0].status == 200
            boss.table(state="unloaded")


def test_who_waits_while_the_table_changes_is_told_of_too(door, boss):
    """It was queued behind a busy replica, and then its model was unloaded for another one."""
    with FakeEngine(token_ms=30, slots=1) as engine:
        boss.table(engine, slots=1)
        with opened(door, body(stream=True, max_tokens=400)) as first, opened(door, body(stream=True)) as second:
            until(first, b"data:")
            boss.status(queued=1)
            boss.table(state="unloading")
            boss.wanted()
            assert b": waiting for fake-model" in until(second, b"\n\n\r\n")


def test_a_waiting_stream_gets_its_head_comments_and_then_the_engines_own_bytes(door, boss):
    with FakeEngine(token_ms=1) as engine, opened(door, body(stream=True)) as sock:
        boss.wanted()
        received = until(sock, b"\n\n\r\n")
        assert received.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream")
        assert b"x-skep-request-id: " in received
        assert b"x-skep-replica" not in received
        assert b": waiting for fake-model, 0 s\n\n" in received
        boss.table(state="loading")
        boss.table(engine)
        received = until(sock, b"\r\n0\r\n\r\n", received)
        direct = direct_stream(engine)
        events = received.partition(b"\r\n\r\n")[2]
        assert payloads(events) == payloads(direct)
        assert engine.state()["requests"] == 2
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")  # the connection goes on
        assert b'{"status":"ok"}' in until(sock, b"}")


def direct_stream(engine):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", engine.port, timeout=20)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body(stream=True)))
        return connection.getresponse().read()


def payloads(text):
    """The choices of each event, without ids and times."""
    lines = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line)["choices"] if line[:1] == b"{" else line.strip() for line in lines]


def test_comments_go_on_while_it_is_being_loaded(gateway):
    door = gateway(timeouts={"comment_every_s": 0.1})
    boss = Supervisor(door)
    boss.table(state="unloaded")
    with opened(door, body(stream=True)) as sock:
        boss.wanted()
        boss.table(state="loading")
        assert b": loading fake-model, 1 s\n\n" in until(sock, b" 1 s")


def test_the_openai_client_does_not_see_the_comments(door, boss):
    with FakeEngine(token_ms=1, slots=2) as engine, openai.OpenAI(base_url=f"{door.url}/v1", api_key="k") as client:
        loader = threading.Thread(target=lambda: (boss.wanted(), boss.table(state="loading"), boss.table(engine)))
        loader.start()
        chunks = list(client.chat.completions.create(**body(stream=True, stream_options={"include_usage": True})))
        loader.join()
        assert chunks[-1].usage.completion_tokens == 4
        boss.table(state="unloaded")
        loader = threading.Thread(target=lambda: (boss.wanted(), boss.table(engine)))
        loader.start()
        plain = client.chat.completions.create(**body())
        loader.join()
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert plain.choices[0].message.content == said


class Messages(http.server.BaseHTTPRequestHandler):
    """An engine that speaks Anthropic's stream and nothing else."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        usage = {"input_tokens": 3, "output_tokens": 1}
        message = {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": [], "usage": usage}
        delta = {"type": "text_delta", "text": "hello"}
        events = [
            {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        ]
        said = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


def test_the_anthropic_client_does_not_see_the_comments(door, boss):
    """This engine promises a length: its bytes go on in chunks, because the head was out without one."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Messages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.url = f"http://127.0.0.1:{server.server_port}"
        loader = threading.Thread(target=lambda: (boss.wanted(), boss.table(state="loading"), boss.table(server)))
        loader.start()
        with (
            anthropic.Anthropic(base_url=door.url, api_key="k", max_retries=0) as claude,
            claude.messages.stream(model=MODEL, max_tokens=4, messages=ASKED) as stream,
        ):
            assert "".join(stream.text_stream) == "hello"
            assert stream.get_final_message().usage.output_tokens == 1
        loader.join()
        server.shutdown()


def test_clients_raise_what_went_wrong_in_a_stream_that_had_begun(door, boss):
    def fail():
        boss.wanted()
        boss.fail("out of GPU memory", 0.0)

    with openai.OpenAI(base_url=f"{door.url}/v1", api_key="k", max_retries=0) as client:
        for call in (
            lambda: client.chat.completions.create(**body(stream=True)),
            lambda: client.responses.create(model=MODEL, input="x", stream=True),
        ):
            failing = threading.Thread(target=fail)
            failing.start()
            with pytest.raises(openai.APIError, match="cannot be loaded: out of GPU memory"):
                list(call())
            failing.join()
    with anthropic.Anthropic(base_url=door.url, api_key="k", max_retries=0) as claude:
        failing = threading.Thread(target=fail)
        failing.start()
        with (
            pytest.raises(anthropic.APIStatusError, match="out of GPU memory"),
            claude.messages.stream(model=MODEL, max_tokens=4, messages=ASKED) as stream,
        ):
            list(stream.text_stream)
        failing.join()


def test_a_load_that_fails_is_one_clear_error_and_tried_again_later(door, boss):
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(ask, door, body())
        boss.wanted()
        boss.fail(retry_after_s=0.5)
        told, text = answer.result()
        assert (told.status, told.headers["retry-after"]) == (503, "1")
        error = json.loads(text)["error"]
        assert error["code"] == "model_load_failed"
        assert "`fake-model` cannot be loaded: no memory is left; try again in 1 s" in error["message"]
        soon, text = ask(door, body(stream=True))  # before it is tried again: refused at once, with its status
        assert (soon.status, json.loads(text)["error"]["code"]) == (503, "model_load_failed")
        threading.Event().wait(0.6)  # until it may be tried again
        answer = other.submit(ask, door, body())
        boss.wanted()
        boss.fail()
        assert answer.result()[0].status == 503


def test_when_it_is_being_loaded_after_all_requests_wait_again(door, boss):
    with FakeEngine(token_ms=1) as engine, ThreadPoolExecutor(1) as other:
        boss.fail(retry_after_s=300.0)
        assert ask(door, body())[0].status == 503
        boss.table(state="loading")
        answer = other.submit(ask, door, body())
        boss.status(queued=1)
        boss.table(engine)
        assert answer.result()[0].status == 200


def test_a_queue_timeout_says_that_the_model_is_being_loaded(gateway):
    door = gateway(limits={"max_wait_s": 0.2})
    boss = Supervisor(door)
    boss.table(state="loading")
    answer, text = ask(door, body())
    assert (answer.status, json.loads(text)["error"]["code"]) == (503, "queue_timeout")
    assert "still being loaded" in json.loads(text)["error"]["message"]
    streamed, text = ask(door, body(stream=True))
    assert streamed.status == 200
    assert b'"code": "queue_timeout"' in text


def test_an_engine_that_refuses_is_an_error_event(door, boss):
    with FakeEngine(ctx=10) as engine, ThreadPoolExecutor(1) as other:
        long = [{"role": "user", "content": "word " * 50}]
        answer = other.submit(ask, door, body(stream=True, messages=long))
        boss.wanted()
        boss.table(engine)
        told, text = answer.result()
        assert told.status == 200
        event = json.loads(text.rpartition(b"data: ")[2])
        assert event["error"]["code"] == "engine_refused"
        assert "HTTP 400" in event["error"]["message"]
        boss.status(queued=0, busy=0)


@pytest.mark.parametrize("kind", ["close-first", "503"])
def test_a_failed_attempt_is_made_again_elsewhere_though_the_head_is_out(door, boss, kind):
    with FakeEngine(token_ms=1) as bad, FakeEngine(token_ms=1) as good, ThreadPoolExecutor(1) as other:
        bad.fault(kind=kind, times=None)
        answer = other.submit(ask, door, body(stream=True))
        boss.wanted()
        boss.table(bad, more=[good])
        _, text = answer.result()
        assert text.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in text


def test_a_replica_that_says_nothing_ends_the_stream_with_an_event(gateway):
    door = gateway(timeouts={"first_byte_s": 0.2})
    boss = Supervisor(door)
    boss.table(state="loading")
    with FakeEngine(ttft_ms=60_000) as engine, ThreadPoolExecutor(1) as other:
        answer = other.submit(ask, door, body(stream=True))
        boss.status(queued=1)
        boss.table(engine)
        assert b'"code": "replica_timeout"' in answer.result()[1]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(door, boss, stream):
    with FakeEngine(token_ms=1) as engine:
        sock = opened(door, body(stream=stream))
        boss.wanted()
        boss.status(queued=1)
        sock.close()
        boss.status(queued=0)
        boss.table(engine)
        assert ask(door, body())[0].status == 200
        assert engine.state()["requests"] == 1


def test_models_that_are_not_loaded_are_listed_with_their_state(door, boss):
    listed = json.loads(ask(door, None, "/v1/models", "GET")[1])["data"]
    assert [(model["id"], model["skep"]["state"]) for model in listed] == [(MODEL, "unloaded")]
    one = json.loads(ask(door, None, f"/v1/models/{MODEL}", "GET")[1])
    assert one["skep"]["replicas"] == 0


def test_who_only_looks_around_loads_nothing(door, boss):
    assert ask(door, None, "/props", "GET")[0].status == 502
    boss.status(queued=0)
    with FakeEngine() as engine, ThreadPoolExecutor(1) as other:
        counted = other.submit(ask, door, {"model": MODEL, "content": "x"}, "/tokenize")
        boss.wanted()
        boss.table(engine)
        assert counted.result()[0].status == 404  # the engine's own: it has no such path


def test_a_gateway_that_ends_says_so_in_a_stream_that_waits(door, boss):
    with opened(door, body(stream=True)) as sock:
        until(sock, b"\n\n\r\n")
        door.send({"op": "exit"})
        assert b'"code": "shutting_down"' in until(sock, b"0\r\n\r\n")


def test_only_event_streams_get_comments():
    assert wants_stream("/v1/messages", b'{"stream": true}')
    assert wants_stream("/v1/responses", b'\xef\xbb\xbf{"x": 1, "stream": true}')
    for path, said in [
        ("/v1/chat/completions", b'{"stream": false}'),
        ("/v1/chat/completions", b'{"messages": "\\"stream\\": true"}'),
        ("/v1/chat/completions", b"not json"),
        ("/api/chat", b'{"stream": true}'),
        ("/v1/embeddings", b'{"stream": true}'),
    ]:
        assert not wants_stream(path, said)


def test_a_comment_is_one_line_whatever_the_name():
    assert comment("loading a\n\ndata: b", 12.4) == b": loading a data: b, 12 s\n\n"


def test_the_supervisor_is_told_once_until_the_model_moves():
    dormancy = UnloadedModels()
    assert not dormancy.should_request_load("m")
    for _ in range(2):
        dormancy.become({"m": {"state": "unloaded"}}, ())
        assert dormancy.should_request_load("m")
        dormancy.become({"m": {"state": "unloaded"}}, ())  # sent before it heard
        assert not dormancy.should_request_load("m")
        dormancy.become({"m": {"state": "loading"}}, ())
        assert not dormancy.should_request_load("m")
    dormancy.failed("m", "why", 10.0)
    assert dormancy.failure("m", 9.0) is not None
    assert dormancy.failure("m", 11.0) is None
    assert dormancy.become({}, ["m"]) == ["m"]
    assert dormancy.become({}, ["m"]) == []
    assert dormancy.failure("m", 9.0) is None
