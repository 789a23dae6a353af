"""The rig that a user writes down (`2x rtx-3090: nvlink(0-1)`), and the one of this machine."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import msgspec
from msgspec.structs import replace

from skep.catalog.gpus import (
    MOST_CARDS,
    Device,
    Gpu,
    HostFacts,
    ValueOrigin,
    device,
    devices,
    find_device,
    other_matches,
    rig_parts,
)
from skep.errors import UserError
from skep.planner.setup import (
    CardLink,
    Rig,
    default_link,
    is_geforce,
    of_machines,
    pcie_gbs,
    usual_link,
)
from skep.units import GIB

_LINK = re.compile(r"\s*+([a-z0-9-]++)\s*+(?>(?:\(([^)]*+)\))?)\s*+(?:,|$)", re.IGNORECASE)
_PAIR = re.compile(r"\s*+(\d{1,4})\s*+-\s*+(\d{1,4})\s*+")
_PCIE = re.compile(r"pcie([1-6])?(?:x(1|2|4|8|16))?")
_HINT = (
    'write it as "2x rtx-3090", "rtx-5090 + rtx-3090-ti" or "4x rtx-3090: pcie4x8, '
    'nvlink(0-1,2-3)"'
)
_LINK_HINT = "known: nvlink, pcie, pcie4x8 and p2p"
_CLOCK_GHZ = 3.0  # a guess: the clock under load is not known
# Operations a core and cycle, by the widest unit that llama.cpp has kernels for. Rough: a
# calibration corrects it. Without i8mm, ARM cores are far below what their units could do: on a
# Neoverse-N1, about 3 with 4-bit weights.
_PER_CYCLE = (
    ("amx_int8", 64),
    ("avx512f", 64),
    ("avx2", 32),
    ("i8mm", 32),
    ("sve", 16),
    ("avx", 16),
    ("asimddp", 8),
)
_LEAST_PER_CYCLE = 4
_GBS_OF_NVLINK = 14.0  # of one link of a card whose sum the catalogue does not have


class ResolvedRig(msgspec.Struct, frozen=True):
    """A rig with what had to be assumed about it."""

    rig: Rig
    notes: tuple[str, ...] = ()


def parse_rig(text: str, link: str | None = None) -> Rig:
    return find_rig(text, link).rig


def find_rig(text: str, link: str | None = None) -> ResolvedRig:
    """Return a rig as it is written. `link`: `nvlink` or `pcie` for all pairs."""
    names, _, links = text.partition(":")
    cards: list[Device] = []
    prices: list[float | None] = []
    notes: list[str] = []
    for name, count, price in rig_parts(names):
        if not name or count < 1:
            lacks = "has no cards" if name else "names no card"
            raise UserError(f"--gpu `{text}` {lacks}", hint=_HINT)
        card = device(name)
        other_cards = ", ".join(other_matches(name))
        if other_cards:
            notes.append(f"`{name}` is taken as {card.id}; there is also {other_cards}")
        total = len(cards) + count
        if total > MOST_CARDS:
            raise UserError(
                f"--gpu `{text}` has {total} cards", hint=f"a rig has at most {MOST_CARDS}"
            )
        cards += [card] * count
        price_each = None if price is None else _price(price, text)
        prices += [price_each] * count
    rig = Rig(
        cards=tuple(cards),
        default_link=usual_link(cards),
        title=_title(cards),
        price=_total(prices),
    )
    if link is not None:
        rig = _with_links(rig, link)
    rig = _with_links(rig, links)
    has_links = link is not None or bool(links.strip())
    if of_machines(rig) and not has_links and rig.default_link is not None:
        joined = f"taken as joined by a {rig.default_link.title}"
        notes.append(f"{rig.title} is {len(cards)} machines, {joined}")
    return ResolvedRig(rig, tuple(dict.fromkeys(notes)))


def _total(prices: Sequence[float | None]) -> float | None:
    """Return the sum; None where a price is not known."""
    known_prices = [price for price in prices if price is not None]
    if len(known_prices) < len(prices):
        return None
    return sum(known_prices)


def _title(cards: Sequence[Device]) -> str:
    counts = Counter(card.id for card in cards)
    parts = []
    for name, count in counts.items():
        if count > 1:
            parts.append(f"{count}x {name}")
        else:
            parts.append(name)
    return " + ".join(parts)


def _with_links(rig: Rig, words: str) -> Rig:
    """Apply `pcie4x8, nvlink(0-1,2-3)`: words about all pairs, then those about single ones."""
    link_words: list[tuple[str, str | None]] = []
    place = 0
    while place < len(words.rstrip()):
        match = _LINK.match(words, place)
        if match is None:
            rest = words[place:].strip()
            raise UserError(f"the link `{rest}` is not understood", hint=_HINT)
        word, pairs = match.groups()
        link_words.append((word.lower(), pairs))
        place = match.end()
    for word, pairs in sorted(link_words, key=lambda link: link[1] is not None):
        rig = _linked(rig, word, pairs)
    return rig


def _linked(rig: Rig, word: str, members: str | None) -> Rig:
    """Return the rig with links of one kind. `members`: the pairs that they join; None: every pair
    that can have one.
    """
    count = len(rig.cards)
    all_pairs = [*combinations(range(count), 2)]
    chosen = all_pairs
    if members is not None:
        chosen = [_pair(member, count) for member in members.split(",")]
    elif word == "nvlink" and any(_has_bridge(card) for card in rig.cards):
        chosen = [(a, a + 1) for a in range(0, count - 1, 2)]
    # A rig of one card has no pairs. A link of the card with itself stands in for them, so that
    # a wrong word is refused.
    links = {pair: _link_of(word, rig, *pair) for pair in chosen or [(0, 0)]}
    distinct_links = set(links.values())
    if chosen == all_pairs and len(distinct_links) == 1:
        (default,) = distinct_links
        return replace(rig, default_link=default, pairs=())
    link_by_pair = {(a, b): link for a, b, link in rig.pairs}
    for pair in chosen:
        link_by_pair[pair] = links[pair]
    pairs = [(a, b, link) for (a, b), link in sorted(link_by_pair.items())]
    return replace(rig, pairs=tuple(pairs))


def _has_bridge(card: Device) -> bool:
    """Return whether its NVLink is not the board's own: it joins two cards."""
    return bool(card.nvlink_gbs) and default_link(card).kind != "nvlink"


