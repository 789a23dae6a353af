"""The tuner's simulated bench with what the contest adds: hangs and crashes under load."""

from __future__ import annotations

import math
from dataclasses import dataclass

from skep.tuner.records import (
    BenchProgress,
    ConfigFailure,
    KnobConfig,
    MeasurementRound,
    MeasureRequest,
    OnProgress,
    ServerStart,
    TuneReading,
)
from skep.tuner.simulated import STOP_S, SimulatedBench

START_DEADLINE_S = 600.0  # a hang costs all of it
Found = tuple[TuneReading | ConfigFailure, float, float]


def unheard(_: BenchProgress) -> None: ...


@dataclass(eq=False)
class ContestBench(SimulatedBench):
    """Nothing in it waits, so that answers come without an event loop."""

    def measured(self, request: MeasureRequest) -> MeasurementRound:
        began_s = self._begin()
        # Drawn, lest a drift always favours the same one.
        step = 1 if self._rng.random() < 0.5 else -1
        starts = [self._one(config, request.readings) for config in request.configs[::step]]
        return MeasurementRound(tuple(starts[::step]), self.now_s - began_s)

    def _start(self, config: KnobConfig, on_progress: OnProgress) -> Found:
        found = self.truth.figure(config)
        if not isinstance(found, ConfigFailure) or found.kind not in ("hang", "refused"):
            return super()._start(config, on_progress)
        effect = math.exp(self._rng.gauss(0.0, self.noise.start))
        seconds = START_DEADLINE_S if found.kind == "hang" else 0.0
        self.now_s += seconds
        return found, effect, seconds

    def _one(self, config: KnobConfig, readings: int) -> ServerStart:
        found, effect, start_s = self._start(config, unheard)
        taken: tuple[TuneReading, ...] = ()
        failure = found if isinstance(found, ConfigFailure) else None
        for _ in range(readings):
            if failure is None:
                taken += self._readings(config, found, effect, 1, unheard)
                failure = self.truth.dies(config)
        self.now_s += STOP_S
        return ServerStart(config, start_s, taken, failure)
