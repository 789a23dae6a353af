"""The choice: everything that could be started on a rig, less what a rule or the memory forbids,
best first.

Knows nothing of this machine: what was measured on it comes in as a basis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of, most_measured_engine
from skep.catalog.models import Geometry, find_checkpoint, is_published
from skep.catalog.session_shapes import find_shape
from skep.planner import candidates, ranking
from skep.planner.caching import KvTier
from skep.planner.candidates import (
    USUAL_RAM_GIB,
    Pins,
    PlanGoal,
    held_tokens,
    place,
    sizing_card,
)
from skep.planner.memory import (
    KV_POOL,
    MemoryPlan,
    kv_bytes_per_token,
    longest_context,
    longest_shared_context,
)
from skep.planner.order import (
    HALF_SPEED,
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
from skep.planner.session_outlook import SessionOutlook, outlook
from skep.planner.setup import QUANTS, Layout, Rig, Setup, default_link
from skep.units import GIB, format_bytes

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
FEW_AGENTS = 32
MANY_AGENTS = 128
# played through: so many pairs of layout and quantization, so many forms of each
_GROUPS = 12
_IN_GROUP = 3
_EXPANDED = 8  # pairs that are tried with other KV types and with speculation
# no quantization mends these
_LAYOUT_RULES = ("cards", "heads", "pipeline", "expert-parallel", "engine")
PLANS_SHOWN = 8
_WITH_OUTLOOK = 3  # plans whose sessions are played at several numbers of them
KV_SHARE_OF_RAM = 0.5
# of a card's link that KV is copied back with: 29 GB/s of 63 on an H200, vLLM 0.24
_COPY_SHARE = 0.46
_MOST_PCIE_GBS = 63.0  # a card with NVLink reads system memory over PCIe 5.0 x16 nevertheless


def step_shares(speed_model: SpeedModel, goal: PlanGoal) -> dict[str, float]:
    """Return what a decode step of a replica goes into, the largest share first."""
    sequences = max(
        1, min(speed_model.slots, -(-goal.agents // speed_model.setup.layout.replicas))
    )
    step = speed_model.step
    context = sequences * (goal.input_tokens + goal.output_tokens / 2)
    whole = step.seconds(sequences, context)
    remaining = whole
    shares = {}
    for name, parts in _TERMS:
        nothing: dict[str, Any] = dict.fromkeys(parts, 0.0)
        step = replace(step, **nothing)
        after = step.seconds(sequences, context)
        shares[name] = (remaining - after) / whole
        remaining = after
    return dict(sorted(shares.items(), key=itemgetter(1), reverse=True))


def reasons(best: Rated, goal: PlanGoal) -> tuple[str, ...]:
    """Return what speaks for and against a plan, in sentences."""
    setup = best.setup
    layout = best.setup.layout
    link = best.prospect.link
    shares = step_shares(best.prospect, goal)
    sentences = []
    if layout.tp > 1 and link is not None:
        spent = (
            f"spends {shares['all-reduce']:.0%} of a step on all-reduce over "
            f"{link.title or link.kind}"
        )
        sentences.append(f"TP={layout.tp} reads 1/{layout.tp} of the weights a card and {spent}")
    elif layout.replicas > 1:
        sentences.append(
            f"{layout.replicas} replicas share nothing: no all-reduce, each reads all "
            "weights for its agents"
        )
    if layout.pp > 1:
        sentences.append(f"PP={layout.pp} makes room; a single stream gets no quicker")
    if layout.cards < len(best.rig.cards):
        sentences.append(f"{layout.cards} of {len(best.rig.cards)} cards are used")
    largest = [f"{name} {share:.0%}" for name, share in shares.items() if share >= _WORTH_SHOWING]
    sentences.append(f"time of a step: {', '.join(largest)}")
    if setup.spec is not None:
        gain = best.prospect.step.accepted
        sentences.append(
            f"{setup.spec} is expected to bring {gain:.1f} tokens a step; how many depends "
            "on the text"
        )
    if setup.kv.family != "half":
        sentences.append(
            f"{setup.kv.title} KV halves what a token keeps; answers may differ slightly "
            "from 16 bit"
        )
    return tuple(sentences)


class Rejected(msgspec.Struct, frozen=True):
    """`rule` is the rule's name, or `memory`. `quants`: which were tried."""

    layout: Layout
    engine: str
    quants: tuple[str, ...]
    rule: str
    reason: str
    remedy: str | None = None


class Scored(msgspec.Struct, frozen=True):
    """A setup before it is played through. `rank`: what decides before speed does, and a coarse
    speed.
    """

    setup: Setup
    rank: tuple[bool, float]


