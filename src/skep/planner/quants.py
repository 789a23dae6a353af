"""Number formats of weights and of the KV cache, from `quants.toml`: how many bytes, and which kernel reads them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from skep.errors import UserError


@dataclass(frozen=True, slots=True)
class Quant:
    """`bits` is what one parameter takes with its scales."""

    id: str
    title: str
    bits: float
    nominal: int
    family: str  # int4, int8, fp8, fp4, half, gguf
    keeps_small: bool = False  # linear attention, shared experts and attention of a MoE stay in more bits
    end_bits: float = 16.0  # of embeddings and head
    small_bits: float = 16.0  # of what `keeps_small` keeps


@dataclass(frozen=True, slots=True)
class KvType:
    id: str
    title: str
    bytes: float  # of one value, with its scales
    family: str  # half, fp8, int8, turboquant, gguf, fp4


_DATA = tomllib.loads(files("skep.planner").joinpath("quants.toml").read_text(encoding="utf-8"))
QUANTS: dict[str, Quant] = {name: Quant(name, **entry) for name, entry in _DATA["weights"].items()}
KV_TYPES: dict[str, KvType] = {name: KvType(name, **entry) for name, entry in _DATA["kv"].items()}


def known_quant(name: str) -> Quant | None:
    """By id or a name people use, whatever the case: `AWQ`, `Q4_K_M`, `w4a16`."""
    wanted = name.strip().lower().replace(" ", "-")
    wanted = _DATA["weights_names"].get(wanted, wanted)
    return QUANTS.get(wanted) or QUANTS.get(wanted.replace("-", "_"))


def find_quant(name: str) -> Quant:
    found = known_quant(name)
    if found is None:
        raise UserError(f"no quantization is called `{name}`", hint="known: " + ", ".join(QUANTS))
    return found


def known_kv(name: str) -> KvType | None:
    wanted = name.strip().lower().replace(" ", "_").replace("-", "_")
    return KV_TYPES.get(_DATA["kv_names"].get(wanted, wanted))


def find_kv(name: str) -> KvType:
    found = known_kv(name)
    if found is None:
        raise UserError(f"no KV cache type is called `{name}`", hint="known: " + ", ".join(KV_TYPES))
    return found
