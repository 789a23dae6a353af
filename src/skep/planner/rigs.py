"""Which cards of a rig work together, which of them sets the pace, and over which link they talk."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import combinations

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import Device
from skep.planner.constants import Constants
from skep.planner.setup import CardLink, Layout, Rig

# Of one lane, one direction.
PCIE_GBS = {"1.0": 0.25, "1.1": 0.25, "2.0": 0.5, "3.0": 0.985, "4.0": 1.969, "5.0": 3.938, "6.0": 7.56}
_SLOT = r"(?i)^(?:pcie)? ?(\d(?:\.\d)?)?(?:\s*x\s*(\d{1,2}))?$"
# Microseconds of a small all-reduce on 2 cards, and how it grows with more: the engine's own kernel inside CUDA graphs
# on A100, H100 and H200 (NVLink of a board); NCCL over a bridge or PCIe (L40S, RTX PRO 6000: 6; on Ampere 10).
_SMALL_US = {"nvlink": (4.8, 0.12), "bridge": (6.3, 0.5), "pcie": (6.5, 0.95)}
_OLDER = {"ampere", "turing", "volta", "pascal"}
_OLDER_US = 3.8  # more for each call of NCCL
_NETWORK = CardLink("pcie", 22.0, p2p=False, title="200 Gbit/s network")
# Share of the link that a large one reaches on 2 cards, and how it falls with more.
_LARGE_SHARE = {"nvlink": (0.65, 0.35), "bridge": (0.65, 0.35), "pcie": (0.62, 1.2)}
_BRIDGE_GBS = 120.0  # below it NVLink is a bridge between two cards: NCCL's latency, as on A100 without the own kernel
_LARGE_LOSS = 1.3  # a large one in an engine, beside one in a loop of its own
_NO_P2P = 1.45  # of the latency, where every transfer goes through the CPU's memory
_EAGER_US = 35.0  # launched from Python rather than replayed
_GEFORCE = re.compile(r"(?:rtx|gtx)-\d{4}(?!-ada)\b")
_CABLE = CardLink("pcie", 5.0, p2p=False, title="40 Gbit/s network")  # USB4 or Thunderbolt between machines


class AllReduce(msgspec.Struct, frozen=True):
    """Seconds = `fixed_s` + `s_per_byte` x bytes."""

    fixed_s: float
    s_per_byte: float


NO_LINK = AllReduce(0.0, 0.0)


def all_reduce(cards: int, link: CardLink, constants: Constants, *, graphs: bool = True, family: str = "") -> AllReduce:
    if cards < 2:
        return NO_LINK
    kind = "pcie" if link.kind != "nvlink" else "bridge" if link.gbs < _BRIDGE_GBS else "nvlink"
    base_us, growth = _SMALL_US[kind]
    if kind != "nvlink" and family in _OLDER:
        base_us += _OLDER_US
    share, fall = _LARGE_SHARE[kind]
    times = constants.link_latency * (1.0 if link.p2p else _NO_P2P)
    fixed_us = base_us * (cards / 2) ** growth * (times if kind == "pcie" else 1.0 + (times - 1.0) * 0.3)
    if not graphs:
        fixed_us += _EAGER_US
    rate = link.gbs * share / (cards / 2) ** fall * (1.0 if link.p2p else 0.4)
    return AllReduce(fixed_us * 1e-6, _LARGE_LOSS / (rate * 1e9))


def is_built_in(link: CardLink) -> bool:
    """NVLink or xGMI of a board, not a bridge between two cards."""
    return link.kind == "nvlink" and link.gbs >= _BRIDGE_GBS


def default_link(card: Device) -> CardLink:
    """Without a word from the user: NVLink where the board has it built in, PCIe of the card's slot otherwise."""
    bridged = "pcie" in card.id or "nvl" in card.id.split("-") or "bridge" in (card.nvlink or "").lower()
    if card.nvlink_gbs is not None and card.nvlink_gbs >= _BRIDGE_GBS and not bridged:
        return CardLink("nvlink", card.nvlink_gbs, title="xGMI" if card.vendor == "amd" else "NVLink")
    if card.pcie is not None and re.match(_SLOT, card.pcie.strip()) is None:
        return _NETWORK  # machines of their own, joined by a cable
    return CardLink("pcie", pcie_gbs(card.pcie or "4.0 x16"), title=f"PCIe {card.pcie or '4.0 x16'}")


def pcie_gbs(text: str) -> float:
    """ "4.0 x16" → 31.5; lanes are 16 and the generation 4.0 where not said."""
    found = re.match(_SLOT, text.strip())
    if found is None:
        return PCIE_GBS["4.0"] * 16
    generation = f"{float(found[1]):.1f}" if found[1] else "4.0"
    return PCIE_GBS.get(generation, PCIE_GBS["4.0"]) * max(1, int(found[2] or 16))


def groups(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the cards of each replica, in the order the user named them."""
    each = layout.cards_each
    return tuple(tuple(range(first * each, (first + 1) * each)) for first in range(layout.replicas))


def pace_setter(cards: Sequence[Device], *, in_turn: bool = False) -> Device:
    """Of cards that work on every layer together the slowest sets the pace; where layers are split they take turns."""
    if len({card.id for card in cards}) == 1:
        return cards[0]
    memory = min(card.memory_gib for card in cards)
    if in_turn:
        rate = len(cards) / sum(1 / card.bandwidth_gbs for card in cards)
        return dataclasses.replace(cards[0], bandwidth_gbs=rate, memory_gib=memory)
    slowest = min(cards, key=lambda card: card.bandwidth_gbs)
    known = [card.fp16_tflops for card in cards if card.fp16_tflops is not None]
    return dataclasses.replace(slowest, fp16_tflops=min(known) if known else None, memory_gib=memory)


def group_link(rig: Rig, cards: Sequence[int]) -> CardLink | None:
    """The slowest link inside a group: an all-reduce waits for it. A bridge helps only where every pair has one."""
    links = []
    for a, b in combinations(cards, 2):
        slower = min((rig.cards[a], rig.cards[b]), key=lambda card: card.bandwidth_gbs)
        links.append(rig.link(a, b) or default_link(slower))
    return min(links, key=lambda link: (link.kind == "nvlink", link.p2p, link.gbs), default=None)


def of_machines(rig: Rig) -> bool:
    """Chips whose memory is the machine's: several of them are several machines."""
    return len(rig.cards) > 1 and any(card.unified_memory for card in rig.cards)


def is_geforce(card: Device) -> bool:
    """Their driver lets no card read another's memory over PCIe."""
    return card.vendor == "nvidia" and _GEFORCE.match(card.id) is not None


def usual_link(cards: Sequence[Device]) -> CardLink:
    """Of all pairs, without a word from the user: the board's NVLink where it is built in, else the slowest slot."""
    slow = min((_own_link(card) for card in cards), key=lambda link: (link.kind == "nvlink", link.gbs))
    return slow if slow.kind == "nvlink" else _over_pcie(slow, cards)


def slot_link(cards: Sequence[Device]) -> CardLink:
    """Without any NVLink: the slowest slot."""
    return _over_pcie(
        min((_own_link(dataclasses.replace(c, nvlink_gbs=None)) for c in cards), key=lambda link: link.gbs), cards
    )


def _over_pcie(link: CardLink, cards: Sequence[Device]) -> CardLink:
    return replace(link, p2p=link.p2p and not any(is_geforce(card) for card in cards))


def _own_link(card: Device) -> CardLink:
    own = default_link(card)
    return _CABLE if card.unified_memory and own.kind != "nvlink" and own.title.startswith("PCIe") else own
