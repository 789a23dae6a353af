"""The choice: everything that could be started on a rig, less what a rule or the memory forbids, best first.

One decode step sorts the candidates; only the best few are played through. What is dropped is kept with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from skep.catalog.geometry import Geometry
from skep.errors import DoesNotFit, UserError
from skep.planner.candidates import (
    Goal,
    Pins,
    arranged,
    base_setups,
    contradiction,
    layouts,
    offered_kv,
    place,
    shortfall,
    sizing_card,
    variants,
)
from skep.planner.explain import reasons
from skep.planner.findings import Finding
from skep.planner.fitting_in import Verdict, largest
from skep.planner.launch import gateway, launch
from skep.planner.links import default_link
from skep.planner.memory import MemoryPlan
from skep.planner.quants import QUANTS
from skep.planner.ranking import (
    Basis,
    BasisOf,
    Predicted,
    Rated,
    coarse,
    levels,
    predict_levels,
    prospect_of,
    published_basis,
    rate,
)  # fmt: skip
from skep.planner.rules import check, refusal
from skep.planner.setup import Layout, Link, Rig, Setup
from skep.units import format_bytes

_GROUPS, _IN_GROUP = 12, 3  # played through: so many pairs of layout and quantization, so many forms of each
_FEW, _CROWD = 32, 128  # agents; beyond them fewer are played through, as each takes longer
_EXPANDED = 8  # pairs that are tried with other KV types and with speculation
_LAYOUT_RULES = ("cards", "heads", "pipeline", "expert-parallel", "engine")  # no quantization mends these
_MOST_CARDS = 16  # tried where a model does not fit
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Rejected:
    """`rule` is the rule's name, or `memory`. `quants`: which were tried."""

    layout: Layout
    engine: str
    quants: tuple[str, ...]
    rule: str
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    rated: Rated
    predicted: tuple[Predicted, ...]
    memory: MemoryPlan
    largest_context: int  # with every slot full
    largest_slots: int  # at the plan's context, all full
    launch: tuple[str, ...]
    gateway: str | None
    why: tuple[str, ...]

    @property
    def setup(self) -> Setup:
        return self.rated.setup


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """`behind`: by what share of the best's score. `wins_if` is empty where nothing that was tried turns the order."""

    plan: Plan
    behind: float
    wins_if: tuple[str, ...]
    tried: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Further:
    """The same rig with so many of its cards; None where the model does not fit them."""

    cards: int
    layout: Layout | None
    effective_tok_s: float | None
    share: float | None  # of what all cards give


