"""Layouts as words of a configuration: `2x TP=1`, `TP=2 + EP=2`, `TP=1 + PP=2`; in presets, and those worth a try."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from skep.catalog.geometry import Geometry
from skep.catalog.options import Options
from skep.catalog.presets import Preset
from skep.errors import UserError
from skep.planner.candidates import Goal, Pins, base_setups, layouts, place, sizing_card
from skep.planner.quants import QUANTS, Quant
from skep.planner.ranking import Basis, coarse, prospect_of, published_basis
from skep.planner.rules import check, refusal
from skep.planner.setup import Layout, Rig
from skep.tuner.space_box import Asked
from skep.tunings import Knob

MOST = 6  # layouts are tried one by one, each with a start of its own
_WORDS = re.compile(r"(?:(\d+) ?x )?TP=(\d+)(?: \+ PP=(\d+))?(?: \+ EP=(\d+))?")


def layout_words(layout: Layout) -> str:
    many = f"{layout.replicas}x " if layout.replicas > 1 else ""
    stages = f" + PP={layout.pp}" if layout.pp > 1 else ""
    experts = f" + EP={layout.ep}" if layout.ep > 1 else ""
    return f"{many}TP={layout.tp}{stages}{experts}"


def parse_layout(words: str) -> Layout:
    found = _WORDS.fullmatch(words.strip())
    if found is None:
        raise UserError(f"`{words}` is no layout", hint="write it as `2x TP=1`, `TP=2 + EP=2` or `TP=1 + PP=2`")
    replicas, tp, pp, ep = (int(part or 1) for part in found.groups())
    return Layout(tp, pp, ep, replicas)


def layout_of(preset: Preset) -> Layout | None:
    """None: it says something that no layout does, such as ranks that share nothing inside one engine."""
    options = preset.options
    if options.dp > 1:
        shared = options.ep and preset.replicas == 1
        return Layout(options.tp, options.pp, options.tp * options.dp, options.dp) if shared else None
    if options.split is not None and options.cards == 1:
        each = len(preset.gpus) // preset.replicas
        cut = {"tensor": Layout(tp=each), "layer": Layout(pp=each), "none": Layout()}.get(options.split)
        return replace(cut, replicas=preset.replicas) if cut is not None and each else None
    return Layout(options.tp, options.pp, options.tp if options.ep else 1, preset.replicas)


def with_layout(preset: Preset, layout: Layout) -> Preset:
    """Cards that it names are kept as far as they are wanted; too few of them are left to be chosen."""
    ranks = layout.replicas if layout.replicas > 1 and layout.ep > layout.tp else 1  # one engine that shares experts
    options = _cut(preset.options, layout, ranks)
    gpus = preset.gpus[: layout.cards] if len(preset.gpus) >= layout.cards else ()
    return replace(preset, replicas=layout.replicas // ranks, options=options, gpus=gpus)


def _cut(options: Options, layout: Layout, ranks: int) -> Options:
    shares = options.card_shares if options.pp == layout.pp else ()
    return replace(
        options, tp=layout.tp, pp=layout.pp, dp=ranks, ep=layout.ep > 1, split=None, card_shares=shares
    )  # fmt: skip


def layout_knobs(asked: Asked) -> Iterator[Knob]:
    """None on one card, for a model that nobody knows, and where the preset says what no layout does."""
    rig, engine = asked.box.rig, asked.base.engine
    if layout_of(asked.base) is None or rig is None or asked.model is None or len(rig.cards) < 2:
        return
    quants = [QUANTS[name] for name in asked.quants]
    found = offered_layouts(asked.model, quants, rig, engine, asked.goal, published_basis(engine))
    yield Knob("layout", "layout on the cards", tuple(map(layout_words, found)), expected=0.15)


def offered_layouts(
    model: Geometry, quants: Sequence[Quant], rig: Rig, engine: str, goal: Goal, basis: Basis
) -> tuple[Layout, ...]:
    """Those that keep as many cards busy as there are, break no rule and fit in one of the formats; best first."""
    rated: dict[Layout, float] = {}
    for layout in layouts(rig, model, engine, goal, Pins(no_spec=True)):
        for quant in quants:
            pins = Pins(quant=quant, no_spec=True)
            for setup in base_setups(model, rig, engine, layout, pins):
                if refusal(check(setup, rig)) is not None:
                    continue
                placed = place(setup, sizing_card(rig, layout), goal, Pins(context=pins.context))
                if placed is not None:
                    figure = coarse(prospect_of(placed, rig, goal, basis), goal)
                    rated[layout] = max(figure, rated.get(layout, 0.0))
    widest = max((layout.cards for layout in rated), default=0)
    best = sorted((layout for layout in rated if layout.cards == widest), key=lambda one: -rated[one])
    return tuple(best[:MOST])
