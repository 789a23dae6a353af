"""What an all-reduce costs by link and size. The shape is measured (docs/accuracy.md); rigs at home scale it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skep.catalog.devices import Device
from skep.planner.constants import Constants
from skep.planner.setup import Link

PCIE_GBS = {
    "1.0": 0.25,
    "1.1": 0.25,
    "2.0": 0.5,
    "3.0": 0.985,
    "4.0": 1.969,
    "5.0": 3.938,
    "6.0": 7.56,
}  # of one lane, one direction
_SLOT = re.compile(r"^(?:pcie)? ?(\d(?:\.\d)?)?(?:\s*x\s*(\d{1,2}))?$", re.IGNORECASE)

# Microseconds of a small all-reduce on 2 cards, and how it grows with more: the engine's own kernel inside CUDA graphs
# on A100, H100 and H200 (NVLink of a board); NCCL over a bridge or PCIe (L40S, RTX PRO 6000: 6; on Ampere 10).
_SMALL_US = {"nvlink": (4.8, 0.12), "bridge": (6.3, 0.5), "pcie": (6.5, 0.95)}
_OLDER = {"ampere", "turing", "volta", "pascal"}
_OLDER_US = 3.8  # more for each call of NCCL
_NETWORK = Link("pcie", 22.0, p2p=False, title="200 Gbit/s network")
# Share of the link that a large one reaches on 2 cards, and how it falls with more.
_LARGE_SHARE = {"nvlink": (0.65, 0.35), "bridge": (0.65, 0.35), "pcie": (0.62, 1.2)}
_BRIDGE_GBS = 120.0  # below it NVLink is a bridge between two cards: NCCL's latency, as on A100 without the own kernel
_EAGER_US = 35.0  # launched from Python rather than replayed


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Seconds = `fixed_s` + `s_per_byte` x bytes."""

    fixed_s: float
    s_per_byte: float

    def seconds(self, size: float) -> float:
        return self.fixed_s + self.s_per_byte * size


NO_LINK = AllReduce(0.0, 0.0)


def all_reduce(cards: int, link: Link, constants: Constants, *, graphs: bool = True, family: str = "") -> AllReduce:
    if cards < 2:
        return NO_LINK
    kind = "pcie" if link.kind != "nvlink" else "bridge" if link.gbs < _BRIDGE_GBS else "nvlink"
    base_us, growth = _SMALL_US[kind]
    if kind != "nvlink" and family in _OLDER:
        base_us += _OLDER_US
    share, fall = _LARGE_SHARE[kind]
    times = constants.link_latency if link.p2p else constants.link_latency_no_p2p
    fixed_us = base_us * (cards / 2) ** growth * (times if kind == "pcie" else 1.0 + (times - 1.0) * 0.3)
    if not graphs:
        fixed_us += _EAGER_US
    rate = link.gbs * share / (cards / 2) ** fall * (1.0 if link.p2p else 0.4)
    return AllReduce(fixed_us * 1e-6, constants.link_bytes / (rate * 1e9))


def is_built_in(link: Link) -> bool:
    """NVLink or xGMI of a board, not a bridge between two cards."""
    return link.kind == "nvlink" and link.gbs >= _BRIDGE_GBS


def default_link(card: Device) -> Link:
    """Without a word from the user: NVLink where the board has it built in, PCIe of the card's slot otherwise."""
    if card.nvlink_gbs is not None and card.nvlink_gbs >= _BRIDGE_GBS and not _is_bridged(card):
        return Link("nvlink", card.nvlink_gbs, title="xGMI" if card.vendor == "amd" else "NVLink")
    if card.pcie is not None and _SLOT.match(card.pcie.strip()) is None:
        return _NETWORK  # machines of their own, joined by a cable
    return Link("pcie", pcie_gbs(card.pcie or "4.0 x16"), title=f"PCIe {card.pcie or '4.0 x16'}")


def _is_bridged(card: Device) -> bool:
    return "pcie" in card.id or "nvl" in card.id.split("-") or "bridge" in (card.nvlink or "").lower()


def pcie_gbs(text: str) -> float:
    """ "4.0 x16" → 31.5; lanes are 16 and the generation 4.0 where not said."""
    found = _SLOT.match(text.strip())
    if found is None:
        return PCIE_GBS["4.0"] * 16
    generation = f"{float(found[1]):.1f}" if found[1] else "4.0"
    return PCIE_GBS.get(generation, PCIE_GBS["4.0"]) * max(1, int(found[2] or 16))
