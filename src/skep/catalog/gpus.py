"""The GPUs that are known by name, from the packaged `gpus.toml`."""

from __future__ import annotations

import re
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from skep.catalog.devices import Device, Origin
from skep.catalog.names import device_spellings, did_you_mean, near, split_memory, squeeze
from skep.catalog.tables import pieces, spellings, table
from skep.errors import UserError

_FILE = "gpus.toml"
_PLAIN = ("title", "vendor", "arch", "unified_memory")


@lru_cache(maxsize=1)
def devices() -> dict[str, Device]:
    """All of them by slug, in the order of the file: by vendor and age."""
    return {slug: _device(slug) for slug in pieces(_FILE)}


def find_device(name: str) -> Device | None:
    """However it is typed: `RTX 3090`, `rtx_3090`, `NVIDIA GeForce RTX 3090`, `3090`."""
    found = _literally(name)
    shorter, memory_gib = split_memory(name)
    if found is None and memory_gib:
        guess = _literally(shorter)
        if guess is not None and (guess.unified_memory or abs(guess.memory_gib / memory_gib - 1) < 0.1):
            found = guess
    return found


def device(name: str) -> Device:
    found = find_device(name)
    if found is None:
        names = near(name, spellings(_FILE))
        raise UserError(f"no GPU is called `{name}`", hint=did_you_mean(names, "`skep catalog gpus` lists them"))
    return found


def also_meant(name: str) -> tuple[str, ...]:
    """Other cards that a short name could stand for: `h100` is one of three. Empty where the name is one card's own."""
    found = find_device(name)
    if found is None or squeeze(found.id) in device_spellings(name):
        return ()
    words = {squeeze(word) for word in re.split(r"[\s_-]+", name) if word}
    alike = (slug for slug in pieces(_FILE) if words <= set(map(squeeze, slug.split("-"))))
    return tuple(slug for slug in alike if slug != found.id)


def _literally(name: str) -> Device | None:
    known = spellings(_FILE)
    slug = next((known[spelling] for spelling in device_spellings(name) if spelling in known), None)
    return None if slug is None else _device(slug)


@lru_cache(maxsize=512)
def _device(slug: str) -> Device:
    """Every value but the plain ones is a table of its own: value, source, confidence."""
    values: dict[str, Any] = {"fp16_tflops": None}
    origins = {}
    for key, entry in table(_FILE, slug).items():
        if key in _PLAIN:
            values[key] = entry
        elif key != "aliases":
            value = entry["value"]
            values[key] = tuple(value) if isinstance(value, list) else value
            origins[key] = Origin(entry["source"], entry["confidence"])
    return Device(id=slug, **values, origins=MappingProxyType(origins))
