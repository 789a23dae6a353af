"""A preset held against its published figures: after a sweep of what serves it, and from start to end."""

import json
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


QUICK = ("--runs", "3", "--budget", "60s")


def test_a_preset_is_started_measured_beside_its_figures_and_the_plan_and_stopped(mine, typed, tmp_path):
    document = json.loads(typed("check", mine, *QUICK, "--json").stdout)
    assert (document["preset"], document["source"], document["hardware"]) == ("mine", "a write-up", "2x rtx-3090")
    one, two = document["figures"]
    assert [one["published"]["tok_s"], two["published"]["tok_s"]] == [100.0, 4000.0]
    assert all(figure["planned_tok_s"] > 10 for figure in (one, two))
    assert one["share"] == pytest.approx(one["measured_tok_s"] / 100)
    assert two["measured_tok_s"] > 10 * one["measured_tok_s"]  # combined: 400 tokens in for 16 out
    (run,) = json.loads(typed("runs", "--json").stdout)
    assert run["id"] == document["run"]
    assert json.loads(typed("ps", "--json").stdout) == []
    assert not list((tmp_path / "state").rglob("start-*"))


def test_the_planned_figure_of_a_check_is_that_of_the_plan_of_the_preset(mine, typed, paths):
    """Also where its author gives no lengths, which both take to be the same."""
    path = paths.config / "presets" / "mine.toml"
    for text in (
        path.read_text(),
        path.read_text().replace("input_tokens = 400", "").replace("output_tokens = 16", ""),
    ):
        path.write_text(text)
        planned = json.loads(typed("plan", mine, "--json").stdout)["preset"]["figures"]
        checked = json.loads(typed("check", mine, *QUICK, "--json").stdout)["figures"]
        assert [one["planned_tok_s"] for one in checked] == [one["predicted_tok_s"] for one in planned]


def test_what_skep_serves_already_is_measured_where_it_is_the_preset(mine, typed):
    typed("up", mine, "-d")
    done = typed("check", mine, "-c", "1", *QUICK)
    assert "starting mine" not in done.stderr
    assert done.stdout.split("\n")[0].split() == [
        *("C", "tok/s", "of", "in", "/", "out", "published", "planned", "uncorrected", "measured"),
        *("95", "%", "of", "published"),
    ]
    assert "planned is corrected by other published rows of this layout; uncorrected is what" in done.stderr
    assert "published: a write-up; planned: for 2x rtx-3090; measured: here, now" in done.stderr
    said = typed("check", "qwen3.6-27b-2x3090-replicas", check=2).stderr
    assert "does not serve the preset `qwen3.6-27b-2x3090-replicas`" in said


def test_what_cannot_be_checked_is_said_before_anything_starts(mine, typed, paths):
    assert "no preset is called `absent`" in typed("check", "absent", check=2).stderr
    assert "`mine` has no figure at C=7" in typed("check", mine, "-c", "7", check=2).stderr
    path = paths.config / "presets" / "mine.toml"
    path.write_text(path.read_text().partition("[[published]]")[0])
    assert "`mine` has no published figures" in typed("check", mine, check=2).stderr


def test_a_sweep_is_shown_whatever_became_of_the_presets_file_meanwhile(mine, typed, paths):
    """A file that was broken after the start hid the table of all that was measured, and the exit code was 2."""
    typed("up", mine, "-d")
    (paths.config / "presets" / "mine.toml").write_text("[preset\n")
    done = typed("bench", "sweep", "--runs", "1", "--warm-up", "quick", "--tasks", "3", "-c", "1", "--max-tokens", "8")
    assert "eff tok/s" in done.stdout
    assert "no share of published figures: " in done.stderr


def test_a_sweep_of_a_preset_tells_the_share_of_its_published_figures(mine, typed):
    """One line, and where the lengths are others, that it is another load."""
    typed("up", mine, "-d")
    once = ("--runs", "3", "--warm-up", "quick", "--tasks", "4", "-c", "1,2,4", "--seed", "7")
    done = typed("bench", "sweep", *once, "--prompt-tokens", "400", "--output-tokens", "16", "--fixed-output")
    (line,) = [line for line in done.stderr.splitlines() if "has published" in line]
    assert line.startswith("share of the tok/s that mine has published: ")
    assert re.search(r"\d % of 100 at C=1|\d % of 4,000 at C=2", line)  # busy clients leave one out
    assert "its lengths are" not in line
    once = ("--runs", "1", "--warm-up", "quick", "--tasks", "3", "-c", "1")
    done = typed("bench", "sweep", *once, "--output-tokens", "8")
    (line,) = [line for line in done.stderr.splitlines() if "has published" in line]
    assert "; its lengths are 400 and 16 tokens in and out, here " in line
    assert "repeats its load" in line
