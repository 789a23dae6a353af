"""Where the time of a decode step goes, term by term, and the sentences that say why a layout was chosen.

A term is what the step gets shorter by when it is left out, one after the other: the terms add up to the step exactly,
whatever the step model computes inside.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from skep.planner.candidates import Goal
from skep.planner.parts import part_bits, parts_of
from skep.planner.prospect import Prospect
from skep.planner.ranking import Rated
from skep.planner.step import StepModel

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
    ("hops between cards", ("hop_s",)),
    ("launches and scheduler", ("fixed_s",)),
)
_WORTH_SHOWING = 0.0005


@dataclass(frozen=True, slots=True)
class Spent:
    name: str
    seconds: float
    share: float
    how: str


@dataclass(frozen=True, slots=True)
class StepAccount:
    """One decode step of one replica with `sequences` in it, `context` tokens each."""

    sequences: int
    context: float
    seconds: float
    tokens: float  # that the step brings, all sequences together
    terms: tuple[Spent, ...]

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


def account(found: Prospect, goal: Goal, agents: int) -> StepAccount:
    sequences = max(1, min(found.slots, -(-agents // found.setup.layout.replicas)))
    each = goal.input_tokens + goal.output_tokens / 2
    step, context = found.step, sequences * each
    whole = step.seconds(sequences, context)
    known = {field.name for field in fields(StepModel)}
    terms, left, rest = [], whole, step
    for name, names in _TERMS:
        nothing: dict[str, Any] = {one: 0.0 for one in names if one in known}
        rest = replace(rest, **nothing)
        after = rest.seconds(sequences, context)
        if left - after > _WORTH_SHOWING * whole:
            terms.append(Spent(name, left - after, (left - after) / whole, _how(name, found, sequences, each)))
        left = after
    if left > _WORTH_SHOWING * whole:
        terms.append(Spent("the rest", left, left / whole, "not told apart"))
    terms.sort(key=lambda term: -term.seconds)
    return StepAccount(sequences, each, whole, sequences * step.tokens_per_step(sequences), tuple(terms))


def _how(name: str, found: Prospect, sequences: int, each: float) -> str:
    """The formula with its values."""
    setup, step, card = found.setup, found.step, found.card
    model, tp = setup.model, setup.layout.tp
    parts, bits = parts_of(model), part_bits(setup.quant, model)
    cut = f" / {tp} cards" if tp > 1 else ""
    tokens = sequences * (1 + step.depth)
    if name == "dense weights":
        size = (parts.small * bits["small"] + parts.mlp * bits["mlp"]) / 8
        return f"{_gb(size)}{cut} at {_reached(size / tp, step.dense_s, card.bandwidth_gbs)}"
    if name == "experts":
        share = 1.0 - (1.0 - step.experts_per_token / step.experts) ** (tokens**step.routing_skew)
        size = parts.experts * bits["experts"] / 8
        reached = _reached(size / tp, step.experts_s, card.bandwidth_gbs)
        formula = f"1-(1-{step.experts_per_token}/{step.experts})^{tokens}^{step.routing_skew:.2f}"
        return f"{share * 100:.0f} % ({formula}) of {_gb(size)}{cut} at {reached}"
    if name == "output head":
        size = parts.embedding * bits["ends"] / 8
        return f"{_gb(size)}{cut} at {_reached(size / tp, step.head_s, card.bandwidth_gbs)}"
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
    return "llama.cpp's kernels for 2 to 16 tokens" if name == "small batches" else f"{setup.layout.pp - 1} hop(s)"


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def _reached(size: float, seconds: float, gbs: float) -> str:
    if seconds <= 0:
        return f"{gbs:,.0f} GB/s"
    return f"{size / seconds / gbs / 1e9 * 100:.0f} % of {gbs:,.0f} GB/s"


def reasons(best: Rated, goal: Goal, rejected_replica: str | None, rejected_wider: str | None) -> tuple[str, ...]:
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
        found.append(f"EP={layout.ep} keeps every expert whole on one card; the speed model sees no other difference")
    if layout.pp > 1:
        found.append(f"PP={layout.pp} makes room: cards take turns, so a single stream gets no quicker")
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
    if setup.quant.nominal <= 4:
        found.append(f"{setup.quant.title} is among the smallest formats offered: nothing below 4 bits is, for quality")
    if setup.spec is not None:
        gain = best.prospect.step.tokens_per_step(spent.sequences)
        found.append(f"{setup.spec} is expected to bring {gain:.1f} tokens a step; how many depends on the text")
    if setup.kv.family != "half":
        found.append(f"{setup.kv.title} KV halves what a token keeps; answers may differ slightly from 16 bit")
    return tuple(found)
