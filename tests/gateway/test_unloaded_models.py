"""Requests for a model that is not loaded: told to the supervisor once, kept alive meanwhile,
answered or refused.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from gateway_client import (
    ASKED,
    MODEL,
    body,
    call,
    error_of,
    metrics,
    open_post,
    open_stream,
    post,
    read_until,
    refusal,
)

from api_clients import anthropic, openai
from recorded_server import recorded, sse
from skep.gateway.body_inspection import wants_stream
from skep.gateway.request_policy import STREAM_PATHS
from skep.gateway.unloaded_models import UnloadedModels
from skep.testing.process import FakeEngine


class Supervisor:
    """The supervisor's side of a gateway's link: what it says by itself, and what it answers."""

    def __init__(self, gateway, state):
        self.gateway = gateway
        self.table(state=state)
        gateway.ask(op="status")

    def table(self, *engines, state=None, slots=2):
        replicas = [
            {"name": f"r{n}", "model": MODEL, "url": engine.url, "slots": slots, "confirms": ""}
            for n, engine in enumerate(engines)
        ]
        if state:
            dormant = {MODEL: {"state": state, "why": None}}
        else:
            dormant = {}
        self.gateway.send(
            {"op": "replicas", "replicas": replicas, "models": [MODEL], "dormant": dormant}
        )

    def wanted(self):
        """Hear that a request asks for the model."""
        assert self.gateway.read() == {"event": "wanted", "model": MODEL}

    def load(self, *engines):
        self.wanted()
        self.table(state="loading")
        self.table(*engines)

    def status(self, **figures):
        """Asks until the model's figures are as wanted. Nothing but the answer may come."""
        while True:
            answer = self.gateway.ask(op="status")
            assert "event" not in answer
            if all(answer["models"][MODEL][key] == value for key, value in figures.items()):
                return answer["models"][MODEL]

    def fail(self, why="no memory is left", retry_after_s=7.0):
        self.gateway.send(
            {"op": "load_failed", "model": MODEL, "why": why, "retry_after_s": retry_after_s}
        )


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(token_ms=1, slots=2) as running:
        yield running


@pytest.fixture
def start(start_gateway):
    """Start a gateway whose model is in this state, and the supervisor's side of it."""

    def start(state="unloaded", **setup):
        gateway = start_gateway(**setup)
        return gateway, Supervisor(gateway, state)

    return start


@pytest.fixture
def crowd():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_a_plain_request_waits_and_the_supervisor_hears_once_for_each_unload(start, crowd, engine):
    gateway, supervisor = start()
    for times in (1, 2):
        answers = [crowd.submit(post, gateway) for _ in range(3)]
        supervisor.wanted()
        supervisor.status(queued=3, busy=0)
        supervisor.table(state="waiting")
        supervisor.table(state="loading")
        supervisor.status(queued=3)
        supervisor.table(engine)
        assert [answer.result()[0] for answer in answers] == [200] * 3
        assert (
            metrics(gateway)['skep_model_loads_total{model="fake-model",outcome="loaded"}']
            == times
        )
        assert supervisor.status(queued=0, busy=0)["idle_s"] < 20
        supervisor.table(state="unloaded")


def test_who_waits_while_the_table_changes_is_told_of_too(start, engine):
    """It was queued behind a busy replica, and then its model was unloaded for another one."""
    gateway, supervisor = start()
    supervisor.table(engine, slots=1)
    with open_stream(gateway, max_tokens=4000), open_post(gateway, body(stream=True)) as second:
        supervisor.status(queued=1)
        supervisor.table(state="unloading")
        supervisor.wanted()
        assert b": waiting for fake-model" in read_until(second, b"\n\n\r\n")


def test_a_waiting_stream_gets_its_head_comments_and_then_the_engines_own_bytes(start, engine):
    gateway, supervisor = start()
    before = engine.state()["requests"]
    with open_post(gateway, body(stream=True)) as sock:
        supervisor.wanted()
        received = read_until(sock, b"\n\n\r\n")
        assert received.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream")
        assert b"x-skep: id=" in received
        assert b"replica=" not in received
        assert b": waiting for fake-model, 0 s\n\n" in received
        supervisor.table(state="loading")
        supervisor.table(engine)
        received = read_until(sock, b"\r\n0\r\n\r\n", received)
        assert payloads(received.partition(b"\r\n\r\n")[2]) == payloads(
            call(engine, document=body(stream=True))[2]
        )
        assert engine.state()["requests"] == before + 2
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")  # the connection goes on
        assert b'{"status":"ok"}' in read_until(sock, b"}")