def _pair(member: str, count: int) -> tuple[int, int]:
    """Parse `0-1`."""
    match = _PAIR.fullmatch(member)
    numbers = (int(match[1]), int(match[2])) if match else (0, 0)
    first, second = sorted(numbers)
    if first == second or second >= count:
        raise UserError(
            f"there is no pair `{member.strip()}`",
            hint=f"the cards are 0 to {count - 1}, a pair is 0-1",
        )
    return first, second


def _link_of(word: str, rig: Rig, a: int, b: int) -> CardLink:
    """Return the link that a word stands for, between two cards of the rig."""
    cards = (rig.cards[a], rig.cards[b])
    present = rig.link(a, b) or usual_link(cards)
    if word == "nvlink":
        return _nvlink(cards)
    if word == "p2p":
        return replace(present, p2p=True)
    match = _PCIE.fullmatch(word)
    if match is None:
        raise UserError(f"`{word}` is not a link", hint=_LINK_HINT)
    p2p = present.p2p
    if present.kind != "pcie":
        p2p = not any(is_geforce(card) for card in cards)
    written = f"{match[1] or '4'}.0 x{match[2] or '16'}"
    if word == "pcie":
        written = min((card.pcie or "4.0 x16" for card in cards), key=pcie_gbs)
    return CardLink("pcie", pcie_gbs(written), p2p=p2p, title=f"PCIe {written}")


def _nvlink(cards: Sequence[Device]) -> CardLink:
    lacking = next((card for card in cards if not card.nvlink_gbs), None)
    if lacking is not None:
        raise UserError(f"{lacking.id} has no NVLink", hint="--link pcie, or leave --link out")
    speed_gbs = min(card.nvlink_gbs or 0.0 for card in cards)
    return CardLink("nvlink", speed_gbs, p2p=True, title="NVLink")


