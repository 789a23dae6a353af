"""The choice: everything that could be started on a rig, less what a rule or the memory forbids, best first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from skep.catalog.geometry import Geometry
from skep.errors import DoesNotFit, UserError
from skep.planner.candidates import Goal, Pins, arranged, contradiction, sizing_card
from skep.planner.explain import reasons
from skep.planner.fitting_in import largest
from skep.planner.links import default_link
from skep.planner.memory import MemoryPlan
from skep.planner.quants import QUANTS
from skep.planner.ranking import (
    Basis,
    BasisOf,
    Predicted,
    Rated,
    figure,
    levels,
    predict_levels,
    published_basis,
    why_second,
)  # fmt: skip
from skep.planner.rig_words import of_machines, slot_link
from skep.planner.setup import Layout, Link, Rig, Setup
from skep.planner.survey import CROWD, FEW, Rejected, bases, survey

_MOST_CARDS = 16  # tried where a model does not fit
_TRIED = f"nothing: fewer bits, a shorter context and up to {_MOST_CARDS} such cards were tried"
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """`checkpoint`: the files that were asked for; `order`: the machine's numbers of the rig's cards."""

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


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """`behind`: by what share of the best's figure for the goal; below 0 it is ahead, and `why` says why it is second.

    `wins_if` is empty where nothing that was tried turns the order.
    """

    plan: Plan
    behind: float
    why: str | None
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


def choose(
    model: Geometry, rig: Rig, goal: Goal, pins: Pins | None = None, *, engines: Sequence[str] = ("vllm",),
    others: Sequence[str] = (), basis_of: BasisOf = published_basis, checkpoint: str | None = None, scale: bool = True,
) -> Choice:  # fmt: skip
    """`others`: engines whose best is shown beside, unranked. Nothing fits: the plans are empty."""
    pins = pins or Pins()
    contradiction(rig, goal, pins, model)
    rig, order = arranged(rig)
    surveys = [survey(model, rig, goal, pins, engine, basis_of(engine)) for engine in engines]
    shown = SHOWN if goal.agents <= CROWD else SHOWN // 2
    rated = sorted((r for s in surveys for r in s.rated), key=lambda r: r.key, reverse=True)[:shown]
    rejected = tuple(r for s in surveys for r in s.rejected)
    plans = tuple(
        _plan(r, goal, basis_of(r.setup.engine), _levels(goal, n), rejected, checkpoint, order)
        for n, r in enumerate(rated)
    )
    beside = []
    for engine in others if plans and goal.agents <= CROWD else ():
        best = survey(model, rig, goal, _unquantized(pins), engine, basis_of(engine), narrow=True).rated[:1]
        beside += [_plan(r, goal, basis_of(engine), (1, goal.agents), (), None, order) for r in best]
    notes = tuple(dict.fromkeys(note for s in surveys for note in s.notes))
    runner = _runner_up(plans, goal, pins, basis_of) if len(plans) > 1 else None
    further = _further(rated[0], goal, pins, basis_of) if rated and scale and goal.agents <= CROWD else ()
    return Choice(rig, order, plans, rejected, tuple(beside), runner, further, notes)


def _levels(goal: Goal, place: int) -> tuple[int, ...]:
    """All for the best three, the two ends for the others where many agents make it long."""
    return levels(goal.agents) if place < 3 or goal.agents <= FEW else (1, goal.agents)


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
    predicted = predict_levels(rated, goal, basis, at)
    return Plan(rated, predicted, rated.memory(), context, slots, checkpoint, order, why)


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
    behind = 1 - figure(other.rated, goal) / max(1e-9, figure(best, goal))
    alone = (plans[0].predicted[0].task_tok_s, other.predicted[0].task_tok_s)
    return RunnerUp(other, behind, why_second(best, other.rated, alone), tuple(wins), tuple(tried))


def _changes(best: Rated, other: Rated, goal: Goal) -> Iterable[tuple[str, Rig, Goal]]:
    rig = best.rig
    links = [r.prospect.link for r in (best, other) if r.prospect.link is not None]
    if any(link.kind != "nvlink" for link in links) and all(card.nvlink_gbs for card in rig.cards):
        yield "NVLink between the cards", replace(rig, default_link=_nvlink(rig), pairs=()), goal
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
        rated = survey(setup.model, part, goal, fixed, setup.engine, basis_of(setup.engine), top=True).rated
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
                      hint="what would fit: " + ("; ".join(ways) if ways else _TRIED))  # fmt: skip


def would_fit(model: Geometry, rig: Rig, goal: Goal, pins: Pins, engine: str) -> tuple[str, ...]:
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
