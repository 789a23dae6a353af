"""What could be started: layouts x quantizations x KV types x speculation, each with slots and
context that fit.

Knows nothing of speed, nor of what the rules refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import product, starmap
from math import ceil

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device
from skep.catalog.models import Geometry, checkpoints_of, find_checkpoint
from skep.planner.memory import FitResult, defaults, fits, memory, smallest, weights_bits
from skep.planner.setup import (
    KV_TYPES,
    QUANTS,
    KvType,
    Layout,
    PlannedLoad,
    Quant,
    Rig,
    Setup,
    Speculation,
    of_machines,
    part_bits,
    parts_of,
)
from skep.units import GIB

DEFAULT_CONTEXT = 8192
# a task of an agent, where nobody says how long it is
AGENT_INPUT_TOKENS = 16_384
AGENT_OUTPUT_TOKENS = 1024
SAFE_HYBRID_UTILIZATION = 0.92  # the rule `linear-scratch`
_UTILIZATIONS = (0.92, 0.95, 0.85, 0.80)  # where the engine's own does not do
_DEPTHS = (1, 3, 5)  # of MTP: the write-ups' sweep peaked at 5 alone and at 3 under load
# of a machine that is not known; what experts may take of it
USUAL_RAM_GIB = 64
RAM_SHARE = 0.75
# of a format's bits: a checkpoint that differs by more is not what its entry says
_OTHER_SIZE = 0.6


class PinnedSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What the user has fixed, as it is typed; None means free."""

    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    replicas: int | None = None
    slots: int | None = None
    context: int | None = None
    utilization: float | None = None


class Pins(PinnedSizes, frozen=True, kw_only=True):
    quant: Quant | None = None
    kv: KvType | None = None
    spec: Speculation | None = None
    no_spec: bool = False
    graphs: bool = True
    vision: bool = True  # False: its tower is left out where the engine can do so

    @property
    def layout_words(self) -> str:
        """The pinned part of a layout, as flags."""
        named = (("--tp", self.tp), ("--pp", self.pp), ("--replicas", self.replicas))
        return " ".join(f"{flag} {value}" for flag, value in named if value is not None)


class PlanGoal(msgspec.Struct, frozen=True):
    """`limits`: (ttft | tpot | total, milliseconds at most).

    Of sessions, the tokens are those of a usual turn: the prompt with all that is cached of it.
    """

    kind: str = "throughput"  # or latency
    agents: int = 4
    input_tokens: float = 1024
    output_tokens: float = 512
    limits: tuple[tuple[str, float], ...] = ()
    shape: str | None = None  # of the sessions; None: single tasks
    cached_share: float = 0.0
    shared_tokens: int = 0  # with which all sessions begin
    # The context that a session should be able to have, and the least it can work with.
    window_tokens: int = 0
    least_window_tokens: int = 0

    @property
    def need_tokens(self) -> int:
        """Of one whole sequence."""
        return ceil(self.input_tokens + self.output_tokens)

    def load(self, concurrency: int | None = None) -> PlannedLoad:
        agents = self.agents if concurrency is None else concurrency
        return PlannedLoad(
            agents, self.input_tokens, self.output_tokens, cached_share=self.cached_share
        )


