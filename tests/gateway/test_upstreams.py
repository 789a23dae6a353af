"""The gateway in front of replicas that want a key, which it shows wherever it asks, or whose
paths begin below one.
"""

import json

import pytest
from gateway_client import MODEL, body, call, open_post, post, read_until, told

from recorded_server import recorded
from skep.config.load import make_upstream
from skep.engines.base import Launch
from skep.gateway.health_loop import count_running
from skep.supervisor.remote_replica import probe_upstream
from skep.testing.process import FakeEngine

HOST = "127.0.0.2"
KEY = "a-key-of-this-hive"


@pytest.mark.parametrize("confirms", ["slots", "metrics"])
def test_requests_and_the_question_for_busy_slots_show_the_replicas_key(
    start_gateway, tmp_path, confirms
):
    """Without it a slot whose client left would come back after half a minute only."""
    with FakeEngine(slots=4, token_ms=5, deaf_ms=300, host=HOST, key=KEY) as engine:
        assert engine.url.startswith(f"http://{HOST}:")
        gateway = start_gateway()
        spec = {"name": "r0", "url": engine.url, "model": MODEL, "slots": 1, "confirms": confirms}
        gateway.serve([{**spec, "authorization": f"Bearer {KEY}"}])
        with open_post(gateway, body(max_tokens=1000, stream=True)) as sock:
            assert b"error" not in read_until(sock, lambda received: received.count(b"data:") >= 2)
        status, headers, _ = post(gateway, authorization="Bearer of-the-client")
        assert status == 200
        assert 200 < float(told(headers, "queue-ms")) < 10_000
        assert engine.state()["max_inside"] == 1
        assert engine.state()["last_headers"]["authorization"] == f"Bearer {KEY}"
        gateway.close()
    assert KEY not in "".join(path.read_text() for path in tmp_path.glob("*.log"))


async def test_a_cloud_below_a_path_is_asked_for_its_model_and_for_answers_there(
    start_gateway, monkeypatch
):
    """Its OpenAI paths begin below its address, as `https://host/api/v1`."""
    monkeypatch.setenv("CLOUD_KEY", "of the cloud")

    def answer(path, headers, _body):
        return json.dumps({"said": path, "key": headers["authorization"]}).encode()

    models = {"/api/v1/models": b'{"data": [{"id": "big"}]}'}
    with recorded(answer, lambda path: models.get(path, b"ok")) as cloud:
        upstream = make_upstream(f"{cloud.url}/api/v1", 4, key_env="CLOUD_KEY")
        launch = Launch(
            upstream.name, "remote", "", None, 4, 0, 0, url=upstream.url, key_env="CLOUD_KEY"
        )
        assert (await probe_upstream(launch)).model == "big"
        gateway = start_gateway()
        spec = {
            "name": "cloud",
            "model": "big",
            "slots": 4,
            "authorization": "Bearer of the cloud",
        }
        gateway.serve([{**spec, "url": upstream.url}])
        text = call(gateway, document={"model": "big", "messages": []})[2]
    assert json.loads(text) == {"said": "/api/v1/chat/completions", "key": "Bearer of the cloud"}


VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 9.0
"""
SGLANG = "sglang:num_running_reqs 4.0\nsglang:num_queue_reqs 7.0\n"


@pytest.mark.parametrize(
    ("metrics", "running"),
    [
        (VLLM, 5),
        (SGLANG, 4),
        ("vllm:num_requests_running 1e+01\n", 10),
        ("", None),
        ("sglang:num_queue_reqs 7.0\n", None),
        ("vllm:num_requests_running 1.2.3\n", None),
        ("vllm:num_requests_running 9e999\n", None),
        ("vllm:num_requests_running NaN\n", None),
    ],
)
def test_running_requests_are_read_from_an_engines_metrics(metrics, running):
    assert count_running(metrics) == running


def test_an_upstream_with_endless_metrics_is_left_out_and_named_once(start_gateway, tmp_path):
    with (
        recorded(page=lambda _path: b"x" * 5_000_000) as loud,
        recorded(page=lambda _path: b"a 1\n") as good,
    ):
        gateway = start_gateway()
        specs = [("loud", loud.url), ("good", good.url)]
        gateway.serve(
            [{"name": name, "url": url, "model": MODEL, "slots": 1} for name, url in specs]
        )
        for _ in range(2):
            assert call(gateway, "GET", "/metrics/engines")[2] == b'a{replica="good"} 1\n'
        gateway.close()
    log = (tmp_path / "gateway-0.log").read_text()
    assert (
        log.count(
            "state.unreadable replica='loud' path=/metrics why='an answer of more than "
            "4,194,304 bytes'"
        )
        == 1
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("answer", [b'{"choices": []}', [b"data: {}\n\n", b"data: [DONE]\n\n"]])
def test_an_upstream_s_cookies_and_words_of_the_gateway_do_not_reach_clients(
    start_gateway, workers, answer
):
    """Who asks would be known to the next upstream, and `x-skep` is read as the gateway's own."""
    lines = [
        ("set-cookie", "who=1"), ("Set-Cookie2", "who=2"), ("x-skep", "id=theirs; replica=theirs"),
        ("X-Skep-Replica", "theirs"), ("x-kept", "yes"),
    ]  # fmt: skip
    with recorded(lambda *_: answer, lines=lines) as server:
        gateway = start_gateway(workers=workers)
        gateway.serve([{"name": "r0", "url": server.url, "model": MODEL, "slots": 1}])
        status, headers, _ = call(gateway, document=body(stream=isinstance(answer, list)))
        names = [name.lower() for name in headers]
        gateway.close()
    assert (status, headers["x-kept"], told(headers, "replica")) == (200, "yes", "r0")
    assert names.count("x-skep") == 1
    assert not {"set-cookie", "set-cookie2", "x-skep-replica"} & set(names)
