"""The choice: everything that could be started on a rig, less what a rule or the memory forbids,
best first.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.models import Geometry, find_checkpoint, is_published
from skep.planner import candidates, ranking
from skep.planner.candidates import Pins, PlanGoal, place, sizing_card
from skep.planner.memory import MemoryPlan, has_pool, longest_context, longest_shared_context
from skep.planner.order import (
    HALF,
    SAME_SPEED,
    WITH_ROOM,
    best_form,
    in_order,
    what_room_costs,
    why_first,
)
from skep.planner.predict import SpeedModel
from skep.planner.published import same_format
from skep.planner.ranking import Basis, BasisOf, Predicted, Rated, published_basis, speed_model_of
from skep.planner.rules import check, refusal, what_does_not_divide
from skep.planner.setup import (
    QUANTS,
    Layout,
    Rig,
    Setup,
)
from skep.units import format_bytes

# Left out in this order: what computing adds to reading comes before the reading itself.
_TERMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("launching without CUDA graphs", ("launch_s",)),
    ("all-reduce", ("comm_fixed_s", "comm_token_s")),
    ("drafts", ("draft_s", "draft_token_s")),
    ("computing beyond reading", ("dense_flop_s", "experts_flop_s", "head_flop_s")),
    ("KV cache", ("kv_s", "window_s")),
    ("linear-attention state", ("state_s",)),
    ("experts", ("experts_s",)),
    ("dense weights", ("dense_s",)),
    ("output head", ("head_s",)),
    ("small batches", ("batch_s",)),
    ("sequences", ("sequence_s",)),
    ("launches and scheduler", ("fixed_s",)),
)
_WORTH_SHOWING = 0.03
# agents; beyond them fewer are played through, as each takes longer
FEW = 32
CROWD = 128
# played through: so many pairs of layout and quantization, so many forms of each
_GROUPS = 12
_IN_GROUP = 3
_EXPANDED = 8  # pairs that are tried with other KV types and with speculation
_LAYOUT_RULES = (
    "cards",
    "heads",
    "pipeline",
    "expert-parallel",
    "engine",
)  # no quantization mends these
SHOWN = 8


def step_shares(found: SpeedModel, goal: PlanGoal) -> dict[str, float]:
    """Return what a decode step of a replica goes into, the largest share first."""
    sequences = max(1, min(found.slots, -(-goal.agents // found.setup.layout.replicas)))
    step = found.step
    context = sequences * (goal.input_tokens + goal.output_tokens / 2)
    whole = left = step.seconds(sequences, context)
    shares = {}
    for name, parts in _TERMS:
        nothing: dict[str, Any] = dict.fromkeys(parts, 0.0)
        step = replace(step, **nothing)
        after = step.seconds(sequences, context)
        shares[name] = (left - after) / whole
        left = after
    return dict(sorted(shares.items(), key=itemgetter(1), reverse=True))


def reasons(best: Rated, goal: PlanGoal) -> tuple[str, ...]:
    """Return why this one, in sentences."""
    setup = best.setup
    layout = best.setup.layout
    link = best.prospect.link
    shares = step_shares(best.prospect, goal)
    found = []
    if layout.tp > 1 and link is not None:
        spent = (
            f"spends {shares['all-reduce']:.0%} of a step on all-reduce over "
            f"{link.title or link.kind}"
        )
        found.append(f"TP={layout.tp} reads 1/{layout.tp} of the weights a card and {spent}")
    elif layout.replicas > 1:
        found.append(
            f"{layout.replicas} replicas share nothing: no all-reduce, each reads all "
            "weights for its agents"
        )
    if layout.pp > 1:
        found.append(f"PP={layout.pp} makes room; a single stream gets no quicker")
    if layout.cards < len(best.rig.cards):
        found.append(f"{layout.cards} of {len(best.rig.cards)} cards are used")
    largest = [f"{name} {share:.0%}" for name, share in shares.items() if share >= _WORTH_SHOWING]
    found.append(f"time of a step: {', '.join(largest)}")
    if setup.spec is not None:
        gain = best.prospect.step.accepted
        found.append(
            f"{setup.spec} is expected to bring {gain:.1f} tokens a step; how many depends "
            "on the text"
        )
    if setup.kv.family != "half":
        found.append(
            f"{setup.kv.title} KV halves what a token keeps; answers may differ slightly "
            "from 16 bit"
        )
    return tuple(found)


class Rejected(msgspec.Struct, frozen=True):
    """`rule` is the rule's name, or `memory`. `quants`: which were tried."""

    layout: Layout
    engine: str
    quants: tuple[str, ...]
    rule: str
    reason: str
    remedy: str | None = None


