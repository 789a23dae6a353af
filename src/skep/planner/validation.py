"""Comparison of the planner's predictions with published measurements, and with two simple formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from skep.planner.constants import Constants, honest_constants
from skep.planner.fit import pool_tokens_as_reported
from skep.planner.memory import defaults, kv_bytes_per_token, memory, state_bytes, weights_bytes, window_bytes
from skep.planner.parts import part_bits, parts_of
from skep.planner.points import PublishedCase, Unpredictable, read_case
from skep.planner.predict import PredictedOutcome, simulate_load
from skep.planner.ranking import band
from skep.planner.step import LLAMACPP, UNTUNED, StepTuning, step_model
from skep.units import GIB

_AT_ONCE = {"sglang": 2048, "trtllm": 2048}  # bounded by memory alone, as far as people meet it
_AT_ONCE_DRAFTING = {"sglang": 48}  # set by SGLang itself as soon as it speculates
_FEW = 8  # sequences: who has room for fewer raises the engine's share of the card
_FILLED = 0.96
_PUSHED_OUT = 0.2  # of what the prefix cache could have answered, where the pool is too small to keep it


def case_pool_tokens(case: PublishedCase) -> float:
    """Tokens of KV beside the weights. The row was measured, so one sequence fits whatever the arithmetic says."""
    setup, load, card = case.setup, case.load, case.card
    context, each = int(load.input_tokens + load.output_tokens), setup.layout.cards_each
    weights = weights_bytes(setup.model, setup.quant, with_vision=False)
    if weights > 1.02 * card.memory_gib * GIB * each:
        has = f"{each} x {card.memory_gib:g} GiB"
        raise Unpredictable(f"memory: {weights / GIB:.0f} GiB of {setup.quant.title} weights do not fit {has}")
    if setup.engine in LLAMACPP:
        return float(context) * load.concurrency * 2  # taken at the start, for every slot
    plan = memory(setup, card, context=context, vision=False)
    chunk = setup.batched_tokens or defaults(setup.engine, card).batched_tokens
    sequence = kv_bytes_per_token(setup) * context + (window_bytes(setup, context, chunk) + state_bytes(setup))
    held = plan.pool_bytes / sequence * context if sequence else float("inf")
    if case.pool_tokens is not None:
        reported = pool_tokens_as_reported(setup, plan)
        held = case.pool_tokens * (held / reported if setup.model.sliding_layers and reported else 1.0)
    if held < _FEW * context and held < load.concurrency * context:
        held = max(held, (_FILLED * card.memory_gib * GIB * each - weights) / each / sequence * context)
    return max(1.1 * context, held)


def predict(case: PublishedCase, constants: Constants, tuning: StepTuning = UNTUNED) -> PredictedOutcome:
    setup, load = case.setup, case.load
    step = step_model(
        setup, case.card, case.link, constants, split=case.split, tuning=tuning, weight_only=case.weight_only
    )
    usual, pool = defaults(setup.engine, case.card), case_pool_tokens(case)
    if load.cached_share and pool < 1.5 * load.concurrency * (load.input_tokens + load.output_tokens):
        load = replace(load, cached_share=_PUSHED_OUT * load.cached_share)
    drafting = _AT_ONCE_DRAFTING.get(setup.engine) if setup.spec is not None else None
    slots = setup.slots or drafting or _AT_ONCE.get(setup.engine, usual.slots)
    chunk = setup.batched_tokens or usual.batched_tokens
    return simulate_load(step, load, slots=slots, pool_tokens=pool, chunk_tokens=chunk, replicas=setup.layout.replicas)


def value_of(case: PublishedCase, outcome: PredictedOutcome, constants: Constants) -> float:
    """In the row's own terms."""
    if case.metric == "decode":
        return outcome.task_tok_s * case.load.concurrency
    return outcome.effective_tok_s * (constants.run_tail if case.load.concurrency > 1 else 1.0)


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
        sources = sorted({point.case.source for point in self.points})
        return {name: spread([p.error for p in self.points if p.case.source == name]) for name in sources}

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
    around = band(case.setup, case.card, case.load.concurrency, calibrated=tuning is not UNTUNED)
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
    size = case.setup.model.params_total * case.setup.quant.nominal / 8
    return 0.55 * case.card.bandwidth_gbs * 1e9 * case.setup.layout.tp / size * _agents(case)


def _roofline(case: PublishedCase) -> float:
    """Return the slower of reading weights and KV once a step and computing the batch, at the data sheet's rates."""
    model, layout, load = case.setup.model, case.setup.layout, case.load
    parts, bits = parts_of(model), part_bits(case.setup.quant, model)
    routed = model.experts_per_token / model.experts if model.experts else 0.0
    dense = parts.embedding * bits["ends"] + parts.small * bits["small"] + parts.mlp * bits["mlp"]
    active = (dense + parts.experts * routed * bits["experts"]) / 8
    each = max(1.0, _agents(case) / layout.replicas)
    kv = model.kv_bytes_per_token(case.setup.kv.bytes) * (load.input_tokens + load.output_tokens / 2)
    read = (active + each * kv) / (case.card.bandwidth_gbs * 1e9 * layout.tp)
    rate = (case.card.fp16_tflops or 50.0) * 1e12 * layout.tp
    prompt = load.input_tokens / load.output_tokens if case.metric == "effective" else 0.0
    compute = 2 * model.params_active * each * (1 + prompt) / rate
    return _agents(case) / max(read, compute)


def _agents(case: PublishedCase) -> float:
    """Return how many requests run at once: at most the engine's slots."""
    slots = case.setup.slots or defaults(case.setup.engine, case.card).slots
    if case.load.rate_per_s is not None:
        return float(min(slots, 16))
    return float(min(case.load.concurrency, slots * case.setup.layout.replicas))


# Tokens a second over all agents; agents share a replica's cards, replicas do not share anything.
BASELINES: Mapping[str, Callable[[PublishedCase], float]] = {
    "bandwidth / size x 0.55": _bandwidth,
    "roofline": _roofline,
}
