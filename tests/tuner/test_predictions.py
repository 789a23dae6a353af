"""What is known of configurations before anything is measured, and the bench in virtual time that
reads it.
"""

import asyncio
import math
import statistics

import pytest
from msgspec.structs import replace

from skep.config.rigs import parse_rig
from skep.planner.setup import KV_TYPES, QUANTS, Layout, Speculation
from skep.tuner import records
from skep.tuner.knobs import TuneMachine, config_of, space_of
from skep.tuner.predictions import RUN_S, TOO_LONG_S, Predictor, tasks_for
from skep.tuner.presets import baseline_of
from skep.tuner.simulated import SimulatedBench, SimulatedNoise

AIM = records.TuneGoal("effective_tok_s", 4)
DUAL = TuneMachine(16, parse_rig("2x rtx-3090"))


def planned(aim=AIM, box=DUAL, model="qwen3.6-27b", engine="vllm"):
    """A predictor, and the configuration where its search would begin."""
    base = baseline_of(model, aim, box, engine=engine, simulated=True)
    knobs = space_of(base, aim, box)
    return Predictor(base, box.rig, aim, knobs), config_of(base, knobs)


@pytest.fixture(scope="module")
def dense():
    return planned()


@pytest.fixture(scope="module")
def on_cpu():
    return planned(box=TuneMachine(4), model="smollm2-135m", engine="embedded")


def test_a_configuration_is_the_planners_setup(dense):
    effects, start = dense
    config = start.turned(
        {"layout": "2x TP=1", "mtp": 3, "kv": "fp8_e5m2", "graphs": True, "slots": 2}
    )
    setup = effects.setup(config)
    assert (setup.layout, setup.spec) == (Layout(replicas=2), Speculation("mtp", 3))
    assert (setup.kv, setup.quant) == (KV_TYPES["fp8_e5m2"], QUANTS["int4"])
    assert (setup.slots, setup.graphs, setup.utilization, setup.context) == (2, True, 0.85, 2048)
    blind = replace(effects.base, options=replace(effects.base.options, text_only=True))
    predictor = Predictor(blind, DUAL.rig, AIM, effects.knobs)
    assert not predictor.setup(start).vision, "a vision tower that is not loaded takes no room"


def test_the_steps_of_the_write_up_are_foreseen(dense):
    """Graphs, MTP and a second replica were steps of its search."""
    effects, config = dense
    figure = effects.predict(config)
    for change in (
        {"graphs": True},
        {"graphs": True, "mtp": 3},
        {"graphs": True, "layout": "2x TP=1"},
    ):
        assert effects.predict(config.turned(change)) > 1.1 * figure
    assert effects.predict(config.turned({"slots": 1})) < 0.8 * figure


def test_what_the_planner_knows_nothing_of_leaves_the_figure_as_it_is(dense):
    effects, config = dense
    assert effects.predict(config.turned({"ngram": 2})) == effects.predict(config)


def test_on_a_cpu_nothing_is_foreseen(on_cpu):
    effects, config = on_cpu
    assert effects.predict(config) is None
    assert effects.reading_s(config) > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mtp": 3, "ngram": 2}, "cannot be combined"),
        ({"layout": "TP=1 + PP=2", "mtp": 3}, "vLLM does not start with mtp n=3 and PP=2"),
        ({"layout": "4x TP=1"}, "cards"),
        ({"layout": "TP=3"}, "heads"),
        ({"layout": "sideways"}, "is not a layout"),
    ],
)
def test_what_cannot_start_is_refused_with_the_reason(dense, change, reason):
    effects, config = dense
    assert effects.refusal(config) is None
    assert reason in (effects.refusal(config.turned(change)) or "")
    assert effects.predict(config.turned(change)) is None or reason not in (
        "cannot be combined",
        "is not a layout",
    )
    assert effects.start_s(config.turned(change)) > 0


def test_a_reading_is_as_long_as_the_bench_makes_it_and_a_start_as_its_weights_take(dense):
    effects, config = dense
    per_s = effects.predict(config) / AIM.output_tokens
    assert effects.reading_s(config) == pytest.approx(tasks_for(AIM.concurrency, [per_s]) / per_s)
    assert RUN_S <= effects.reading_s(config) <= TOO_LONG_S
    assert 30 < effects.start_s(config) < effects.start_s(config.turned({"graphs": True})) < 200


def test_single_tasks_have_a_figure_of_their_own():
    alone, config = planned(records.TuneGoal("task_tok_s", 1))
    assert alone.predict(config) == pytest.approx(alone.outcome(config).task_tok_s)


