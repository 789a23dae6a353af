"""The fake engine as a process: protocol, slots, hang-ups, life and death, faults on command.

What a client sees of the other faults is in tests/bench/test_sweep.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import subprocess
import sys

import pytest
from fake_raw_client import call, chat, read_all

from skep.errors import EngineError
from skep.testing.process import FakeEngine


@pytest.fixture(scope="module")
def shared():
    with FakeEngine(slots=2, token_ms=2, ctx=50) as engine:
        yield engine


@pytest.fixture
def engine(shared):
    shared.fault(kind="none")
    return shared


def test_engine_tells_about_itself(engine):
    """Health, models, slots, props and metrics in the forms of the real ones."""
    told = {path: call(engine.url, "GET", path) for path in ("/v1/models", "/slots", "/props", "/metrics", "/odd")}
    model = told["/v1/models"].json()["data"][0]
    assert (model["id"], model["owned_by"]) == ("fake-model", "skep-fake")
    assert told["/slots"].json()[1] == {"id": 1, "n_ctx": 50, "is_processing": False}
    assert told["/props"].json()["total_slots"] == 2
    assert b"llamacpp:requests_processing 0\n" in told["/metrics"].body
    assert told["/odd"].status == 404


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_whole_answer_counts_its_tokens(engine, path):
    """Usage and timings agree."""
    body = chat(words=4, tokens=6, stream=False) | {"prompt": "word " * 4}
    answer = call(engine.url, "POST", path, body).json()
    assert answer["usage"]["prompt_tokens"] == answer["timings"]["prompt_n"] == 4
    assert answer["usage"]["completion_tokens"] == answer["timings"]["predicted_n"] == 6
    speed = answer["timings"]["predicted_per_second"]
    assert speed == pytest.approx(5 / answer["timings"]["predicted_ms"] * 1000)


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"messages": [1], "max_tokens": "many"}'])
def test_body_that_cannot_be_read_is_a_clean_400(engine, body):
    """The connection stays usable, the engine alive."""
    reply = call(engine.url, "POST", "/v1/chat/completions", body)
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_connection_serves_one_request_after_another(engine):
    """Also a second one that was sent before the first was answered."""
    before = engine.state()["connections_total"]
    body = json.dumps(chat(tokens=3)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as raw:
        raw.sendall(head.encode() + body + b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n")
        got = b""
        while not got.endswith(b'{"status":"ok"}'):
            got += raw.recv(4096)
    assert got.index(b" carry") < got.index(b"[DONE]") < got.index(b"status")
    assert engine.state()["connections_total"] == before + 1


def test_engine_ends_with_the_process_that_started_it():
    """Also when that one is killed and cannot clean up."""
    code = "import sys; from skep.testing.process import FakeEngine as E; print(E().start().pid, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        watch = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        assert select.select([watch], [], [], 5)[0] == [watch]
        os.close(watch)


def test_fault_strikes_its_number_of_times(engine):
    """Oldest first, in the form of OpenAI's errors; then requests are left alone."""
    engine.fault(kind="503", times=2, retry_after_s=7)
    engine.fault(kind="429", retry_after_s=8)
    replies = [call(engine.url, "POST", "/v1/chat/completions", chat()) for _ in range(4)]
    told = [(reply.status, reply.headers.get("retry-after")) for reply in replies]
    assert told == [(503, "7"), (503, "7"), (429, "8"), (200, None)]
    assert replies[0].json()["error"]["message"]


@pytest.mark.parametrize("values", [{"kind": "odd"}, {}, {"kind": "500", "odd": 1}])
def test_unknown_fault_is_the_callers_mistake(engine, values):
    """A misspelt fault must not pass for one that did not strike."""
    with pytest.raises(EngineError):
        engine.fault(**values)


def test_refused_connections_can_be_had_back(engine):
    """The control port stays open, so the fault can be lifted."""
    engine.fault(kind="refuse")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", engine.port))
    engine.fault(kind="none")
    assert call(engine.url, "GET", "/health").status == 200


def test_crash_ends_the_process_with_the_code_asked_for():
    """In the middle of a stream."""
    fault = {"kind": "crash", "after_tokens": 2, "exit_code": 7}
    with FakeEngine(fault=fault, token_ms=1) as engine:
        assert b" bees" in asyncio.run(read_all(engine.url, chat())).raw
        assert engine.wait() == 7
