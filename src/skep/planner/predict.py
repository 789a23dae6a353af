"""A published row's expected speed: the step model of its cards, played through with its load."""

from __future__ import annotations

from dataclasses import replace

from skep.planner.constants import Constants
from skep.planner.fitting_in import pool_tokens_as_reported
from skep.planner.forecast import Outcome, play
from skep.planner.memory import kv_bytes_per_token, memory, state_bytes, weights_bytes, window_bytes
from skep.planner.memory_facts import defaults
from skep.planner.points import Case, Unpredictable
from skep.planner.rates import LLAMACPP
from skep.planner.setup import Setup
from skep.planner.step import UNTUNED, StepModel, Tuning, step_model
from skep.units import GIB

_AT_ONCE = {"sglang": 2048, "trtllm": 2048}  # bounded by memory alone, as far as people meet it
_AT_ONCE_DRAFTING = {"sglang": 48}  # set by SGLang itself as soon as it speculates
_FEW = 8  # sequences: who has room for fewer raises the engine's share of the card
_FILLED = 0.96
_PUSHED_OUT = 0.2  # of what the prefix cache could have answered, where the pool is too small to keep it


def case_setup(case: Case) -> Setup:
    return Setup(
        case.model, case.quant, case.kv, case.engine, case.layout, slots=case.slots, utilization=case.utilization,
        graphs=case.graphs, spec=case.spec, batched_tokens=case.chunk_tokens,
    )  # fmt: skip


def case_step(case: Case, constants: Constants, tuning: Tuning = UNTUNED) -> StepModel:
    return step_model(
        case.model, case.quant, case.kv, case.card, case.layout, case.link, engine=case.engine, graphs=case.graphs,
        spec=case.spec, constants=constants, split=case.split, tuning=tuning, weight_only=case.weight_only,
    )  # fmt: skip


def case_pool_tokens(case: Case) -> float:
    """Tokens of KV beside the weights. The row was measured, so one sequence fits whatever the arithmetic says."""
    setup = case_setup(case)
    context = int(case.load.input_tokens + case.load.output_tokens)
    each = case.layout.cards_each
    weights = weights_bytes(case.model, case.quant, with_vision=False)
    if weights > 1.02 * case.card.memory_gib * GIB * each:
        has = f"{each} x {case.card.memory_gib:g} GiB"
        raise Unpredictable(f"memory: {weights / GIB:.0f} GiB of {case.quant.title} weights do not fit {has}")
    if case.engine in LLAMACPP:
        return float(context) * case.load.concurrency * 2  # taken at the start, for every slot
    usual = defaults(case.engine, case.card)
    slots = case.slots or usual.slots
    plan = memory(setup, case.card, context=context, slots=slots, vision=False)
    sequence = kv_bytes_per_token(setup) * context
    sequence += window_bytes(setup, context, case.chunk_tokens or usual.batched_tokens) + state_bytes(setup)
    held = plan.pool_bytes / sequence * context if sequence else float("inf")
    if case.pool_tokens is not None:
        reported = pool_tokens_as_reported(setup, plan)
        scale = held / reported if case.model.sliding_layers and reported else 1.0
        held = case.pool_tokens * scale
    if held < _FEW * context and held < case.load.concurrency * context:
        held = max(held, (_FILLED * case.card.memory_gib * GIB * each - weights) / each / sequence * context)
    return max(1.1 * context, held)


def predict(case: Case, constants: Constants, tuning: Tuning = UNTUNED) -> Outcome:
    step = case_step(case, constants, tuning)
    usual = defaults(case.engine, case.card)
    pool, load = case_pool_tokens(case), case.load
    if load.cached_share and pool < 1.5 * load.concurrency * (load.input_tokens + load.output_tokens):
        load = replace(load, cached_share=_PUSHED_OUT * load.cached_share)
    return play(
        step, load, slots=case.slots or _slots(case, usual.slots), pool_tokens=pool,
        chunk_tokens=case.chunk_tokens or usual.batched_tokens, replicas=case.layout.replicas,
    )  # fmt: skip


def _slots(case: Case, usual: int) -> int:
    drafting = _AT_ONCE_DRAFTING.get(case.engine) if case.spec is not None else None
    return drafting or _AT_ONCE.get(case.engine, usual)


def value_of(case: Case, outcome: Outcome, constants: Constants) -> float:
    """In the row's own terms."""
    if case.metric == "decode":
        return outcome.task_tok_s * case.load.concurrency
    return outcome.effective_tok_s * (constants.run_tail if case.load.concurrency > 1 else 1.0)
