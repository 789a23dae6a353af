"""The bench in virtual time: the noise it promises, the failures it plays, and that it repeats itself."""

import asyncio
import math
import statistics
from itertools import pairwise

import pytest
from msgspec.structs import replace

from skep.config.rigs import parse_rig
from skep.tuner.baselines import baseline_of
from skep.tuner.knobs import TuneMachine, config_of, space_of
from skep.tuner.predictions import Predictor
from skep.tuner.records import (
    ConfigFailure,
    CurveRequest,
    JudgeRequest,
    KnobConfig,
    MeasureRequest,
    TuneGoal,
    TuneReading,
)
from skep.tuner.simulated import PlannedTruth, SimulatedBench, SimulatedNoise

FAST, SLOW = KnobConfig.of({"graphs": True}), KnobConfig.of({"graphs": False})
READING = TuneReading(100.0, 100.0, 30.0, 200.0, 30.0, wall_s=10.0, requests=12, over_limit=0.5)
STILL = SimulatedNoise(reading=0.0, start=0.0, drift=0.0, outliers=0.0)


class Plain:
    """FAST is 10 % ahead of everything else; failures as they are given."""

    def __init__(self, starting=None):
        self.starting = starting or {}

    def figure(self, config):
        if config in self.starting:
            return self.starting[config]
        return READING if config != FAST else TuneReading(110.0, 110.0, 33.0, 180.0, 27.0, wall_s=9.0, requests=12)

    def at(self, config, concurrency):  # noqa: ARG002
        return TuneReading(10.0 * concurrency, 10.0 * concurrency, 10.0, 100.0, 20.0, wall_s=5.0, requests=12)

    def start_s(self, config):  # noqa: ARG002
        return 60.0


def measured(bench, configs, readings, on_progress=lambda _: None):
    return asyncio.run(bench.measure(MeasureRequest(tuple(configs), readings, "confirm", ""), on_progress))


def test_the_same_seed_gives_the_same_readings_and_another_seed_others():
    first, second, other = (SimulatedBench(Plain(), seed=seed) for seed in (1, 1, 2))
    rounds = [measured(bench, (SLOW, FAST), 5) for bench in (first, second, other)]
    assert rounds[0] == rounds[1] != rounds[2]


def test_a_search_that_is_taken_up_again_meets_the_noise_it_would_have_met():
    whole = SimulatedBench(Plain(), seed=3)
    measured(whole, (SLOW,), 4)
    again = SimulatedBench(Plain(), seed=3, now_s=whole.now_s)
    assert measured(again, (FAST, SLOW), 4) == measured(whole, (FAST, SLOW), 4)


def test_readings_of_one_start_scatter_by_three_percent():
    bench = SimulatedBench(Plain(), seed=4, noise=SimulatedNoise(start=0.0, drift=0.0, outliers=0.0))
    logs = [math.log(figure / 100.0) for figure in measured(bench, (SLOW,), 2000).starts[0].figures]
    assert statistics.mean(logs) == pytest.approx(0.0, abs=0.003)
    assert statistics.stdev(logs) == pytest.approx(0.03, rel=0.1)


def test_every_start_has_an_effect_of_its_own():
    """More readings of one start do not tell it away, which is why a change needs two starts."""
    bench = SimulatedBench(Plain(), seed=5, noise=SimulatedNoise(reading=0.0, drift=0.0, outliers=0.0))
    starts = [measured(bench, (SLOW,), 3).starts[0].figures for _ in range(400)]
    assert all(max(figures) - min(figures) < 1e-9 for figures in starts)
    assert statistics.stdev(math.log(figures[0]) for figures in starts) == pytest.approx(0.01, rel=0.15)


def test_one_reading_in_fifty_is_far_off():
    bench = SimulatedBench(Plain(), seed=6, noise=SimulatedNoise(reading=0.0, start=0.0, drift=0.0))
    off = [round(figure) for figure in measured(bench, (SLOW,), 5000).starts[0].figures if abs(figure - 100.0) > 1.0]
    assert set(off) == {112, 75}
    assert len(off) == pytest.approx(100, rel=0.35)


def test_the_machine_as_a_whole_drifts():
    noise = SimulatedNoise(reading=0.0, start=0.0, outliers=0.0, drift=0.02, drift_period_s=2000.0)
    figures = measured(SimulatedBench(Plain(), seed=7, noise=noise), (SLOW,), 200).starts[0].figures
    assert (max(figures) - min(figures)) / statistics.mean(figures) == pytest.approx(0.04, rel=0.1)


