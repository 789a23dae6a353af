"""The fake engine as a process: protocol, slots, hang-ups, life and death, faults on command.

What a client sees of the other faults is in tests/bench/test_sweep.py.
"""

import http.client
import json
import os
import select
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from skep.testing.process import FakeEngine


def call(engine, method, path, body=None):
    """The answer, and its body; one connection a request."""
    with closing(http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer, answer.read()


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
    models, slots, props = (
        json.loads(call(engine, "GET", path)[1]) for path in ("/v1/models", "/slots", "/props")
    )
    assert (models["data"][0]["id"], models["data"][0]["owned_by"]) == ("fake-model", "skep-fake")
    assert slots[1] == {"id": 1, "n_ctx": 50, "is_processing": False}
    assert props["total_slots"] == 2
    assert b"llamacpp:requests_processing 0\n" in call(engine, "GET", "/metrics")[1]
    assert call(engine, "GET", "/odd")[0].status == 404


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"messages": [1], "max_tokens": "many"}'])
def test_body_that_cannot_be_read_is_a_clean_400(engine, body):
    """The connection stays usable, the engine alive."""
    _, words = call(engine, "POST", "/v1/chat/completions", body)
    assert json.loads(words)["error"]["type"] == "invalid_request_error"


def test_engine_ends_with_the_process_that_started_it():
    """Also when that one is killed and cannot clean up."""
    code = (
        "import sys; from skep.testing.process import FakeEngine as E; print(E().start().pid, "
        "flush=True); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        watch = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        assert select.select([watch], [], [], 5)[0] == [watch]
        os.close(watch)


def test_fault_strikes_its_number_of_times(engine):
    """Oldest first, in the form of OpenAI's errors; then requests are left alone."""
    engine.fault(kind="503", times=2, retry_after_s=7)
    engine.fault(kind="429", retry_after_s=8)
    body = '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'
    answers = [call(engine, "POST", "/v1/chat/completions", body) for _ in range(4)]
    results = [(answer.status, answer.headers.get("retry-after")) for answer, _ in answers]
    assert results == [(503, "7"), (503, "7"), (429, "8"), (200, None)]
    assert json.loads(answers[0][1])["error"]["message"]


def test_refused_connections_can_be_had_back(engine):
    """The control port stays open, so the fault can be lifted."""
    engine.fault(kind="refuse")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", engine.port))
    engine.fault(kind="none")
    assert call(engine, "GET", "/health")[0].status == 200
