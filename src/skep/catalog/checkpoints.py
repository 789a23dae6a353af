"""The checkpoints that exist, from the packaged `checkpoints.toml`: which files of a model an engine can be given."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from skep.catalog.gpus import ValueOrigin
from skep.catalog.names import table, table_texts

_FILE = "checkpoints.toml"
_HALF = ("bf16", "f16")


class Checkpoint(msgspec.Struct, frozen=True):
    """One repository of a hub. `files`: of GGUF, the name of the file (or of its first part) by format."""

    hub: str  # "organisation/name"
    model: str  # as models.toml calls it
    engines: tuple[str, ...]
    origin: ValueOrigin
    format: str = ""  # as quants.toml calls it; empty: GGUF, in `files`
    files: dict[str, str] = {}
    activations: int = 16  # bits
    # parts in 16 bit: embeddings lm_head attention linear_attention shared_experts vision mtp
    kept: tuple[str, ...] = ()
    disk_gb: float | None = None  # 10^9 bytes of its weight files
    loaded_gib: float | None = None  # as an engine's log said, without drafts; else the planner counts it
    mtp: bool = False  # its draft layers are there and can be used
    draft: str | None = None  # a checkpoint that drafts for it
    vision: bool = False
    gated: bool = False  # its owner wants a licence accepted first
    licence: str = ""
    maker: bool = False  # published by those who trained the model
    needs: str = ""  # of the engine: "vllm>=0.11"
    note: str = ""

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(self.files) if self.files else (self.format,)

    def reference(self, quant: str) -> str:
        """Return it as `--checkpoint` takes it: `organisation/name`, of GGUF with `:FILE` behind it."""
        return f"{self.hub}:{self.files[quant]}" if self.files else self.hub


@lru_cache(maxsize=64)
def checkpoints_of(model: str) -> tuple[Checkpoint, ...]:
    """Return those of a model of the catalogue, in the order of the file: the maker's first."""
    line = f'model = "{model}"\n'
    found = (_checkpoint(hub) for hub, text in table_texts(_FILE).items() if line in text)
    return tuple(sorted(found, key=lambda one: (not one.maker, one.origin.confidence)))


def all_checkpoints() -> Iterator[Checkpoint]:
    return map(_checkpoint, table_texts(_FILE))


def find_checkpoint(model: str, engine: str, quant: str, *, mtp: bool = False) -> Checkpoint | None:
    """Return the first one that this engine loads in this format; with `mtp` one that has its draft layers."""
    found = (one for one in checkpoints_of(model) if engine in one.engines and quant in one.formats)
    return next((one for one in found if one.mtp or not mtp), None)


def is_published(model: str, engine: str, quant: str) -> bool:
    """Whether somebody made it. Of a model without any known checkpoint nothing is known, and all is believed in."""
    return not checkpoints_of(model) or find_checkpoint(model, engine, quant) is not None


def checkpoint_of(hub: str) -> Checkpoint | None:
    """By its name on the hub, with or without a file behind it."""
    name = hub.partition(":")[0].casefold()
    return next((_checkpoint(one) for one in table_texts(_FILE) if one.casefold() == name), None)


@lru_cache(maxsize=512)
def _checkpoint(hub: str) -> Checkpoint:
    return msgspec.convert({"hub": hub, **table(_FILE, hub)}, Checkpoint)
