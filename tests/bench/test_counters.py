"""The engine's own counters, from texts as engines write them and from a live one."""

import asyncio

import pytest

from skep.bench.counters import counted, parse_counters, read_counters
from skep.testing.process import FakeEngine
from skep.wire.client import Pool
from skep.wire.heads import parse_url

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
    return parse_counters(text)


def test_samples_are_summed_over_their_labels():
    found = vllm(ttft=1.5, count=3, tokens=10)
    assert found["vllm:generation_tokens_total"] == 15.0
    assert found["vllm:prefix_cache_queries_total"] == 1000.0
    assert "vllm:gauge" not in found


def test_a_mean_is_the_sum_over_the_count_of_what_came_meanwhile():
    """Never from buckets: the lowest of vLLM's is 10 ms."""
    found = counted(vllm(ttft=1.0, count=10, tokens=100), vllm(ttft=1.6, count=12, tokens=140))
    assert found["ttft_s"] == pytest.approx(0.3)
    assert (found["output_tokens"], found["cached_tokens"]) == (40.0, 0.0)


def test_a_counter_that_appears_with_its_first_use_began_at_nothing():
    assert counted({}, vllm(ttft=1.0, count=4, tokens=8))["ttft_s"] == 0.25


def test_nothing_happened_means_no_mean():
    same = vllm(ttft=1.0, count=4, tokens=8)
    assert "ttft_s" not in counted(same, same)


def test_an_engine_started_anew_meanwhile_says_nothing():
    assert counted(vllm(ttft=5.0, count=50, tokens=900), vllm(ttft=0.1, count=1, tokens=2)) == {}


def test_no_metrics_say_nothing():
    assert counted({}, {}) == {}
    assert parse_counters("<html>no metrics here</html>\n") == {}


def test_a_mean_without_its_sum_is_unknown_and_not_zero():
    assert "ttft_s" not in counted({}, {"vllm:time_to_first_token_seconds_count": 4.0})


def test_a_brace_inside_a_label_is_no_end():
    assert parse_counters('vllm:generation_tokens_total{model_name="a}b"} 7.0\n') != {}


def test_a_live_engine_is_asked_and_one_without_metrics_is_not_missed():
    async def run(url):
        pool = Pool(parse_url(url)[0])
        try:
            return await read_counters(pool, {})
        finally:
            await pool.close()

    with FakeEngine() as engine:
        assert asyncio.run(run(engine.url))["vllm:generation_tokens_total"] == 0.0
        engine.fault(kind="500", path="/metrics")
        assert asyncio.run(run(engine.url)) == {}
    assert asyncio.run(run("http://127.0.0.1:9")) == {}
