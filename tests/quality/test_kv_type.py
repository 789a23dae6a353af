"""The KV type of an endpoint, as skep's gateway, vLLM and SGLang tell it."""

import asyncio
import json

import pytest

from recorded_server import recorded
from skep.bench.endpoint import Endpoint
from skep.quality.kv_type import kv_words, named_kv, served_kv
from skep.wire.heads import parse_url

VLLM = b'vllm:cache_config_info{block_size="16",cache_dtype="fp8",engine="0"} 1.0\n'
GATEWAY = b"skep_build_info 1\n"


def kv_of(pages, engine=None):
    """`pages`: what is served at a path, as bytes; other paths are not there."""

    def page(path):
        place = path.partition("?")[0]
        if place in pages:
            return pages[place]
        return 404, b"{}"

    with recorded(page=page) as server:
        origin, base = parse_url(server.url)
        endpoint = Endpoint(origin, base, "m", engine=engine or {})
        return asyncio.run(served_kv(endpoint))


def test_a_hive_tells_the_type_that_it_started_its_engine_with():
    assert kv_of({}, {"setup": {"checkpoint": "c", "kv": "q8_0"}}) == "q8_0"
    assert kv_of({}, {"setup": {"checkpoint": "c"}}) == "bf16"


def test_vllm_tells_it_in_its_metrics():
    assert kv_of({"/metrics": VLLM}) == "fp8"


def test_a_gateway_hands_on_the_metrics_of_its_engines():
    assert kv_of({"/metrics": GATEWAY, "/metrics/engines": VLLM}) == "fp8"


def test_engines_of_two_types_behind_one_gateway_are_an_unknown_type():
    mixed = VLLM + VLLM.replace(b"fp8", b"auto")
    assert kv_of({"/metrics": GATEWAY, "/metrics/engines": mixed}) is None


def test_sglang_tells_it_in_its_server_info():
    info = json.dumps({"kv_cache_dtype": "fp8_e5m2"}).encode()
    assert kv_of({"/get_server_info": info}) == "fp8_e5m2"


def test_a_server_that_tells_nothing_has_an_unknown_type():
    assert kv_of({}) is None


@pytest.mark.parametrize(
    ("word", "name"),
    [("auto", "bf16"), ("f16", "bf16"), ("FP8", "fp8"), ("odd-type", "odd-type"), ("", None)],
)
def test_a_type_has_the_planners_name_where_it_has_one(word, name):
    assert named_kv(word) == name


@pytest.mark.parametrize(
    ("name", "words"),
    [(None, "an unknown KV type"), ("bf16", "KV of 16 bits"), ("fp8", "KV fp8"), ("x", "KV x")],
)
def test_a_type_is_said_as_people_say_it(name, words):
    assert kv_words(name) == words
