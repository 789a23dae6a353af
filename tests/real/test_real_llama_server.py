"""A llama-server of one's own through skep: `make test-llama-server` finds or builds it and runs
this.
"""

import json
import os
import signal

import pytest
from real_hive import MODEL, RealHive, sweep

from api_clients import openai
from skep.bench.summary import counted
from skep.wire.prometheus import parse_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("SKEP_LLAMA_SERVER"), reason="`make test-llama-server` runs this"
    ),
]
SERVE = f"""
model = "{MODEL}"
engine = "llamacpp"
slots = 4
context = 1024
"""


@pytest.fixture(scope="module")
def hive(tmp_path_factory):
    real_hive = RealHive(tmp_path_factory.mktemp("llama"), SERVE)
    yield real_hive
    real_hive.down()


def test_it_comes_ready_with_its_slots_and_tells_its_version(hive):
    row = hive.replica
    assert (row["state"], row["slots"]) == ("ready", 4)
    assert row["engine"].startswith("llama")


def test_its_metrics_are_read_in_the_one_form(hive):
    before = parse_metrics(hive.metrics())
    with openai.OpenAI(base_url=f"{hive.url}/v1", api_key="none", max_retries=0) as client:
        usage = client.completions.create(
            model=MODEL, prompt="One, two,", max_tokens=5, temperature=0
        ).usage
    figures = counted(before, parse_metrics(hive.metrics()))
    assert figures["output_tokens"] == usage.completion_tokens
    assert figures["decode_busy_s"] > 0


def test_a_sweep_and_a_calibration_run_on_it(hive):
    document = sweep(hive)
    assert all(level["failed"] == 0 and level["engine_tok_s"] for level in document["levels"])
    done = hive.skep(
        "calibrate", "--levels", "1,4", "--prompt-tokens", "128", "--budget", "3m", "--json"
    )
    assert json.loads(done.stdout)


def test_it_is_started_again_when_it_is_killed(hive):
    before = hive.replica
    os.kill(before["pid"], signal.SIGKILL)
    row = hive.until(lambda row: row["pid"] != before["pid"] and row["state"] == "ready")
    assert row["restarts"] == before["restarts"] + 1
