"""Number formats of weights and of the KV cache, from `quants.toml`: how many bytes, and which kernel reads them.

Also a model's parameters by what reads them: counted from the geometry and then scaled to the published total, so that
what the formulas leave out (biases, norms, gates) is spread over the layers rather than lost.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib.resources import files

import msgspec

from skep.catalog.models import Geometry
from skep.errors import UserError


class Quant(msgspec.Struct, frozen=True):
    """`bits` is what one parameter takes with its scales."""

    id: str
    title: str
    bits: float
    nominal: int
    family: str  # int4, int8, fp8, fp4, half, gguf
    keeps_small: bool = False  # linear attention, shared experts and attention of a MoE stay in more bits
    end_bits: float = 16.0  # of embeddings and head
    small_bits: float = 16.0  # of what `keeps_small` keeps


class KvType(msgspec.Struct, frozen=True):
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


class Parts(msgspec.Struct, frozen=True):
    """Parameter counts. `head` is read for every token even where it is tied; `embedding` is looked up, not read."""

    embedding: float
    head: float  # 0 in memory where tied: the embedding's memory is the head's
    attention: float
    linear: float
    mlp: float
    shared: float
    experts: float
    draft: float  # one MTP layer, its experts included
    draft_experts: float
    vision: float

    @property
    def small(self) -> float:
        """What quantizers of mixture models leave alone: attention, linear attention, shared experts."""
        return self.attention + self.linear + self.shared


@lru_cache(maxsize=512)
def parts_of(model: Geometry) -> Parts:
    ends = float(model.vocab * model.hidden)
    attention = float(_attention(model))
    keys, values = model.linear_k_heads * model.linear_k_dim, model.linear_v_heads * model.linear_v_dim
    linear = float(model.linear_layers * (model.hidden * (2 * keys + 2 * values) + values * model.hidden))
    dense_layers = model.layers - model.expert_layers if model.is_moe else model.layers if model.intermediate else 0
    mlp = 3.0 * model.hidden * model.intermediate * max(0, dense_layers)
    shared = 3.0 * model.hidden * model.shared_intermediate * model.expert_layers
    experts = 3.0 * model.hidden * model.expert_intermediate * model.experts * model.expert_layers
    counted = attention + linear + mlp + shared + experts
    wanted = model.params_total - ends * (1 if model.tied_embeddings else 2)
    scale = wanted / counted if counted > 0 and wanted > 0 else 1.0
    if model.is_moe and 0.5 < scale < 2:  # the experts' count is exact; the rest takes the difference
        rest = counted - experts
        scale_rest = (wanted - experts) / rest if rest > 0 and wanted > experts else scale
        scale_experts = 1.0 if wanted > experts else scale
        scale_rest = min(max(scale_rest, 0.25), 4.0)
    else:
        scale_rest = scale_experts = scale
    one_layer = (attention + linear) / max(1, model.full_layers + model.sliding_layers + model.linear_layers)
    draft_experts = experts / model.expert_layers if model.is_moe and model.mtp_layers else 0.0
    draft_mlp = 0.0 if model.is_moe else 3.0 * model.hidden * model.intermediate
    draft = (one_layer + draft_mlp + draft_experts + 2.0 * model.hidden**2) if model.mtp_layers else 0.0
    return Parts(
        embedding=ends,
        head=0.0 if model.tied_embeddings else ends,
        attention=attention * scale_rest,
        linear=linear * scale_rest,
        mlp=mlp * scale_rest,
        shared=shared * scale_rest,
        experts=experts * scale_experts,
        draft=draft,
        draft_experts=draft_experts,
        vision=model.vision_params,
    )


def part_bits(quant: Quant, model: Geometry) -> dict[str, float]:
    """Bits of one parameter in each part, as checkpoints of this format are published."""
    small, draft = quant.small_bits if quant.keeps_small else quant.bits, quant.bits if quant.family == "gguf" else 16.0
    awq_hybrid = quant.id == "awq" and model.is_moe and model.is_hybrid  # 24 GB for 35B-A3B: only experts are 4 bit
    if awq_hybrid or quant.id in model.kept_small:
        small = 16.0
    whole = {"ends": quant.end_bits, "small": small, "draft": draft, "vision": 16.0}
    return {**whole, "mlp": quant.bits, "experts": quant.bits}


def _attention(model: Geometry) -> float:
    h = model.hidden
    if model.mla_rank:
        q = h * model.heads * (model.head_dim + model.mla_rope_dim) / 3  # queries are compressed too
        kv = h * (model.mla_rank + model.mla_rope_dim) + 2 * model.mla_rank * model.heads * model.head_dim
        return model.full_layers * (q + kv + model.heads * model.head_dim * h)
    gate = 2 if model.is_hybrid and model.linear_k_heads else 1  # gated attention has a second query projection
    full_dim, full_kv = model.full_head_dim or model.head_dim, model.full_kv_heads or model.kv_heads
    full = h * (model.heads * full_dim * (1 + gate) + 2 * full_kv * full_dim)
    sliding = h * (2 * model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim)
    return model.full_layers * full + model.sliding_layers * sliding
