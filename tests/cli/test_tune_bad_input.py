"""What `skep tune` refuses, in one line each, and that nothing is left running or stored when it does."""

import os

import pytest
from called import own_folders, tune

from skep.errors import EngineError
from skep.paths import user_paths
from skep.tuner.trial_server import tuner_lock

RIG = ("--gpu", "rtx-4090", "--simulate")


@pytest.fixture(autouse=True)
def paths(tmp_path, monkeypatch):
    own_folders(monkeypatch, tmp_path)
    return user_paths(os.environ)


REFUSED = [
    (("qwen3-8b", *RIG, "--goal", "speed@4"), 2, "no metric is called `speed`"),
    (("qwen3-8b", *RIG, "--goal", "effective_tok_s"), 2, "does not say at how many agents"),
    (("qwen3-8b", *RIG, "--goal", "effective_tok_s@0"), 2, "0 agents cannot be measured"),
    (("qwen3-8b", *RIG, "--slo", "speed=1s"), 2, "speed"),
    (("qwen3-8b", *RIG, "--budget", "soon"), 2, "`soon` is not a duration"),
    (("qwen3-8b", *RIG, "--budget", "20s"), 2, "--budget 20.0 s is too short for one trial"),
    (("qwen3-8b", *RIG, "--min-context", "100"), 2, "is less than a task's"),
    (("qwen3-8b", *RIG, "--min-context", "99999999"), 2, "beyond"),
    (("qwen3-8b", *RIG, "--knobs", "slot"), 2, "`slot` is no knob here"),
    (("qwen3-8b", *RIG, "--set", "slots=lots"), 2, "`lots` is no value of it"),
    (("qwen3-8b", *RIG, "--engine", "embedded"), 2, "there is no engine `embedded` to tune"),
    (("qwen3-8b", *RIG, "--gpus", "0"), 2, "--gpus means nothing with --simulate"),
    (("qwen3-8b", *RIG, "--in-place"), 2, "--in-place means nothing with --simulate"),
    (("qwen3-8b", *RIG, "--quality", "drills"), 2, "--quality means nothing with --simulate"),
    (("qwen3-8b", *RIG, "--checkpoint", "some/weights"), 2, "with --simulate no weights are loaded"),
    (("qwen3-8b", *RIG, "--goal", "effective_tok_s@100000"), 2, "100000 agents cannot be measured"),
    (("qwen3-8b", *RIG, "--goal", "effective_tok_s@4>=nan"), 2, "a target of nan cannot be aimed at"),
    (("qwen3-8b", "--gpu", "no-such-card", "--simulate"), 2, "no-such-card"),
    (("llama-3.1-405b", *RIG), 3, "405b"),
    (("qwen3.6-27b-2x3090-awq", "--gpu", "2x rtx-3060", "--simulate"), 3, "the beginning itself cannot start"),
    (("qwen3.6-27b-2x3090-awq", *RIG), 2, "TP=2 needs 2 cards"),
    (("qwen3-8b", "--gpu", "rtx-4090"), 2, "--gpu is of a rig that is not here"),
    (("no-such-model",), 2, "`no-such-model` is no preset, no model"),
    (("resum",), 2, "`resum` is no preset and no model"),
    (("./no-such.gguf",), 2, "no-such.gguf"),
    (("smollm2-135m", "--goal", "tok_per_joule@4"), 2, "nothing here tells what a CPU draws"),
    (("smollm2-135m", "--gpus", "0"), 2, "it runs on no card"),
    (("smollm2-135m", "--quality", "nosuch"), 2, "nosuch"),
    (("smollm2-135m", "--html", "no/such/folder.html"), 2, "there is no folder"),
    (("show",), 2, "there are no tunings yet"),
    (("resume",), 2, "there are no tunings yet"),
    (("export", "name"), 2, "there are no tunings yet"),
    (("rm", "nosuch"), 2, "there are no tunings yet"),
]


@pytest.mark.parametrize(("words", "code", "said"), REFUSED, ids=[" ".join(words) for words, _, _ in REFUSED])
def test_it_is_refused_in_one_line_and_nothing_is_stored(words, code, said, paths):
    error = tune(*words, check=code).error
    assert said in error.message
    assert "\n" not in error.message
    assert error.hint
    assert not paths.store.exists()


def test_without_cards_there_is_nothing_to_simulate_unless_a_rig_is_named(no_cards):
    error = tune("qwen3-8b", "--simulate", check=2).error
    assert "which rig is to be simulated" in error.message
    assert "--gpu" in error.hint


def test_a_preset_for_cards_is_not_tuned_without_any(no_cards):
    error = tune("qwen3.6-27b-2x3090-awq", check=3).error
    assert "this machine has no GPU" in error.message


@pytest.fixture
def no_cards(monkeypatch, tmp_path):
    """No nvidia-smi is found."""
    monkeypatch.setenv("PATH", str(tmp_path))


def test_one_machine_has_one_tuner(paths):
    """Two would measure each other. A simulated one is in nobody's way."""
    with tuner_lock(paths):
        error = tune("smollm2-135m", "--budget", "2h", "--quality", "off", check=1).error
        assert isinstance(error, EngineError)
        assert f"a tuner is already running (pid {os.getpid()})" in error.message
    assert not paths.store.exists()


def test_a_budget_that_is_too_short_is_told_with_the_time_that_it_takes():
    hint = tune("qwen3-8b", *RIG, "--budget", "1m", check=2).error.hint
    assert "two starts of the baseline, and two of both sides, take about" in hint
    assert hint.endswith(" s")


def test_what_cannot_be_kept_or_reached_is_told_with_what_came_closest():
    climb = ("qwen3-8b", *RIG, "--knobs", "graphs", "--budget", "40m", "--seed", "3")
    slow = tune(*climb, "--slo", "ttft=1ms", check=1).error
    assert "no configuration kept ttft_p95=1ms at C=4; closest came " in slow.message
    short = tune(*climb, "--goal", "effective_tok_s@4>=99999", check=1)
    assert "no configuration reached 99999 tok/s; closest came " in short.error.message
    assert "(ended, " in short.err


def test_the_group_itself_shows_its_words_and_an_example():
    shown = tune("--help", check=0).out
    assert "resume" in shown
    assert "Example: skep tune smollm2-135m" in shown
