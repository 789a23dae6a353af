"""The rig that a user writes down (`2x rtx-3090: nvlink(0-1)`), and the one of this machine."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
from skep.planner.setup import PCIE_GBS, CardLink, Rig, default_link, is_geforce, of_machines, pcie_gbs, usual_link
from skep.units import GIB, parse_bytes

_LINK = r"(?i)\s*([a-z0-9.]+)\s*(?:\(([^)]*)\))?\s*(?:,|$)"
_PCIE = r"(?i)pcie\s*(\d(?:\.\d)?)?(?:x(\d+))?"
_HINT = 'write it as "2x rtx-3090", "rtx-5090 + rtx-3090-ti" or "4x rtx-3090: nvlink(0-1,2-3), pcie4x8(2,3)"'
_SPEC_HINT = 'write it as --gpu-spec "name=my-card,memory=24GiB,bandwidth=936,fp16=71"'
_SPEC_NUMBERS = ("bandwidth", "fp16", "fp8", "fp4", "int8", "cc", "tdp", "nvlink")  # GB/s, TFLOPS, W, GB/s one way
_SPEC_KEYS = ("name", "memory", "formats", "pcie", "vendor", *_SPEC_NUMBERS)
_ARCHS = {12: "Blackwell", 10: "Blackwell DC", 9: "Hopper", 8.9: "Ada", 8: "Ampere", 7.5: "Turing", 7: "Volta"}
_LANES = (1, 2, 4, 8, 12, 16, 32)
_LINK_WORDS = "known: nvlink, pcie, pcie4x8 and p2p"
_CLOCK_GHZ = 3.0  # a guess: the clock under load is not known
# Operations a core and cycle, by the widest unit that llama.cpp has kernels for. Rough: a calibration corrects it.
# Without i8mm, ARM cores are far below what their units could do: on a Neoverse-N1, about 3 with 4-bit weights.
_PER_CYCLE = (("amx_int8", 64), ("avx512f", 64), ("avx2", 32), ("i8mm", 32), ("sve", 16), ("avx", 16), ("asimddp", 8))
_LEAST_PER_CYCLE = 4


class ResolvedRig(msgspec.Struct, frozen=True):
    """A rig with what had to be assumed about it."""

    rig: Rig
    notes: tuple[str, ...] = ()


def parse_rig(text: str, link: str | None = None) -> Rig:
    return find_rig(text, link).rig


def find_rig(text: str, link: str | None = None, *, known: Mapping[str, Device] | None = None) -> ResolvedRig:
    """`link`: `nvlink` or `pcie` for all pairs. `known`: cards the user described."""
    names, _, links = text.partition(":")
    cards: list[Device] = []
    prices: list[float | None] = []
    notes: list[str] = []
    for name, count, at in rig_parts(names):
        if not name or count < 1:
            raise UserError(f"--gpu `{text}` {'has no cards' if name else 'names no card'}", hint=_HINT)
        described = (known or {}).get("-".join(name.casefold().split()))
        found = described or device(name)
        if described is None and (others := other_matches(name)):
            notes.append(f"`{name}` is taken as {found.id}; there is also {', '.join(others)}")
        if len(cards) + count > MOST_CARDS:
            raise UserError(f"--gpu `{text}` has {len(cards) + count} cards", hint=f"a rig has at most {MOST_CARDS}")
        cards += [found] * count
        prices += [None if at is None else _number(at, text)] * count
    total = sum(p for p in prices if p is not None) if all(p is not None for p in prices) else None
    rig = Rig(tuple(cards), usual_link(cards), title=_title(cards), price=total)
    if link is not None:
        rig = _all_linked(rig, link)
    if links.strip():
        rig = _with_links(rig, links, text)
    if of_machines(rig) and link is None and not links.strip() and rig.default_link is not None:
        notes.append(f"{rig.title} is {len(cards)} machines, taken as joined by a {rig.default_link.title}")
    return ResolvedRig(rig, tuple(dict.fromkeys(notes)))


def _title(cards: Sequence[Device]) -> str:
    counts = Counter(card.id for card in cards)
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts.items())


def _all_linked(rig: Rig, word: str) -> Rig:
    if word.lower() not in ("nvlink", "p2p") and re.fullmatch(_PCIE, word.lower()) is None:
        raise UserError(f"--link `{word}` is not a link", hint=_LINK_WORDS)
    lacking = next((card for card in rig.cards if not card.nvlink_gbs), None)
    if word.lower() == "nvlink" and lacking is not None:
        raise UserError(f"--link nvlink: {lacking.id} has no NVLink", hint="--link pcie, or leave --link out")
    return _linked(rig, word, (), f"--link {word}")


def _with_links(rig: Rig, words: str, text: str) -> Rig:
    place = 0
    while place < len(words.rstrip()):
        match = re.compile(_LINK).match(words, place)
        if match is None:
            raise UserError(f"--gpu `{text}` has a link that is not understood: `{words[place:].strip()}`", hint=_HINT)
        rig = _linked(rig, match[1], tuple(m.strip() for m in (match[2] or "").split(",") if m.strip()), text)
        place = match.end()
    return rig


def _linked(rig: Rig, word: str, members: Sequence[str], text: str) -> Rig:
    """Apply one word about links to all pairs, or to those named."""
    count = len(rig.cards)
    everybody = [*combinations(range(count), 2)]
    if members:
        chosen = [pair for member in members for pair in _members(member, count, text)]
    elif word.lower() == "nvlink" and any(c.nvlink_gbs and default_link(c).kind != "nvlink" for c in rig.cards):
        chosen = [(a, a + 1) for a in range(0, count - 1, 2)]  # NVLink that is not the board's own joins two cards
    else:
        chosen = everybody
    pairs = {(a, b): link for a, b, link in rig.pairs}
    for pair in chosen:
        made, old = _make(word, rig, *pair, text), pairs.get(pair) or rig.default_link
        if word.lower().startswith("pcie") and members and old is not None and "-" not in "".join(members):
            made = old if old.kind == "nvlink" else min(made, old, key=lambda link: link.gbs)  # a slot, not a pair
        pairs[pair] = made
    if chosen == everybody and len(set(pairs.values())) == 1:
        return replace(rig, default_link=next(iter(pairs.values())), pairs=())
    return replace(rig, pairs=tuple((a, b, link) for (a, b), link in sorted(pairs.items())))


def _members(member: str, count: int, text: str) -> list[tuple[int, int]]:
    """`0-1` is a pair, `2` every pair that card is in."""
    numbers = [int(n) for n in re.findall(r"\d+", member)]
    if not re.fullmatch(r"\d+(\s*-\s*\d+)?", member) or max(numbers) >= count or len(set(numbers)) != len(numbers):
        hint = f"its cards are 0 to {count - 1}, a pair is 0-1"
        raise UserError(f"--gpu `{text}` has no cards `{member}`", hint=hint)
    return [pair for pair in combinations(range(count), 2) if set(numbers) <= set(pair)]


def _make(word: str, rig: Rig, a: int, b: int, text: str) -> CardLink:
    cards = (rig.cards[a], rig.cards[b])
    lower = word.lower()
    if lower == "nvlink":
        lacking = next((card for card in cards if not card.nvlink_gbs), None)
        if lacking is not None:
            raise UserError(f"{lacking.id} has no NVLink", hint="--link pcie, or leave --link out")
        return CardLink("nvlink", min(card.nvlink_gbs or 0.0 for card in cards), p2p=True, title="NVLink")
    old = rig.link(a, b) or usual_link(cards)
    if lower == "p2p":
        return replace(old, p2p=True)
    match = re.fullmatch(_PCIE, lower)
    if match is None:
        raise UserError(f"`{word}` is not a link in `{text}`", hint=_LINK_WORDS)
    p2p = old.p2p if old.kind == "pcie" else not any(is_geforce(card) for card in cards)
    if match[1] is None and match[2] is None:
        slot = min((card.pcie or "4.0 x16" for card in cards), key=pcie_gbs)
        return CardLink("pcie", pcie_gbs(slot), p2p=p2p, title=f"PCIe {slot}")
    generation = match[1] if match[1] and "." in match[1] else f"{match[1] or '4'}.0"
    if generation not in PCIE_GBS:
        raise UserError(f"`{word}` is not a PCIe generation in `{text}`", hint="known: " + ", ".join(PCIE_GBS))
    if int(match[2] or 16) not in _LANES:
        raise UserError(f"`{word}` is not a slot in `{text}`", hint="lanes are 1, 2, 4, 8 or 16")
    written = f"{generation} x{match[2] or '16'}"
    return CardLink("pcie", pcie_gbs(written), p2p=p2p, title=f"PCIe {written}")


def parse_spec(text: str) -> Device:
    """`name=my-card,memory=24GiB,bandwidth=936,fp16=71` and whatever else is known: see `_SPEC_KEYS`."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise UserError(f"--gpu-spec `{text}` has no value in `{part.strip()}`", hint=_SPEC_HINT)
        values[key.strip().lower()] = value.strip()
    unknown = next((key for key in values if key not in _SPEC_KEYS), None)
    missing = next((key for key in ("name", "memory", "bandwidth") if key not in values), None)
    if unknown or missing:
        what = f"has an unknown field `{unknown}`" if unknown else f"lacks {missing}"
        raise UserError(f"--gpu-spec `{text}` {what}", hint=_SPEC_HINT)
    numbers = {key: _number(values[key], text) for key in _SPEC_NUMBERS if key in values}
    size, cc = values["memory"], numbers.get("cc")
    if re.fullmatch(r"\d+(\.\d+)?", size):
        memory = float(size)
    else:  # people call 24 GiB `24GB`: on a card both mean the same
        memory = round(parse_bytes(re.sub(r"gb?$", "gib", size, flags=re.IGNORECASE)) / GIB, 2)
    arch = "unknown" if cc is None else next((name for least, name in _ARCHS.items() if cc >= least), "Pascal")
    return Device(
        id="-".join(values["name"].casefold().split()), title=values["name"], vendor=values.get("vendor", "nvidia"),
        arch=arch, memory_gib=memory, bandwidth_gbs=numbers["bandwidth"],
        fp16_tflops=numbers.get("fp16"), fp8_tflops=numbers.get("fp8"), fp4_tflops=numbers.get("fp4"),
        int8_tops=numbers.get("int8"), compute_capability=cc,
        formats=tuple(values["formats"].replace("+", " ").split()) if "formats" in values else _formats(numbers),
        pcie=values.get("pcie"), nvlink="bridge" if "nvlink" in numbers else None, nvlink_gbs=numbers.get("nvlink"),
        tdp_w=numbers.get("tdp"), origins={"memory_gib": ValueOrigin("--gpu-spec", "C")},
    )  # fmt: skip