def _price(text: str, rig_text: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise UserError(
            f"`{text.strip()}` in `{rig_text}` is not a number above 0",
            hint="write it as 936 or 2.5",
        )
    return value


def rig_of_host(facts: HostFacts, link: str | None = None) -> ResolvedRig:
    """Return this machine's cards. The nearest relative stands in for one that is not known by
    name; a note says so.
    """
    if not facts.gpus:
        raise UserError("no GPU was found on this machine", hint='name one: --gpu "2x rtx-3090"')
    described = [_host_card(gpu) for gpu in facts.gpus]
    cards = [card for card, _ in described]
    notes = [note for _, note in described if note]
    pairs = []
    for a, b, kind in facts.links:
        if max(a, b) < len(cards):
            measured_link = _host_link(kind, facts.gpus[a], facts.gpus[b], cards[a], cards[b])
            pairs.append((a, b, measured_link))
    rig = Rig(
        cards=tuple(cards),
        default_link=usual_link(cards),
        pairs=tuple(pairs),
        title=f"this machine ({_title(cards)})",
        ram_gib=facts.memory_bytes / GIB if facts.memory_bytes else None,
    )
    if link is not None:
        rig = _with_links(replace(rig, pairs=()), link)
    return ResolvedRig(rig, tuple(dict.fromkeys(notes)))


def _host_card(gpu: Gpu) -> tuple[Device, str | None]:
    """Return a card of this machine as the catalogue has it, and a note where they differ."""
    memory = None
    if gpu.memory_bytes is not None:
        memory = gpu.memory_bytes / GIB
    card = find_device(gpu.name)
    if card is None and memory:
        card = find_device(f"{gpu.name} {round(memory)}GB")
    if card is None:
        return _nearest_card(gpu, memory)
    if memory is None or abs(memory / card.memory_gib - 1) <= 0.06:
        return card, None
    card = dataclasses.replace(card, memory_gib=round(memory, 1))
    return card, f"{gpu.name} has {memory:.1f} GiB here"


def _nearest_card(gpu: Gpu, memory_gib: float | None) -> tuple[Device, str]:
    """Return the card of the catalogue that stands in for one that is not in it."""
    cc = float(gpu.compute_capability) if gpu.compute_capability else None
    alike = [
        card
        for card in devices().values()
        if card.vendor == "nvidia" and (cc is None or card.compute_capability == cc)
    ]
    if memory_gib is None or not alike:
        hint = 'name a card that is like it: --gpu "rtx-3090"'
        raise UserError(
            f"`{gpu.name}` is not in the catalogue and reports too little about itself", hint=hint
        )
    nearest = min(alike, key=lambda card: abs(card.memory_gib - memory_gib))
    name = "-".join(gpu.name.casefold().split())
    has = f"{memory_gib:.0f} GiB as it says, speeds as of {nearest.id}"
    note = f"{gpu.name} is not in the catalogue: {has}, its nearest relative"
    return dataclasses.replace(
        nearest, id=name, title=gpu.name, memory_gib=round(memory_gib, 1)
    ), note


def _host_link(kind: str, first: Gpu, second: Gpu, card: Device, device: Device) -> CardLink:
    """Return the link between two cards, by nvidia-smi's matrix: `NV4` is NVLink with four links,
    everything else goes over PCIe.
    """
    if kind.startswith("NV"):
        nvlink_gbs = min(card.nvlink_gbs or 0.0, device.nvlink_gbs or 0.0)
        if not nvlink_gbs:
            links = float(kind.removeprefix("NV") or 1)
            nvlink_gbs = links * _GBS_OF_NVLINK
        return CardLink("nvlink", nvlink_gbs, title=f"NVLink ({kind})")
    gpus = (first, second)
    generation = min(
        (gpu.pcie_generation_max for gpu in gpus if gpu.pcie_generation_max), default=None
    )
    lanes = min((gpu.pcie_lanes for gpu in gpus if gpu.pcie_lanes), default=None)
    usual = usual_link((card, device))
    if generation is None or lanes is None:
        if usual.kind == "pcie":
            return usual
        return CardLink("pcie", 31.5, title="PCIe")
    written = f"{generation}.0 x{lanes}"
    return CardLink(
        "pcie",
        pcie_gbs(written),
        p2p=not (is_geforce(card) or is_geforce(device)),
        title=f"PCIe {written}",
    )


def cpu_rig(facts: HostFacts, bandwidth_gbs: float, *, replicas: int = 1) -> Rig:
    """Return the CPU as a rig. Replicas share cores and memory: each is a device of its own."""
    flops_per_cycle = next(
        (width for name, width in _PER_CYCLE if name in facts.cpu_features), _LEAST_PER_CYCLE
    )
    tflops = facts.cpu_cores * _CLOCK_GHZ * flops_per_cycle / 1000
    measured_origin = ValueOrigin("copying a large buffer", "C")
    cpu = Device(
        id="cpu",
        title=facts.cpu_model or "CPU",
        vendor="cpu",
        arch="CPU",
        memory_gib=round((facts.memory_bytes or 0) / GIB, 1),
        bandwidth_gbs=round(bandwidth_gbs, 1),
        fp16_tflops=round(tflops, 3),
        units=facts.cpu_cores,
        formats=("fp16", "int8"),
        origins={
            "bandwidth_gbs": measured_origin,
            "fp16_tflops": ValueOrigin("cores x 3 GHz x width of the units", "C"),
        },
    )
    cpu_share = dataclasses.replace(
        cpu,
        memory_gib=cpu.memory_gib / replicas,
        bandwidth_gbs=cpu.bandwidth_gbs / replicas,
        fp16_tflops=(cpu.fp16_tflops or 0.0) / replicas,
    )
    title = f"this machine's CPU ({facts.cpu_cores} cores, {cpu.bandwidth_gbs:g} GB/s)"
    return Rig((cpu_share if replicas > 1 else cpu,) * replicas, title=title)
