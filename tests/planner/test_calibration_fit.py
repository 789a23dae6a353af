"""Factors fitted to measurements that were made up from known factors."""

import math

import pytest

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.planner.calibration import (
    CalibrationData,
    MeasuredLevel,
    before_and_after,
    fit,
    speed_model_maker,
)
from skep.planner.setup import KV_TYPES, QUANTS, Layout, Rig, Setup, Speculation
from skep.planner.step import UNTUNED, Constants, StepTuning
from skep.units import Interval

CARD = device("rtx-3090")
PLAIN = Setup(geometry("qwen3-8b"), QUANTS["awq"], KV_TYPES["bf16"], "vllm", slots=16)
SPLIT = Setup(
    geometry("qwen3.6-35b-a3b"), QUANTS["awq"], KV_TYPES["bf16"], "vllm", Layout(tp=2), slots=16
)
SETUPS = {
    "dense": (PLAIN, Rig((CARD,))),
    "two replicas": (
        Setup(PLAIN.model, PLAIN.quant, PLAIN.kv, "vllm", Layout(replicas=2), slots=8),
        Rig((CARD, CARD)),
    ),
    "experts": (SPLIT, Rig((CARD, CARD))),
    "llama.cpp": (
        Setup(PLAIN.model, QUANTS["q4_k_m"], PLAIN.kv, "llamacpp", slots=16),
        Rig((CARD,)),
    ),
    "drafting": (
        Setup(
            SPLIT.model,
            SPLIT.quant,
            SPLIT.kv,
            "vllm",
            SPLIT.layout,
            slots=16,
            spec=Speculation("mtp", 3, 0.7),
        ),
        Rig((CARD, CARD)),
    ),
}


def around(value, spread=0.0):
    return Interval(value * (1 - spread), value, value * (1 + spread))


def seen(concurrency, tpot_s=0.01, ttft_s=0.1, *, inputs=60.0, outputs=192.0, spread=0.0):
    speed = around(concurrency / tpot_s, spread)
    return MeasuredLevel(
        concurrency, inputs, outputs, around(tpot_s, spread), around(ttft_s, spread), speed, 4
    )


def as_measured(setup, rig, tuning, *, crowd=8, spread=0.0):
    """What a machine with this tuning would show."""
    blank = CalibrationData(seen(1), seen(crowd), seen(1, inputs=1024.0, outputs=4.0))
    model = speed_model_maker(setup, rig, Constants(), blank)(tuning)
    alone, prompts = (model.outcome(level.load()) for level in (blank.alone, blank.prompts))
    sequences = crowd / setup.layout.replicas
    step_s = model.step.seconds(
        int(sequences), sequences * (60 + 96)
    ) / model.step.tokens_per_step(int(sequences))
    return CalibrationData(
        seen(1, alone.tpot_s, spread=spread),
        seen(crowd, step_s, spread=spread),
        seen(1, ttft_s=prompts.ttft_s, inputs=1024.0, outputs=4.0, spread=spread),
    )


@pytest.mark.parametrize("name", SETUPS)
def test_known_factors_are_found_again(name):
    setup, rig = SETUPS[name]
    true = StepTuning(1.3, 0.6, 1.8)
    measured = as_measured(setup, rig, true)
    tuning = fit(speed_model_maker(setup, rig, Constants(), measured), measured).tuning
    assert tuning.decode == pytest.approx(1.3, rel=1e-6)
    assert tuning.prompt == pytest.approx(1.8, rel=1e-6)
    assert tuning.batch == pytest.approx(0.6, rel=1e-3)


def test_the_calibrated_prediction_is_what_was_measured():
    measured = as_measured(*SETUPS["dense"], StepTuning(1.4, 1.5, 2.0))
    foresee = speed_model_maker(*SETUPS["dense"], Constants(), measured)
    fitted = fit(foresee, measured)
    for level in measured.levels:
        before, after = before_and_after(foresee, fitted, level)
        assert after.tpot_s == pytest.approx(level.tpot_s.estimate, rel=0.01)
        assert before.tpot_s < 0.85 * after.tpot_s


def test_without_a_higher_level_further_sequences_are_as_predicted():
    whole = as_measured(*SETUPS["dense"], StepTuning(1.2, 3.0, 1.0))
    measured = CalibrationData(whole.alone, None, whole.prompts)
    fitted = fit(speed_model_maker(*SETUPS["dense"], Constants(), measured), measured)
    assert fitted.batch is None
    assert fitted.tuning.batch == 1.0
    assert "further" not in str(fitted)


def test_a_machine_as_predicted_gets_factors_of_one_with_the_measured_spread():
    for spread in (0.0, 0.05):
        measured = as_measured(*SETUPS["dense"], UNTUNED, spread=spread)
        fitted = fit(speed_model_maker(*SETUPS["dense"], Constants(), measured), measured)
        assert (fitted.tuning.decode, fitted.tuning.batch, fitted.tuning.prompt) == pytest.approx(
            (1, 1, 1), rel=1e-6
        )
        assert (fitted.decode.half_width, fitted.prompt.half_width) == pytest.approx(
            (spread, spread), abs=1e-9
        )
        assert fitted.at_limit == ()
        assert f"steps take 1.00x (± {100 * spread:.0f} %) as long as predicted" in str(fitted)
    assert "further sequences add 1.00x" in str(fitted)
    # A small part of a step is known less well than the step.
    assert fitted.batch.half_width > 0.05


def test_noise_moves_the_factor_on_further_sequences_little():
    """Two sequences cost a vLLM hardly more than one: what 4 % of noise says of the difference is
    next to nothing.
    """
    base = as_measured(*SETUPS["dense"], UNTUNED, crowd=2)
    loud = seen(2, 1.04 * base.crowd.tpot_s.estimate, spread=0.04)
    fitted = fit(
        speed_model_maker(*SETUPS["dense"], Constants(), base),
        CalibrationData(base.alone, loud, base.prompts),
    )
    sure = seen(2, 1.04 * base.crowd.tpot_s.estimate, spread=0.0001)
    trusted = fit(
        speed_model_maker(*SETUPS["dense"], Constants(), base),
        CalibrationData(base.alone, sure, base.prompts),
    )
    assert abs(math.log(fitted.tuning.batch)) < 0.8 * abs(math.log(trusted.tuning.batch))
    assert fitted.batch.low < 1 < fitted.batch.high


def test_factors_beyond_belief_are_cut():
    measured = CalibrationData(
        seen(1, 5.0), seen(8, 5.0), seen(1, ttft_s=0.0001, inputs=1024.0, outputs=4.0)
    )
    fitted = fit(speed_model_maker(*SETUPS["dense"], Constants(), measured), measured)
    assert fitted.tuning.decode == 10.0
    assert fitted.tuning.prompt == 0.1
    assert {"steps", "prompts"} <= set(fitted.at_limit)


def test_what_was_measured_fits_whatever_the_arithmetic_says():
    """A 70B in BF16 does not fit a 3090; if somebody measured eight at once there, eight ran at
    once.
    """
    setup = Setup(geometry("llama-3.3-70b"), QUANTS["bf16"], KV_TYPES["bf16"], "vllm", slots=8)
    measured = CalibrationData(seen(1), seen(8), seen(1, inputs=1024.0))
    model = speed_model_maker(setup, Rig((CARD,)), Constants(), measured)(UNTUNED)
    assert model.outcome(measured.crowd.load()).running > 7