def _formats(numbers: Mapping[str, float]) -> tuple[str, ...]:
    """By compute capability, as NVIDIA's generations have them; by the rates that were given otherwise."""
    cc = numbers.get("cc", 0.0)
    has = {"bf16": cc >= 8.0 or not cc, "int8": cc >= 7.5 or "int8" in numbers, "fp8": cc >= 8.9 or "fp8" in numbers,
           "fp4": cc >= 10 or "fp4" in numbers}  # fmt: skip
    return ("fp16", *(name for name, there in has.items() if there))


def _number(text: str, whole: str) -> float:
    try:
        value = float(text.strip())
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise UserError(f"`{text.strip()}` in `{whole}` is not a number above 0", hint="write it as 936 or 2.5")
    return value


def rig_of_host(facts: HostFacts, link: str | None = None) -> ResolvedRig:
    """This machine's cards. One that is not known by name stands in for by its nearest relative, which is said."""
    if not facts.gpus:
        raise UserError("no GPU was found on this machine", hint='name one: --gpu "2x rtx-3090"')
    found = [_host_card(gpu) for gpu in facts.gpus]
    cards, notes = [card for card, _ in found], [note for _, note in found if note]
    pairs = [
        (a, b, _host_link(kind, facts.gpus[a], facts.gpus[b], cards[a], cards[b]))
        for a, b, kind in facts.links
        if max(a, b) < len(cards)
    ]
    rig = Rig(tuple(cards), usual_link(cards), tuple(pairs), f"this machine ({_title(cards)})")
    rig = replace(rig, ram_gib=facts.memory_bytes / GIB if facts.memory_bytes else None)
    if link is not None:
        rig = _all_linked(replace(rig, pairs=()), link)
    return ResolvedRig(rig, tuple(dict.fromkeys(notes)))


