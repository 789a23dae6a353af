"""A case's expected speed: the step model of its cards, played through with its load."""

from __future__ import annotations

from dataclasses import replace

from skep.planner.constants import Constants
from skep.planner.forecast import Outcome, play
from skep.planner.parts import part_bits, parts_of
from skep.planner.points import Case, Unpredictable
from skep.planner.step import StepModel, is_datacenter, step_model
from skep.units import GIB


def case_step(case: Case, constants: Constants, slow: float = 1.0) -> StepModel:
    return step_model(
        case.model, case.quant, case.kv, case.card, case.layout, case.link, engine=case.engine, graphs=case.graphs,
        spec=case.spec, constants=constants, split=case.split, slow=slow, weight_only=case.weight_only,
    )  # fmt: skip


def pool_tokens(case: Case) -> float:
    """Tokens of KV beside the weights, where the row does not tell."""
    if case.pool_tokens is not None:
        return case.pool_tokens
    parts, bits = parts_of(case.model), part_bits(case.quant, case.model)
    weights = (
        (parts.embedding + parts.head) * bits["ends"] + parts.small * bits["small"]
        + parts.mlp * bits["mlp"] + parts.experts * bits["experts"]
    ) / 8  # fmt: skip
    each = case.layout.tp * case.layout.pp
    memory = case.card.memory_gib * GIB * each
    room = max(0.9 * memory - weights - 2.0 * GIB * each, 0.97 * memory - weights - 0.7 * GIB * each)
    one = case.load.input_tokens + case.load.output_tokens
    per_token = case.model.kv_bytes_per_token(case.kv.bytes)
    if weights > 1.02 * memory:
        has = f"{each} x {case.card.memory_gib:g} GiB"
        raise Unpredictable(f"memory: {weights / GIB:.0f} GiB of {case.quant.title} weights do not fit {has}")
    return max(1.2 * one, room / max(1.0, per_token))


def predict(case: Case, constants: Constants, slow: float = 1.0) -> Outcome:
    step = case_step(case, constants, slow)
    big = is_datacenter(case.card) and case.card.memory_gib > 70 and case.card.family != "ampere"
    slots = case.slots or (1024 if big else 256)
    chunk = case.chunk_tokens or (8192 if big else 2048)
    pool, load = pool_tokens(case), case.load
    if load.cached_share and pool < 1.5 * load.concurrency * (load.input_tokens + load.output_tokens):
        load = replace(
            load, cached_share=0.2 * load.cached_share
        )  # what was cached is pushed out before it is used again
    return play(step, load, slots=slots, pool_tokens=pool, chunk_tokens=chunk, replicas=case.layout.replicas)


def value_of(case: Case, outcome: Outcome, constants: Constants) -> float:
    """In the row's own terms."""
    if case.metric == "decode":
        return outcome.task_tok_s * case.load.concurrency
    return outcome.effective_tok_s * (constants.run_tail if case.load.concurrency > 1 else 1.0)