def payloads(text):
    """The choices of each event, without ids and times."""
    lines = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line)["choices"] if line[:1] == b"{" else line.strip() for line in lines]


def test_comments_go_on_while_it_is_being_loaded_and_a_gateway_that_ends_says_so(start):
    gateway, supervisor = start(timeouts={"comment_every_s": 0.1})
    with open_post(gateway, body(stream=True)) as sock:
        supervisor.wanted()
        supervisor.table(state="loading")
        assert b": loading fake-model, 1 s\n\n" in read_until(sock, b" 1 s\n\n")
        gateway.send({"op": "exit"})
        assert b'"code": "shutting_down"' in read_until(sock, b"0\r\n\r\n")


def test_the_openai_client_does_not_see_the_comments(start, crowd, engine):
    gateway, supervisor = start()
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k") as client:
        loading = crowd.submit(supervisor.load, engine)
        chunks = list(
            client.chat.completions.create(
                **body(stream=True, stream_options={"include_usage": True})
            )
        )
        loading.result()
        assert chunks[-1].usage.completion_tokens == 4
        supervisor.table(state="unloaded")
        loading = crowd.submit(supervisor.load, engine)
        plain = client.chat.completions.create(**body())
        loading.result()
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert plain.choices[0].message.content == text


USAGE = {"input_tokens": 3, "output_tokens": 1}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [],
    "usage": USAGE,
}
SAID = sse(
    {"type": "message_start", "message": {**MESSAGE, "stop_reason": None, "stop_sequence": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE},
    {"type": "message_stop"},
)


@pytest.mark.parametrize(("path", "is_told"), [("/v1/completions", True), ("/v1/messages", False)])
def test_a_stream_that_waits_for_a_load_hears_of_it_where_that_helps_its_clients(
    start, path, is_told
):
    gateway, supervisor = start()
    document = {"model": MODEL, "prompt": "x", "messages": [], "stream": True}
    with (
        open_post(gateway, document, path) as waiting,
        open_post(gateway, body(stream=True)) as post,
    ):
        supervisor.wanted()
        read_until(post, b"waiting for fake-model")
        supervisor.table(state="loading")
        supervisor.status(queued=2)
        waiting.setblocking(False)
        assert is_told == has_bytes(waiting)


def has_bytes(sock):
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return False


def test_the_anthropic_client_waits_for_a_load(start, crowd):
    gateway, supervisor = start()
    with (
        recorded(lambda *_: b"".join(SAID)) as engine,
        anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0) as claude,
    ):
        loading = crowd.submit(supervisor.load, engine)
        with claude.messages.stream(model=MODEL, max_tokens=4, messages=ASKED) as stream:
            assert "".join(stream.text_stream) == "hello"
            assert stream.get_final_message().usage.output_tokens == 1
        loading.result()


def test_clients_of_streams_raise_why_the_model_was_not_loaded(start, crowd):
    gateway, supervisor = start()

    def fail():
        supervisor.wanted()
        supervisor.fail("out of GPU memory", 0.0)

    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
        anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0) as claude,
    ):
        for ask in (
            lambda: client.chat.completions.create(**body(stream=True)),
            lambda: client.responses.create(model=MODEL, input="x", stream=True),
            lambda: claude.messages.create(model=MODEL, max_tokens=4, messages=ASKED, stream=True),
        ):
            failing = crowd.submit(fail)
            with pytest.raises(
                (openai.APIError, anthropic.APIStatusError),
                match="cannot be loaded: out of GPU memory",
            ):
                list(ask())
            failing.result()


def test_a_load_that_fails_is_one_clear_error_and_tried_again_later(start, crowd):
    gateway, supervisor = start()
    answer = crowd.submit(post, gateway)
    supervisor.wanted()
    supervisor.fail(retry_after_s=0.5)
    status, headers, text = answer.result()
    assert (status, headers["retry-after"], error_of(text)["code"]) == (
        503,
        "1",
        "model_load_failed",
    )
    assert (
        "`fake-model` cannot be loaded: no memory is left; try again in 1 s"
        in error_of(text)["message"]
    )
    # Before it is tried again: refused at once, with its status
    assert refusal(gateway, body(stream=True)) == (503, "model_load_failed")
    threading.Event().wait(0.6)  # until it may be tried again
    answer = crowd.submit(post, gateway)
    supervisor.wanted()
    supervisor.fail()
    assert answer.result()[0] == 503


