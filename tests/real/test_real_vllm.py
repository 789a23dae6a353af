"""vLLM itself, on the CPU, through skep: `make test-vllm` makes the environment and runs this."""

import json
import os
import signal

import pytest
from real_hive import MODEL, RealHive, sweep

from api_clients import openai
from skep.bench.summary import counted
from skep.host.processes import descendants
from skep.wire.prometheus import parse_metrics

CHECKPOINT = os.environ.get("SKEP_VLLM_CHECKPOINT")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not CHECKPOINT or not os.environ.get("SKEP_VLLM"), reason="`make test-vllm` runs this"
    ),
]
# float32 without compilation is what every processor does at once; x86 with AVX-512 is faster in
# bfloat16.
SERVE = f"""
model = "{MODEL}"
engine = "vllm"
checkpoint = "{CHECKPOINT}"
slots = 8
context = 2048
env = {{ VLLM_CPU_KVCACHE_SPACE = "2" }}
[serve.options]
dtype = "{os.environ.get("SKEP_VLLM_DTYPE", "float32")}"
graphs = false
"""


@pytest.fixture(scope="module")
def hive(tmp_path_factory):
    real_hive = RealHive(tmp_path_factory.mktemp("vllm"), SERVE)
    yield real_hive
    real_hive.down()


def test_it_comes_ready_warmed_up_and_tells_its_version(hive):
    row = hive.replica
    assert (row["state"], row["slots"], row["simulated"]) == ("ready", 8, False)
    assert row["engine"].startswith("vllm 0.")


def test_the_openai_client_gets_sense_streamed_and_whole(hive):
    with openai.OpenAI(base_url=f"{hive.url}/v1", api_key="none", max_retries=0) as client:
        ask = {"model": MODEL, "messages": [{"role": "user", "content": ("What is the capital of "
"France?")}],
               "max_tokens": 12, "temperature": 0}  # fmt: skip
        whole = client.chat.completions.create(**ask)
        assert "Paris" in whole.choices[0].message.content
        chunks = list(client.chat.completions.create(**ask, stream=True))
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        == whole.choices[0].message.content
    )


def test_its_metrics_are_read_in_the_one_form(hive):
    before = parse_metrics(hive.metrics())
    with openai.OpenAI(base_url=f"{hive.url}/v1", api_key="none", max_retries=0) as client:
        usage = client.completions.create(
            model=MODEL, prompt="One, two,", max_tokens=5, temperature=0
        ).usage
    figures = counted(before, parse_metrics(hive.metrics()))
    assert figures["output_tokens"] == usage.completion_tokens
    assert figures["prompt_tokens"] == usage.prompt_tokens
    assert figures["ttft_s"] > 0


def test_a_sweep_has_the_engines_own_clock_beside_the_clients(hive):
    document = sweep(hive)
    assert [level["concurrency"] for level in document["levels"]] == [1, 4]
    for level in document["levels"]:
        assert level["failed"] == 0
        assert level["engine_tok_s"] == pytest.approx(1000 / level["tpot_ms"]["p50"], rel=0.3)
    one, four = (level["effective_tok_s"] for level in document["levels"])
    assert four > 1.3 * one  # it batches


def test_calibration_fits_the_planner_to_it(hive):
    sizes = ("--levels", "1,4", "--prompt-tokens", "256", "--budget", "4m")
    done = hive.skep("calibrate", *sizes, "--geometry", CHECKPOINT, "--json")
    document = json.loads(done.stdout)
    assert (document["engine"], document["simulated"]) == ("vllm", False)


def test_a_killed_core_is_explained_and_the_replica_comes_back(hive):
    before = hive.replica
    core = max(descendants(before["pid"]), key=lambda pid: pid == before["pid"] or resident(pid))
    os.kill(core, signal.SIGKILL)
    row = hive.until(lambda row: row["pid"] != before["pid"] and row["state"] == "ready")
    assert row["restarts"] == before["restarts"] + 1
    with openai.OpenAI(base_url=f"{hive.url}/v1", api_key="none", max_retries=0) as client:
        assert (
            client.completions.create(
                model=MODEL, prompt="One,", max_tokens=2
            ).usage.completion_tokens
            == 2
        )


def resident(pid):
    from pathlib import Path

    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
