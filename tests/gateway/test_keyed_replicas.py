"""The gateway in front of replicas that want a key: it shows it wherever it asks."""

import http.client
import json
import os
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

from skep.engines.base import REPORT_FD, Launch
from skep.engines.embedded import Embedded
from skep.paths import user_paths
from skep.testing.gateway_process import GatewayProcess
from skep.testing.process import FakeEngine
from skep.weights.pull import installed, pull

HOST, KEY = "127.0.0.2", "a-key-of-this-hive"


def hang_up_in_mid_answer(door, model, tokens):
    """When it returns, an answer had begun and its client is gone."""
    message = [{"role": "user", "content": "Tell a long story."}]
    body = {"model": model, "messages": message, "max_tokens": tokens, "stream": True}
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", door.port), timeout=30) as sock:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        said = b""
        while said.count(b"data:") < 2:
            said += sock.recv(65536)
            assert b"error" not in said


def ask(door, model):
    message = [{"role": "user", "content": "Say hello."}]
    body = json.dumps({"model": model, "messages": message, "max_tokens": 2})
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
    connection.request("POST", "/v1/chat/completions", body, {"authorization": "Bearer of-the-client"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def serve(door, url, model, confirms):
    spec = {"name": "r0", "url": url, "model": model, "slots": 1, "confirms": confirms}
    GatewayProcess.serve(door, [{**spec, "authorization": f"Bearer {KEY}"}])


@pytest.mark.parametrize("confirms", ["slots", "metrics"])
def test_requests_and_the_question_for_busy_slots_show_the_replicas_key(gateway, tmp_path, confirms):
    """Without it a slot whose client left would come back after half a minute only."""
    with FakeEngine(slots=4, token_ms=5, deaf_ms=300, host=HOST, key=KEY) as engine:
        assert engine.url.startswith(f"http://{HOST}:")
        door = gateway()
        serve(door, engine.url, "fake-model", confirms)
        hang_up_in_mid_answer(door, "fake-model", 1000)
        answer = ask(door, "fake-model")
        assert answer.status == 200
        assert 200 < float(answer.headers["x-skep-queue-ms"]) < 10_000
        assert engine.state()["max_inside"] == 1
        assert engine.state()["last_headers"]["authorization"] == f"Bearer {KEY}"
        door.close()
    assert KEY not in "".join(path.read_text() for path in tmp_path.glob("*.log"))


@pytest.fixture
def embedded():
    """llama.cpp itself, with a key and on an address of its own."""
    cache = user_paths(os.environ).cache
    weights = installed("smollm2-135m", cache) or pull("smollm2-135m", cache_dir=cache).path
    launch = Launch("e", "embedded", "m", weights, slots=2, context_tokens=512, threads=1, host=HOST, api_key=KEY)
    heard, told = os.pipe()
    argv = [part if part != REPORT_FD else str(told) for part in Embedded().argv(launch)]
    env = {**os.environ, **Embedded().environment(launch)}
    with subprocess.Popen(argv, env=env, pass_fds=(told,), stderr=subprocess.DEVNULL) as process:
        os.close(told)
        with os.fdopen(heard) as report:
            yield json.loads(report.readline())["url"]
        process.kill()


@pytest.mark.slow
@pytest.mark.engine
def test_llama_cpp_with_a_key_serves_through_the_gateway_and_nobody_beside_it(gateway, embedded):
    for path in ("/v1/models", "/slots", "/metrics"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{embedded}{path}")
    assert urllib.request.urlopen(f"{embedded}/health").status == 200
    door = gateway()
    serve(door, embedded, "m", "slots")
    for _ in range(3):
        hang_up_in_mid_answer(door, "m", 400)
        answer = ask(door, "m")
        assert answer.status == 200
        assert float(answer.headers["x-skep-queue-ms"]) < 10_000  # it was asked: else half a minute