def _host_card(gpu: Gpu) -> tuple[Device, str | None]:
    memory = None if gpu.memory_bytes is None else gpu.memory_bytes / GIB
    found = find_device(gpu.name) or (find_device(f"{gpu.name} {round(memory)}GB") if memory else None)
    if found is not None:
        if memory is None or abs(memory / found.memory_gib - 1) <= 0.06:
            return found, None
        return dataclasses.replace(found, memory_gib=round(memory, 1)), f"{gpu.name} has {memory:.1f} GiB here"
    cc = float(gpu.compute_capability) if gpu.compute_capability else None
    alike = [d for d in devices().values() if d.vendor == "nvidia" and (cc is None or d.compute_capability == cc)]
    if memory is None or not alike:
        hint = 'describe it: --gpu-spec "name=...,memory=24GiB,bandwidth=936,fp16=71"'
        raise UserError(f"`{gpu.name}` is not in the catalogue and reports too little about itself", hint=hint)
    near = min(alike, key=lambda d: abs(d.memory_gib - memory))
    name, has = "-".join(gpu.name.casefold().split()), f"{memory:.0f} GiB as it says, speeds as of {near.id}"
    note = f"{gpu.name} is not in the catalogue: {has}, its nearest relative; --gpu-spec describes it better"
    return dataclasses.replace(near, id=name, title=gpu.name, memory_gib=round(memory, 1)), note


