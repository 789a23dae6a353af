"""Does it fit, by how much not, what would, and the largest context and number of slots that do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from skep.catalog.gpus import Device
from skep.planner import memory as facts
from skep.planner.memory import MemoryPlan, Term, kv_bytes_per_token, memory, state_bytes, window_bytes
from skep.planner.setup import Setup
from skep.units import format_bytes

CONTEXT_STEP = 256  # contexts are given in steps of this many tokens
SLOTS_MOST = 1024


@dataclass(frozen=True, slots=True)
class FitResult:
    """`over_bytes` is 0 where it fits. `at_once`: how many sequences of that context the card holds at a time."""

    fits: bool
    plan: MemoryPlan
    over_bytes: int
    largest: Term
    at_once: float
    sentence: str
    remedies: tuple[str, ...] = ()


def fits(
    setup: Setup,
    card: Device,
    *,
    context: int,
    slots: int | None = None,
    at_once: int | None = None,
    vision: bool = True,
) -> FitResult:
    """With a pool and no `at_once`: whether the engine starts. The arguments are those of `memory`."""
    plan = memory(setup, card, context=context, slots=slots, at_once=at_once, vision=vision)
    inside, outside = plan.over_inside_bytes, plan.over_outside_bytes
    over = max(inside, 0) + max(outside, 0)
    largest = plan.largest
    held = _held(setup, plan)
    if over <= 0:
        spare = min(-inside, -outside) if facts.has_pool(setup.engine) else -inside
        sentence = (
            f"{setup.model.id} {setup.quant.title} fits {card.id} with {format_bytes(spare)} to spare: "
            f"{held:.1f} sequences of {context} tokens at once"
        )
        return FitResult(True, plan, 0, largest, held, sentence)
    return FitResult(False, plan, over, largest, 0.0, _too_large(setup, plan), _remedies(setup, plan, vision=vision))


def smallest(cards: Sequence[Device]) -> Device:
    """Return the card that sizes the pool of a group: every rank takes as many blocks as the poorest can."""
    return min(cards, key=facts.usable_bytes)


def kv_capacity_tokens(
    setup: Setup, card: Device, *, context: int, slots: int | None = None, vision: bool = True
) -> int:
    """How many tokens the pool holds in sequences of that length: what newer vLLM prints as its KV cache size."""
    plan = memory(setup, card, context=context, slots=slots, vision=vision)
    return int(_held(setup, plan) * context)


def pool_tokens_as_reported(setup: Setup, plan: MemoryPlan) -> int:
    """Return the figure vLLM prints up to 0.12: the pool by what a token takes in all layers, sliding ones included.

    Layers are grouped by kind in groups of equal size, so the last group of a kind may be padded.
    """
    model, tp = setup.model, setup.layout.tp
    if not model.sliding_layers:
        return int(plan.pool_bytes / kv_bytes_per_token(setup))
    group = min(model.full_layers, model.sliding_layers) or max(model.full_layers, model.sliding_layers)
    padded = -(-model.sliding_layers // group) * group + -(-model.full_layers // group) * group
    each = 2 * max(1, -(-model.kv_heads // tp)) * model.head_dim * setup.kv.bytes
    return int(plan.pool_bytes / (padded * each / setup.layout.pp))


def largest(
    setup: Setup, card: Device, *, context: int | None = None, slots: int | None = None, vision: bool = True
) -> tuple[int, int]:
    """Return the longest context with every slot full, and the most slots at `context`, all full. 0: not even one.

    Without `slots`, the context is that of a single sequence; without `context`, slots are counted at 8K.
    """
    most, at, wanted = setup.model.max_context or 1_048_576, slots or 1, context or 8192

    def holds(tokens: int, sequences: int) -> bool:
        return memory(setup, card, context=tokens, slots=sequences, at_once=sequences, vision=vision).fits

    steps = _search(most // CONTEXT_STEP, lambda n: holds(n * CONTEXT_STEP, at))
    return steps * CONTEXT_STEP, _search(SLOTS_MOST, lambda n: holds(wanted, n))


def _search(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest n of 1 to `most` for which it holds; it holds for all smaller ones."""
    if most < 1 or not holds(1):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _held(setup: Setup, plan: MemoryPlan) -> float:
    """Sequences of the plan's context that KV, window and state of the pool are enough for."""
    if plan.over_outside_bytes > 0:
        return 0.0
    default = facts.defaults(setup.engine, plan.card)
    tokens = setup.batched_tokens or default.batched_tokens
    each = kv_bytes_per_token(setup) * plan.context + window_bytes(setup, plan.context, tokens) + state_bytes(setup)
    pool = plan.pool_bytes if facts.has_pool(setup.engine) else plan.pool_bytes - plan.over_inside_bytes
    return max(0.0, pool / each) if each > 0 else float(plan.slots)