def layouts(
    rig: Rig,
    model: Geometry,
    engine: str,
    goal: PlanGoal,
    pins: Pins,
) -> list[Layout]:
    """Return layouts with as many replicas as cards and agents allow; on mixed cards also fewer,
    without slow ones.
    """
    count = len(rig.cards)
    offered = []
    if pins.tp:
        tensor_sizes: Sequence[int] = (pins.tp,)
    elif kind_of(engine).reads_gguf and of_machines(rig):  # over a network it splits by layers
        tensor_sizes = (1,)
    else:
        tensor_sizes = range(1, count + 1)
    for tp in tensor_sizes:
        expert_sizes = _expert_sizes(tp, model, engine, pins)
        stages = (pins.pp,) if pins.pp else range(1, max(1, count // tp) + 1)
        for pp in stages:
            replica_counts = _replica_counts(tp * pp, rig, goal, pins)
            offered += [Layout(tp, pp, ep, r) for r in replica_counts for ep in expert_sizes]
    return offered


def _expert_sizes(
    tp: int,
    model: Geometry,
    engine: str,
    pins: Pins,
) -> tuple[int, ...]:
    if pins.ep:
        return (pins.ep,)
    if model.is_moe and tp > 1 and kind_of(engine).takes("ep"):
        return (1, tp)
    return (1,)


def _replica_counts(
    cards_each: int,
    rig: Rig,
    goal: PlanGoal,
    pins: Pins,
) -> Sequence[int]:
    if pins.replicas:
        return (pins.replicas,)
    largest = max(1, min(len(rig.cards) // cards_each, max(1, goal.agents)))
    is_mixed = len({card.id for card in rig.cards}) > 1
    if is_mixed:
        return range(largest, 0, -1)
    return (largest,)


def offered_quants(model: Geometry, engine: str, cards: Sequence[Device]) -> tuple[Quant, ...]:
    """Formats of the known checkpoints, then others that somebody could make; nothing below 4
    bits.
    """
    usual = _usual_quants(model, engine, cards)
    if model.native_bits is not None and model.native_bits < 5:
        return usual  # nobody makes it better than its maker
    names = (
        name
        for checkpoint in checkpoints_of(model.id)
        if engine in checkpoint.engines
        for name in checkpoint.formats
    )
    published = [
        QUANTS[name]
        for name in dict.fromkeys(names)
        if name in QUANTS and QUANTS[name].nominal >= 4
    ]
    fp4 = any(quant.id == "nvfp4" for quant in usual)
    published = [quant for quant in published if quant.id != "nvfp4" or fp4]
    alike = {(quant.family, quant.nominal) for quant in published}
    return (*published, *(quant for quant in usual if (quant.family, quant.nominal) not in alike))


@lru_cache(maxsize=512)
def as_published(quant: Quant, model: Geometry, engine: str) -> Quant:
    """Return the format with as many bits as its checkpoint takes when loaded, or on disk: some
    parts stay in 16.
    """
    checkpoint = find_checkpoint(model.id, engine, quant.id)
    if checkpoint is None or (checkpoint.loaded_gib or checkpoint.disk_gb) is None:
        return quant
    parts = parts_of(model)
    drafts = checkpoint.mtp and checkpoint.loaded_gib is None
    counted = weights_bits(model, quant, with_draft=drafts, with_vision=checkpoint.vision)
    if checkpoint.loaded_gib:
        bits = checkpoint.loaded_gib * 8 * GIB
    else:
        bits = (checkpoint.disk_gb or 0.0) * 8e9
    extra_bits = (bits - counted) / max(1.0, parts.mlp + parts.experts + parts.small)
    if abs(extra_bits) < quant.bits * _OTHER_SIZE:
        return replace(quant, bits=quant.bits + extra_bits)
    return quant


def _usual_quants(model: Geometry, engine: str, cards: Sequence[Device]) -> tuple[Quant, ...]:
    if model.native_bits is not None and model.native_bits < 5:
        return (QUANTS["gguf_mxfp4" if kind_of(engine).reads_gguf else "mxfp4"],)
    native8 = model.native_bits == 8
    if kind_of(engine).reads_gguf:
        offered = {"q4_k_m": True, "q5_k_m": True, "q6_k": True, "q8_0": True, "f16": not native8}
    else:
        offered = {
            "awq": True,
            # AWQ checkpoints of hybrid mixtures keep more in 16 bit: not the same size
            "gptq": part_bits(QUANTS["awq"], model) != part_bits(QUANTS["gptq"], model),
            "nvfp4": all("fp4" in card.formats and card.vendor == "nvidia" for card in cards),
            "fp8": True,
            "bf16": not native8,
        }
    return tuple(QUANTS[name] for name, is_offered in offered.items() if is_offered)


def offered_kv(engine: str, quant: Quant, cards: Sequence[Device]) -> tuple[KvType, ...]:
    """Return 16 bits first, then the half-size type that this engine reads on these cards."""
    half = KV_TYPES["bf16"]
    if kind_of(engine).reads_gguf:
        return half, KV_TYPES["q8_0"]
    if all("fp8" in card.formats for card in cards):
        return half, KV_TYPES["fp8"]
    ampere = all(
        card.vendor == "nvidia" and (card.compute_capability or 0) >= 8.0 for card in cards
    )
    if ampere and quant.family != "fp8":
        return (half, KV_TYPES["fp8_e5m2"])
    return (half,)


def base_setups(
    model: Geometry,
    rig: Rig,
    engine: str,
    layout: Layout,
    pins: Pins,
) -> Iterator[Setup]:
    """Yield one setup for each quantization, with 16-bit KV and no speculation unless pinned."""
    cards = rig.cards[: layout.cards]
    pinned = pins.quant
    if pinned is not None and pinned.id == "mxfp4" and kind_of(engine).reads_gguf:
        pinned = QUANTS["gguf_mxfp4"]  # in llama.cpp's own file the rest has 8 bits, not 16
    nominal_quants = (pinned,) if pinned else offered_quants(model, engine, cards)
    for nominal in nominal_quants:
        quant = as_published(nominal, model, engine)
        yield Setup(
            model=model,
            quant=quant,
            kv=pins.kv or offered_kv(engine, quant, cards)[0],
            engine=engine,
            layout=layout,
            slots=pins.slots,
            context=pins.context,
            utilization=pins.utilization,
            graphs=pins.graphs,
            spec=pins.spec,
            vision=pins.vision or not kind_of(engine).takes("text_only"),
        )


def variants(setup: Setup, rig: Rig, pins: Pins) -> Iterator[Setup]:
    """Yield the same with the other KV types and speculations: of the latter only what the
    checkpoint carries.
    """
    if pins.kv:
        kinds: tuple[KvType, ...] = (pins.kv,)
    else:
        kinds = offered_kv(setup.engine, setup.quant, rig.cards[: setup.layout.cards])
    specs: tuple[Speculation | None, ...] = (pins.spec,)
    drafts = setup.model.mtp_layers and kind_of(setup.engine).has_pool and has_drafts(setup)
    if pins.spec is None and not pins.no_spec and drafts:
        specs = (None, *(Speculation("mtp", depth) for depth in _DEPTHS))
    for kv, spec in product(kinds, specs):
        if (kv, spec) != (setup.kv, setup.spec):
            yield replace(setup, kv=kv, spec=spec)


def has_drafts(setup: Setup) -> bool:
    """Whether a checkpoint in this format carries the draft layers; of a model without known
    checkpoints, all do.
    """
    model = setup.model.id
    return (
        not checkpoints_of(model)
        or find_checkpoint(model, setup.engine, setup.quant.id, mtp=True) is not None
    )


def sizing_card(rig: Rig, layout: Layout) -> Device:
    """Return the card in use with the least memory."""
    return smallest(rig.cards[: layout.cards])


def held_tokens(goal: PlanGoal, setup: Setup, slots: int) -> int:
    """Return the KV that each slot holds of a pool: what sessions share is there once."""
    if goal.shape is None or not kind_of(setup.engine).has_pool:
        return goal.need_tokens
    own_tokens = goal.need_tokens - goal.shared_tokens
    return ceil(own_tokens + goal.shared_tokens / slots)


def place(
    setup: Setup,
    card: Device,
    goal: PlanGoal,
    pins: Pins,
) -> Setup | None:
    """Return the setup with slots, context and utilization that fit; None where not even its
    smallest form does.

    A pool needs room for one sequence of the whole context, and for all slots at the load's
    length. Where all slots fit on paper only, a pool has them nevertheless: should memory be
    short, a sequence waits. Where slots take their memory at the start, fewer that fit with a
    margin go first.
    """
    agents_each = ceil(max(1, goal.agents) / setup.layout.replicas)
    required_slots = pins.slots or agents_each
    contexts = _contexts(setup, goal, pins)
    shares = _utilizations(setup, card, pins)
    fewest = required_slots if pins.slots else 1

    def holds(
        slots: int,
        context: int,
        share: float | None,
        *,
        margin: bool,
    ) -> Setup | None:
        tried = replace(setup, slots=slots, context=context, utilization=share)
        if not memory(tried, card, context=context, slots=slots).fits:
            return None
        task_tokens = min(held_tokens(goal, setup, slots), context)
        full = memory(tried, card, context=task_tokens, slots=slots, at_once=slots)
        is_tight = margin and full.fits_on_paper_only
        if full.fits and not is_tight:
            return tried
        return None

    def first_held(slot_counts: Sequence[int], *, margin: bool) -> Setup | None:
        """Return the first of these that fits; their smallest form is tried before all others."""
        fewest_slots = slot_counts[-1]
        shortest = contexts[-1]
        if not any(holds(fewest_slots, shortest, share, margin=margin) for share in shares):
            return None
        tries = product(slot_counts, contexts, shares)
        held = starmap(partial(holds, margin=margin), tries)
        return next(filter(None, held), None)

    fewer = _fewer(required_slots, fewest)
    groups = [[required_slots], fewer] if kind_of(setup.engine).has_pool else [fewer]
    placed = (first_held(counts, margin=margin) for counts in groups for margin in (True, False))
    return next(filter(None, placed), None)


def with_experts_in_ram(
    setup: Setup,
    rig: Rig,
    goal: PlanGoal,
    pins: Pins,
) -> Setup | None:
    """Return the setup with as few experts in system memory as let it fit with a margin:
    llama.cpp's --n-cpu-moe.
    """
    model = setup.model
    card = sizing_card(rig, setup.layout)
    can_move = kind_of(setup.engine).takes("cpu_moe") and model.is_moe and not card.unified_memory
    if not can_move or setup.layout.replicas > 1:
        return None
    bits = part_bits(setup.quant, model)["experts"]
    expert_bytes = parts_of(model).experts * bits / 8
    room_bytes = (rig.ram_gib or USUAL_RAM_GIB) * GIB * RAM_SHARE
    for eighths in range(1, 9):
        layers = ceil(model.expert_layers * eighths / 8)
        moved = replace(setup, cpu_moe=layers)
        if expert_bytes * moved.ram_share > room_bytes:
            return None
        placed = place(moved, card, goal, pins)
        if placed is not None:
            slots = placed.slots or 1
            context = min(goal.need_tokens, placed.context or goal.need_tokens)
            if not memory(placed, card, context=context, slots=slots).fits_on_paper_only:
                return placed
    return None


def shortfall(
    setup: Setup,
    card: Device,
    goal: PlanGoal,
    pins: Pins,
) -> FitResult:
    """Return what is short for the smallest form of a setup that has no place."""
    fewest = pins.slots or 1
    return fits(
        setup, card, context=_contexts(setup, goal, pins)[-1], slots=fewest, at_once=fewest
    )


def _contexts(setup: Setup, goal: PlanGoal, pins: Pins) -> list[int]:
    if pins.context:
        return [pins.context]
    need = -(-goal.need_tokens // 256) * 256
    contexts = [max(DEFAULT_CONTEXT, need), need]
    max_context = setup.model.max_context
    if max_context and max_context >= goal.need_tokens:
        contexts = [min(context, max_context) for context in contexts]
    return list(dict.fromkeys(contexts))


def _utilizations(setup: Setup, card: Device, pins: Pins) -> tuple[float | None, ...]:
    """Return the shares of a card to try, best first.

    They are given even where it is the engine's own, which has changed with versions. Hybrids stay
    where they are safe.
    """
    if pins.utilization or not kind_of(setup.engine).has_pool:
        return (pins.utilization,)
    utilization = defaults(setup.engine, card).utilization
    if card.unified_memory:
        largest_share = utilization
    elif setup.model.is_hybrid:
        largest_share = SAFE_HYBRID_UTILIZATION
    else:
        largest_share = 1.0
    usual = (utilization, *(share for share in _UTILIZATIONS if share <= largest_share))
    return tuple(dict.fromkeys(usual))


def _fewer(required: int, fewest: int) -> list[int]:
    """Return the numbers of slots from the required one down: by one where there are few, by
    eighths where there are many.
    """
    counts = []
    slots = required
    while slots >= fewest:
        counts.append(slots)
        slots -= max(1, slots // 8)
    return counts


def arranged(rig: Rig) -> tuple[Rig, tuple[int, ...]]:
    """Return the rig with fast cards first and bridged ones side by side, and the order that this
    is of its cards: groups are made of neighbours.
    """
    unplaced = list(range(len(rig.cards)))
    order: list[int] = []
    while unplaced:
        last = order[-1] if order else None
        if last is None or len(order) % 2 == 0:
            links = {}
        else:
            links = {n: rig.link(last, n) for n in unplaced}
        bridged = [n for n, link in links.items() if link is not None and link.kind == "nvlink"]
        chosen = min(
            bridged or unplaced,
            key=lambda n: (-rig.cards[n].bandwidth_gbs, -rig.cards[n].memory_gib, n),
        )
        order.append(chosen)
        unplaced.remove(chosen)
    where = {old: new for new, old in enumerate(order)}
    cards = tuple(rig.cards[old] for old in order)
    pairs = tuple((where[a], where[b], link) for a, b, link in rig.pairs)
    return replace(rig, cards=cards, pairs=pairs), tuple(order)