FAST = records.KnobConfig.of({"graphs": True})
SLOW = records.KnobConfig.of({"graphs": False})
READING = records.TuneReading(
    100.0, 100.0, 30.0, 200.0, 30.0, wall_s=10.0, requests=12, over_limit=0.5
)
STILL = SimulatedNoise(reading=0.0, start=0.0, drift=0.0, outliers=0.0)


class Plain:
    """FAST is 10 % ahead of everything else, or fails as it is given."""

    def __init__(self, failure=None):
        self.fast = failure or records.TuneReading(
            110.0, 110.0, 33.0, 180.0, 27.0, wall_s=9.0, requests=12
        )

    def figure(self, config):
        return self.fast if config == FAST else READING

    def at(self, _config, concurrency):
        return records.TuneReading(
            10.0 * concurrency, 10.0 * concurrency, 10.0, 100.0, 20.0, wall_s=5.0, requests=12
        )

    def start_s(self, _config):
        return 60.0


def measured(configs, readings, seed=1, on_progress=lambda _: None, bench=None, **noise):
    bench = bench or SimulatedBench(
        Plain(), seed=seed, noise=replace(STILL, **noise) if noise else SimulatedNoise()
    )
    return asyncio.run(
        bench.measure(records.MeasureRequest(tuple(configs), readings, "confirm", ""), on_progress)
    )


def test_the_same_seed_gives_the_same_readings_and_another_seed_others():
    rounds = [measured((SLOW, FAST), 5, seed) for seed in (1, 1, 2)]
    assert rounds[0] == rounds[1] != rounds[2]


def test_a_search_that_is_taken_up_again_meets_the_noise_it_would_have_met():
    whole = SimulatedBench(Plain(), seed=3)
    measured((SLOW,), 4, bench=whole)
    again = SimulatedBench(Plain(), seed=3, now_s=whole.now_s)
    assert measured((FAST, SLOW), 4, bench=again) == measured((FAST, SLOW), 4, bench=whole)


def test_noise_is_as_large_as_it_says():
    """Of readings, of starts (more readings of one do not tell it away), of the whole machine;
    some are far off.
    """
    logs = [
        math.log(figure / 100.0)
        for figure in measured((SLOW,), 2000, reading=0.03).starts[0].figures
    ]
    assert statistics.mean(logs) == pytest.approx(0.0, abs=0.003)
    assert statistics.stdev(logs) == pytest.approx(0.03, rel=0.1)
    bench = SimulatedBench(Plain(), seed=5, noise=replace(STILL, start=0.01))
    starts = [measured((SLOW,), 3, bench=bench).starts[0].figures for _ in range(400)]
    assert all(max(figures) - min(figures) < 1e-9 for figures in starts)
    assert statistics.stdev(math.log(figures[0]) for figures in starts) == pytest.approx(
        0.01, rel=0.15
    )
    drifting = measured((SLOW,), 200, drift=0.02, drift_period_s=2000.0).starts[0].figures
    assert (max(drifting) - min(drifting)) / statistics.mean(drifting) == pytest.approx(
        0.04, rel=0.1
    )
    off = [
        round(figure)
        for figure in measured((SLOW,), 5000, outliers=0.02).starts[0].figures
        if abs(figure - 100) > 1
    ]
    assert set(off) == {112, 75}
    assert len(off) == pytest.approx(100, rel=0.35)


@pytest.mark.parametrize(("kind", "start_s"), [("out-of-memory", 42.0), ("no-start", 30.0)])
def test_what_does_not_start_says_why(kind, start_s):
    failure = records.ConfigFailure(kind, "cause", "a line of the log", "a remedy")
    fast = measured((SLOW, FAST), 4, bench=SimulatedBench(Plain(failure), seed=10)).starts[1]
    assert (fast.failure, fast.readings, fast.start_s) == (failure, (), pytest.approx(start_s))


def test_what_is_read_is_what_is_foreseen_but_for_the_noise():
    space, config = planned(replace(AIM, slo="ttft=1s,tpot=10ms"))
    faster = config.turned({"graphs": True})
    starts = measured((config, faster), 2, bench=SimulatedBench(space, seed=1, noise=STILL)).starts
    for start in starts:
        assert start.figures == pytest.approx([space.predict(start.config)] * 2)
    assert starts[1].figures > starts[0].figures
    reading = space.figure(config)
    assert reading.over_limit == pytest.approx(max(reading.ttft_ms / 1000, reading.tpot_ms / 10))
    failure = Predictor(space.base, parse_rig("2x rtx-3060"), AIM, space.knobs).figure(config)
    assert (failure.kind, failure.cause[:9]) == ("out-of-memory", "SIMULATED")
