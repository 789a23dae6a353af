"""The models whose geometry is known by name, from the packaged `models.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from skep.catalog.gpus import ValueOrigin, no_origins
from skep.catalog.names import did_you_mean, model_spellings, similar_names
from skep.catalog.tables import find_name, spellings, table, table_texts
from skep.errors import UserError


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
    origins: Mapping[str, ValueOrigin] = field(default_factory=no_origins, compare=False, hash=False)

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


_FILE = "models.toml"
_NOT_VALUES = ("title", "aliases", "origin", "origins")


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
        otherwise = "`skep catalog models` lists them; a config.json or a GGUF file serves as well"
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
