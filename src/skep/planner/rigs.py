"""Which cards of a rig work together, which of them sets the pace, and over which link they talk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skep.catalog.devices import Device
from skep.planner.links import default_link
from skep.planner.setup import Layout, Link, Rig


def groups(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The cards of each replica, in the order the user named them."""
    each = layout.cards_each
    return tuple(tuple(range(first * each, (first + 1) * each)) for first in range(layout.replicas))


def pace_setter(cards: Sequence[Device], *, in_turn: bool = False) -> Device:
    """Of cards that work on every layer together the slowest sets the pace; where layers are split they take turns."""
    if len({card.id for card in cards}) == 1:
        return cards[0]
    memory = min(card.memory_gib for card in cards)
    if in_turn:
        rate = len(cards) / sum(1 / card.bandwidth_gbs for card in cards)
        return replace(cards[0], bandwidth_gbs=rate, memory_gib=memory)
    slowest = min(cards, key=lambda card: card.bandwidth_gbs)
    known = [card.fp16_tflops for card in cards if card.fp16_tflops is not None]
    return replace(slowest, fp16_tflops=min(known) if known else None, memory_gib=memory)


def group_link(rig: Rig, cards: Sequence[int]) -> Link | None:
    """The slowest link inside a group: an all-reduce waits for it. A bridge helps only where every pair has one."""
    links = []
    for place, a in enumerate(cards):
        for b in cards[place + 1 :]:
            slower = min((rig.cards[a], rig.cards[b]), key=lambda card: card.bandwidth_gbs)
            links.append(rig.link(a, b) or default_link(slower))
    if not links:
        return None
    return min(links, key=lambda link: (link.kind == "nvlink", link.p2p, link.gbs))
