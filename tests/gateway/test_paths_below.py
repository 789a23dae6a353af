"""A cloud whose OpenAI paths begin below its address, as `https://host/api/v1`."""

import asyncio
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from skep.config.load import make_upstream
from skep.engines.base import Launch
from skep.supervisor.remote_replica import probe_upstream
from skep.testing.gateway_process import GatewayProcess


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


def test_its_model_is_found_below_its_path(cloud, monkeypatch):
    monkeypatch.setenv("CLOUD_KEY", "of the cloud")
    upstream = make_upstream(cloud, 4, key_env="CLOUD_KEY")
    launch = Launch(upstream.name, "remote", "", None, 4, 0, 0, url=upstream.url, key_env="CLOUD_KEY")
    assert asyncio.run(probe_upstream(launch)).model == "big"


def test_requests_reach_it_below_its_path_with_its_own_key(cloud, tmp_path):
    spec = {"name": "cloud", "model": "big", "slots": 4, "authorization": "Bearer of the cloud"}
    body = json.dumps({"model": "big", "messages": []}).encode()
    with GatewayProcess(tmp_path / "gateway.log") as door:
        door.serve([{**spec, "url": make_upstream(cloud, 4).url}])
        with urllib.request.urlopen(f"{door.url}/v1/chat/completions", body) as answer:
            assert json.load(answer) == {"said": "/api/v1/chat/completions"}
