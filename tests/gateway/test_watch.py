"""What engines say of their running requests."""

import json
import socket

import pytest

from skep.gateway.watch import count_running
from skep.testing.gateway_process import GatewayProcess
from skep.testing.process import FakeEngine

VLLM = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 9.0
"""
SGLANG = b"sglang:num_running_reqs 4.0\nsglang:num_queue_reqs 7.0\n"


@pytest.mark.parametrize(("metrics", "running"), [
    (VLLM, 5),
    (SGLANG, 4),
    (b"vllm:num_requests_running 1e+01\n", 10),
    (b"", None),
    (b"sglang:num_queue_reqs 7.0\n", None),
    (b"vllm:num_requests_running 1.2.3\n", None),
    (b"vllm:num_requests_running 9e999\n", None),
    (b"vllm:num_requests_running NaN\n", None),
])  # fmt: skip
def test_running_requests_are_read_from_an_engines_metrics(metrics, running):
    assert count_running(metrics) == running


def post(port, tokens):
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "max_tokens": tokens, "stream": True}
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
    )
    return sock


def test_what_runs_for_other_gateways_holds_up_no_slot_of_ours(gateway):
    """Without that, a slot whose client left came back after half a minute, as long as another door was busy."""
    with FakeEngine(slots=4, token_ms=5) as engine, post(int(engine.url.rpartition(":")[2]), 100_000):
        engine.wait_for(running=1)
        door = gateway()
        spec = {"name": "r0", "model": "fake-model", "url": engine.url, "slots": 1, "confirms": "slots", "others": 1}
        GatewayProcess.serve(door, [spec])
        with post(door.port, 100_000) as sock:
            assert b"200 OK" in sock.recv(100)
        with post(door.port, 2) as sock:
            assert b"200 OK" in sock.recv(100)
        assert engine.state()["max_inside"] == 2
