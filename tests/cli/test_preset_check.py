"""A preset held against its published figures: after a sweep of what serves it, and from start to end."""

import os
import re

import pytest
from fake_programs import SMI, vllm_program

PUBLISHED = """
title = "A 27B on two cards"
engine = "vllm"
model = "qwen3.6-27b"
checkpoint = "{weights}"
hardware = "2x rtx-3090"
source = "a write-up"
slots = 2
context = 4096
options = {{ tp = 2, quant = "awq" }}

[[published]]
tok_s = 100.0
metric = "output"
concurrency = 1
input_tokens = 400
output_tokens = 16

[[published]]
tok_s = 4000.0
metric = "combined"
concurrency = 2
input_tokens = 400
output_tokens = 16
"""


@pytest.fixture
def mine(paths, programs, tmp_path, monkeypatch):
    """A preset of one's own on a machine with two fake cards and a fake vLLM."""
    for name, text in (
        ("nvidia-smi", SMI),
        ("vllm", vllm_program().replace('"--token-ms", "1"', '"--token-ms", "10"')),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    folder = paths.config / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(PUBLISHED.format(weights=weights))
    (tmp_path / "skep.toml").write_text("[gateway]\nport = 0\n")
    return "mine"


@pytest.fixture
def typed(skep, programs):
    """What a user types on that machine."""
    return lambda *words, check=0: skep(*words, check=check, PATH=os.environ["PATH"])


def test_a_sweep_of_a_preset_tells_the_share_of_its_published_figures(mine, typed):
    """One line, and where the lengths are others, that it is another load."""
    typed("up", mine, "-d")
    once = ("--runs", "3", "--warm-up", "quick", "--tasks", "4", "-c", "1,2,4")
    done = typed("bench", "sweep", *once, "--prompt-tokens", "400", "--output-tokens", "16", "--fixed-output")
    (line,) = [line for line in done.stderr.splitlines() if "has published" in line]
    assert line.startswith("share of the tok/s that mine has published: ")
    assert re.search(r"\d % of 100 at C=1|\d % of 4,000 at C=2", line)  # busy clients leave one out
    assert "its lengths are" not in line
    done = typed("bench", "sweep", *once, "--output-tokens", "8")
    (line,) = [line for line in done.stderr.splitlines() if "has published" in line]
    assert "; its lengths are 400 and 16 tokens in and out, here " in line
    assert "repeats its load" in line
