"""The choice: everything that could be started on a rig, less what a rule or the memory forbids, best first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.models import Geometry, find_checkpoint, is_published
from skep.errors import DoesNotFit, UserError
from skep.planner import candidates, ranking
from skep.planner.candidates import Pins, PlanGoal, place, sizing_card
from skep.planner.memory import MemoryPlan, largest, longest_context
from skep.planner.predict import SpeedModel
from skep.planner.ranking import Basis, BasisOf, Predicted, Rated, published_basis, speed_model_of
from skep.planner.rules import check, refusal
from skep.planner.setup import (
    QUANTS,
    CardLink,
    Layout,
    Rig,
    Setup,
    default_link,
    of_machines,
    part_bits,
    parts_of,
    slot_link,
)
from skep.planner.step import EXPERTS_REUSE
from skep.units import format_bytes

# Left out in this order: what computing adds to reading comes before the reading itself.
_TERMS: tuple[tuple[str, tuple[str, ...]], ...] = (
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
_WORTH_SHOWING = 0.0005
FEW, CROWD = 32, 128  # agents; beyond them fewer are played through, as each takes longer
_GROUPS, _IN_GROUP = 12, 3  # played through: so many pairs of layout and quantization, so many forms of each
_EXPANDED = 8  # pairs that are tried with other KV types and with speculation
_LAYOUT_RULES = ("cards", "heads", "pipeline", "expert-parallel", "engine")  # no quantization mends these
_MOST_CARDS = 16  # tried where a model does not fit
_TRIED = f"nothing: fewer bits, a shorter context and up to {_MOST_CARDS} such cards were tried"
SHOWN = 8


class StepShare(msgspec.Struct, frozen=True):
    name: str
    seconds: float
    share: float
    how: str


class StepAccount(msgspec.Struct, frozen=True):
    """One decode step of one replica with `sequences` in it, `context` tokens each."""

    sequences: int
    context: float
    seconds: float
    tokens: float  # that the step brings, all sequences together
    terms: tuple[StepShare, ...]

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


def account(found: SpeedModel, goal: PlanGoal, agents: int) -> StepAccount:
    sequences = max(1, min(found.slots, -(-agents // found.setup.layout.replicas)))
    each = goal.input_tokens + goal.output_tokens / 2
    step, context = found.step, sequences * each
    whole = step.seconds(sequences, context)
    terms, left, rest = [], whole, step
    for name, names in _TERMS:
        nothing: dict[str, Any] = dict.fromkeys(names, 0.0)
        rest = replace(rest, **nothing)
        after = rest.seconds(sequences, context)
        if left - after > _WORTH_SHOWING * whole:
            terms.append(StepShare(name, left - after, (left - after) / whole, _how(name, found, sequences, each)))
        left = after
    if left > _WORTH_SHOWING * whole:
        terms.append(StepShare("the rest", left, left / whole, "not told apart"))
    terms.sort(key=lambda term: -term.seconds)
    return StepAccount(sequences, each, whole, sequences * step.tokens_per_step(sequences), tuple(terms))


def _how(name: str, found: SpeedModel, sequences: int, each: float) -> str:
    """Return the formula with its values."""
    setup, step, card = found.setup, found.step, found.card
    model, tp = setup.model, setup.layout.tp
    parts, bits = parts_of(model), part_bits(setup.quant, model)
    cut = f" / {tp} cards" if tp > 1 else ""
    tokens = sequences * (1 + step.depth)

    def read(size: float, seconds: float) -> str:
        """Return the size, and the share of the bandwidth at which it is read."""
        reached = f"{size / tp / seconds / card.bandwidth_gbs / 1e9 * 100:.0f} % of " if seconds > 0 else ""
        return f"{size / 1e9:.2f} GB{cut} at {reached}{card.bandwidth_gbs:,.0f} GB/s"

    if name == "dense weights":
        return read((parts.small * bits["small"] + parts.mlp * bits["mlp"]) / 8, step.dense_s)
    if name == "experts":
        share = 1.0 - (1.0 - step.experts_per_token / step.experts) ** (tokens**EXPERTS_REUSE)
        formula = f"1-(1-{step.experts_per_token}/{step.experts})^{tokens}^{EXPERTS_REUSE:.2f}"
        return f"{share * 100:.0f} % ({formula}) of {read(parts.experts * bits['experts'] / 8, step.experts_s)}"
    if name == "output head":
        return read(parts.embedding * bits["ends"] / 8, step.head_s)
    if name == "KV cache":
        return f"{sequences} x {each:.0f} tokens x {model.kv_bytes_per_token(setup.kv.bytes):,.0f} B{cut}"
    if name == "linear-attention state":
        return f"{sequences} x {model.state_bytes / 1e6:.0f} MB read and written{cut}"
    if name == "all-reduce":
        link = found.link.title or found.link.kind if found.link else "link"
        count = 2 * model.layers + 1
        once, more = step.comm_fixed_s / count * 1e6, step.comm_token_s / count * 1e6
        return f"{count} x ({once:.1f} us + {tokens} x {more:.2f} us) over {link}"
    if name == "drafts":
        return f"{step.depth} drafted, {step.accepted:.2f} tokens a step and sequence"
    if name == "computing beyond reading":
        return f"{tokens} tokens at once against {card.fp16_tflops or 0:g} TFLOPS (FP16)"
    if name == "sequences":
        return f"{sequences} x {step.sequence_s * 1e6:.0f} us of scheduling and sampling"
    if name == "launches and scheduler":
        return f"{model.layers} layers, {'CUDA graphs' if setup.graphs else 'eager'}, {setup.engine}"
    return "llama.cpp's kernels for few tokens"


def reasons(best: Rated, goal: PlanGoal, rejected_replica: str | None, rejected_wider: str | None) -> tuple[str, ...]:
    """Why this one, in sentences. The two last arguments: why a replica a card, and why more cards, would not do."""
    setup, layout = best.setup, best.setup.layout
    rig_cards, found = len(best.rig.cards), []
    spent = account(best.prospect, goal, goal.agents)
    shares = {term.name: term.share for term in spent.terms}
    if layout.tp > 1:
        if rejected_replica:
            found.append(f"one card does not hold a replica: {rejected_replica}")
        over = best.prospect.link.title or best.prospect.link.kind if best.prospect.link else "its link"
        found.append(
            f"TP={layout.tp} reads 1/{layout.tp} of the weights a card and spends "
            f"{shares.get('all-reduce', 0) * 100:.0f} % of a step on all-reduce over {over}"
        )
    elif layout.replicas > 1:
        found.append(f"{layout.replicas} replicas share nothing: no all-reduce, each reads all weights for its agents")
    if layout.ep > 1:
        found.append(f"EP={layout.ep} keeps every expert whole on one card")
    if layout.pp > 1:
        found.append(f"PP={layout.pp} makes room; a single stream gets no quicker")
    if layout.cards < rig_cards:
        idle = rig_cards - layout.cards
        left = f"{idle} of {rig_cards} cards {'stays' if idle == 1 else 'stay'} idle"
        found.append(f"{left}: {rejected_wider}" if rejected_wider else left)
    first = spent.terms[0]
    found.append(f"{first.share * 100:.0f} % of a step at {spent.sequences} sequence(s) is {first.name}: {first.how}")
    assert setup.slots is not None
    if setup.slots * layout.replicas < goal.agents:
        decoding = setup.slots * layout.replicas
        found.append(f"memory is enough for {decoding} of {goal.agents} agents at once, the others wait")
    if setup.spec is not None:
        gain = best.prospect.step.tokens_per_step(spent.sequences)
        found.append(f"{setup.spec} is expected to bring {gain:.1f} tokens a step; how many depends on the text")
    if setup.cpu_moe:
        found.append(f"experts of {setup.cpu_moe} of {setup.model.expert_layers} layers stay in system memory")
    if setup.kv.family != "half":
        found.append(f"{setup.kv.title} KV halves what a token keeps; answers may differ slightly from 16 bit")
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
    model: Geometry, rig: Rig, goal: PlanGoal, pins: Pins, engine: str, basis: Basis, *, narrow: bool = False,
    top: bool = False,
) -> tuple[list[Rated], list[Rejected]]:  # fmt: skip
    """Return the best form of every pair of layout and format of one engine, best first, and what was rejected.

    `top`: only the best few pairs, without reasons; `narrow`: in fewer forms still.
    """
    few = narrow or top
    found, rejected = bases(model, rig, goal, pins, engine, say_why=not few)

    def published(setup: Setup) -> bool:
        return pins.quant is not None or is_published(model.id, engine, setup.quant.id)

    def first(setup: Setup) -> tuple[object, ...]:
        """Return what decides before speed does, and the speed of one step."""
        on_cards = ranking.holds_all(setup, goal) and not setup.cpu_moe
        order = published(setup), not ranking.on_paper(setup, rig, goal), on_cards
        return (*order, ranking.coarse(speed_model_of(setup, rig, goal, basis), goal))

    scored = sorted(((first(s), s) for s in found), key=itemgetter(0), reverse=True)
    most, pairs = 3 if narrow else _EXPANDED, [setup for _, setup in scored]
    drafting = [setup for setup in pairs[most:] if model.mtp_layers and candidates.has_drafts(setup)]
    for setup in pairs[:most] + drafting[: most // 2]:
        for other in candidates.variants(setup, rig, pins):
            if refusal(other, rig) is not None:
                continue
            placed = place(other, sizing_card(rig, other.layout), goal, pins)
            if placed is not None:
                scored.append((first(placed), placed))
    groups: dict[tuple[object, ...], list[Setup]] = {}
    for _, setup in sorted(scored, key=itemgetter(0), reverse=True):
        layout = setup.layout
        groups.setdefault((layout.tp, layout.pp, layout.replicas, setup.quant.id), []).append(setup)
    fewer = 3 if goal.agents > CROWD or narrow else 2 if goal.agents > FEW else 1
    best = []
    for group in list(groups.values())[: _GROUPS // (3 if few else fewer)]:
        forms = group[: _IN_GROUP if len(groups) == 1 else _IN_GROUP // fewer]
        rated = (ranking.rate(s, rig, goal, check(s, rig), basis, published=published(s)) for s in forms)
        best.append(ranking.ranked(rated)[0])
    return ranking.ranked(best), rejected


def bases(
    model: Geometry, rig: Rig, goal: PlanGoal, pins: Pins, engine: str, *, say_why: bool = True
) -> tuple[list[Setup], list[Rejected]]:  # fmt: skip
    found: list[Setup] = []
    rejected: list[Rejected] = []
    hopeless: set[int] = set()
    for layout in candidates.layouts(rig, model, engine, goal, pins):
        if layout.tp in hopeless:
            continue
        dropped: dict[str, Rejected] = {}
        for setup in candidates.base_setups(model, rig, engine, layout, pins):
            bad = refusal(setup, rig)
            if bad is not None:
                _drop(dropped, Rejected(layout, engine, (setup.quant.id,), bad.rule, bad.sentence, bad.remedy))
                if bad.rule in _LAYOUT_RULES:
                    if bad.rule == "heads":
                        hopeless.add(layout.tp)
                    break
                continue
            placed = _placed(setup, rig, goal, pins) or candidates.with_experts_in_ram(setup, rig, goal, pins)
            if placed is not None:
                found.append(placed)
            elif "memory" in dropped:
                _drop(dropped, msgspec.structs.replace(dropped["memory"], quants=(setup.quant.id,)))
            elif say_why:
                short = candidates.shortfall(setup, sizing_card(rig, layout), goal, pins)
                most = short.plan.largest
                size = max(most.bytes, short.plan.needed_kv_bytes if most.name == "KV pool" else 0)
                reason = f"{short.sentence}; the largest term is {most.name} ({format_bytes(size)} a card)"
                remedy = next(short.changes(), None)
                _drop(dropped, Rejected(layout, engine, (setup.quant.id,), "memory", reason, remedy))
        rejected += dropped.values()
    return found, rejected


def _drop(dropped: dict[str, Rejected], new: Rejected) -> None:
    """Return one entry for each rule; the first reason stands for all quantizations rejected by it."""
    old = dropped.get(new.rule)
    dropped[new.rule] = new if old is None else msgspec.structs.replace(old, quants=(*old.quants, *new.quants))


def _placed(setup: Setup, rig: Rig, goal: PlanGoal, pins: Pins) -> Setup | None:
    """With the smaller KV where the 16-bit one does not fit."""
    card = sizing_card(rig, setup.layout)
    placed = place(setup, card, goal, pins)
    if placed is not None or pins.kv is not None:
        return placed
    for kv in candidates.offered_kv(setup.engine, setup.quant, rig.cards[: setup.layout.cards])[1:]:
        smaller = replace(setup, kv=kv)
        if refusal(smaller, rig) is None and (again := place(smaller, card, goal, pins)) is not None:
            return again
    return None


class Plan(msgspec.Struct, frozen=True):
    """`checkpoint`: the files that were asked for, or the catalogue's; `order`: the machine's numbers of the cards."""

    rated: Rated
    predicted: tuple[Predicted, ...]
    memory: MemoryPlan
    largest_context: int  # with every slot full
    largest_slots: int  # at the plan's context, all full
    checkpoint: str | None
    order: tuple[int, ...]
    why: tuple[str, ...]

    @property
    def setup(self) -> Setup:
        return self.rated.setup


class RunnerUp(msgspec.Struct, frozen=True):
    """`behind`: by what share of the best's figure for the goal; below 0 it is ahead, `why` says why it is second."""

    plan: Plan
    behind: float
    why: str | None
    wins_if: tuple[str, ...]
    tried: tuple[str, ...]


