"""A model's geometry from a GGUF header: widths from its keys, kinds of layers and parameters from its tensors."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

from skep.catalog.gpus import ValueOrigin
from skep.catalog.models import Geometry
from skep.errors import UserError
from skep.weights.config_json import ModelConfig, counted
from skep.weights.gguf import GgufHeader, SkippedArray

_HINT = "take a GGUF file of a language model that llama.cpp has converted"
_MAX_WIDTH = 1 << 20
_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma4": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4}
_BLOCK = re.compile(r"blk\.(\d{1,6})\.(.+)")
_NOT_ATTENTION = ("attn_norm", "attn_post_norm", "attn_sub_norm")


def geometry_of(header: GgufHeader) -> Geometry:
    if not header.architecture:
        raise UserError("the GGUF has no `general.architecture`", hint=_HINT)
    keys = _settings(header)
    blocks, hidden = keys.whole("block_count", high=1000), keys.whole("embedding_length", high=_MAX_WIDTH)
    heads = keys.whole("attention.head_count", high=1 << 16)
    draft = min(keys.whole("nextn_predict_layers", low=0, high=64, default=0), blocks - 1)  # blocks that only draft
    attention, linear = _kinds(header, blocks, draft)
    full, sliding, window = _windows(keys, attention)
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    title = header.name or header.architecture
    drawn = Geometry(
        id="-".join(title.casefold().split()),
        title=title,
        hidden=hidden,
        layers=blocks - draft,
        heads=heads,
        vocab=_vocab(header, keys),
        params_total=0.0,
        params_active=0.0,
        **_attention(keys, hidden, heads, header.metadata.get(f"{header.architecture}.attention.head_count_kv")),
        **_mlp(keys, blocks - draft),
        **_linear(keys, linear),
        full_layers=full,
        sliding_layers=sliding,
        sliding_window=window,
        mtp_layers=draft,
        tied_embeddings=tied,
        max_context=keys.whole("context_length", high=1 << 40, default=0) or None,
        native_bits=average_bits(header),
    )
    origins = {"geometry": ValueOrigin("keys of the GGUF file", "A"), "params_total": ValueOrigin("its tensors", "A")}
    return replace(counted(drawn, _tensors_total(header, drawn)), origins=origins)


def average_bits(header: GgufHeader) -> float | None:
    """Bits of one parameter over all tensors; None where a tensor's type is not known."""
    sizes = [tensor.size_bytes for tensor in header.tensors]
    values = sum(prod(tensor.shape) for tensor in header.tensors)
    known = [size for size in sizes if size is not None]
    return 8 * sum(known) / values if values and len(known) == len(sizes) else None


def _settings(header: GgufHeader) -> ModelConfig:
    """Return the keys of the file's architecture. A list has one value a layer: the largest counts."""
    prefix = f"{header.architecture}."
    own = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    for key, value in own.items():
        if isinstance(value, SkippedArray):
            own[key] = None
        elif isinstance(value, tuple) and value and all(type(entry) is int for entry in value):
            own[key] = max(value)
    return ModelConfig("the GGUF", own, own, prefix, _HINT)


def _kinds(header: GgufHeader, blocks: int, draft: int) -> tuple[int, int]:
    """Return how many blocks attend and how many are linear, by what each holds; of one part of several, all attend."""
    parts: dict[int, set[str]] = {}
    for tensor in header.tensors:
        if (match := _BLOCK.fullmatch(tensor.name)) is not None:
            parts.setdefault(int(match.group(1)), set()).add(match.group(2))
    if len(parts) < blocks or _is_split(header):
        return blocks - draft, 0
    linear = attention = 0
    for index in range(blocks - draft):
        names = parts.get(index, set())
        if any(name.startswith("ssm_") for name in names):
            linear += 1
        elif any(name.startswith("attn_") and not name.startswith(_NOT_ATTENTION) for name in names):
            attention += 1
    return attention, linear


def _windows(keys: ModelConfig, attention: int) -> tuple[int, int, int]:
    """Full layers, sliding layers, the window."""
    window = keys.whole("attention.sliding_window", low=0, high=1 << 40, default=0)
    if not window or window >= keys.whole("context_length", high=1 << 40, default=1 << 40):
        return attention, 0, 0
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, tuple) and pattern and all(isinstance(entry, bool) for entry in pattern):
        sliding = min(attention, sum(pattern))
        return attention - sliding, sliding, window if sliding else 0
    every = pattern if type(pattern) is int and pattern > 0 else _PATTERN.get(keys.prefix[:-1], 0)
    full = attention // every if every else 0
    return full, attention - full, window


