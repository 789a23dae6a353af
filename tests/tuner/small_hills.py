"""A terrain of a few knobs whose truth is written down, and a bench that measures it with noise. No I/O, no clock."""

import math
from dataclasses import dataclass, field
from random import Random

from skep.tuner.ports import CurveRequest, JudgeRequest, MeasureRequest
from skep.tuner.records import (
    ConfigFailure,
    CurvePoint,
    CurveResult,
    JudgeResult,
    Knob,
    KnobConfig,
    MeasurementRound,
    ServerStart,
    TuneReading,
)


@dataclass
class Hills:
    """`effects`: the share that each value of a knob has of the figure; `foreseen`: what the planner says of it."""

    knobs: tuple
    effects: dict
    foreseen: dict = field(default_factory=dict)
    pairs: tuple = ()
    start_seconds: float = 30.0
    reading_seconds: float = 10.0
    refused: object = lambda _config: None

    def refusal(self, config):
        return self.refused(config)

    def predict(self, config):
        return 100.0 * math.prod(self.foreseen.get(knob, {}).get(value, 1.0) for knob, value in config.values)

    def spare_bytes(self, _config):
        return None

    def start_s(self, _config):
        return self.start_seconds

    def reading_s(self, _config):
        return self.reading_seconds

    def truth(self, config):
        return 100.0 * math.prod(self.effects.get(knob, {}).get(value, 1.0) for knob, value in config.values)

    @property
    def baseline(self):
        return KnobConfig.of({knob.name: knob.values[0] for knob in self.knobs})


class HillBench:
    """Carries errands out. `fails`, `late`, `limited` and `judged` are functions of a configuration."""

    def __init__(self, hills, seed=0, noise=0.02, start_noise=0.005):
        self.hills, self.rng, self.noise, self.start_noise = hills, Random(seed), noise, start_noise
        self.errands = []
        self.fails = lambda _config: None
        self.late = lambda _config: 0.0
        self.limited = lambda _config: False
        self.judged = lambda _config: JudgeResult(ok=True, words="as good", seconds=60.0)

    def carry_out(self, errand):
        self.errands.append(errand)
        if isinstance(errand, JudgeRequest):
            return self.judged(errand.challenger)
        if isinstance(errand, CurveRequest):
            points = [CurvePoint(level, config, None) for level in errand.levels for config in errand.configs]
            return CurveResult(tuple(points), 100.0)
        assert isinstance(errand, MeasureRequest)
        sittings = tuple(self.sitting(config, errand.readings) for config in errand.configs)
        each = self.hills.start_seconds + (errand.readings + 1) * self.hills.reading_seconds
        return MeasurementRound(sittings, each * len(errand.configs))

    def sitting(self, config, readings):
        failure = self.fails(config)
        if failure is not None:
            return ServerStart(config, 1.0, failure=failure)
        lucky = self.rng.gauss(0, self.start_noise)
        return ServerStart(config, 1.0, tuple(self.reading(config, lucky) for _ in range(readings)))

    def reading(self, config, lucky):
        figure = self.hills.truth(config) * math.exp(lucky + self.rng.gauss(0, self.noise))
        return TuneReading(
            figure, figure, figure / 4, 100.0, 10.0, 10.0, 12,
            limited=self.limited(config), over_limit=self.late(config),
        )  # fmt: skip

    @property
    def measured(self):
        return [errand for errand in self.errands if isinstance(errand, MeasureRequest)]


def climbed(climb, bench, most=400):
    """To its end; every answer, in order."""
    answers = []
    while (errand := climb.following()) is not None:
        answers.append(bench.carry_out(errand))
        climb.took(answers[-1])
        assert len(answers) < most, "it does not end"
    return answers


GRAPHS = Knob("graphs", "graphs", (False, True), expected=0.2)
SLOTS = Knob("slots", "slots", (1, 2, 3, 4, 6, 8), ordered=True, expected=0.2)
DEPTH = Knob("mtp", "depth", (0, 1, 2, 3, 4, 5, 6), ordered=True, expected=0.2)
KV = Knob("kv", "KV type", ("bf16", "fp8"), alters_answers=True, expected=0.05)
OUT_OF_MEMORY = ConfigFailure("out-of-memory", "the card's memory was not enough", "CUDA out of memory", "lower slots")
CRASH = ConfigFailure("crash-under-load", "died after a good start", "illegal memory access", None)