class ScalingPoint(msgspec.Struct, frozen=True):
    """The same rig with so many of its cards; None where the model does not fit them."""

    cards: int
    layout: Layout | None
    effective_tok_s: float | None
    share: float | None  # of what all cards give


class PlanChoice(msgspec.Struct, frozen=True):
    """`order`: the machine's number of each card of `rig`, which was rearranged so that neighbours belong together."""

    rig: Rig
    order: tuple[int, ...]
    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    runner_up: RunnerUp | None
    further: tuple[ScalingPoint, ...]


def choose(
    model: Geometry, rig: Rig, goal: PlanGoal, pins: Pins | None = None, *, engines: Sequence[str] = ("vllm",),
    basis_of: BasisOf = published_basis, checkpoint: str | None = None, scale: bool = True,
) -> PlanChoice:  # fmt: skip
    """Rank what these engines could do together. Nothing fits: the plans are empty."""
    pins = pins or Pins()
    rig, order = candidates.arranged(rig)
    surveys = [survey(model, rig, goal, pins, engine, basis_of(engine)) for engine in engines]
    most = SHOWN if goal.agents <= CROWD else SHOWN // 2
    rated = ranking.ranked(r for found, _ in surveys for r in found)[:most]
    rejected = tuple(r for _, found in surveys for r in found)
    plans = []
    for number, r in enumerate(rated):
        # all levels for the best three, the two ends for the others where many agents make it long
        at = ranking.levels(goal.agents) if number < 3 or goal.agents <= FEW else (1, goal.agents)
        shown = r if pins.context else _stretched(r)
        plans.append(_plan(shown, goal, basis_of(r.setup.engine), at, rejected, checkpoint, order))
    runner = _runner_up(plans, goal, pins, basis_of) if len(plans) > 1 else None
    further = _further(rated[0], goal, pins, basis_of) if rated and scale and goal.agents <= CROWD else ()
    return PlanChoice(rig, order, tuple(plans), rejected, runner, further)


