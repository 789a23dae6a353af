"""The power limit as a knob of `skep tune`: only where it is allowed by name, and always put back.
nvidia-smi is a scripted program on PATH.
"""

import json
from functools import partial

import pytest
from fake_programs import SMI
from in_process import call, refused

from power_smi import changes_of, limits_of, write_smi
from skep.tuner.power_limits import PowerLimits, record_of
from skep.tuner.running import machine_for
from skep.tuner.setup import TuningOptions, prepare

ALLOW = ("--allow", "power-limit")
ON_CARDS = ("qwen3-8b", "--engine", "vllm", "--gpus", "0", "--goal", "turns_min@2")
tune = partial(call, "tune")
refusal = partial(refused, "tune")


@pytest.fixture
def cards(programs):
    """The folder of an nvidia-smi that may set the limits of two 3090s."""
    write_smi(programs, SMI)
    return programs


def prepared(paths, **options):
    wishes = {"engine": "vllm", "goal": "turns_min@2", "budget": "12h", "allow": "power-limit"}
    return prepare(TuningOptions("qwen3-8b", **(wishes | options)), paths)


def test_lower_limits_are_tried_where_they_are_allowed_by_name(paths, cards):
    tuning = prepared(paths, gpus="0").tuning
    (knob,) = (knob for knob in tuning.knobs if knob.name == "power_limit")
    assert knob.values == (210, 245, 300, 350)
    assert tuning.baseline["power_limit"] == 350
    assert limits_of(cards) == [350, 350]


@pytest.mark.usefixtures("cards")
def test_nothing_is_limited_that_was_not_allowed(paths):
    knobs = prepared(paths, allow=None).tuning.knobs
    assert "power_limit" not in {knob.name for knob in knobs}


@pytest.mark.usefixtures("paths")
def test_where_limits_may_not_be_set_one_line_says_so(programs):
    write_smi(programs, SMI, may_set=False)
    error = refusal(*ON_CARDS, *ALLOW, "--budget", "12h")
    assert "the power limit of card 0 may not be set to 350 W: Unable to set power" in error
    assert "run skep as root, or leave `--allow power-limit` out" in error


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--allow", "overclocking"), "write --allow power-limit"),
        ((*ALLOW, "--gpu", "rtx-3090", "--simulate"), "no card draws power"),
        ((*ALLOW, "--goal", "effective_tok_s@2"), "is for the goal turns_min"),
        (
            ("--knobs", "power_limit", "--gpu", "rtx-3090", "--simulate"),
            "--allow power-limit makes it one",
        ),
    ],
)
def test_only_power_can_be_allowed_and_only_on_cards_that_draw_it(words, reason):
    assert reason in refusal("qwen3-8b", "--goal", "turns_min@2", *words)


def test_limits_are_put_back_when_the_tuning_is_stopped(paths, cards):
    lines = []

    def stopped_at(watts):
        with machine_for(prepared(paths), paths, lines.append, in_place=False):
            PowerLimits((0, 1), record_of(paths)).set(watts)
            assert limits_of(cards) == [watts, watts]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped_at(245)
    assert limits_of(cards) == [350, 350]
    assert lines == ["the power limit is what it was again: 350 W on card 0, 350 W on card 1"]
    assert not record_of(paths).exists()


def test_what_a_killed_tuning_left_is_put_back_by_the_next_one(paths, cards):
    record = record_of(paths)
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"0": 350}))
    (cards / "limits.json").write_text("[200, 350]")
    called = tune(*ON_CARDS, "--budget", "1s")
    assert "a tuning that was killed had changed it: the power limit is what it" in called.err
    assert limits_of(cards) == [350, 350]
    assert changes_of(cards) == ["-i 0 -pl 350"]
    assert not record.exists()


def test_what_cannot_be_put_back_is_said_with_the_command_that_does(paths, programs):
    write_smi(programs, SMI, may_set=False, limits=(200, 350))
    record = record_of(paths)
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"0": 350}))
    called = tune(*ON_CARDS, "--budget", "1s")
    assert "warning: a power limit was not put back" in called.err
    assert "run `nvidia-smi -i 0 -pl 350`" in called.err
    assert record.exists()
