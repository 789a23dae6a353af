"""The bench of the contest, in virtual time: hangs, crashes under load and sides that are up together, beside what
`skep.tuner.simulated` has.

What befalls real readings befalls these: each has noise of its own, each start an effect of its own, the whole machine
drifts slowly, and now and then a reading is far off. `PlannedTruth` says what is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import msgspec
from msgspec.structs import replace

from skep.stats.slo import SloLimits
from skep.tuner.predictions import CURVE_RUNS, Predictor, tasks_for
from skep.tuner.records import (
    BenchProgress,
    ConfigFailure,
    CurvePoint,
    CurveRequest,
    CurveResult,
    JudgeRequest,
    JudgeResult,
    KnobConfig,
    MeasurementRound,
    MeasureRequest,
    OnProgress,
    ServerStart,
    TuneReading,
)
from skep.units import Interval

START_DEADLINE_S = 600.0  # a hang costs all of it
STOP_S = 3.0
_WARM_UP = 0.5  # of a reading
_OUTLIER_FACTORS = (1.12, 0.75)
_T_95_TWO_RUNS = 12.706
_SPEEDS = ("figure", "effective_tok_s", "task_tok_s", "tok_per_joule")
_TIMES = ("ttft_ms", "tpot_ms", "wall_s", "over_limit")
_START_SHARE = {"refused": 0.0, "no-start": 0.5, "out-of-memory": 0.7}  # of a start, until it has failed


class SimulatedNoise(msgspec.Struct, frozen=True):
    """Shares. `drift` is how far the machine as a whole goes up and down within `drift_period_s`."""

    reading: float = 0.03
    start: float = 0.01
    drift: float = 0.02
    drift_period_s: float = 5 * 3600.0
    outliers: float = 0.02


@dataclass(slots=True)
class _SimulatedStart:
    config: KnobConfig
    truth: TuneReading | None = None  # None: it is not up
    failure: ConfigFailure | None = None
    start_s: float = 0.0
    effect: float = 1.0
    readings: tuple[TuneReading, ...] = ()


class PlannedTruth:
    """What each configuration really does, by what is foreseen. Pure: the same for every question."""

    def __init__(self, space: Predictor) -> None:
        self._space, self._aim = space, space.aim
        self._limits = SloLimits.parse(self._aim.slo).limits if self._aim.slo else ()

    def figure(self, config: KnobConfig) -> TuneReading | ConfigFailure:
        """Return one reading of the goal's load without noise, `wall_s` long; or why it does not start."""
        found = self.at(config, self._aim.concurrency)
        if isinstance(found, ConfigFailure):
            return found
        figure, watts = self._space.predict(config), self._space.watts(config)
        return replace(found, figure=figure, tok_per_joule=(found.effective_tok_s or 0.0) / watts if watts else None)

    def dies(self, config: KnobConfig) -> ConfigFailure | None:  # noqa: ARG002
        """Return what becomes of it under load, after a good start and a first reading; None: it lives."""
        return None

    def at(self, config: KnobConfig, concurrency: int) -> TuneReading | ConfigFailure:
        """Return the same load at another number of agents; `figure` is effective tok/s."""
        fit = self._space.fit(config)
        if fit is not None and fit.over_bytes > 0:
            remedy = "fewer slots, a smaller KV type, or another share of the card"
            return ConfigFailure("out-of-memory", f"SIMULATED: {fit.sentence}", remedy=remedy)
        outcome = self._space.outcome(config, concurrency)
        if outcome is None:
            return ConfigFailure("no-start", "the planner has no figure for it")
        per_s = outcome.effective_tok_s / self._aim.output_tokens
        tasks = tasks_for(concurrency, [per_s])
        ttft_ms, tpot_ms = 1000 * outcome.ttft_s, 1000 * outcome.tpot_s
        seen = {"ttft": ttft_ms, "tpot": tpot_ms, "total": ttft_ms + tpot_ms * self._aim.output_tokens}
        over = max((seen[limit.name] / limit.ms for limit in self._limits), default=0.0)
        speed = outcome.effective_tok_s
        return TuneReading(speed, speed, outcome.task_tok_s, ttft_ms, tpot_ms, tasks / per_s, tasks, over_limit=over)

    def start_s(self, config: KnobConfig) -> float:
        return self._space.start_s(config)


