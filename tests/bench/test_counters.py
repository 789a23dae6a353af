"""The engine's own counters, from texts as engines write them and from a live one."""

import asyncio
import json
import urllib.request

import pytest

from skep.bench.session import read_counters
from skep.bench.summary import counted
from skep.testing.process import FakeEngine, GatewayProcess
from skep.wire.client import Pool
from skep.wire.heads import parse_url
from skep.wire.prometheus import label_samples, parse_metrics

VLLM = """\
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} {ttft}
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.01",model_name="m"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 9.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} {count}
vllm:generation_tokens_total{engine="0",model_name="m"} {tokens}
vllm:generation_tokens_total{engine="1",model_name="m"} 5.0
vllm:prefix_cache_queries_total 1e+03
vllm:prefix_cache_hits_total 250
vllm:gauge NaN
"""


def vllm(**values):
    text = VLLM
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return parse_metrics(text)


def test_samples_are_summed_over_their_labels():
    counters = vllm(ttft=1.5, count=3, tokens=10)
    assert counters["vllm:generation_tokens_total"] == 15.0
    assert counters["vllm:prefix_cache_queries_total"] == 1000.0
    assert "vllm:gauge" not in counters
    assert parse_metrics('vllm:generation_tokens_total{model_name="a}b"} 7.0\n') != {}
    assert parse_metrics("<html>no metrics here</html>\n") == {}


@pytest.mark.parametrize(
    ("before", "after", "ttft_s"),
    [
        (vllm(ttft=1.0, count=10, tokens=100), vllm(ttft=1.6, count=12, tokens=140), 0.3),
        ({}, vllm(ttft=1.0, count=4, tokens=8), 0.25),
        (vllm(ttft=1.0, count=4, tokens=8), vllm(ttft=1.0, count=4, tokens=8), None),
        (vllm(ttft=5.0, count=50, tokens=900), vllm(ttft=0.1, count=1, tokens=2), None),
        ({}, {}, None),
        ({}, {"vllm:time_to_first_token_seconds_count": 4.0}, None),
    ],
    ids=[
        "meanwhile",
        "from its first use on",
        "nothing happened",
        "started anew",
        "no metrics",
        "no sum",
    ],
)
def test_a_mean_is_the_sum_over_the_count_of_what_came_meanwhile(before, after, ttft_s):
    """Means never come from buckets: the lowest bucket of vLLM is 10 ms."""
    assert counted(before, after).get("ttft_s") == (
        None if ttft_s is None else pytest.approx(ttft_s)
    )


def test_tokens_are_counted_and_an_engine_started_anew_meanwhile_says_nothing():
    figures = counted(vllm(ttft=1.0, count=10, tokens=100), vllm(ttft=1.6, count=12, tokens=140))
    assert (figures["output_tokens"], figures["cached_tokens"]) == (40.0, 0.0)
    assert counted(vllm(ttft=5.0, count=50, tokens=900), vllm(ttft=0.1, count=1, tokens=2)) == {}


def read(url, model="fake-model"):
    async def run():
        pool = Pool(parse_url(url)[0])
        try:
            return await read_counters(pool, {}, model)
        finally:
            await pool.close()

    return asyncio.run(run())


def test_a_live_engine_is_asked_and_one_without_metrics_is_not_missed():
    with FakeEngine() as engine:
        assert read(engine.url)["vllm:generation_tokens_total"] == 0.0
        engine.fault(kind="500", path="/metrics")
        assert read(engine.url) == {}
    assert read("http://127.0.0.1:9") == {}


def ask(gateway, model):
    body = {"model": model, "messages": [{"role": "user", "content": "one two"}], "max_tokens": 5}
    request = urllib.request.Request(
        f"{gateway.url}/v1/chat/completions", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def test_behind_the_gateway_counters_of_all_replicas_of_the_model_are_read(
    tmp_path,
):
    """The gateway's `/metrics` are its own, so `engine_tok_s` was null for every vLLM behind
    it.
    """
    with (
        FakeEngine() as fake_engine,
        FakeEngine() as second_engine,
        FakeEngine(model="other") as other_model,
    ):
        rows = [
            {"name": name, "url": engine.url, "slots": 1, "model": model, "confirms": "metrics"}
            for name, engine, model in (
                ("a", fake_engine, "fake-model"),
                ('b"x', second_engine, "fake-model"),
                ("c", other_model, "other"),
            )
        ]
        with GatewayProcess(tmp_path / "gateway.log") as gateway:
            gateway.serve(rows)
            for model in ("fake-model", "fake-model", "other"):
                ask(gateway, model)
            counters = read(gateway.url)
            direct = [
                read(engine.url)["vllm:generation_tokens_total"]
                for engine in (fake_engine, second_engine)
            ]
            assert sum(direct) == counters["vllm:generation_tokens_total"] == 10.0
            assert counters["skep_build_info"] == 1.0
            assert read(gateway.url, "other")["vllm:generation_tokens_total"] == 5.0
            second_engine.fault(kind="500", path="/metrics")
            assert read(gateway.url)["vllm:generation_tokens_total"] == direct[0]
            with urllib.request.urlopen(f"{gateway.url}/metrics/engines", timeout=30) as answer:
                text = answer.read().decode()
            assert (
                f'vllm:generation_tokens_total{{replica="a",model_name="fake-model"}} '
                f"{direct[0]:g}\n"
            ) in text
            assert 'llamacpp:tokens_predicted_total{replica="c"} 5\n' in text
            assert "#" not in text


def test_an_engines_samples_get_the_name_of_their_replica_whatever_it_is():
    lines = '# HELP a b\na 1\nb{c="}{"} 2.5e3\n\nd{} 3'
    assert (
        label_samples(lines, 'r"0')
        == 'a{replica="r\\"0"} 1\nb{replica="r\\"0",c="}{"} 2.5e3\nd{replica="r\\"0",} 3\n'
    )
