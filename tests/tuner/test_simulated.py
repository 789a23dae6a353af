"""The bench in virtual time: its noise is what it says, and the truth behind it is what the planner foresees."""

import asyncio
import math
import statistics
from itertools import pairwise

import pytest
from msgspec.structs import replace

from skep.config.rigs import parse_rig
from skep.tuner.knobs import TuneMachine, config_of, space_of
from skep.tuner.predictions import Predictor
from skep.tuner.presets import baseline_of
from skep.tuner.records import (
    ConfigFailure,
    CurveRequest,
    JudgeRequest,
    KnobConfig,
    MeasureRequest,
    TuneGoal,
    TuneReading,
)
from skep.tuner.simulated import SimulatedBench, SimulatedNoise

FAST, SLOW = KnobConfig.of({"graphs": True}), KnobConfig.of({"graphs": False})
READING = TuneReading(100.0, 100.0, 30.0, 200.0, 30.0, wall_s=10.0, requests=12, over_limit=0.5)
STILL = SimulatedNoise(reading=0.0, start=0.0, drift=0.0, outliers=0.0)
DUAL = TuneMachine(16, parse_rig("2x rtx-3090"))


class Plain:
    """FAST is 10 % ahead of everything else, or fails as it is given."""

    def __init__(self, failure=None):
        self.fast = failure or TuneReading(110.0, 110.0, 33.0, 180.0, 27.0, wall_s=9.0, requests=12)

    def figure(self, config):
        return self.fast if config == FAST else READING

    def at(self, _config, concurrency):
        return TuneReading(10.0 * concurrency, 10.0 * concurrency, 10.0, 100.0, 20.0, wall_s=5.0, requests=12)

    def start_s(self, _config):
        return 60.0


def measured(configs, readings, seed=1, on_progress=lambda _: None, bench=None, **noise):
    bench = bench or SimulatedBench(Plain(), seed=seed, noise=replace(STILL, **noise) if noise else SimulatedNoise())
    return asyncio.run(bench.measure(MeasureRequest(tuple(configs), readings, "confirm", ""), on_progress))


def test_the_same_seed_gives_the_same_readings_and_another_seed_others():
    rounds = [measured((SLOW, FAST), 5, seed) for seed in (1, 1, 2)]
    assert rounds[0] == rounds[1] != rounds[2]


def test_a_search_that_is_taken_up_again_meets_the_noise_it_would_have_met():
    whole = SimulatedBench(Plain(), seed=3)
    measured((SLOW,), 4, bench=whole)
    again = SimulatedBench(Plain(), seed=3, now_s=whole.now_s)
    assert measured((FAST, SLOW), 4, bench=again) == measured((FAST, SLOW), 4, bench=whole)


def test_noise_is_as_large_as_it_says():
    """Of readings, of starts (more readings of one do not tell it away), of the whole machine; some are far off."""
    logs = [math.log(figure / 100.0) for figure in measured((SLOW,), 2000, reading=0.03).starts[0].figures]
    assert statistics.mean(logs) == pytest.approx(0.0, abs=0.003)
    assert statistics.stdev(logs) == pytest.approx(0.03, rel=0.1)
    bench = SimulatedBench(Plain(), seed=5, noise=replace(STILL, start=0.01))
    starts = [measured((SLOW,), 3, bench=bench).starts[0].figures for _ in range(400)]
    assert all(max(figures) - min(figures) < 1e-9 for figures in starts)
    assert statistics.stdev(math.log(figures[0]) for figures in starts) == pytest.approx(0.01, rel=0.15)
    drifting = measured((SLOW,), 200, drift=0.02, drift_period_s=2000.0).starts[0].figures
    assert (max(drifting) - min(drifting)) / statistics.mean(drifting) == pytest.approx(0.04, rel=0.1)
    off = [round(one) for one in measured((SLOW,), 5000, outliers=0.02).starts[0].figures if abs(one - 100) > 1]
    assert set(off) == {112, 75}
    assert len(off) == pytest.approx(100, rel=0.35)


