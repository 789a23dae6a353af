"""Does it fit, by how much not, what would, and the largest context and number of slots that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.planner import memory as facts
from skep.planner.memory import MemoryPlan, kv_bytes_per_token, memory, state_bytes, window_bytes
from skep.planner.setup import Setup
from skep.units import format_bytes

CONTEXT_STEP = 256  # contexts are given in steps of this many tokens
SLOTS_MOST = 1024


class FitResult(msgspec.Struct, frozen=True):
    """Whether a setup fits a card, and what would. Worked out when asked for: most are asked for one thing only."""

    setup: Setup
    plan: MemoryPlan

    @property
    def over_bytes(self) -> int:
        """0 where it fits."""
        return max(self.plan.over_inside_bytes, 0) + max(self.plan.over_outside_bytes, 0)

    @property
    def fits(self) -> bool:
        return self.plan.fits

    @property
    def sentence(self) -> str:
        """Why it does not fit."""
        setup, plan = self.setup, self.plan
        slots = f"{plan.slots} slot{'s' if plan.slots > 1 else ''}"
        what = f"{setup.model.id} {setup.quant.title} with {plan.context} tokens and {slots}, {setup.layout},"
        if plan.over_inside_bytes > 0:
            asked = format_bytes(plan.budget_bytes + plan.over_inside_bytes)
            return f"{what} needs {asked} a card, {plan.card.id} gives {format_bytes(plan.budget_bytes)}"
        left, out = max(0, plan.usable_bytes - plan.budget_bytes), plan.over_outside_bytes
        late = max((t for t in plan.terms if not t.inside), key=lambda t: t.bytes)
        return (
            f"{what} needs {format_bytes(plan.outside_bytes)} beside the engine's budget, {format_bytes(left)} of "
            f"{plan.card.id} is left: {format_bytes(out)} are missing, the largest term is {late.name} "
            f"({format_bytes(late.bytes)})"
        )

    def changes(self) -> Iterator[str]:
        """Yield the changes that make it fit, the least costly first."""
        setup, plan = self.setup, self.plan
        now = setup.utilization or facts.defaults(setup.engine, plan.card).utilization

        def fits(changed: Setup, slots: int = plan.slots, context: int = plan.context, *, vision: bool = True) -> bool:
            at_once = min(plan.at_once, slots)
            return memory(changed, plan.card, context=context, slots=slots, at_once=at_once, vision=vision).fits

        if facts.has_pool(setup.engine):
            steps = [round(0.5 + n / 100, 2) for n in range(49)]
            down = plan.over_outside_bytes > 0
            shares = [u for u in reversed(steps) if u < now] if down else [u for u in steps if u > now]
            step = next((share for share in shares if fits(replace(setup, utilization=share))), None)
            if step is not None:
                yield f"{'lower' if step < now else 'raise'} the utilization from {now:g} to {step:g}"
        fewer = next((n for n in (128, 64, 32, 16, 8, 4, 2, 1) if n < plan.slots and fits(setup, n)), None)
        if fewer is not None:
            yield f"take {fewer} {'slot' if fewer == 1 else 'slots'} instead of {plan.slots}"
        shorter = _search(plan.context // CONTEXT_STEP, lambda n: fits(setup, context=n * CONTEXT_STEP)) * CONTEXT_STEP
        if 0 < shorter < plan.context:
            yield f"take a context of {shorter} tokens instead of {plan.context}"
        if setup.spec is not None and fits(replace(setup, spec=None)):
            yield f"leave {setup.spec} out"
        if setup.graphs and fits(replace(setup, graphs=False)):
            yield "run without CUDA graphs, which costs speed"
        if setup.model.vision_params and fits(setup, vision=False):
            yield "leave the vision tower out"


def fits(
    setup: Setup, card: Device, *, context: int, slots: int | None = None, at_once: int | None = None
) -> FitResult:
    """With a pool and no `at_once`: whether the engine starts. The arguments are those of `memory`."""
    return FitResult(setup, memory(setup, card, context=context, slots=slots, at_once=at_once))


def smallest(cards: Sequence[Device]) -> Device:
    """Return the card that sizes the pool of a group: every rank takes as many blocks as the poorest can."""
    return min(cards, key=facts.usable_bytes)


def kv_capacity_tokens(
    setup: Setup, card: Device, *, context: int, slots: int | None = None, vision: bool = True
) -> int:
    """How many tokens the pool holds in sequences of that length: what newer vLLM prints as its KV cache size."""
    return int(_held(setup, memory(setup, card, context=context, slots=slots, vision=vision)) * context)


def longest_context(setup: Setup, card: Device, slots: int, *, with_margin: bool = False) -> int:
    """Return the longest context with all slots full; 0: none. `with_margin`: so that it fits not on paper only."""

    def holds(steps: int) -> bool:
        plan = memory(setup, card, context=steps * CONTEXT_STEP, slots=slots, at_once=slots)
        return plan.fits and not (with_margin and plan.fits_on_paper_only)

    return _search((setup.model.max_context or 1_048_576) // CONTEXT_STEP, holds) * CONTEXT_STEP


def largest(setup: Setup, card: Device, *, context: int | None = None, slots: int | None = None) -> tuple[int, int]:
    """Return the longest context with all `slots` (default 1) full, and the most slots at `context` (8K); 0: none."""
    wanted = context or 8192
    most = _search(SLOTS_MOST, lambda n: memory(setup, card, context=wanted, slots=n, at_once=n).fits)
    return longest_context(setup, card, slots or 1), most


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
    tokens = setup.batched_tokens or facts.defaults(setup.engine, plan.card).batched_tokens
    each = kv_bytes_per_token(setup) * plan.context + window_bytes(setup, plan.context, tokens) + state_bytes(setup)
    pool = plan.pool_bytes if facts.has_pool(setup.engine) else plan.pool_bytes - plan.over_inside_bytes
    return max(0.0, pool / each) if each > 0 else float(plan.slots)
