"""The planner held against a table of measurements: every row predicted, beside it the two formulas people use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from skep.planner.constants import honest_constants
from skep.planner.memory import defaults
from skep.planner.parts import part_bits, parts_of
from skep.planner.points import PublishedCase, Unpredictable, read_case
from skep.planner.predict import predict, value_of
from skep.planner.ranking import band
from skep.planner.step import UNTUNED, StepTuning


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """One row. `error` is a fraction of what was published: 0.2 is 20 %, whichever side."""

    case: PublishedCase
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.case.published - 1.0)


@dataclass(frozen=True, slots=True)
class Spread:
    rows: int
    median_ape: float | None
    p90_ape: float | None


@dataclass(frozen=True, slots=True)
class ValidationReport:
    rows: int
    points: tuple[ValidationPoint, ...]
    unpredicted: tuple[tuple[int, str], ...]

    @property
    def covered(self) -> float | None:
        """Share of the rows inside their band, which is meant to hold 80 %."""
        inside = [point.low <= point.case.published <= point.high for point in self.points]
        return sum(inside) / len(inside) if inside else None

    def spreads(self) -> dict[str, Spread]:
        return _spreads([(point.case, point.error) for point in self.points])

    def by_source(self) -> dict[str, Spread]:
        sources = sorted({point.case.source for point in self.points})
        return {name: spread([one.error for one in self.points if one.case.source == name]) for name in sources}

    def baselines(self) -> dict[str, dict[str, Spread]]:
        cases = [point.case for point in self.points]
        return {
            name: _spreads([(case, abs(formula(case) / case.published - 1.0)) for case in cases])
            for name, formula in BASELINES.items()
        }


def validate(
    rows: Iterable[tuple[int, Mapping[str, str]]], *, tick: Callable[[int], None] = lambda _: None
) -> ValidationReport:
    """Predict every row with constants that were never fitted on its source."""
    points, unpredicted = list[ValidationPoint](), list[tuple[int, str]]()
    for row, cells in rows:
        tick(len(points) + len(unpredicted))
        try:
            points.append(predicted(read_case(row, cells)))
        except Unpredictable as missing:
            unpredicted.append((row, str(missing)))
    return ValidationReport(len(points) + len(unpredicted), tuple(points), tuple(unpredicted))


def predicted(case: PublishedCase, tuning: StepTuning = UNTUNED) -> ValidationPoint:
    """Raises Unpredictable where the weights do not fit the cards."""
    constants = honest_constants(case.source)
    value = value_of(case, predict(case, constants, tuning), constants)
    around = band(case.model, case.card, case.layout, case.spec, case.load.concurrency, engine=case.engine,
                  calibrated=tuning is not UNTUNED)  # fmt: skip
    return ValidationPoint(case, value, value * around.low, value * around.high)


def spread(errors: Sequence[float]) -> Spread:
    if not errors:
        return Spread(0, None, None)
    ordered = sorted(errors)
    return Spread(len(ordered), _quantile(ordered, 0.5), _quantile(ordered, 0.9))


def _spreads(errors: Sequence[tuple[PublishedCase, float]]) -> dict[str, Spread]:
    alone = [error for case, error in errors if case.load.concurrency == 1]
    several = [error for case, error in errors if case.load.concurrency > 1]
    return {"all": spread(alone + several), "C=1": spread(alone), "C>1": spread(several)}


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _bandwidth(case: PublishedCase) -> float:
    """The calculators on the web: bandwidth over the model's size, times a constant, for each agent."""
    size = case.model.params_total * case.quant.nominal / 8
    return 0.55 * case.card.bandwidth_gbs * 1e9 * case.layout.tp / size * _agents(case)


def _roofline(case: PublishedCase) -> float:
    """The larger of reading weights and KV once a step and of computing the batch, both at the data sheet's rate."""
    each = max(1.0, _agents(case) / case.layout.replicas)
    kv = case.model.kv_bytes_per_token(case.kv.bytes) * (case.load.input_tokens + case.load.output_tokens / 2)
    read = (_active_bytes(case) + each * kv) / (case.card.bandwidth_gbs * 1e9 * case.layout.tp)
    rate = (case.card.fp16_tflops or 50.0) * 1e12 * case.layout.tp
    prompt = case.load.input_tokens / case.load.output_tokens if case.metric == "effective" else 0.0
    compute = 2 * case.model.params_active * each * (1 + prompt) / rate
    return _agents(case) / max(read, compute)


def _active_bytes(case: PublishedCase) -> float:
    parts, bits = parts_of(case.model), part_bits(case.quant, case.model)
    share = case.model.experts_per_token / case.model.experts if case.model.experts else 0.0
    return (
        parts.embedding * bits["ends"] + parts.small * bits["small"] + parts.mlp * bits["mlp"]
        + parts.experts * share * bits["experts"]
    ) / 8  # fmt: skip


def _agents(case: PublishedCase) -> float:
    """At once: not more than the engine's slots."""
    slots = case.slots or defaults(case.engine, case.card).slots
    if case.load.rate_per_s is not None:
        return float(min(slots, 16))
    return float(min(case.load.concurrency, slots * case.layout.replicas))


# Tokens a second over all agents; agents share a replica's cards, replicas do not share anything.
BASELINES: Mapping[str, Callable[[PublishedCase], float]] = {
    "bandwidth / size x 0.55": _bandwidth,
    "roofline": _roofline,
}