def test_a_model_that_was_given_up_is_refused_with_its_reason_until_it_is_loaded(
    start, crowd, engine
):
    """Unloaded by the user, wanted by a request, and then it did not start: it is `failed`, not
    dormant.
    """
    gateway, supervisor = start("loading")
    supervisor.fail(retry_after_s=300.0)
    supervisor.table()
    gateway.ask(op="status")
    assert b"no memory is left" in post(gateway, x_skep_max_wait="0.1")[2]
    supervisor.table(state="loading")
    answer = crowd.submit(post, gateway)
    supervisor.status(queued=1)
    supervisor.table(engine)
    assert answer.result()[0] == 200


def test_a_model_on_demand_is_loaded_also_where_nobody_may_queue(start):
    gateway, _ = start(limits={"max_queue": 0})
    status, _, text = post(gateway, x_skep_max_wait="0.1")
    assert (status, gateway.ask(op="status").get("event")) != (429, None), text


def test_a_queue_timeout_says_that_the_model_is_being_loaded(start):
    gateway, _ = start("loading", limits={"max_wait_s": 0.2})
    status, _, text = post(gateway)
    assert (status, error_of(text)["code"]) == (503, "queue_timeout")
    assert "still being loaded" in error_of(text)["message"]
    status, _, text = post(gateway, body(stream=True))
    assert (status, b'"code": "queue_timeout"' in text) == (200, True)


@pytest.mark.parametrize(
    ("options", "first_byte_s", "code", "reason"),
    [
        ({"ctx": 10}, 60, "engine_refused", "HTTP 400"),
        ({"ttft_ms": 60_000}, 0.2, "replica_timeout", ""),
    ],
)
def test_an_engine_that_refuses_or_says_nothing_is_an_error_event(
    start, crowd, options, first_byte_s, code, reason
):
    gateway, supervisor = start(timeouts={"first_byte_s": first_byte_s})
    with FakeEngine(**options) as engine:
        long = [{"role": "user", "content": "word " * 50}]
        answer = crowd.submit(post, gateway, body(stream=True, messages=long))
        supervisor.load(engine)
        status, _, text = answer.result()
        error = error_of(text.rpartition(b"data: ")[2])
        assert (status, error["code"]) == (200, code)
        assert reason in error["message"]
        supervisor.status(queued=0, busy=0)


@pytest.mark.parametrize("kind", ["close-first", "503"])
def test_a_failed_attempt_is_made_again_elsewhere_though_the_head_is_out(
    start, crowd, engine, kind
):
    gateway, supervisor = start()
    with FakeEngine(token_ms=1) as bad:
        bad.fault(kind=kind, times=None)
        answer = crowd.submit(post, gateway, body(stream=True))
        supervisor.load(bad, engine)
        text = answer.result()[2]
    assert text.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(start, engine, stream):
    gateway, supervisor = start()
    before = engine.state()["requests"]
    sock = open_post(gateway, body(stream=stream))
    supervisor.wanted()
    supervisor.status(queued=1)
    sock.close()
    supervisor.status(queued=0)
    supervisor.table(engine)
    assert post(gateway)[0] == 200
    assert engine.state()["requests"] == before + 1


def test_who_only_looks_around_loads_nothing(start, crowd, engine):
    gateway, supervisor = start()
    (listed,) = json.loads(call(gateway, "GET", "/v1/models")[2])["data"]
    assert (listed["id"], listed["skep"]["state"]) == (MODEL, "unloaded")
    assert json.loads(call(gateway, "GET", f"/v1/models/{MODEL}")[2])["skep"]["replicas"] == 0
    assert call(gateway, "GET", "/props")[0] == 502
    supervisor.status(queued=0)
    counted = crowd.submit(call, gateway, "POST", "/tokenize", {"model": MODEL, "content": "x"})
    supervisor.load(engine)
    assert counted.result()[0] == 404  # the engine's own: it has no such path


def test_only_event_streams_get_comments_of_one_line_whatever_the_name():
    assert {"/api/chat", "/v1/embeddings"}.isdisjoint(STREAM_PATHS)
    assert {"/v1/messages", "/v1/responses", "/v1/chat/completions"} <= STREAM_PATHS
    for text in (b'{"stream": true}', b'\xef\xbb\xbf{"x": 1, "stream": true}'):
        assert wants_stream(text)
    for text in (b'{"stream": false}', b'{"messages": "\\"stream\\": true"}', b"not json"):
        assert not wants_stream(text)
    assert UnloadedModels().words("a\n\ndata: b") == "waiting for a data: b"
