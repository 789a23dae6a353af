"""All candidates of one engine on one rig: what a rule or the memory forbids is dropped with its reason.

One decode step sorts the others; only the best few are played through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from skep.catalog.geometry import Geometry
from skep.planner.candidates import (
    Goal,
    Pins,
    base_setups,
    layouts,
    offered_kv,
    place,
    shortfall,
    sizing_card,
    variants,
)
from skep.planner.findings import Finding
from skep.planner.fitting_in import Verdict
from skep.planner.ranking import Basis, Rated, coarse, prospect_of, rate
from skep.planner.rules import check, refusal
from skep.planner.setup import Layout, Rig, Setup
from skep.units import format_bytes

FEW, CROWD = 32, 128  # agents; beyond them fewer are played through, as each takes longer
_GROUPS, _IN_GROUP = 12, 3  # played through: so many pairs of layout and quantization, so many forms of each
_EXPANDED = 8  # pairs that are tried with other KV types and with speculation
_LAYOUT_RULES = ("cards", "heads", "pipeline", "expert-parallel", "engine")  # no quantization mends these


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
class Survey:
    rated: tuple[Rated, ...]  # the best form of every pair of layout and quantization, best first
    rejected: tuple[Rejected, ...]
    notes: tuple[str, ...]


def survey(
    model: Geometry, rig: Rig, goal: Goal, pins: Pins, engine: str, basis: Basis, *, narrow: bool = False,
    top: bool = False,
) -> Survey:  # fmt: skip
    """All candidates of one engine. `top`: only the best few pairs of layout and quantization, without the reasons of
    those that do not fit; `narrow`: those in fewer forms still, for a figure beside others.
    """
    few = narrow or top
    found, rejected = bases(model, rig, goal, pins, engine, say_why=not few)
    scored = sorted(((coarse(prospect_of(s, rig, goal, basis), goal), s) for s in found), key=lambda p: -p[0])
    notes: list[str] = []
    for setup in [s for _, s in scored[: 3 if narrow else _EXPANDED]]:
        for other in variants(setup, rig, pins):
            findings = check(other, rig)
            useless = _useless_speculation(findings, model) if pins.spec is None else None
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
    fewer = 3 if goal.agents > CROWD or narrow else 2 if goal.agents > FEW else 1
    best = []
    for group in list(groups.values())[: _GROUPS // (3 if few else fewer)]:
        forms = [s for _, s in group[: _IN_GROUP if len(groups) == 1 else _IN_GROUP // fewer]]
        best.append(max((rate(s, rig, goal, check(s, rig), basis) for s in forms), key=lambda r: r.key))
    best.sort(key=lambda r: r.key, reverse=True)
    if any(r.setup.spec is not None for r in best):
        notes.clear()
    return Survey(tuple(best), tuple(rejected), tuple(notes))


def bases(
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
