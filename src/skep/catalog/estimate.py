"""A geometry from nothing but parameter counts: widths between those of known families, marked as estimated.

It serves rows and users who know `9B` and no more. Weights come out right, KV and layer counts within a factor of two.
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, isfinite, log
from typing import Any

from skep.catalog.gpus import ValueOrigin
from skep.catalog.models import Geometry
from skep.errors import UserError

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


def geometry_from_parameters(title: str, total_b: float, active_b: float | None = None) -> Geometry:
    """`active_b` is what one token reads, in billions; None or the total: a dense model."""
    active_b = total_b if active_b is None else active_b
    if not (isfinite(total_b) and 0.005 <= total_b <= _LARGEST_B):
        raise UserError(f"`{title}` cannot have {total_b:g} billion parameters", hint="give them in billions: 27")
    if not (isfinite(active_b) and 0 < active_b <= total_b):
        message = f"`{title}` cannot read {active_b:g} of {total_b:g} billion parameters for a token"
        raise UserError(message, hint="the active parameters are at most all of them")
    if active_b > 0.85 * total_b:
        return _dense(title, total_b)
    return _mixture(title, total_b, active_b)


def _dense(title: str, total_b: float) -> Geometry:
    hidden, layers, kv_heads = _between(_DENSE, total_b)
    tied = total_b < _TIED_BELOW_B
    vocab = _vocab(hidden, total_b)
    rest = total_b * 1e9 - vocab * hidden * (1 if tied else 2) - layers * _attention(hidden, kv_heads)
    width = max(hidden, round(rest / (3 * hidden * layers)))
    total = total_b * 1e9
    widths = {"tied_embeddings": tied, "intermediate": width}
    return _geometry(title, hidden, layers, kv_heads, vocab, total, total, **widths)


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
    return _geometry(title, hidden, layers, kv_heads, vocab, total_b * 1e9, active_b * 1e9, **mixed)


def _geometry(
    title: str, hidden: int, layers: int, kv_heads: int, vocab: int, total: float, active: float, **widths: Any
) -> Geometry:
    origin = ValueOrigin("estimated from the parameter counts", "C")
    told = ("hidden", "layers", "heads", "kv_heads", "head_dim", "vocab", "intermediate", "experts")
    return Geometry(
        id="-".join(title.casefold().split()) or "unnamed",
        title=title,
        hidden=hidden,
        layers=layers,
        heads=max(kv_heads, hidden // _HEAD_DIM // kv_heads * kv_heads),
        kv_heads=kv_heads,
        head_dim=_HEAD_DIM,
        vocab=vocab,
        params_total=total,
        params_active=active,
        full_layers=layers,
        estimated=True,
        origins=dict.fromkeys(told, origin),
        **widths,
    )


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
