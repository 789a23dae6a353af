"""Lengths in tokens on a real engine: its own tokenizer and its own `usage`."""

import http.client
import json
import random
from contextlib import closing
from itertools import islice
from urllib.parse import urlsplit

import pytest

from embedded_process import MODEL, serving, weights
from skep.engines.base import Launch
from skep.workload.prompts import calibrate, coding_prompts, sample_prompts

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def ask():
    launch = Launch("e", "embedded", MODEL, weights(), slots=1, context_tokens=2048, threads=1)
    with (
        serving(launch) as url,
        closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection,
    ):

        def post(path, **body):
            connection.request(
                "POST", path, json.dumps(body), {"content-type": "application/json"}
            )
            return json.loads(connection.getresponse().read())

        yield post


@pytest.fixture(scope="module")
def count(ask):
    return lambda text: len(ask("/tokenize", content=text)["tokens"])


@pytest.fixture(scope="module")
def calibration(count):
    return calibrate(
        (prompt.text, count(prompt.text)) for prompt in sample_prompts(random.Random(11), count=24)
    )


@pytest.mark.parametrize(
    "tokens", [40, 100, 250, 1000, 8192, pytest.param(131_072, marks=pytest.mark.slow)]
)
def test_prompts_are_within_three_per_cent_on_average(tokens, calibration, count):
    """From one calibration for all lengths."""
    options = {
        "chars_per_token": calibration.chars_per_token,
        "overhead_tokens": calibration.overhead_tokens,
    }
    stream = coding_prompts(random.Random(12), tokens=tokens, **options)
    counted = [count(prompt.text) for prompt in islice(stream, 20 if tokens < 5000 else 3)]
    assert sum(counted) / len(counted) == pytest.approx(tokens, rel=0.03)


def test_usage_calibrates_as_well_as_a_tokenizer(ask, count):
    """The chat template's tokens are found as the overhead, and the engine reads as many as were
    asked for.
    """

    def templated(prompt):
        return count(ask("/apply-template", messages=prompt.messages)["prompt"])

    samples = sample_prompts(random.Random(3), tokens=120, count=16)
    calibration = calibrate((prompt.text, templated(prompt)) for prompt in samples)
    options = {
        "chars_per_token": calibration.chars_per_token,
        "overhead_tokens": calibration.overhead_tokens,
    }
    prompts = list(islice(coding_prompts(random.Random(4), tokens=120, **options), 20))
    assert sum(map(templated, prompts)) / len(prompts) == pytest.approx(120, rel=0.03)
    answer = ask("/v1/chat/completions", messages=prompts[0].messages, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == templated(prompts[0])