def survey(
    model: Geometry, rig: Rig, goal: PlanGoal, pins: Pins, engine: str, basis: Basis
) -> tuple[list[Rated], list[Rejected]]:
    """Return the best form of every pair of layout and format of one engine, and what was
    rejected.
    """
    setups, rejected = bases(model, rig, goal, pins, engine)

    def scored(setup: Setup) -> Scored:
        return Scored(setup, _rank(setup, rig, goal, pins, basis))

    pairs = sorted(map(scored, setups), key=_by_rank, reverse=True)
    variants = map(scored, _fitting_variants([pair.setup for pair in pairs], rig, goal, pins))
    forms = sorted([*pairs, *variants], key=_by_rank, reverse=True)
    groups: dict[tuple[object, ...], list[Setup]] = {}
    for form in forms:
        layout = form.setup.layout
        key = (layout.tp, layout.pp, layout.replicas, form.setup.quant.id)
        groups.setdefault(key, []).append(form.setup)
    if goal.agents > MANY_AGENTS:
        fewer = 3
    elif goal.agents > FEW_AGENTS:
        fewer = 2
    else:
        fewer = 1
    if len(groups) == 1:
        forms_each = _IN_GROUP
    else:
        forms_each = _IN_GROUP // fewer
    best = [
        _best_of_group(group, rig, goal, pins, basis, forms_each)
        for group in list(groups.values())[: _GROUPS // fewer]
    ]
    return in_order(best), rejected


def _by_rank(scored: Scored) -> tuple[bool, float]:
    return scored.rank


def _rank(setup: Setup, rig: Rig, goal: PlanGoal, pins: Pins, basis: Basis) -> tuple[bool, float]:
    """Return what decides before speed does, and the speed of one step, less for each thing it
    cannot do.
    """
    speed = ranking.coarse(speed_model_of(setup, rig, goal, basis), goal)
    if not ranking.holds_all(setup, goal):
        speed *= WITH_ROOM
    halvings = sum((ranking.on_paper(setup, rig, goal), setup.cpu_moe > 0))
    return _is_published(setup, pins), speed * HALF_SPEED**halvings


def _is_published(setup: Setup, pins: Pins) -> bool:
    """Return whether somebody made a checkpoint in this format; a pinned one is taken as made."""
    return pins.quant is not None or is_published(setup.model.id, setup.engine, setup.quant.id)


def _fitting_variants(
    pairs: Sequence[Setup], rig: Rig, goal: PlanGoal, pins: Pins
) -> Iterator[Setup]:
    """Yield the best pairs, and a few more that have drafts, with other KV types and drafts."""
    drafting = [
        setup
        for setup in pairs[_EXPANDED:]
        if setup.model.mtp_layers and candidates.has_drafts(setup)
    ]
    for setup in [*pairs[:_EXPANDED], *drafting[: _EXPANDED // 2]]:
        for variant in candidates.variants(setup, rig, pins):
            if refusal(variant, rig) is not None:
                continue
            placed = place(variant, sizing_card(rig, variant.layout), goal, pins)
            if placed is not None:
                yield placed


def _best_of_group(
    group: Sequence[Setup], rig: Rig, goal: PlanGoal, pins: Pins, basis: Basis, count: int
) -> Rated:
    """Play the first forms of one layout and format through, and return the best of them."""
    rated = [
        ranking.rate(
            setup,
            rig,
            goal,
            check(setup, rig),
            basis,
            published=_is_published(setup, pins),
            pinned_context=pins.context,
        )
        for setup in _varied(group)[:count]
    ]
    return best_form(rated)


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
    """Return one setup for every pair of layout and format that fits, and what was rejected.

    `say_why`: say of those that do not fit what is short.
    """
    setups: list[Setup] = []
    rejected: list[Rejected] = []
    hopeless: set[int] = set()  # sizes of tensor parallel that the heads forbid
    for layout in candidates.layouts(rig, model, engine, goal, pins):
        if layout.tp in hopeless:
            continue
        dropped: dict[str, Rejected] = {}
        for setup in candidates.base_setups(model, rig, engine, layout, pins):
            finding = refusal(setup, rig)
            if finding is not None:
                _drop(dropped, _rejected(setup, finding.rule, finding.sentence, finding.remedy))
                if finding.rule == "heads":
                    hopeless.add(layout.tp)
                if finding.rule in _LAYOUT_RULES:
                    break
                continue
            placed = _placed(setup, rig, goal, pins)
            if placed is None:
                placed = candidates.with_experts_in_ram(setup, rig, goal, pins)
            if placed is not None:
                setups.append(placed)
            elif "memory" in dropped:
                _drop(dropped, replace(dropped["memory"], quants=(setup.quant.id,)))
            elif say_why:
                _drop(dropped, _rejected(setup, "memory", _shortage(setup, rig, goal, pins)))
        rejected += dropped.values()
    return setups, rejected


def _rejected(setup: Setup, rule: str, reason: str, remedy: str | None = None) -> Rejected:
    return Rejected(
        layout=setup.layout,
        engine=setup.engine,
        quants=(setup.quant.id,),
        rule=rule,
        reason=reason,
        remedy=remedy,
    )


def _shortage(setup: Setup, rig: Rig, goal: PlanGoal, pins: Pins) -> str:
    """Return by how much memory is short, and the largest term of it."""
    short = candidates.shortfall(setup, sizing_card(rig, setup.layout), goal, pins)
    largest = short.plan.largest
    if largest.name == KV_POOL:
        size = format_bytes(max(largest.bytes, short.plan.needed_kv_bytes))
    else:
        size = format_bytes(largest.bytes)
    return f"{short.sentence}; the largest term is {largest.name} ({size} a card)"


def _drop(dropped: dict[str, Rejected], rejected: Rejected) -> None:
    """Keep one entry for each rule; its first reason stands for all quantizations that the rule
    rejects.
    """
    earlier = dropped.get(rejected.rule)
    if earlier is None:
        dropped[rejected.rule] = rejected
    else:
        quants = (*earlier.quants, *rejected.quants)
        dropped[rejected.rule] = replace(earlier, quants=quants)


def _placed(setup: Setup, rig: Rig, goal: PlanGoal, pins: Pins) -> Setup | None:
    """Return the setup with a place in memory, with the smaller KV type where 16 bits do not
    fit.
    """
    card = sizing_card(rig, setup.layout)
    placed = place(setup, card, goal, pins)
    if placed is not None or pins.kv is not None:
        return placed
    cards = rig.cards[: setup.layout.cards]
    for kv in candidates.offered_kv(setup.engine, setup.quant, cards)[1:]:
        smaller = replace(setup, kv=kv)
        if refusal(smaller, rig) is not None:
            continue
        placed = place(smaller, card, goal, pins)
        if placed is not None:
            return placed
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
    outlook: SessionOutlook | None = None  # where sessions are planned

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
    # where the first plan has no room for every agent, and another has
    room_costs: str | None = None
    idle: str | None = None  # cards that add nothing for an engine, and why


def choose(
    model: Geometry,
    rig: Rig,
    goal: PlanGoal,
    pins: Pins | None = None,
    *,
    engines: Sequence[str] | None = None,
    basis_of: BasisOf = published_basis,
    checkpoint: str | None = None,
    all_levels: bool = True,
) -> PlanChoice:
    """Rank what these engines could do together. Nothing fits: the plans are empty.

    `engines` None: the one with most measurements. `all_levels`: predict other numbers of agents
    than the goal's, too.
    """
    pins = pins or Pins()
    rig, order = candidates.arranged(rig)
    surveys = [
        survey(model, rig, goal, pins, engine, basis_of(engine))
        for engine in engines or (most_measured_engine(),)
    ]
    max_plans = PLANS_SHOWN if goal.agents <= MANY_AGENTS else PLANS_SHOWN // 2
    all_rated = [rated for candidates_of_engine, _ in surveys for rated in candidates_of_engine]
    rejected = tuple(r for _, rejected_of_engine in surveys for r in rejected_of_engine)
    best = in_order(all_rated)[:max_plans]
    if goal.shape is not None:
        best = in_order([ranking.with_played_sessions(rated) for rated in best])
        all_rated = best
    planned = partial(
        _planned, goal=goal, pins=pins, basis_of=basis_of, checkpoint=checkpoint, order=order
    )
    plans = [planned(rated, rank, all_levels=all_levels) for rank, rated in enumerate(best)]
    if not plans:
        return PlanChoice(rig, order, (), rejected)
    return PlanChoice(
        rig=rig,
        order=order,
        plans=tuple(plans),
        rejected=rejected,
        first_because=why_first(all_rated, best),
        room_costs=what_room_costs(all_rated),
        idle=_idle([rated_of_engine for rated_of_engine, _ in surveys], best[0]),
    )


def _planned(
    rated: Rated,
    rank: int,
    *,
    all_levels: bool,
    goal: PlanGoal,
    pins: Pins,
    basis_of: BasisOf,
    checkpoint: str | None,
    order: tuple[int, ...],
) -> Plan:
    """Return the plan of a setup that is listed at this rank, from 0."""
    at = _levels_of(rank, goal) if all_levels else (goal.agents,)
    launched = rated if pins.context else _stretched(rated)
    plan = _plan(launched, goal, basis_of(rated.setup.engine), at, checkpoint, order)
    if all_levels and rank < _WITH_OUTLOOK:
        return replace(plan, outlook=_outlook(rated, goal, with_ram=rank == 0))
    return plan


def _outlook(rated: Rated, goal: PlanGoal, *, with_ram: bool) -> SessionOutlook | None:
    """Return what sessions get at several numbers of them; None where tasks are planned."""
    if goal.shape is None:
        return None
    return outlook(
        rated.prospect,
        find_shape(goal.shape),
        ranking.window_of(goal, rated.setup),
        ranking.levels(goal.agents),
        kv_in_ram(rated.setup, rated.rig) if with_ram else None,
    )


def kv_in_ram(setup: Setup, rig: Rig) -> KvTier | None:
    """Return what half of the machine's memory would hold of KV for each replica, and how fast
    that comes back; None where the memory is the card's own.
    """
    if rig.cards[0].unified_memory:
        return None
    layout = setup.layout
    card_bytes = kv_bytes_per_token(setup)  # of a token, on each card of a replica
    ram_bytes = (rig.ram_gib or USUAL_RAM_GIB) * GIB * KV_SHARE_OF_RAM / layout.replicas
    tokens = ram_bytes / (card_bytes * layout.tp)
    card_link = min(default_link(card).gbs for card in rig.cards if not card.unified_memory)
    gbs = min(card_link, _MOST_PCIE_GBS)
    return KvTier(tokens, gbs * 1e9 * _COPY_SHARE / card_bytes)


def _levels_of(place: int, goal: PlanGoal) -> tuple[int, ...]:
    """Return the numbers of agents to predict: all for the best three plans, the two ends for the
    others where many agents make it long.
    """
    if place < 3 or goal.agents <= FEW_AGENTS:
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
    count = len(cards)
    wider = [rated for rated in candidates_of_engine if rated.setup.layout.cards > used]
    fastest = max(wider, key=lambda rated: rated.speed, default=None)
    alike = len({card.id for card in cards}) == 1
    is_slower = fastest is not None and SAME_SPEED * fastest.speed > first.speed
    if used == count or not alike or is_slower:
        return None
    spare = count - used
    if spare > 1:
        numbers = f"cards {used + 1} {'and' if spare == 2 else 'to'} {count} add"
    else:
        numbers = f"card {count} adds"
    words = f"{numbers} nothing for {first.setup.engine}"
    model = first.setup.model
    sizes = range(used + 1, count + 1)
    uncut = [tp for tp in sizes if what_does_not_divide(model, tp)]
    if kind_of(first.setup.engine).has_pool and layout.replicas == 1 and len(uncut) == len(sizes):
        verb = "does" if len(uncut) == 1 else "do"
        return (
            f"{words}: TP={' and '.join(map(str, uncut))} {verb} not divide the {model.heads} "
            f"heads of {model.id}"
        )
    if fastest is None:
        return words
    fastest_words = (
        f"{fastest.setup.layout} is expected at {fastest.outcome.effective_tok_s:,.0f} tok/s"
    )
    return f"{words}: {fastest_words}, {layout} at {first.outcome.effective_tok_s:,.0f}"


def _idle(surveys: Sequence[Sequence[Rated]], first: Rated) -> str | None:
    """Return what cards add nothing for the engine that goes first, and for the engine with most
    measurements, whose layouts heads decide.
    """
    of_engine = {survey[0].setup.engine: survey for survey in surveys if survey}
    engines = dict.fromkeys((first.setup.engine, most_measured_engine()))
    sentences = [idle_cards(of_engine[engine]) for engine in engines if engine in of_engine]
    return "; ".join(filter(None, sentences)) or None


def _stretched(rated: Rated) -> Rated:
    """Return the setup with the longest context that one sequence can have: slots share a pool,
    llama.cpp's have their own. Sessions get no more than all of them can fill at once, as agents
    grow into what they are given.
    """
    setup = rated.setup
    slots = setup.slots or 1
    longest = rated.context_each
    if kind_of(setup.engine).has_pool:
        held = held_tokens(rated.goal, setup, slots)
        shared = longest_shared_context(setup, rated.card, slots, held)
        longest = max(longest, shared)
    if rated.goal.shape is not None:
        longest = min(longest, max(rated.goal.window_tokens, rated.context_each))
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
    fits.
    """
    rig, order = candidates.arranged(rig)
    rated = ranking.rate(setup, rig, goal, check(setup, rig), basis, pinned_context=setup.context)
    held = longest_context(setup, rated.card, setup.slots or 1)
    rated = replace(rated, context_each=min(held, setup.context or held))
    plan = _plan(rated, goal, basis, ranking.levels(goal.agents), checkpoint, order)
    return PlanChoice(rig, order, (plan,), ())


def _known_checkpoint(setup: Setup, *, mtp: bool) -> str | None:
    """Return the catalogue's checkpoint in this format, or in one that is as good: AWQ is often
    published as plain INT4.
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