def _host_link(kind: str, one: Gpu, two: Gpu, card: Device, other: Device) -> CardLink:
    """`NV4` is NVLink with four links; everything else in nvidia-smi's matrix goes over PCIe."""
    if kind.startswith("NV"):
        told = min(card.nvlink_gbs or 0.0, other.nvlink_gbs or 0.0)
        return CardLink("nvlink", told or float(kind[2:] or 1) * 14.0, title=f"NVLink ({kind})")
    generation = min((g.pcie_generation_max for g in (one, two) if g.pcie_generation_max), default=None)
    lanes = min((g.pcie_lanes for g in (one, two) if g.pcie_lanes), default=None)
    usual = usual_link((card, other))
    if generation is None or lanes is None:
        return usual if usual.kind == "pcie" else CardLink("pcie", 31.5, title="PCIe")
    written = f"{generation}.0 x{lanes}"
    return CardLink("pcie", pcie_gbs(written), p2p=not (is_geforce(card) or is_geforce(other)), title=f"PCIe {written}")


def cpu_rig(facts: HostFacts, bandwidth_gbs: float, *, measured: bool, replicas: int = 1) -> Rig:
    """Replicas share cores and memory evenly: each is taken for a device of its own."""
    per_cycle = next((width for name, width in _PER_CYCLE if name in facts.cpu_features), _LEAST_PER_CYCLE)
    tflops = facts.cpu_cores * _CLOCK_GHZ * per_cycle / 1000
    told = ValueOrigin("copying a large buffer" if measured else "--bandwidth", "C")
    whole = Device(
        id="cpu", title=facts.cpu_model or "CPU", vendor="cpu", arch="CPU",
        memory_gib=round((facts.memory_bytes or 0) / GIB, 1), bandwidth_gbs=round(bandwidth_gbs, 1),
        fp16_tflops=round(tflops, 3), units=facts.cpu_cores, formats=("fp16", "int8"),
        origins={"bandwidth_gbs": told, "fp16_tflops": ValueOrigin("cores x 3 GHz x width of the units", "C")},
    )  # fmt: skip
    share = dataclasses.replace(
        whole, memory_gib=whole.memory_gib / replicas, bandwidth_gbs=whole.bandwidth_gbs / replicas,
        fp16_tflops=(whole.fp16_tflops or 0.0) / replicas,
    )  # fmt: skip
    title = f"this machine's CPU ({facts.cpu_cores} cores, {whole.bandwidth_gbs:g} GB/s)"
    return Rig((share if replicas > 1 else whole,) * replicas, title=title)