def _attention(keys: ModelConfig, hidden: int, heads: int, by_layer: object) -> dict[str, Any]:
    rank = keys.whole("attention.kv_lora_rank", low=0, high=_MAX_WIDTH, default=0)
    if rank:
        width = keys.whole("attention.value_length_mla", high=_MAX_WIDTH, default=0)
        width = width or keys.whole("attention.value_length", high=_MAX_WIDTH)
        rope = keys.whole("rope.dimension_count", low=0, high=_MAX_WIDTH, default=64)
        return {"kv_heads": heads, "head_dim": width, "mla_rank": rank, "mla_rope_dim": rope}
    kv_heads = keys.whole("attention.head_count_kv", high=1 << 16, default=heads)
    width = keys.whole("attention.key_length", high=_MAX_WIDTH, default=max(1, hidden // heads))
    found: dict[str, Any] = {"kv_heads": kv_heads, "head_dim": width}
    sliding_width = keys.whole("attention.key_length_swa", high=_MAX_WIDTH, default=width)
    if sliding_width != width:
        found |= {"head_dim": sliding_width, "full_head_dim": width}
        if isinstance(by_layer, tuple):
            found["full_kv_heads"] = min(by_layer)
    return found


def _mlp(keys: ModelConfig, layers: int) -> dict[str, Any]:
    dense = keys.whole("feed_forward_length", low=0, high=_MAX_WIDTH, default=0)
    experts = keys.whole("expert_count", low=0, high=1 << 16, default=0)
    leading = keys.whole("leading_dense_block_count", low=0, high=layers, default=0)
    if experts < 2 or leading == layers:
        return {"intermediate": dense}
    width = keys.whole("expert_feed_forward_length", high=_MAX_WIDTH, default=dense or None)
    shared = keys.whole("expert_shared_feed_forward_length", low=0, high=_MAX_WIDTH, default=0)
    shared = shared or width * keys.whole("expert_shared_count", low=0, high=1024, default=0)
    return {
        "intermediate": dense if leading else 0,
        "experts": experts,
        "experts_per_token": keys.whole("expert_used_count", high=experts),
        "expert_intermediate": width,
        "expert_layers": layers - leading,
        "shared_intermediate": shared,
    }


def _linear(keys: ModelConfig, linear: int) -> dict[str, Any]:
    """llama.cpp keeps both gated delta nets and Mamba-2 under `ssm`: groups are key heads, the rank is value heads."""
    if not linear:
        return {}
    v_heads = keys.whole("ssm.time_step_rank", high=1 << 16)
    inner = keys.whole("ssm.inner_size", high=1 << 24)
    return {
        "linear_layers": linear,
        "linear_k_heads": keys.whole("ssm.group_count", high=1 << 16, default=1),
        "linear_v_heads": v_heads,
        "linear_k_dim": keys.whole("ssm.state_size", high=_MAX_WIDTH),
        "linear_v_dim": max(1, inner // v_heads),
        "conv_kernel": keys.whole("ssm.conv_kernel", low=0, high=1024, default=4),
    }


def _vocab(header: GgufHeader, keys: ModelConfig) -> int:
    said = keys.whole("vocab_size", high=1 << 24, default=0)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    count = tokens.count if isinstance(tokens, SkippedArray) else len(tokens) if isinstance(tokens, tuple) else 0
    embedding = next((t.shape[-1] for t in header.tensors if t.name == "token_embd.weight" and t.shape), 0)
    found = said or count or embedding
    if not found:
        raise UserError("the GGUF has no `tokenizer.ggml.tokens`", hint=_HINT)
    return int(found)


def _is_split(header: GgufHeader) -> bool:
    parts = header.metadata.get("split.count")
    return type(parts) is int and parts > 1


def _tensors_total(header: GgufHeader, drawn: Geometry) -> float | None:
    """None where this file is one part of several, or holds too little to be a model."""
    own = 0
    for tensor in header.tensors:
        block = _BLOCK.fullmatch(tensor.name)
        if block is None or int(block[1]) < drawn.layers:  # the others only draft
            own += prod(tensor.shape)
    return None if _is_split(header) or own <= drawn.vocab * drawn.hidden else float(own)
