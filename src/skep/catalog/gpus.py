"""The GPUs that are known by name, from the packaged `gpus.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from skep.catalog import names
from skep.catalog.names import squeeze, table, table_texts
from skep.errors import UserError

_FILE = "gpus.toml"
_PLAIN = ("title", "vendor", "arch", "unified_memory")
_CHIPS_OF_MACS = {
    "macstudio": ("apple-m3-ultra", "apple-m4-max"),
    "macmini": ("apple-m4-pro", "apple-m4"),
    "macbookair": ("apple-m4", "apple-m3"),
    "macbook": ("apple-m4-max", "apple-m4-pro", "apple-m4"),
    "imac": ("apple-m4", "apple-m3"),
    "macpro": ("apple-m2-ultra",),
    "mac": ("apple-m3-ultra", "apple-m4-max", "apple-m4"),
}  # the first key that begins a name
MOST_CARDS = 64  # of a rig; a higher number in front of an `x` is part of a name
_AND = re.compile(r",|\+(?!-)")  # `ryzen-ai-max+-395` is one card
_COUNT_FIRST = re.compile(
    r"(\d{1,3}|\d{4,9}(?=\s*+[x*]\s*+[a-z]))\s*+[x*]\s*+(\S.*)", re.IGNORECASE
)
_COUNT_LAST = re.compile(r"(.*\S)\s++[x*]\s*+(\d{1,9})", re.IGNORECASE)


class ValueOrigin(msgspec.Struct, frozen=True):
    """Where one value comes from.

    `confidence`: A read in a data sheet, B derived, C one unconfirmed source.
    """

    source: str
    confidence: str


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU (or a chip with memory of its own).

    `None`: nobody told. Rates are dense, with FP32 accumulation.
    """

    id: str  # a lower-case slug: `rtx-3090`
    title: str
    vendor: str  # nvidia, amd, intel, apple, huawei
    arch: str
    memory_gib: float
    bandwidth_gbs: float  # 10^9 bytes a second
    fp16_tflops: float | None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    int8_tops: float | None = None
    cache_mb: float | None = None
    units: int | None = None  # streaming multiprocessors or compute units
    compute_capability: float | None = None  # NVIDIA only: 8.6
    formats: tuple[str, ...] = ("fp16",)  # in hardware: fp16, bf16, int8, fp8, fp4
    pcie: str | None = None  # "4.0 x16"
    nvlink: str | None = None
    nvlink_gbs: float | None = None  # one direction
    tdp_w: float | None = None
    unified_memory: bool = False  # the system's memory: not all of it is for the model
    origins: Mapping[str, ValueOrigin] = field(default_factory=dict, compare=False, hash=False)

    @property
    def family(self) -> str:
        """Return what kernels are written for: `ampere`, `ada`, `blackwell`, `rdna4`."""
        return self.arch.lower().replace(" ", "-")


@lru_cache(maxsize=1)
def devices() -> dict[str, Device]:
    """Return all of them by slug, in the order of the file: by vendor and age."""
    return {slug: _device(slug) for slug in table_texts(_FILE)}


def find_device(name: str) -> Device | None:
    """Return a card by any spelling: `RTX 3090`, `rtx_3090`, `NVIDIA GeForce RTX 3090`, `3090`."""
    shorter, memory_gib = names.split_memory(name)
    if (device := _literally(name)) is not None or not memory_gib:
        return device
    guess = _literally(shorter)
    fits = guess is not None and (
        guess.unified_memory or abs(guess.memory_gib / memory_gib - 1) < 0.1
    )
    return guess if fits else None


def device(name: str) -> Device:
    device = find_device(name)
    if device is None:
        raise UserError(f"no GPU is called `{name}`", hint=_hint_for_unknown(name))
    return device


def _hint_for_unknown(name: str) -> str:
    """Return the cards that are meant perhaps; for a Mac, the chips that it is sold with."""
    squeezed = squeeze(name)
    chips = next(
        (chips for mac, chips in _CHIPS_OF_MACS.items() if squeezed.startswith(mac)), None
    )
    if chips is not None:
        return f"{names.did_you_mean(chips, '')} 'About This Mac' names its chip"
    near = names.similar_names(name, names.spellings(_FILE))
    return names.did_you_mean(near, "`skep catalog gpus` lists them")


def other_matches(name: str) -> tuple[str, ...]:
    """Return other cards that a short name could stand for: `h100` is one of three. Empty where
    the name stands for one card alone.
    """
    device = find_device(name)
    if device is None or squeeze(device.id) in names.device_spellings(name):
        return ()
    words = {squeeze(word) for word in re.split(r"[\s_-]+", name) if word}
    alike = (slug for slug in table_texts(_FILE) if words <= set(map(squeeze, slug.split("-"))))
    return tuple(slug for slug in alike if slug != device.id)


def rig_parts(text: str) -> Iterator[tuple[str, int, str | None]]:
    """Yield name, count and price of each kind of card in `2x rtx-3090@700 + rtx-5090`, as they
    are written.
    """
    for part in _AND.split(text):
        named, at, price = part.partition("@")
        named = named.strip()
        match = _COUNT_FIRST.fullmatch(named)
        if match and int(match[1]) > MOST_CARDS and find_device(named) is not None:
            match = None  # `7900xtx` is a card
        name, count = (match[2], int(match[1])) if match else (named, 1)
        if match is None and (match := _COUNT_LAST.fullmatch(named)):
            name = match[1]
            count = int(match[2])
        yield name.strip(), count, price if at else None


def _literally(name: str) -> Device | None:
    slug = names.find_name(_FILE, names.device_spellings(name))
    return None if slug is None else _device(slug)


@lru_cache(maxsize=512)
def _device(slug: str) -> Device:
    """Return a card of the file, where every value but the plain ones is a table: value, source,
    confidence.
    """
    values: dict[str, Any] = {"fp16_tflops": None}
    origins = {}
    for key, entry in table(_FILE, slug).items():
        if key in _PLAIN:
            values[key] = entry
        elif key != "aliases":
            value = entry["value"]
            values[key] = tuple(value) if isinstance(value, list) else value
            origins[key] = ValueOrigin(entry["source"], entry["confidence"])
    return Device(id=slug, **values, origins=MappingProxyType(origins))


class Gpu(msgspec.Struct, frozen=True):
    index: int
    name: str
    memory_bytes: int | None
    compute_capability: str | None = None
    pcie_generation: int | None = None  # as negotiated now; an idle card may drop to 1
    pcie_generation_max: int | None = None
    pcie_lanes: int | None = None
    pcie_lanes_max: int | None = None
    power_limit_w: float | None = None


class HostFacts(msgspec.Struct, frozen=True):
    os: str
    machine: str  # x86_64, aarch64
    python: str
    cpu_model: str | None
    cpu_cores: int
    cpu_features: tuple[str, ...]
    memory_bytes: int | None
    memory_available_bytes: int | None
    open_files_soft: int | None
    open_files_hard: int | None
    driver_version: str | None = None
    cuda_version: str | None = None  # the newest CUDA that the driver carries
    gpus: tuple[Gpu, ...] = ()
    links: tuple[tuple[int, int, str], ...] = ()  # (gpu, gpu, "NV4" | "PIX" | "PHB" | ...)