def survey(
    model: Geometry, rig: Rig, goal: PlanGoal, pins: Pins, engine: str, basis: Basis
) -> tuple[list[Rated], list[Rejected]]:
    """Return the best form of every pair of layout and format of one engine, and what was
    rejected.
    """
    found, rejected = bases(model, rig, goal, pins, engine)

    def published(setup: Setup) -> bool:
        return pins.quant is not None or is_published(model.id, engine, setup.quant.id)

    def first(setup: Setup) -> tuple[bool, float]:
        """Return what decides before speed does, and the speed of one step, less for each thing it
        cannot do.
        """
        speed = ranking.coarse(speed_model_of(setup, rig, goal, basis), goal)
        if not ranking.holds_all(setup, goal):
            speed *= WITH_ROOM
        halvings = sum((ranking.on_paper(setup, rig, goal), setup.cpu_moe > 0))
        return published(setup), speed * HALF**halvings

    scored = sorted(((first(s), s) for s in found), key=itemgetter(0), reverse=True)
    pairs = [setup for _, setup in scored]
    drafting = [
        setup for setup in pairs[_EXPANDED:] if model.mtp_layers and candidates.has_drafts(setup)
    ]
    for setup in pairs[:_EXPANDED] + drafting[: _EXPANDED // 2]:
        for variant in candidates.variants(setup, rig, pins):
            if refusal(variant, rig) is not None:
                continue
            placed = place(variant, sizing_card(rig, variant.layout), goal, pins)
            if placed is not None:
                scored.append((first(placed), placed))
    groups: dict[tuple[object, ...], list[Setup]] = {}
    for _, setup in sorted(scored, key=itemgetter(0), reverse=True):
        layout = setup.layout
        groups.setdefault((layout.tp, layout.pp, layout.replicas, setup.quant.id), []).append(
            setup
        )
    if goal.agents > CROWD:
        fewer = 3
    else:
        fewer = 2 if goal.agents > FEW else 1
    best = []
    for group in list(groups.values())[: _GROUPS // fewer]:
        forms = _varied(group)[: _IN_GROUP if len(groups) == 1 else _IN_GROUP // fewer]
        rated = [
            ranking.rate(
                setup,
                rig,
                goal,
                check(setup, rig),
                basis,
                published=published(setup),
                pinned_context=pins.context,
            )
            for setup in forms
        ]
        best.append(best_form(rated))
    return in_order(best), rejected


def _varied(forms: Sequence[Setup]) -> list[Setup]:
    """Return the best of each KV type first: context decides among those that are about as
    fast.
    """
    best = {form.kv.id: form for form in reversed(forms)}
    heads = sorted(best.values(), key=forms.index)
    return [*heads, *(form for form in forms if form not in heads)]


def bases(
    model: Geometry, rig: Rig, goal: PlanGoal, pins: Pins, engine: str, *, say_why: bool = True
) -> tuple[list[Setup], list[Rejected]]:
    setups: list[Setup] = []
    rejected: list[Rejected] = []
    hopeless: set[int] = set()
    for layout in candidates.layouts(rig, model, engine, goal, pins):
        if layout.tp in hopeless:
            continue
        dropped: dict[str, Rejected] = {}
        for setup in candidates.base_setups(model, rig, engine, layout, pins):
            bad = refusal(setup, rig)
            if bad is not None:
                _drop(
                    dropped,
                    Rejected(
                        layout, engine, (setup.quant.id,), bad.rule, bad.sentence, bad.remedy
                    ),
                )
                if bad.rule in _LAYOUT_RULES:
                    if bad.rule == "heads":
                        hopeless.add(layout.tp)
                    break
                continue
            placed = _placed(setup, rig, goal, pins) or candidates.with_experts_in_ram(
                setup, rig, goal, pins
            )
            if placed is not None:
                setups.append(placed)
            elif "memory" in dropped:
                _drop(
                    dropped, msgspec.structs.replace(dropped["memory"], quants=(setup.quant.id,))
                )
            elif say_why:
                short = candidates.shortfall(setup, sizing_card(rig, layout), goal, pins)
                largest = short.plan.largest
                size_bytes = largest.bytes
                if largest.name == "KV pool":
                    size_bytes = max(size_bytes, short.plan.needed_kv_bytes)
                size = format_bytes(size_bytes)
                largest_term = f"the largest term is {largest.name} ({size} a card)"
                reason = f"{short.sentence}; {largest_term}"
                _drop(dropped, Rejected(layout, engine, (setup.quant.id,), "memory", reason))
        rejected += dropped.values()
    return setups, rejected


def _drop(dropped: dict[str, Rejected], new: Rejected) -> None:
    """Return one entry for each rule; the first reason stands for all quantizations rejected by
    it.
    """
    old = dropped.get(new.rule)
    dropped[new.rule] = (
        new if old is None else msgspec.structs.replace(old, quants=(*old.quants, *new.quants))
    )


def _placed(setup: Setup, rig: Rig, goal: PlanGoal, pins: Pins) -> Setup | None:
    """With the smaller KV where the 16-bit one does not fit."""
    card = sizing_card(rig, setup.layout)
    placed = place(setup, card, goal, pins)
    if placed is not None or pins.kv is not None:
        return placed
    for kv in candidates.offered_kv(setup.engine, setup.quant, rig.cards[: setup.layout.cards])[
        1:
    ]:
        smaller = replace(setup, kv=kv)
        if (
            refusal(smaller, rig) is None
            and (again := place(smaller, card, goal, pins)) is not None
        ):
            return again
    return None


class Plan(msgspec.Struct, frozen=True):
    """`checkpoint`: the files that were asked for, or the catalogue's; `order`: the machine's
    numbers of the cards.
    """

    rated: Rated
    predicted: tuple[Predicted, ...]
    memory: MemoryPlan
    largest_context: int  # with every slot full
    checkpoint: str | None
    order: tuple[int, ...]
    why: tuple[str, ...]

    @property
    def setup(self) -> Setup:
        return self.rated.setup


class PlanChoice(msgspec.Struct, frozen=True):
    """`order`: the machine's number of each card of `rig`, which was rearranged so that neighbours
    belong together.
    """

    rig: Rig
    order: tuple[int, ...]
    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    first_because: str | None = None  # where the first plan is not the fastest
    room_costs: str | None = (
        None  # where the first plan has no room for every agent, and another has
    )
    idle: str | None = None  # cards that add nothing for an engine, and why


def choose(
    model: Geometry,
    rig: Rig,
    goal: PlanGoal,
    pins: Pins | None = None,
    *,
    engines: Sequence[str] = ("vllm",),
    basis_of: BasisOf = published_basis,
    checkpoint: str | None = None,
    all_levels: bool = True,
) -> PlanChoice:
    """Rank what these engines could do together. Nothing fits: the plans are empty.

    `all_levels`: predict other numbers of agents than the goal's, too.
    """
    pins = pins or Pins()
    rig, order = candidates.arranged(rig)
    surveys = [survey(model, rig, goal, pins, engine, basis_of(engine)) for engine in engines]
    most = SHOWN if goal.agents <= CROWD else SHOWN // 2
    every = [rated for candidates_of_engine, _ in surveys for rated in candidates_of_engine]
    rejected = tuple(r for _, found in surveys for r in found)
    shown = in_order(every)[:most]
    plans = []
    for number, rated in enumerate(shown):
        if all_levels:
            at = _levels_of(number, goal)
        else:
            at = (goal.agents,)
        launched = rated if pins.context else _stretched(rated)
        plans.append(_plan(launched, goal, basis_of(rated.setup.engine), at, checkpoint, order))
    first_because = why_first(every, shown) if shown else None
    room_costs = what_room_costs(every) if shown else None
    if shown:
        idle = _idle([found for found, _ in surveys], shown[0])
    else:
        idle = None
    return PlanChoice(rig, order, tuple(plans), rejected, first_because, room_costs, idle)


def _levels_of(place: int, goal: PlanGoal) -> tuple[int, ...]:
    """Return all levels for the best three, the two ends for the others where many agents make it
    long.
    """
    if place < 3 or goal.agents <= FEW:
        return ranking.levels(goal.agents)
    return (1, goal.agents)


def idle_cards(candidates_of_engine: Sequence[Rated]) -> str | None:
    """Return which of several like cards add nothing for an engine, and why; None where each adds
    something.

    The candidates are in their order.
    """
    first = candidates_of_engine[0]
    layout = first.setup.layout
    cards = first.rig.cards
    used = layout.cards
    there = len(cards)
    wider = [rated for rated in candidates_of_engine if rated.setup.layout.cards > used]
    fastest = max(wider, key=lambda rated: rated.speed, default=None)
    alike = len({card.id for card in cards}) == 1
    if (
        used == there
        or not alike
        or (fastest is not None and SAME_SPEED * fastest.speed > first.speed)
    ):
        return None
    spare = there - used
    if spare > 1:
        numbers = f"cards {used + 1} {'and' if spare == 2 else 'to'} {there} add"
    else:
        numbers = f"card {there} adds"
    words = f"{numbers} nothing for {first.setup.engine}"
    model = first.setup.model
    sizes = range(used + 1, there + 1)
    uncut = [tp for tp in sizes if what_does_not_divide(model, tp)]
    if has_pool(first.setup.engine) and layout.replicas == 1 and len(uncut) == len(sizes):
        verb = "does" if len(uncut) == 1 else "do"
        return (
            f"{words}: TP={' and '.join(map(str, uncut))} {verb} not divide the {model.heads} "
            f"heads of {model.id}"
        )
    if fastest is None:
        return words
    more = f"{fastest.setup.layout} is expected at {fastest.outcome.effective_tok_s:,.0f} tok/s"
    return f"{words}: {more}, {layout} at {first.outcome.effective_tok_s:,.0f}"


def _idle(surveys: Sequence[Sequence[Rated]], first: Rated) -> str | None:
    """Return what cards add nothing for the engine that goes first, and for vLLM, whose layouts
    heads decide.
    """
    of_engine = {survey[0].setup.engine: survey for survey in surveys if survey}
    engines = dict.fromkeys((first.setup.engine, "vllm"))
    told = [idle_cards(of_engine[engine]) for engine in engines if engine in of_engine]
    return "; ".join(filter(None, told)) or None


def _stretched(rated: Rated) -> Rated:
    """Return it with the longest context that one sequence can have: slots share a pool,
    llama.cpp's have their own.
    """
    setup = rated.setup
    slots = setup.slots or 1
    longest = rated.context_each
    if has_pool(setup.engine):
        shared = longest_shared_context(setup, rated.card, slots, rated.goal.need_tokens)
        longest = max(longest, shared)
    return replace(rated, setup=replace(setup, context=max(longest, setup.context or 0)))


def _plan(
    rated: Rated,
    goal: PlanGoal,
    basis: Basis,
    at: tuple[int, ...],
    checkpoint: str | None,
    order: tuple[int, ...],
) -> Plan:
    setup = rated.setup
    longest = longest_context(setup, rated.card, setup.slots or 1)
    predicted = ranking.predict_levels(rated, goal, basis, at)
    if checkpoint is None:
        drafts = setup.spec is not None and setup.spec.method == "mtp"
        checkpoint = _known_checkpoint(setup, mtp=drafts)
    return Plan(rated, predicted, rated.memory(), longest, checkpoint, order, reasons(rated, goal))


def choice_of_setup(
    setup: Setup, rig: Rig, goal: PlanGoal, basis: Basis, checkpoint: str | None
) -> PlanChoice:
    """Return a setup that is given as the only plan; a rule that refuses it is among its findings.

    `context_each` is what memory holds of its own context in every slot at once: 0 where nothing
    fits."""
    rig, order = candidates.arranged(rig)
    rated = ranking.rate(setup, rig, goal, check(setup, rig), basis, pinned_context=setup.context)
    held = longest_context(setup, rated.card, setup.slots or 1)
    rated = replace(rated, context_each=min(held, setup.context or held))
    plan = _plan(rated, goal, basis, ranking.levels(goal.agents), checkpoint, order)
    return PlanChoice(rig, order, (plan,), ())


def _known_checkpoint(setup: Setup, *, mtp: bool) -> str | None:
    """Return the catalogue's in this format, or in one that is as good: AWQ is often published as
    plain INT4.
    """
    alike = (quant.id for quant in QUANTS.values() if same_format(quant, setup.quant))
    if setup.quant.family == "gguf":
        names: tuple[str, ...] = (setup.quant.id,)
    else:
        names = (setup.quant.id, *alike)
    for name in names:
        checkpoint = find_checkpoint(setup.model.id, setup.engine, name, mtp=mtp)
        if checkpoint is not None:
            return checkpoint.reference(name)
    return None