@dataclass(eq=False)
class ContestBench:
    truth: PlannedTruth
    seed: int
    noise: SimulatedNoise = field(default_factory=SimulatedNoise)
    together: bool = True  # up side by side, as small engines on a CPU are; else each has the cards alone
    now_s: float = 0.0  # a search that is taken up again begins later, and meets the noise it would have met

    def __post_init__(self) -> None:
        self._phase = Random(f"{self.seed} drift").uniform(0.0, 2 * math.pi)

    async def measure(self, request: MeasureRequest, on_progress: OnProgress) -> MeasurementRound:
        return self.measured(request, on_progress)

    async def judge(self, request: JudgeRequest, on_progress: OnProgress) -> JudgeResult:
        on_progress(BenchProgress(request.challenger, "judging"))
        return JudgeResult(ok=True, words="SIMULATED: no model ran, nothing was judged", seconds=0.0, skipped=True)

    async def curve(self, request: CurveRequest, on_progress: OnProgress) -> CurveResult:
        return self.curved(request, on_progress)

    def measured(self, request: MeasureRequest, on_progress: OnProgress = lambda _: None) -> MeasurementRound:
        """Return what `measure` answers: nothing in it waits."""
        began_s, rng = self.now_s, self._rng("measure")
        sides = [_SimulatedStart(config) for config in request.configs]
        if self.together:
            self._side_by_side(sides, request.readings, rng, on_progress)
        else:  # which side goes first is drawn, lest a drift always favours the same one
            for side in sides if rng.random() < 0.5 else sides[::-1]:
                self._side_by_side([side], request.readings, rng, on_progress)
        starts = (ServerStart(side.config, side.start_s, side.readings, side.failure) for side in sides)
        return MeasurementRound(tuple(starts), self.now_s - began_s)

    def curved(self, request: CurveRequest, on_progress: OnProgress = lambda _: None) -> CurveResult:
        began_s, rng = self.now_s, self._rng("curve")
        points = []
        for config in request.configs:
            side = _SimulatedStart(config)
            self._start(side, rng, on_progress)
            points += [self._point(side, level, rng, on_progress) for level in request.levels]
            self.now_s += STOP_S
        return CurveResult(tuple(points), self.now_s - began_s)

    def drift(self, at_s: float) -> float:
        """Return how the machine as a whole does at that time, of what it does on average."""
        return 1.0 + self.noise.drift * math.sin(2 * math.pi * at_s / self.noise.drift_period_s + self._phase)

    def _rng(self, what: str) -> Random:
        return Random(f"{self.seed} {what} {self.now_s:.6f}")

    def _side_by_side(self, sides: list[_SimulatedStart], readings: int, rng: Random, on_progress: OnProgress) -> None:
        """A B, B A, A B, ... until all is read, or only one is left of several: alone it tells nothing."""
        for side in sides:
            self._start(side, rng, on_progress)
        enough = min(2, len(sides))
        for turn in range(readings):
            for side in sides if turn % 2 == 0 else reversed(sides):
                if side.truth and sum(one.truth is not None for one in sides) >= enough:
                    self._read(side, turn, readings, rng, on_progress)
        self.now_s += STOP_S * len(sides)

    def _start(self, side: _SimulatedStart, rng: Random, on_progress: OnProgress) -> None:
        on_progress(BenchProgress(side.config, "starting"))
        found, start_s = self.truth.figure(side.config), self.truth.start_s(side.config)
        side.effect = math.exp(rng.gauss(0.0, self.noise.start))
        if isinstance(found, ConfigFailure):
            side.failure = found
            side.start_s = START_DEADLINE_S if found.kind == "hang" else start_s * _START_SHARE.get(found.kind, 1.0)
            self.now_s += side.start_s
            return
        side.start_s, side.truth = start_s, found
        on_progress(BenchProgress(side.config, "warming up"))
        self.now_s += start_s + _WARM_UP * found.wall_s

    def _read(self, side: _SimulatedStart, turn: int, readings: int, rng: Random, on_progress: OnProgress) -> None:
        assert side.truth is not None
        reading = self._seen(side.truth, side.effect, rng)
        self.now_s += reading.wall_s
        side.readings = (*side.readings, reading)
        on_progress(BenchProgress(side.config, "measuring", turn + 1, readings, reading.effective_tok_s))
        side.failure = self.truth.dies(side.config)
        if side.failure is not None:
            side.truth = None

    def _seen(self, truth: TuneReading, effect: float, rng: Random) -> TuneReading:
        factor = effect * self.drift(self.now_s) * math.exp(rng.gauss(0.0, self.noise.reading))
        if rng.random() < self.noise.outliers:
            factor *= rng.choice(_OUTLIER_FACTORS)
        known = {name: value for name in (*_SPEEDS, *_TIMES) if (value := getattr(truth, name)) is not None}
        return replace(truth, **{n: value * factor if n in _SPEEDS else value / factor for n, value in known.items()})

    def _point(self, side: _SimulatedStart, level: int, rng: Random, on_progress: OnProgress) -> CurvePoint:
        truth = self.truth.at(side.config, level)
        if side.truth is None or isinstance(truth, ConfigFailure):
            return CurvePoint(level, side.config, None)
        seen = []
        for turn in range(CURVE_RUNS):
            seen.append(self._seen(truth, side.effect, rng))
            self.now_s += seen[-1].wall_s
            on_progress(BenchProgress(side.config, "measuring", turn + 1, CURVE_RUNS, seen[-1].effective_tok_s))
        first, second = (one.effective_tok_s or 0.0 for one in seen)
        mean, half = (first + second) / 2, _T_95_TWO_RUNS * abs(first - second) / 2
        figure = Interval(max(0.0, mean - half), mean, mean + half)
        return CurvePoint(level, side.config, figure, seen[0].ttft_ms, seen[0].tpot_ms)