def _stretched(rated: Rated) -> Rated:
    """Return it with the longest context that every slot can hold at once, with a margin."""
    setup = rated.setup
    longest = longest_context(setup, rated.card, setup.slots or 1, with_margin=True)
    return replace(rated, setup=replace(setup, context=max(longest, setup.context or 0)))


def _plan(
    rated: Rated, goal: PlanGoal, basis: Basis, at: tuple[int, ...], rejected: Sequence[Rejected],
    checkpoint: str | None, order: tuple[int, ...],
) -> Plan:  # fmt: skip
    setup, layout = rated.setup, rated.setup.layout
    alone = next((r for r in rejected if r.rule == "memory" and r.layout.cards_each == 1), None)
    wider = next((r.reason for r in rejected if r.rule == "heads" and layout.cards < r.layout.tp), None)
    replica = alone.reason if alone is not None and setup.quant.id in alone.quants else None
    why = reasons(rated, goal, replica, wider)
    context, slots = rated.largest()
    predicted = ranking.predict_levels(rated, goal, basis, at)
    if checkpoint is None:
        drafts = setup.spec is not None and setup.spec.method == "mtp"
        found = find_checkpoint(setup.model.id, setup.engine, setup.quant.id, mtp=drafts)
        checkpoint = found.reference(setup.quant.id) if found is not None else None
    return Plan(rated, predicted, rated.memory(), context, slots, checkpoint, order, why)


