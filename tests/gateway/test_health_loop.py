"""What engines say of their running requests."""

import pytest

from skep.gateway.health_loop import count_running

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