@dataclass(frozen=True, slots=True)
class Choice:
    """`order`: the machine's number of each card of `rig`, which was rearranged so that neighbours belong together."""

    rig: Rig
    order: tuple[int, ...]
    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    others: tuple[Plan, ...]  # the best of each engine that was not asked for
    runner_up: RunnerUp | None
    further: tuple[Further, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    rated: tuple[Rated, ...]  # the best form of every pair of layout and quantization, best first
    rejected: tuple[Rejected, ...]
    notes: tuple[str, ...]


def choose(
    model: Geometry, rig: Rig, goal: Goal, pins: Pins | None = None, *, engines: Sequence[str] = ("vllm",),
    others: Sequence[str] = (), basis_of: BasisOf = published_basis, checkpoint: str | None = None, scale: bool = True,
) -> Choice:  # fmt: skip
    """`others`: engines whose best is shown beside, unranked. Nothing fits: the plans are empty."""
    pins = pins or Pins()
    contradiction(rig, goal, pins)
    rig, order = arranged(rig)
    surveys = [survey(model, rig, goal, pins, engine, basis_of(engine)) for engine in engines]
    shown = SHOWN if goal.agents <= _CROWD else SHOWN // 2
    rated = sorted((r for s in surveys for r in s.rated), key=lambda r: r.key, reverse=True)[:shown]
    rejected = tuple(r for s in surveys for r in s.rejected)
    plans = tuple(
        _plan(r, goal, basis_of(r.setup.engine), _levels(goal, n), rejected, checkpoint, order)
        for n, r in enumerate(rated)
    )
    beside = []
    for engine in others if plans and goal.agents <= _CROWD else ():
        best = survey(model, rig, goal, _unquantized(pins), engine, basis_of(engine), narrow=True).rated[:1]
        beside += [_plan(r, goal, basis_of(engine), (1, goal.agents), (), None, order) for r in best]
    notes = tuple(dict.fromkeys(note for s in surveys for note in s.notes))
    runner = _runner_up(plans, goal, pins, basis_of) if len(plans) > 1 else None
    further = _further(rated[0], goal, pins, basis_of) if rated and scale and goal.agents <= _CROWD else ()
    return Choice(rig, order, plans, rejected, tuple(beside), runner, further, notes)


def _levels(goal: Goal, place: int) -> tuple[int, ...]:
    """All for the best three, the two ends for the others where many agents make it long."""
    return levels(goal.agents) if place < 3 or goal.agents <= _FEW else (1, goal.agents)


def survey(
    model: Geometry, rig: Rig, goal: Goal, pins: Pins, engine: str, basis: Basis, *, narrow: bool = False
) -> Survey:
    """All candidates of one engine. `narrow`: only the best few, for a figure beside others."""
    bases, rejected = _bases(model, rig, goal, pins, engine)
    scored = sorted(((coarse(prospect_of(s, rig, goal, basis), goal), s) for s in bases), key=lambda p: -p[0])
    notes: list[str] = []
    for setup in [s for _, s in scored[: 3 if narrow else _EXPANDED]]:
        for other in variants(setup, rig, pins):
            findings = check(other, rig)
            useless = _useless_speculation(findings, model)
            if useless is not None and not notes:
                notes.append(f"no speculation offered: {useless.sentence}")
            if useless is not None or refusal(findings) is not None:
                continue
            placed = place(other, sizing_card(rig, other.layout), goal, pins)
            if placed is not None:
                scored.append((coarse(prospect_of(placed, rig, goal, basis), goal), placed))
    groups: dict[tuple[object, ...], list[tuple[float, Setup]]] = {}
    for score, setup in sorted(scored, key=lambda pair: -pair[0]):
        layout = setup.layout
        groups.setdefault((layout.tp, layout.pp, layout.replicas, setup.quant.id), []).append((score, setup))
    fewer = 3 if goal.agents > _CROWD or narrow else 2 if goal.agents > _FEW else 1
    best = []
    for group in list(groups.values())[: _GROUPS // fewer]:
        forms = [s for _, s in group[: _IN_GROUP if len(groups) == 1 else _IN_GROUP // fewer]]
        best.append(max((rate(s, rig, goal, check(s, rig), basis) for s in forms), key=lambda r: r.key))
    best.sort(key=lambda r: r.key, reverse=True)
    return Survey(tuple(best), tuple(rejected), tuple(dict.fromkeys(notes)))


def _bases(
    model: Geometry, rig: Rig, goal: Goal, pins: Pins, engine: str, *, say_why: bool = True
) -> tuple[list[Setup], list[Rejected]]:  # fmt: skip
    found: list[Setup] = []
    rejected: list[Rejected] = []
    hopeless: set[int] = set()
    for layout in layouts(rig, model, engine, goal, pins):
        if layout.tp in hopeless:
            continue
        dropped: dict[str, Rejected] = {}
        for setup in base_setups(model, rig, engine, layout, pins):
            bad = refusal(check(setup, rig))
            if bad is not None:
                _drop(dropped, Rejected(layout, engine, (setup.quant.id,), bad.rule, bad.sentence, bad.remedy))
                if bad.rule in _LAYOUT_RULES:
                    if bad.rule == "heads":
                        hopeless.add(layout.tp)
                    break
                continue
            placed = _placed(setup, rig, goal, pins)
            if placed is not None:
                found.append(placed)
            elif "memory" in dropped:
                _drop(dropped, replace(dropped["memory"], quants=(setup.quant.id,)))
            elif say_why:
                short = shortfall(setup, sizing_card(rig, layout), goal, pins)
                reason = f"{short.sentence}; the largest term is {_largest(short)}"
                remedy = next((way for way in short.remedies if not way.startswith("the largest term")), None)
                _drop(dropped, Rejected(layout, engine, (setup.quant.id,), "memory", reason, remedy))
        rejected += dropped.values()
    return found, rejected


def _drop(dropped: dict[str, Rejected], new: Rejected) -> None:
    """One entry a rule: the first reason stands for all quantizations that fell to it."""
    old = dropped.get(new.rule)
    dropped[new.rule] = new if old is None else replace(old, quants=(*old.quants, *new.quants))


def _placed(setup: Setup, rig: Rig, goal: Goal, pins: Pins) -> Setup | None:
    """With the smaller KV where the 16-bit one does not fit."""
    card = sizing_card(rig, setup.layout)
    placed = place(setup, card, goal, pins)
    if placed is not None or pins.kv is not None:
        return placed
    for kv in offered_kv(setup.engine, setup.quant, rig.cards[: setup.layout.cards])[1:]:
        smaller = replace(setup, kv=kv)
        if refusal(check(smaller, rig)) is None and (again := place(smaller, card, goal, pins)) is not None:
            return again
    return None


def _largest(verdict: Verdict) -> str:
    size = max(verdict.largest.bytes, verdict.plan.needed_kv_bytes if verdict.largest.name == "KV pool" else 0)
    return f"{verdict.largest.name} ({format_bytes(size)} a card)"


def _useless_speculation(findings: Iterable[Finding], model: Geometry) -> Finding | None:
    """Where it was measured to bring nothing on a mixture of experts. Pinned speculation never comes here."""
    costs = (f for f in findings if f.rule == "speculation-gain" and f.verdict == "costs")
    return next(costs, None) if model.is_moe else None


def _unquantized(pins: Pins) -> Pins:
    """For another engine: its own formats, and the layout left to it."""
    return Pins(slots=pins.slots, context=pins.context)


def _plan(
    rated: Rated, goal: Goal, basis: Basis, at: tuple[int, ...], rejected: Sequence[Rejected], checkpoint: str | None,
    order: tuple[int, ...],
) -> Plan:  # fmt: skip
    setup, layout = rated.setup, rated.setup.layout
    alone = next((r for r in rejected if r.rule == "memory" and r.layout.cards_each == 1), None)
    wider = next((r.reason for r in rejected if r.rule == "heads" and layout.cards < r.layout.tp), None)
    replica = alone.reason if alone is not None and setup.quant.id in alone.quants else None
    why = reasons(rated, goal, replica, wider)
    context, slots = rated.largest()
    lines = launch(setup, rated.rig, checkpoint=checkpoint, order=order)
    predicted = predict_levels(rated, goal, basis, at)
    return Plan(rated, predicted, rated.memory(), context, slots, lines, gateway(setup), why)


def _runner_up(plans: Sequence[Plan], goal: Goal, pins: Pins, basis_of: BasisOf) -> RunnerUp:
    """The best with another layout, or else the second; and a few changes of rig or load, tried on both."""
    best = plans[0].rated

    def place_of(layout: Layout) -> tuple[int, int, int]:
        return layout.tp, layout.pp, layout.replicas

    other = next((p for p in plans[1:] if place_of(p.setup.layout) != place_of(best.setup.layout)), plans[1])
    wins, tried = [], []
    for words, rig, changed in _changes(best, other.rated, goal):
        tried.append(words)
        ours, theirs = (_again(r, rig, changed, pins, basis_of) for r in (best, other.rated))
        if theirs is not None and (ours is None or theirs.key > ours.key):
            wins.append(words)
    behind = 1 - other.rated.score / best.score if best.score > 0 else 0.0
    return RunnerUp(other, behind, tuple(wins), tuple(tried))


def _changes(best: Rated, other: Rated, goal: Goal) -> Iterable[tuple[str, Rig, Goal]]:
    rig = best.rig
    links = [r.prospect.link for r in (best, other) if r.prospect.link is not None]
    if any(link.kind != "nvlink" for link in links) and all(card.nvlink_gbs for card in rig.cards):
        yield "NVLink between the cards", replace(rig, default_link=_nvlink(rig), pairs=()), goal
    if any(not link.p2p for link in links):
        pairs = tuple((a, b, replace(link, p2p=True)) for a, b, link in rig.pairs)
        base = replace(rig.default_link, p2p=True) if rig.default_link else None
        yield "peer access over PCIe (a patched driver)", replace(rig, default_link=base, pairs=pairs), goal
    if any(link.kind == "nvlink" for link in links):
        plain = replace(default_link(rig.cards[0]), kind="pcie", p2p=False)
        yield "no NVLink", replace(rig, default_link=plain, pairs=()), goal
    further = (goal.agents + 1, 2 * goal.agents, 4 * goal.agents) if goal.agents <= _FEW else (goal.agents // 4,)
    for agents in dict.fromkeys((1, *further)):
        if agents != goal.agents:
            yield f"{agents} agent{'s' if agents > 1 else ''}", rig, replace(goal, agents=agents)
    if goal.input_tokens < 8192 and goal.agents <= _CROWD:
        yield "prompts of 8192 tokens", rig, replace(goal, input_tokens=8192)
    for kind in ("latency", "throughput"):
        if goal.kind != kind:
            yield f"--goal {kind}", rig, replace(goal, kind=kind)


def _nvlink(rig: Rig) -> Link:
    speed = min(card.nvlink_gbs or 0.0 for card in rig.cards)
    return Link("nvlink", speed, p2p=True, title="NVLink")


def _again(rated: Rated, rig: Rig, goal: Goal, pins: Pins, basis_of: BasisOf) -> Rated | None:
    """The same layout and formats elsewhere, with the speculation that is best there. None: they do not fit."""
    setup, layout = rated.setup, rated.setup.layout
    fixed = replace(pins, quant=setup.quant, kv=setup.kv, tp=layout.tp, pp=layout.pp, ep=layout.ep,
                    replicas=layout.replicas)  # fmt: skip
    found = survey(setup.model, rig, goal, fixed, setup.engine, basis_of(setup.engine), narrow=True).rated
    return found[0] if found else None


def _further(best: Rated, goal: Goal, pins: Pins, basis_of: BasisOf) -> tuple[Further, ...]:
    """What each further card of the same kind adds, with the best's formats."""
    cards, setup = best.rig.cards, best.setup
    if len(cards) < 2 or len({card.id for card in cards}) > 1 or pins.layout_words:
        return ()
    counts = range(1, len(cards)) if len(cards) <= 4 else [n for n in (1, 2, 4, 8, 16) if n < len(cards)]
    fixed = replace(pins, quant=setup.quant, kv=setup.kv, spec=setup.spec, no_spec=setup.spec is None)
    whole = best.outcome.effective_tok_s
    found = []
    for count in counts:
        pairs = tuple(p for p in best.rig.pairs if p[0] < count and p[1] < count)
        part = replace(best.rig, cards=cards[:count], pairs=pairs)
        rated = survey(setup.model, part, goal, fixed, setup.engine, basis_of(setup.engine), narrow=True).rated
        speed = rated[0].outcome.effective_tok_s if rated else None
        layout = rated[0].setup.layout if rated else None
        found.append(Further(count, layout, speed, speed / whole if speed else None))
    return (*found, Further(len(cards), setup.layout, whole, 1.0))


def fits_nowhere(model: Geometry, choice: Choice, goal: Goal, pins: Pins, engine: str) -> UserError:
    """The error for a choice without plans: exit 3 where memory is to blame, 2 where the flags are."""
    short = [r for r in choice.rejected if r.rule == "memory"]
    if not short:
        first = choice.rejected[0] if choice.rejected else None
        return UserError(first.reason if first else f"nothing was left to try on `{choice.rig.title}`",
                         hint=first.remedy if first else None)  # fmt: skip
    nearest = max(short, key=lambda r: (r.layout.cards_each, -r.layout.pp))
    ways = would_fit(model, choice.rig, goal, pins, engine)
    return DoesNotFit(f"{model.id} does not fit `{choice.rig.title}`: {nearest.reason}",
                      hint="what would fit: " + ("; ".join(ways) if ways else "nothing that was tried"))  # fmt: skip


def would_fit(model: Geometry, rig: Rig, goal: Goal, pins: Pins, engine: str) -> tuple[str, ...]:
    """Fewer bits on the same cards, less context, more cards of the same kind, or another engine: each tried."""
    ways: list[str] = []

    def works(on: Rig, tried: Pins, by: str = engine) -> list[Setup]:
        return _bases(model, on, goal, tried, by, say_why=False)[0]

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
    if engine != "llamacpp" and pins.quant is None and (small_ones := works(rig, free_layout, "llamacpp")):
        ways.append(f"--engine llamacpp ({small_ones[0].quant.title})")
    elif engine != "llamacpp" and not ways and works(rig, replace(free_layout, quant=QUANTS["q3_k_m"]), "llamacpp"):
        ways.append("--engine llamacpp --quant q3_k_m, below 4 bits")
    return tuple(ways)
