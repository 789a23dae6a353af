"""The two formulas people use instead of a planner, on the same rows: what every prediction is to be held against."""

from __future__ import annotations

from skep.planner.memory_facts import defaults
from skep.planner.parts import part_bits, parts_of
from skep.planner.points import Case

NAMES = ("bandwidth / size x 0.55", "roofline")


def baseline(name: str, case: Case) -> float:
    """Tokens a second over all agents; agents share a replica's cards, replicas do not share anything."""
    return _bandwidth(case) if name == NAMES[0] else _roofline(case)


def _active_bytes(case: Case) -> float:
    parts, bits = parts_of(case.model), part_bits(case.quant, case.model)
    share = case.model.experts_per_token / case.model.experts if case.model.experts else 0.0
    return (
        parts.embedding * bits["ends"] + parts.small * bits["small"] + parts.mlp * bits["mlp"]
        + parts.experts * share * bits["experts"]
    ) / 8  # fmt: skip


def _bandwidth(case: Case) -> float:
    """The calculators on the web: bandwidth over the model's size, times a constant, for each agent."""
    size = case.model.params_total * case.quant.nominal / 8
    return 0.55 * case.card.bandwidth_gbs * 1e9 * case.layout.tp / size * _agents(case)


def _roofline(case: Case) -> float:
    """The larger of reading weights and KV once a step and of computing the batch, both at the data sheet's rate."""
    each = max(1.0, _agents(case) / case.layout.replicas)
    kv = case.model.kv_bytes_per_token(case.kv.bytes) * (case.load.input_tokens + case.load.output_tokens / 2)
    read = (_active_bytes(case) + each * kv) / (case.card.bandwidth_gbs * 1e9 * case.layout.tp)
    rate = (case.card.fp16_tflops or 50.0) * 1e12 * case.layout.tp
    prompt = case.load.input_tokens / case.load.output_tokens if case.metric == "effective" else 0.0
    compute = 2 * case.model.params_active * each * (1 + prompt) / rate
    return _agents(case) / max(read, compute)


def _agents(case: Case) -> float:
    """At once: not more than the engine's slots."""
    slots = case.slots or defaults(case.engine, case.card).slots
    if case.load.rate_per_s is not None:
        return float(min(slots, 16))
    return float(min(case.load.concurrency, slots * case.layout.replicas))
