"""A bench in virtual time: no engine runs and nobody waits, a known truth is read through noise.

What befalls real readings befalls these: each has noise of its own, each start an effect of its
own, the whole machine drifts slowly, and now and then a reading is far off. What is read is what
the planner foresees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import msgspec
from msgspec.structs import replace

from skep.tuner.predictions import Predictor
from skep.tuner.records import (
    BenchProgress,
    ConfigFailure,
    JudgeRequest,
    JudgeResult,
    KnobConfig,
    MeasurementRound,
    MeasureRequest,
    OnProgress,
    ServerStart,
    TuneReading,
)

STOP_S = 3.0
_WARM_UP = 0.5  # of a reading
_OUTLIER_FACTORS = (1.12, 0.75)
_SPEEDS = ("figure", "effective_tok_s", "task_tok_s")
_TIMES = ("ttft_ms", "tpot_ms", "wall_s", "over_limit")
_START_SHARE = {"no-start": 0.5, "out-of-memory": 0.7}  # of a start, until it has failed


class SimulatedNoise(msgspec.Struct, frozen=True):
    """Deviations and probabilities, as shares.

    `drift` is how far the machine as a whole goes up and down within `drift_period_s`.
    """

    reading: float = 0.03
    start: float = 0.01
    drift: float = 0.02
    drift_period_s: float = 5 * 3600.0
    outliers: float = 0.02


@dataclass(eq=False)
class SimulatedBench:
    """Each configuration has the cards alone, one after the other."""

    truth: Predictor
    seed: int
    noise: SimulatedNoise = field(default_factory=SimulatedNoise)
    # a search that is taken up again begins later, and meets the noise it would have met
    now_s: float = 0.0

    async def measure(self, request: MeasureRequest, on_progress: OnProgress) -> MeasurementRound:
        began_s = self._begin()
        # Drawn, lest a drift always favours the same one.
        step = 1 if self._rng.random() < 0.5 else -1
        starts = []
        for config in request.configs[::step]:
            truth, effect, start_s = self._start(config, on_progress)
            if isinstance(truth, ConfigFailure):
                starts.append(ServerStart(config, start_s, failure=truth))
            else:
                readings = self._readings(config, truth, effect, request.readings, on_progress)
                starts.append(ServerStart(config, start_s, readings))
            self.now_s += STOP_S
        return MeasurementRound(tuple(starts[::step]), self.now_s - began_s)

    async def judge(self, request: JudgeRequest, on_progress: OnProgress) -> JudgeResult:
        on_progress(BenchProgress(request.challenger, "judging"))
        return JudgeResult(
            ok=True, words="SIMULATED: no model ran, nothing was judged", seconds=0.0, skipped=True
        )

    def _begin(self) -> float:
        """Draw the noise of a round from the time and the seed, and return the time."""
        self._phase = Random(f"{self.seed} drift").uniform(0.0, 2 * math.pi)
        self._rng = Random(f"{self.seed} measure {self.now_s:.6f}")
        return self.now_s

    def _start(
        self, config: KnobConfig, on_progress: OnProgress
    ) -> tuple[TuneReading | ConfigFailure, float, float]:
        """Return what it does without noise, or why it does not start; what this start makes of
        it; and its seconds.
        """
        on_progress(BenchProgress(config, "starting"))
        truth = self.truth.figure(config)
        start_s = self.truth.start_s(config)
        effect = math.exp(self._rng.gauss(0.0, self.noise.start))
        if isinstance(truth, ConfigFailure):
            start_s *= _START_SHARE[truth.kind]
            self.now_s += start_s
        else:
            on_progress(BenchProgress(config, "warming up"))
            self.now_s += start_s + _WARM_UP * truth.wall_s
        return truth, effect, start_s

    def _readings(
        self,
        config: KnobConfig,
        truth: TuneReading,
        effect: float,
        count: int,
        on_progress: OnProgress,
    ) -> tuple[TuneReading, ...]:
        """Return so many readings of the truth through noise."""
        taken = []
        for number in range(1, count + 1):
            turn = 2 * math.pi * self.now_s / self.noise.drift_period_s + self._phase
            drift = 1.0 + self.noise.drift * math.sin(turn)
            factor = effect * drift * math.exp(self._rng.gauss(0.0, self.noise.reading))
            if self._rng.random() < self.noise.outliers:
                factor *= self._rng.choice(_OUTLIER_FACTORS)
            reading = _read_as(truth, factor)
            taken.append(reading)
            self.now_s += reading.wall_s
            on_progress(BenchProgress(config, "measuring", number, count, reading.effective_tok_s))
        return tuple(taken)


def _read_as(truth: TuneReading, factor: float) -> TuneReading:
    """Return what is read of the truth where all goes `factor` times as fast."""
    speeds = {name: getattr(truth, name) for name in _SPEEDS}
    times = {name: getattr(truth, name) for name in _TIMES}
    changed = {name: value * factor for name, value in speeds.items() if value is not None}
    changed |= {name: value / factor for name, value in times.items() if value is not None}
    if truth.sessions is not None:
        changed["sessions"] = truth.sessions.times(1 / factor)
    return replace(truth, **changed)
