"""The tuner's simulated bench with what the contest adds: hangs, crashes under load, sides that are up together."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

    together: bool = True  # up side by side, as small engines on a CPU are; else each has the cards alone

    def measured(self, request: MeasureRequest) -> MeasurementRound:
        began_s = self._begin()
        if self.together:
            return MeasurementRound(self._side_by_side(request.configs, request.readings), self.now_s - began_s)
        step = 1 if self._rng.random() < 0.5 else -1  # drawn, lest a drift always favours the same one
        starts = [one for config in request.configs[::step] for one in self._side_by_side((config,), request.readings)]
        return MeasurementRound(tuple(starts[::step]), self.now_s - began_s)

    def _start(self, config: KnobConfig, on_progress: OnProgress) -> Found:
        found = self.truth.figure(config)
        if not isinstance(found, ConfigFailure) or found.kind not in ("hang", "refused"):
            return super()._start(config, on_progress)
        effect = math.exp(self._rng.gauss(0.0, self.noise.start))
        seconds = START_DEADLINE_S if found.kind == "hang" else 0.0
        self.now_s += seconds
        return found, effect, seconds

    def _side_by_side(self, configs: Sequence[KnobConfig], readings: int) -> tuple[ServerStart, ...]:
        """A B, B A, A B, ... until all is read, or only one is left of several: alone it tells nothing."""
        started = [self._start(config, unheard) for config in configs]
        taken: list[list[TuneReading]] = [[] for _ in configs]
        failed = [found if isinstance(found, ConfigFailure) else None for found, _, _ in started]
        for turn in range(readings):
            for place in range(len(configs))[:: 1 if turn % 2 == 0 else -1]:
                if failed[place] is None and failed.count(None) >= min(2, len(configs)):
                    found, effect, _ = started[place]
                    taken[place] += self._readings(configs[place], found, effect, 1, unheard)
                    failed[place] = self.truth.dies(configs[place])
        self.now_s += STOP_S * len(configs)
        both = zip(configs, started, taken, failed, strict=True)
        return tuple(ServerStart(config, start[2], tuple(read), failure) for config, start, read, failure in both)