def test_virtual_seconds_are_those_of_starts_warm_ups_readings_and_stops():
    found = measured(SimulatedBench(Plain(), seed=8, noise=STILL), (SLOW, FAST), 4)
    assert found.seconds == pytest.approx((60 + 5 + 4 * 10 + 3) + (60 + 4.5 + 4 * 9 + 3))


def test_a_faster_reading_is_faster_in_all_it_says():
    start = measured(SimulatedBench(Plain(), seed=9), (SLOW,), 50).starts[0]
    for reading in start.readings:
        factor = reading.figure / 100.0
        assert reading.ttft_ms == pytest.approx(200.0 / factor)
        assert reading.wall_s == pytest.approx(10.0 / factor)
        assert reading.over_limit == pytest.approx(0.5 / factor)


@pytest.mark.parametrize(("kind", "start_s"), [("out-of-memory", 42.0), ("no-start", 30.0)])
def test_what_does_not_start_says_why(kind, start_s):
    failure = ConfigFailure(kind, "cause", "a line of the log", "a remedy")
    bench = SimulatedBench(Plain(starting={FAST: failure}), seed=10, noise=STILL)
    fast = measured(bench, (SLOW, FAST), 4).starts[1]
    assert (fast.failure, fast.readings, fast.start_s) == (failure, (), pytest.approx(start_s))


def test_on_cards_each_side_has_all_its_readings_inside_its_own_start():
    order = []
    measured(SimulatedBench(Plain(), seed=13), (SLOW, FAST), 3, lambda said: order.append(said.config))
    assert sum(a != b for a, b in pairwise(order)) == 1


def test_nothing_is_judged_and_it_says_so():
    judged = asyncio.run(SimulatedBench(Plain(), seed=14).judge(JudgeRequest(SLOW, FAST), lambda _: None))
    assert judged.ok
    assert judged.skipped
    assert "SIMULATED" in judged.words


def test_the_curve_has_an_interval_at_every_level_of_every_configuration():
    bench = SimulatedBench(Plain(starting={FAST: ConfigFailure("no-start", "x")}), seed=15)
    points = asyncio.run(bench.curve(CurveRequest((SLOW, FAST), (1, 2, 4)), lambda _: None)).points
    assert [(point.config, point.concurrency) for point in points] == [(c, n) for c in (SLOW, FAST) for n in (1, 2, 4)]
    for point in points[:3]:
        assert point.figure.low <= point.figure.estimate <= point.figure.high
        assert point.figure.estimate == pytest.approx(10 * point.concurrency, rel=0.3)
    assert all(point.figure is None for point in points[3:])


DUAL = TuneMachine(16, parse_rig("2x rtx-3090"))


def ground(aim):
    base = baseline_of("qwen3.6-27b", aim, DUAL, engine="vllm", simulated=True)
    knobs = space_of(base, aim, DUAL, quants=("awq", "gptq")).knobs
    return Predictor(base, DUAL.rig, aim, knobs), config_of(base, knobs)


@pytest.fixture(scope="module")
def planned():
    return ground(TuneGoal("effective_tok_s", 4, slo="ttft=1s,tpot=10ms"))


def test_what_is_read_is_what_is_foreseen_but_for_the_noise(planned):
    effects, here = planned
    still = SimulatedNoise(reading=0.0, start=0.0, drift=0.0, outliers=0.0)
    bench = SimulatedBench(PlannedTruth(effects), seed=1, noise=still)
    faster = here.turned({"graphs": True})
    starts = measured(bench, (here, faster), 2).starts
    for start in starts:
        assert start.figures == pytest.approx([effects.predict(start.config)] * 2)
    assert starts[1].figures > starts[0].figures


def test_the_promise_is_held_against_what_is_foreseen(planned):
    effects, here = planned
    reading = PlannedTruth(effects).figure(here)
    assert reading.over_limit == pytest.approx(max(reading.ttft_ms / 1000, reading.tpot_ms / 10))


def test_what_the_card_cannot_hold_runs_out_of_memory_and_says_it_is_simulated(planned):
    effects, here = planned
    failure = PlannedTruth(effects).figure(here.turned({"layout": "2x TP=1", "quant": "bf16"}))
    assert isinstance(failure, ConfigFailure)
    assert failure.kind == "out-of-memory"
    assert failure.cause.startswith("SIMULATED")


def test_tokens_for_a_joule_are_read_where_that_is_the_goal():
    effects, here = ground(replace(TuneGoal("effective_tok_s", 4), metric="tok_per_joule"))
    reading = PlannedTruth(effects).figure(here)
    assert reading.figure == pytest.approx(reading.tok_per_joule)