def _runner_up(plans: Sequence[Plan], goal: PlanGoal, pins: Pins, basis_of: BasisOf) -> RunnerUp:
    """Return the best with another layout, or else the second; and a few changes of rig or load, tried on both."""
    best = plans[0].rated
    layout = replace(best.setup.layout, ep=1)
    other = next((p for p in plans[1:] if replace(p.setup.layout, ep=1) != layout), plans[1])
    wins, tried = [], []
    for words, rig, changed in _changes(best, other.rated, goal):
        tried.append(words)
        theirs = _again(other.rated, rig, changed, pins, basis_of)
        ours = _again(best, rig, changed, pins, basis_of) if theirs is not None else None
        if theirs is not None and (ours is None or ranking.ranked([ours, theirs])[0] is theirs):
            wins.append(words)
    behind = 1 - ranking.figure(other.rated, goal) / max(1e-9, ranking.figure(best, goal))
    alone = (plans[0].predicted[0].task_tok_s, other.predicted[0].task_tok_s)
    return RunnerUp(other, behind, ranking.why_second(best, other.rated, alone), tuple(wins), tuple(tried))


def _changes(best: Rated, other: Rated, goal: PlanGoal) -> Iterable[tuple[str, Rig, PlanGoal]]:
    rig = best.rig
    links = [r.prospect.link for r in (best, other) if r.prospect.link is not None]
    if any(link.kind != "nvlink" for link in links) and all(card.nvlink_gbs for card in rig.cards):
        bridged = CardLink("nvlink", min(card.nvlink_gbs or 0.0 for card in rig.cards), p2p=True, title="NVLink")
        yield "NVLink between the cards", replace(rig, default_link=bridged, pairs=()), goal
    if any(not link.p2p for link in links) and not of_machines(rig):
        pairs = tuple((a, b, replace(link, p2p=True)) for a, b, link in rig.pairs)
        base = replace(rig.default_link, p2p=True) if rig.default_link else None
        yield "peer access over PCIe (a patched driver)", replace(rig, default_link=base, pairs=pairs), goal
    if any(link.kind == "nvlink" for link in links):
        yield "no NVLink", replace(rig, default_link=slot_link(rig.cards), pairs=()), goal
    further = (goal.agents + 1, 2 * goal.agents, 4 * goal.agents) if goal.agents <= FEW else (goal.agents // 4,)
    for agents in dict.fromkeys((1, *further)):
        if agents != goal.agents:
            yield f"{agents} agent{'s' if agents > 1 else ''}", rig, replace(goal, agents=agents)
    if goal.input_tokens < 8192 and goal.agents <= CROWD:
        yield "prompts of 8192 tokens", rig, replace(goal, input_tokens=8192)
    for kind in ("latency", "throughput"):
        if goal.kind != kind:
            yield f"--goal {kind}", rig, replace(goal, kind=kind)


def _again(rated: Rated, rig: Rig, goal: PlanGoal, pins: Pins, basis_of: BasisOf) -> Rated | None:
    """Return the same layout and formats elsewhere, with the speculation that is best there. None: they do not fit."""
    setup, layout = rated.setup, rated.setup.layout
    fixed = replace(pins, quant=setup.quant, kv=setup.kv, tp=layout.tp, pp=layout.pp, ep=layout.ep,
                    replicas=layout.replicas)  # fmt: skip
    found = survey(setup.model, rig, goal, fixed, setup.engine, basis_of(setup.engine), narrow=True)[0]
    return found[0] if found else None


def _further(best: Rated, goal: PlanGoal, pins: Pins, basis_of: BasisOf) -> tuple[ScalingPoint, ...]:
    """What each further card of the same kind adds, weights as the best has them: each is the plan of so many cards."""
    cards, setup = best.rig.cards, best.setup
    if len(cards) < 2 or len({card.id for card in cards}) > 1 or pins.layout_words:
        return ()
    counts = range(1, len(cards)) if len(cards) <= 4 else [n for n in (1, 2, 4, 8, 16) if n < len(cards)]
    fixed = replace(pins, quant=setup.quant)
    whole = best.outcome.effective_tok_s
    found = []
    for count in counts:
        pairs = tuple(p for p in best.rig.pairs if p[0] < count and p[1] < count)
        part = replace(best.rig, cards=cards[:count], pairs=pairs)
        rated = survey(setup.model, part, goal, fixed, setup.engine, basis_of(setup.engine), top=True)[0]
        speed = rated[0].outcome.effective_tok_s if rated else None
        layout = rated[0].setup.layout if rated else None
        found.append(ScalingPoint(count, layout, speed, speed / whole if speed else None))
    return (*found, ScalingPoint(len(cards), setup.layout, whole, 1.0))


def fits_nowhere(model: Geometry, choice: PlanChoice, goal: PlanGoal, pins: Pins, engine: str) -> UserError:
    """Return the error for a choice without plans: exit 3 where memory is to blame, 2 where the flags are."""
    short = [r for r in choice.rejected if r.rule == "memory"]
    if not short:
        first = choice.rejected[0] if choice.rejected else None
        return UserError(first.reason if first else f"nothing was left to try on `{choice.rig.title}`",
                         hint=first.remedy if first else None)  # fmt: skip
    nearest = max(short, key=lambda r: (r.layout.cards_each, -r.layout.pp))
    ways = would_fit(model, choice.rig, goal, pins, engine)
    return DoesNotFit(f"{model.id} does not fit `{choice.rig.title}`: {nearest.reason}",
                      hint="what would fit: " + ("; ".join(ways) if ways else _TRIED))  # fmt: skip


def would_fit(model: Geometry, rig: Rig, goal: PlanGoal, pins: Pins, engine: str) -> tuple[str, ...]:
    """Fewer bits on the same cards, less context, more cards of the same kind, or another engine: each tried."""
    ways: list[str] = []

    def works(on: Rig, tried: Pins, by: str = engine) -> list[Setup]:
        return bases(model, on, goal, tried, by, say_why=False)[0]

    if pins.quant is not None:
        family = ("q8_0", "q6_k", "q5_k_m", "q4_k_m") if engine == "llamacpp" else ("fp8", "gptq", "awq")
        lower = [QUANTS[name] for name in family if QUANTS[name].bits < pins.quant.bits]
        small = next((q for q in lower if works(rig, replace(pins, quant=q))), None)
        if small is not None:
            ways.append(f"--quant {small.id}")
    if pins.context is not None and (free := works(rig, replace(pins, context=None))):
        longest = max(largest(s, sizing_card(rig, s.layout), slots=pins.slots)[0] for s in free)
        ways += [f"--context {longest}"] if longest >= goal.need_tokens else []
    free_layout = replace(pins, tp=None, pp=None, ep=None, replicas=None)
    if free_layout != pins and works(rig, free_layout):
        ways.append("without the pinned layout")
    card = rig.cards[0]
    for count in range(len(rig.cards) + 1, 1 if card.unified_memory else _MOST_CARDS + 1):
        more = Rig((card,) * count, rig.default_link or default_link(card), title=f"{count}x {card.id}")
        if found := works(more, free_layout):
            first = min(found, key=lambda s: (s.layout.tp if engine == "llamacpp" else s.layout.pp, -s.quant.bits))
            ways.append(f"{count}x {card.id} ({first.layout}, {first.quant.title})")
            break
    below = replace(free_layout, quant=QUANTS["q3_k_m"])
    if engine == "llamacpp" and not ways and pins.quant != below.quant and works(rig, below):
        ways.append("--quant q3_k_m, below 4 bits")
    if engine != "llamacpp" and pins.quant is None and (small_ones := works(rig, free_layout, "llamacpp")):
        ways.append(f"--engine llamacpp ({small_ones[0].quant.title})")
    elif engine != "llamacpp" and not ways and works(rig, below, "llamacpp"):
        ways.append("--engine llamacpp --quant q3_k_m, below 4 bits")
    return tuple(ways)
