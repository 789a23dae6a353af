"""Comparison of the planner's predictions with published measurements, and with two simple formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from skep.planner.constants import honest_constants
from skep.planner.memory import defaults
from skep.planner.parts import part_bits, parts_of
from skep.planner.points import PublishedCase, Unpredictable, read_case
from skep.planner.predict import predict, value_of
from skep.planner.ranking import band
from skep.planner.step import UNTUNED, StepTuning


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    case: PublishedCase
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Absolute error as a fraction of the published value: 0.2 is 20 %."""
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
        errors: dict[str, list[float]] = {}
        for point in self.points:
            errors.setdefault(point.case.source, []).append(point.error)
        return {source: spread(errors[source]) for source in sorted(errors)}

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
    """Predict one case. Raise Unpredictable if the weights do not fit the cards."""
    constants = honest_constants(case.source)
    value = value_of(case, predict(case, constants, tuning), constants)
    calibrated = tuning is not UNTUNED
    agents = case.load.concurrency
    around = band(case.model, case.card, case.layout, case.spec, agents, engine=case.engine, calibrated=calibrated)
    return ValidationPoint(case, value, value * around.low, value * around.high)


def spread(errors: Sequence[float]) -> Spread:
    if not errors:
        return Spread(0, None, None)
    p90 = quantiles(errors, n=10, method="inclusive")[8] if len(errors) > 1 else errors[0]
    return Spread(len(errors), median(errors), p90)


def _spreads(errors: Sequence[tuple[PublishedCase, float]]) -> dict[str, Spread]:
    alone = [error for case, error in errors if case.load.concurrency == 1]
    several = [error for case, error in errors if case.load.concurrency > 1]
    return {"all": spread(alone + several), "C=1": spread(alone), "C>1": spread(several)}


def _bandwidth(case: PublishedCase) -> float:
    """Return what calculators on the web say: bandwidth over the model's size, times a constant, for each agent."""
    size = case.model.params_total * case.quant.nominal / 8
    return 0.55 * case.card.bandwidth_gbs * 1e9 * case.layout.tp / size * _agents(case)


def _roofline(case: PublishedCase) -> float:
    """Return the slower of reading weights and KV once a step and computing the batch, at the data sheet's rates."""
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
    dense = parts.embedding * bits["ends"] + parts.small * bits["small"] + parts.mlp * bits["mlp"]
    return (dense + parts.experts * share * bits["experts"]) / 8


def _agents(case: PublishedCase) -> float:
    """Return how many requests run at once: at most the engine's slots."""
    slots = case.slots or defaults(case.engine, case.card).slots
    if case.load.rate_per_s is not None:
        return float(min(slots, 16))
    return float(min(case.load.concurrency, slots * case.layout.replicas))


# Tokens a second over all agents; agents share a replica's cards, replicas do not share anything.
BASELINES: Mapping[str, Callable[[PublishedCase], float]] = {
    "bandwidth / size x 0.55": _bandwidth,
    "roofline": _roofline,
}
