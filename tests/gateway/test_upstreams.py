"""The gateway in front of replicas that want a key, which it shows wherever it asks, or whose paths begin below one."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gateway_client import body, call, open_post, post, read_until

import embedded_process
from skep.config.load import make_upstream
from skep.engines.base import Launch
from skep.supervisor.remote_replica import probe_upstream
from skep.testing.process import FakeEngine

HOST, KEY = "127.0.0.2", "a-key-of-this-hive"


def hang_up_and_ask_again(gateway, model, tokens):
    """Leave in the midst of an answer; the answer to the next request."""
    with open_post(gateway, body(model=model, max_tokens=tokens, stream=True)) as sock:
        assert b"error" not in read_until(sock, lambda said: said.count(b"data:") >= 2)
    status, headers, _ = post(gateway, body(model=model), authorization="Bearer of-the-client")
    assert status == 200
    return float(headers["x-skep-queue-ms"])


def serve(gateway, url, model, confirms):
    spec = {"name": "r0", "url": url, "model": model, "slots": 1, "confirms": confirms}
    gateway.serve([{**spec, "authorization": f"Bearer {KEY}"}])


@pytest.mark.parametrize("confirms", ["slots", "metrics"])
def test_requests_and_the_question_for_busy_slots_show_the_replicas_key(start_gateway, tmp_path, confirms):
    """Without it a slot whose client left would come back after half a minute only."""
    with FakeEngine(slots=4, token_ms=5, deaf_ms=300, host=HOST, key=KEY) as engine:
        assert engine.url.startswith(f"http://{HOST}:")
        gateway = start_gateway()
        serve(gateway, engine.url, "fake-model", confirms)
        assert 200 < hang_up_and_ask_again(gateway, "fake-model", 1000) < 10_000
        assert engine.state()["max_inside"] == 1
        assert engine.state()["last_headers"]["authorization"] == f"Bearer {KEY}"
        gateway.close()
    assert KEY not in "".join(path.read_text() for path in tmp_path.glob("*.log"))


@pytest.mark.slow
@pytest.mark.engine
def test_llama_cpp_with_a_key_serves_through_the_gateway_and_nobody_beside_it(start_gateway):
    shown = {"host": HOST, "api_key": KEY}
    launch = Launch("e", "embedded", "m", embedded_process.weights(), slots=2, context_tokens=512, threads=1, **shown)
    with embedded_process.serving(launch) as url:
        for path in ("/v1/models", "/slots", "/metrics"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{url}{path}")
        assert urllib.request.urlopen(f"{url}/health").status == 200
        gateway = start_gateway()
        serve(gateway, url, "m", "slots")
        for _ in range(3):
            assert hang_up_and_ask_again(gateway, "m", 400) < 10_000  # it was asked: else half a minute


class Cloud(BaseHTTPRequestHandler):
    """Wants its key, and knows two paths."""

    def do_GET(self):
        self._answer({"data": [{"id": "big"}]} if self.path == "/api/v1/models" else None)

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self._answer({"said": self.path} if self.path == "/api/v1/chat/completions" else None)

    def _answer(self, document):
        known = document is not None and self.headers.get("authorization") == "Bearer of the cloud"
        body = json.dumps(document if known else {"error": self.path}).encode()
        self.send_response(200 if known else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def cloud():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cloud)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api/v1"
    server.shutdown()
    server.server_close()


def test_a_cloud_below_a_path_is_asked_for_its_model_and_for_answers_there(cloud, start_gateway, monkeypatch):
    """Its OpenAI paths begin below its address, as `https://host/api/v1`."""
    monkeypatch.setenv("CLOUD_KEY", "of the cloud")
    upstream = make_upstream(cloud, 4, key_env="CLOUD_KEY")
    launch = Launch(upstream.name, "remote", "", None, 4, 0, 0, url=upstream.url, key_env="CLOUD_KEY")
    assert asyncio.run(probe_upstream(launch)).model == "big"
    gateway = start_gateway()
    spec = {"name": "cloud", "model": "big", "slots": 4, "authorization": "Bearer of the cloud"}
    gateway.serve([{**spec, "url": upstream.url}])
    said = call(gateway, document={"model": "big", "messages": []})[2]
    assert json.loads(said) == {"said": "/api/v1/chat/completions"}
