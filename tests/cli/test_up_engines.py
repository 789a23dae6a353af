"""Engines of others from the command line: their program is a stand-in that dies as vLLM does, or the fake engine."""

import json
import sys

import pytest
from talk import ask, rows_of

VLLM = f"""#!{sys.executable}
import os, sys
words = sys.argv
if "--help" in " ".join(words):
    print("  --served-model-name --port --host --max-num-seqs --max-model-len --gpu-memory-utilization --dtype --seed")
    print("  --kv-cache-dtype --tensor-parallel-size --disable-log-requests --enable-prefix-caching --block-size")
    print("  --swap-space --enforce-eager --quantization --load-format --tokenizer --revision --trust-remote-code")
    sys.exit(0)
value = lambda flag: words[words.index(flag) + 1]
if float(value("--gpu-memory-utilization")) > 0.85:
    print("INFO 11-15 10:00:00 [gpu_model_runner.py:100] Graph capturing started")
    print("ERROR 11-15 10:00:02 [core.py:866] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512 MiB.")
    sys.exit(1)
own = ["--model", value("--served-model-name"), "--slots", value("--max-num-seqs"), "--port", value("--port")]
os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "skep.testing.fake_engine", *own])
"""


@pytest.fixture
def vllm(tmp_path):
    program = tmp_path / "vllm"
    program.write_text(VLLM)
    program.chmod(0o755)
    return program


def started(skep, vllm, *options, check=0):
    return skep("up", "org/model", "--engine", "vllm", "--binary", vllm, "--slots", "2", "--port", "0",
                "--memory-share", "0.92", *options, "-d", "--json", check=check)  # fmt: skip


def test_a_dying_engine_falls_back_step_by_step_and_says_what_it_changed(skep, vllm):
    url = json.loads(started(skep, vllm, "--fallback").stdout)["url"]
    assert ask(url, model="org/model")[0] == 200
    row = rows_of(skep)["org-model-0"]
    assert row["why"].startswith("fell back: memory_share 0.92 -> 0.")
    assert row["restarts"] == row["why"].count("->") >= 1


def test_without_leave_to_fall_back_cause_and_remedy_are_one_line(skep, vllm):
    done = started(skep, vllm, check=1)
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "out of GPU memory" in line
    assert "lower memory_share from 0.92 to 0." in line
    assert rows_left(skep) == []


def test_a_flag_that_the_installed_version_does_not_know_is_said_before_the_start(skep, vllm, tmp_path):
    serve = f'model = "org/m"\nengine = "vllm"\nbinary = "{vllm}"\nextra = ["--sead", "1"]\n'
    (tmp_path / "skep.toml").write_text(f"[gateway]\nport = 0\n[[serve]]\n{serve}")
    done = skep("up", "-d", check=2)
    assert "does not know the flag `--sead`" in done.stderr
    assert "did you mean `--seed`?" in done.stderr


def test_an_engine_that_is_not_installed_says_how_to_get_it(skep):
    done = skep("up", "org/model", "--engine", "vllm", check=2, PATH="/nowhere")
    assert "not installed" in done.stderr
    assert "pip install vllm" in done.stderr


def rows_left(skep):
    return json.loads(skep("ps", "--json").stdout)