def _too_large(setup: Setup, plan: MemoryPlan) -> str:
    inside, outside = plan.over_inside_bytes, plan.over_outside_bytes
    slots = f"{plan.slots} slot{'s' if plan.slots > 1 else ''}"
    what = f"{setup.model.id} {setup.quant.title} with {plan.context} tokens and {slots}, {setup.layout},"
    if inside > 0:
        asked = format_bytes(plan.budget_bytes + inside)
        return f"{what} needs {asked} a card, {plan.card.id} gives {format_bytes(plan.budget_bytes)}"
    left = format_bytes(max(0, plan.usable_bytes - plan.budget_bytes))
    late = max((t for t in plan.terms if not t.inside), key=lambda t: t.bytes)
    return (
        f"{what} needs {format_bytes(plan.outside_bytes)} beside the engine's budget, {left} of {plan.card.id} "
        f"is left: it is out by {format_bytes(outside)}, the most by {late.name} ({format_bytes(late.bytes)})"
    )


def _remedies(setup: Setup, plan: MemoryPlan, *, vision: bool) -> tuple[str, ...]:
    """Return the changes that make it fit, the least costly first."""
    card, now = plan.card, setup.utilization or facts.defaults(setup.engine, plan.card).utilization
    ways: list[str] = []

    def works(changed: Setup, slots: int = plan.slots, context: int = plan.context, *, tower: bool = vision) -> bool:
        at_once = min(plan.at_once, slots)
        return memory(changed, card, context=context, slots=slots, at_once=at_once, vision=tower).fits

    if facts.has_pool(setup.engine):
        step = next(
            (u for u in _utilizations(now, down=plan.over_outside_bytes > 0) if works(replace(setup, utilization=u))),
            None,
        )
        if step is not None:
            ways.append(f"{'lower' if step < now else 'raise'} the utilization from {now:g} to {step:g}")
    fewer = next((n for n in (128, 64, 32, 16, 8, 4, 2, 1) if n < plan.slots and works(setup, n)), None)
    if fewer is not None:
        ways.append(f"take {fewer} {'slot' if fewer == 1 else 'slots'} instead of {plan.slots}")
    shorter = _search(plan.context // CONTEXT_STEP, lambda n: works(setup, context=n * CONTEXT_STEP)) * CONTEXT_STEP
    if 0 < shorter < plan.context:
        ways.append(f"take a context of {shorter} tokens instead of {plan.context}")
    if setup.spec is not None and works(replace(setup, spec=None)):
        ways.append(f"leave {setup.spec} out")
    if setup.graphs and works(replace(setup, graphs=False)):
        ways.append("run without CUDA graphs, which costs speed")
    if vision and setup.model.vision_params and works(setup, tower=False):
        ways.append("leave the vision tower out")
    if not ways:
        size = format_bytes(plan.largest.bytes or plan.needed_kv_bytes)
        ways.append(f"the largest term is {plan.largest.name} ({size}): a smaller quantization or more cards")
    return tuple(ways)


def _utilizations(now: float, *, down: bool) -> tuple[float, ...]:
    steps = [round(0.5 + n / 100, 2) for n in range(49)]
    return tuple(u for u in reversed(steps) if u < now) if down else tuple(u for u in steps if u > now)