def test_virtual_seconds_are_those_of_starts_warm_ups_readings_and_stops():
    found = measured((SLOW, FAST), 4, drift=0.0)
    assert found.seconds == pytest.approx((60 + 5 + 4 * 10 + 3) + (60 + 4.5 + 4 * 9 + 3))


def test_a_faster_reading_is_faster_in_all_it_says():
    for reading in measured((SLOW,), 50).starts[0].readings:
        factor = reading.figure / 100.0
        found = (reading.ttft_ms, reading.wall_s, reading.over_limit)
        assert found == pytest.approx((200.0 / factor, 10.0 / factor, 0.5 / factor))


@pytest.mark.parametrize(("kind", "start_s"), [("out-of-memory", 42.0), ("no-start", 30.0)])
def test_what_does_not_start_says_why(kind, start_s):
    failure = ConfigFailure(kind, "cause", "a line of the log", "a remedy")
    fast = measured((SLOW, FAST), 4, bench=SimulatedBench(Plain(failure), seed=10)).starts[1]
    assert (fast.failure, fast.readings, fast.start_s) == (failure, (), pytest.approx(start_s))


def test_on_cards_each_side_has_all_its_readings_inside_its_own_start():
    order = []
    measured((SLOW, FAST), 3, on_progress=lambda said: order.append(said.config))
    assert sum(a != b for a, b in pairwise(order)) == 1


def test_nothing_is_judged_and_it_says_so():
    judged = asyncio.run(SimulatedBench(Plain(), seed=14).judge(JudgeRequest(SLOW, FAST), lambda _: None))
    assert (judged.ok, judged.skipped) == (True, True)
    assert "SIMULATED" in judged.words


def test_the_curve_has_an_interval_at_every_level_of_every_configuration():
    bench = SimulatedBench(Plain(ConfigFailure("no-start", "x")), seed=15)
    points = asyncio.run(bench.curve(CurveRequest((SLOW, FAST), (1, 2, 4)), lambda _: None)).points
    assert [(point.config, point.concurrency) for point in points] == [(c, n) for c in (SLOW, FAST) for n in (1, 2, 4)]
    for point in points[:3]:
        assert point.figure.low <= point.figure.estimate <= point.figure.high
        assert point.figure.estimate == pytest.approx(10 * point.concurrency, rel=0.3)
    assert all(point.figure is None for point in points[3:])


def planned(metric="effective_tok_s", **aim):
    aim = TuneGoal(metric, 4, **aim)
    base = baseline_of("qwen3.6-27b", aim, DUAL, engine="vllm", simulated=True)
    knobs = space_of(base, aim, DUAL, quants=("awq", "gptq")).knobs
    return Predictor(base, DUAL.rig, aim, knobs), config_of(base, knobs)


def test_what_is_read_is_what_is_foreseen_but_for_the_noise():
    space, here = planned(slo="ttft=1s,tpot=10ms")
    faster = here.turned({"graphs": True})
    starts = measured((here, faster), 2, bench=SimulatedBench(space, seed=1, noise=STILL)).starts
    for start in starts:
        assert start.figures == pytest.approx([space.predict(start.config)] * 2)
    assert starts[1].figures > starts[0].figures
    reading = space.figure(here)
    assert reading.over_limit == pytest.approx(max(reading.ttft_ms / 1000, reading.tpot_ms / 10))
    failure = space.figure(here.turned({"layout": "2x TP=1", "quant": "bf16"}))
    assert (failure.kind, failure.cause[:9]) == ("out-of-memory", "SIMULATED")


def test_tokens_for_a_joule_are_read_where_that_is_the_goal():
    space, here = planned("tok_per_joule")
    reading = space.figure(here)
    assert reading.figure == pytest.approx(reading.tok_per_joule)
