"""Effects of a few knobs whose truth is written down, and a bench that measures it with noise.

No I/O, no clock.
"""

import math
from dataclasses import dataclass, field
from random import Random

from skep.tuner import records


@dataclass
class KnownEffects:
    """`effects`: the share that each value of a knob has of the figure; `foreseen`: what the
    planner says of it.
    """

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
        return 100.0 * math.prod(
            self.foreseen.get(knob, {}).get(value, 1.0) for knob, value in config.values
        )

    def spare_bytes(self, _config):
        return None

    def start_s(self, _config):
        return self.start_seconds

    def reading_s(self, _config):
        return self.reading_seconds

    def truth(self, config):
        return 100.0 * math.prod(
            self.effects.get(knob, {}).get(value, 1.0) for knob, value in config.values
        )

    @property
    def baseline(self):
        return records.KnobConfig.of({knob.name: knob.values[0] for knob in self.knobs})


class KnownBench:
    """Carries requests out.

    `fails`, `late`, `limited` and `judged` are functions of a configuration.
    """

    def __init__(self, effects, seed=0, noise=0.02, start_noise=0.005):
        self.effects = effects
        self.rng = Random(seed)
        self.noise = noise
        self.start_noise = start_noise
        self.requests = []
        self.fails = lambda _config: None
        self.late = lambda _config: 0.0
        self.limited = lambda _config: False
        self.judged = lambda _config: records.JudgeResult(ok=True, words="as good", seconds=60.0)

    def carry_out(self, request):
        self.requests.append(request)
        if isinstance(request, records.JudgeRequest):
            return self.judged(request.challenger)
        assert isinstance(request, records.MeasureRequest)
        starts = tuple(self.start(config, request.readings) for config in request.configs)
        seconds_of_each = (
            self.effects.start_seconds + (request.readings + 1) * self.effects.reading_seconds
        )
        return records.MeasurementRound(starts, seconds_of_each * len(request.configs))

    def start(self, config, readings):
        failure = self.fails(config)
        if failure is not None:
            return records.ServerStart(config, 1.0, failure=failure)
        lucky = self.rng.gauss(0, self.start_noise)
        return records.ServerStart(
            config, 1.0, tuple(self.reading(config, lucky) for _ in range(readings))
        )

    def reading(self, config, lucky):
        figure = self.effects.truth(config) * math.exp(lucky + self.rng.gauss(0, self.noise))
        return records.TuneReading(
            figure,
            figure,
            figure / 4,
            100.0,
            10.0,
            10.0,
            12,
            limited=self.limited(config),
            over_limit=self.late(config),
        )

    @property
    def measured(self):
        return [
            request for request in self.requests if isinstance(request, records.MeasureRequest)
        ]


def searched(search, bench, limit=400):
    """To its end; every answer, in order."""
    answers = []
    while (request := search.request) is not None:
        answers.append(bench.carry_out(request))
        search.tell(answers[-1])
        assert len(answers) < limit, "it does not end"
    return answers


GRAPHS = records.Knob("graphs", "graphs", (False, True), expected=0.2)
SLOTS = records.Knob("slots", "slots", (1, 2, 3, 4, 6, 8), ordered=True, expected=0.2)
DEPTH = records.Knob("mtp", "depth", (0, 1, 2, 3, 4, 5, 6), ordered=True, expected=0.2)
KV = records.Knob("kv", "KV type", ("bf16", "fp8"), alters_answers=True, expected=0.05)
OUT_OF_MEMORY = records.ConfigFailure(
    "out-of-memory", "the card's memory was not enough", "CUDA out of memory", "lower slots"
)
CRASH = records.ConfigFailure(
    "crash-under-load", "died after a good start", "illegal memory access", None
)
