"""Fits one machine's factors on steps, on further sequences and on prompts to a measurement or two
on it.

Knows levels as they were measured, not how; stores nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from skep.planner.predict import PredictedOutcome, SpeedModel, prospect
from skep.planner.setup import PlannedLoad, Rig, Setup
from skep.planner.step import UNTUNED, Constants, StepTuning
from skep.units import Interval

_LEAST = 0.1
_MOST = 10.0
# deviation of the factor on further sequences from machine to machine, before anything was
# measured
_USUAL = 1.0
# in half of a 95 % interval, by the number of runs
_SIGMAS = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57}
_AS_PREDICTED = Interval(1.0, 1.0, 1.0)
SpeedModelMaker = Callable[[StepTuning], SpeedModel]


class MeasuredLevel(msgspec.Struct, frozen=True):
    """One level as it was measured.

    The intervals are 95 %, over its runs; `tpot_s` is of their median tasks.
    """

    concurrency: int
    input_tokens: float
    output_tokens: float
    tpot_s: Interval
    ttft_s: Interval
    effective_tok_s: Interval
    runs: int
    cached_share: float = 0.0

    def load(self) -> PlannedLoad:
        return PlannedLoad(
            self.concurrency, self.input_tokens, self.output_tokens, cached_share=self.cached_share
        )


class CalibrationData(msgspec.Struct, frozen=True):
    """What a calibration measured: one agent alone, perhaps a higher level, long prompts, levels
    held back.
    """

    alone: MeasuredLevel
    crowd: MeasuredLevel | None
    prompts: MeasuredLevel | None  # None: none were long enough to tell how fast prompts are
    held_back: tuple[MeasuredLevel, ...] = ()  # not fitted to: the fit is held against them

    @property
    def levels(self) -> tuple[MeasuredLevel, ...]:
        measured = filter(None, (self.alone, self.crowd, *self.held_back))
        return tuple(sorted(measured, key=lambda level: level.concurrency))

    @property
    def context(self) -> int:
        levels = (*self.levels, self.prompts or self.alone)
        return math.ceil(max(level.input_tokens + level.output_tokens for level in levels))


class Fitted(msgspec.Struct, frozen=True):
    """Factors on predicted times, with their 95 % intervals.

    `batch` None: nothing was measured that tells it.
    """

    decode: Interval
    batch: Interval | None
    prompt: Interval
    at_limit: tuple[str, ...] = ()  # whose factor was cut to what may be believed

    @property
    def tuning(self) -> StepTuning:
        batch = self.batch.estimate if self.batch else 1.0
        return StepTuning(self.decode.estimate, batch, self.prompt.estimate)

    def __str__(self) -> str:
        clauses = [f"steps take {_words(self.decode)} as long as predicted"]
        if self.batch is not None:
            clauses.append(f"further sequences add {_words(self.batch)}")
        if self.prompt != _AS_PREDICTED:
            clauses.append(f"prompts take {_words(self.prompt)}")
        return ", ".join(clauses)


def speed_model_maker(
    setup: Setup,
    rig: Rig,
    constants: Constants,
    measured: CalibrationData,
) -> SpeedModelMaker:
    """Return a function from a tuning to the setup's speed model with it.

    What was measured did fit, so the pool holds it whatever the arithmetic says.
    """

    def foresee(tuning: StepTuning) -> SpeedModel:
        speed_model = prospect(setup, rig, constants, context=measured.context, tuning=tuning)
        widest = max(level.concurrency for level in measured.levels)
        return replace(
            speed_model, pool_tokens=max(speed_model.pool_tokens, 1.1 * widest * measured.context)
        )

    return foresee


def fit(foresee: SpeedModelMaker, measured: CalibrationData) -> Fitted:
    """Return the factors with which the measured times come out.

    Times of one agent alone are proportional to their factor; those of many grow with theirs in a
    straight line.
    """
    plain = foresee(UNTUNED)
    alone = plain.outcome(measured.alone.load())
    decode = _scaled(measured.alone.tpot_s, alone.tpot_s)
    prompt = _AS_PREDICTED
    long = measured.prompts
    if long is not None:
        prompt = _scaled(long.ttft_s, plain.outcome(long.load()).ttft_s)
    if measured.crowd:
        batch = _batch_factor(foresee, measured.crowd, _bounded(decode))
    else:
        batch = None
    named = {"steps": decode, "further sequences": batch, "prompts": prompt}
    cut = tuple(
        name for name, factor in named.items() if factor and not _LEAST <= factor.estimate <= _MOST
    )
    return Fitted(_bounded(decode), _bounded(batch) if batch else None, _bounded(prompt), cut)


def before_and_after(
    foresee: SpeedModelMaker, fitted: Fitted, measured_level: MeasuredLevel
) -> tuple[PredictedOutcome, PredictedOutcome]:
    """Return the prediction for a level without and with the calibration."""
    load = measured_level.load()
    return foresee(UNTUNED).outcome(load), foresee(fitted.tuning).outcome(load)


def _batch_factor(
    foresee: SpeedModelMaker, crowd: MeasuredLevel, decode: Interval
) -> Interval | None:
    """Return the factor on further sequences: near 1 where they cost next to nothing and noise
    would decide.
    """

    def tpot(batch: float) -> float:
        """Return the time of a token of the median task: tasks of one length end and begin
        together, so it meets no prompt while it decodes.
        """
        speed_model = foresee(StepTuning(decode.estimate, batch))
        step = speed_model.step
        replicas = speed_model.setup.layout.replicas
        sequences = max(1, round(crowd.concurrency / replicas))
        middle = crowd.input_tokens + crowd.output_tokens / 2
        step_s = step.seconds(sequences, sequences * middle)
        return step_s / step.tokens_per_step(sequences)

    least_tpot_s = tpot(_LEAST)
    usual_tpot_s = tpot(1.0)
    slope = (usual_tpot_s - least_tpot_s) / (1.0 - _LEAST)
    if slope <= 1e-4 * usual_tpot_s:
        return None
    estimate = crowd.tpot_s.estimate
    factor = 1.0 + (estimate - usual_tpot_s) / slope
    measured_half = (crowd.tpot_s.high - crowd.tpot_s.low) / 2
    half_width = math.hypot(measured_half, decode.half_width * estimate) / slope
    deviation = half_width / _SIGMAS.get(crowd.runs, 1.96)
    share = _USUAL**2 / (_USUAL**2 + deviation**2)
    factor = 1.0 + (factor - 1.0) * share
    half_width *= math.sqrt(share)
    return Interval(max(0.0, factor - half_width), factor, factor + half_width)


def _scaled(measured: Interval, predicted: float) -> Interval:
    return Interval(
        measured.low / predicted, measured.estimate / predicted, measured.high / predicted
    )


def _bounded(factor: Interval) -> Interval:
    low, middle, high = (
        min(_MOST, max(_LEAST, value)) for value in (factor.low, factor.estimate, factor.high)
    )
    return Interval(low, middle, high)


def _words(factor: Interval) -> str:
    return f"{factor.estimate:.2f}x (± {100 * factor.half_width:.0f} %)"
