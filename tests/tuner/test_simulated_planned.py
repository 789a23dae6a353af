"""The rig of `skep tune --simulate`: the planner's figures as the truth, its memory without slack."""

from dataclasses import replace

import pytest

from skep.planner.rigs import parse_rig
from skep.tuner.baselines import baseline_of
from skep.tuner.knobs import TuneMachine, config_of, space_of
from skep.tuner.ports import MeasureRequest
from skep.tuner.predictions import predictor_for
from skep.tuner.records import ConfigFailure, TuneGoal
from skep.tuner.simulated import PlannedTruth, SimulatedBench, SimulatedNoise

DUAL = TuneMachine(16, parse_rig("2x rtx-3090"))


def ground(aim):
    base = baseline_of("qwen3.6-27b", aim, DUAL, engine="vllm", simulated=True)
    knobs = space_of(base, aim, DUAL, quants=("awq", "gptq")).knobs
    return predictor_for(base, DUAL.rig, aim, knobs), config_of(base, knobs)


@pytest.fixture(scope="module")
def dense():
    return ground(TuneGoal("effective_tok_s", 4, slo="ttft=1s,tpot=10ms"))


def test_what_is_read_is_what_is_foreseen_but_for_the_noise(dense):
    effects, here = dense
    still = SimulatedNoise(reading=0.0, start=0.0, drift=0.0, outliers=0.0)
    bench = SimulatedBench(PlannedTruth(effects), seed=1, noise=still)
    faster = here.turned({"graphs": True})
    sittings = bench.measured(MeasureRequest((here, faster), 2, "screen", "")).sittings
    for sitting in sittings:
        assert sitting.figures == pytest.approx([effects.predict(sitting.config)] * 2)
    assert sittings[1].figures > sittings[0].figures


def test_the_promise_is_held_against_what_is_foreseen(dense):
    effects, here = dense
    reading = PlannedTruth(effects).figure(here)
    assert reading.over_limit == pytest.approx(max(reading.ttft_ms / 1000, reading.tpot_ms / 10))


def test_what_the_card_cannot_hold_runs_out_of_memory_and_says_it_is_simulated(dense):
    effects, here = dense
    failure = PlannedTruth(effects).figure(here.turned({"layout": "2x TP=1", "quant": "bf16"}))
    assert isinstance(failure, ConfigFailure)
    assert failure.kind == "out-of-memory"
    assert failure.cause.startswith("SIMULATED")


def test_tokens_for_a_joule_are_read_where_that_is_the_goal():
    effects, here = ground(replace(TuneGoal("effective_tok_s", 4), metric="tok_per_joule"))
    reading = PlannedTruth(effects).figure(here)
    assert reading.figure == pytest.approx(reading.tok_per_joule)
