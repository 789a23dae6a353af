"""What each layer of a GGUF file's model keeps: by the tensors of its blocks, by its lists of one
value a block, and by the family's name where llama.cpp knows a family's layers without a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skep.weights.layer_kinds import entries_of
from skep.weights.model_config import ModelConfig

_MAX_WINDOW = 1 << 40
# Each n-th layer is full.
_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma4": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4}
_WINDOW = {"llama4": 8192}  # where the file states none
_FULL_INTERVAL = {"minimax-01": 8}  # the others are linear
_NOT_ATTENTION = ("attn_norm", "attn_post_norm", "attn_sub_norm")
_BESIDE_ATTENTION = {"ssm_in.weight", "attn_k.weight"}  # Falcon-H1: both in one layer


class FileLayers(msgspec.Struct, frozen=True):
    """`lists`: of one value a block, by key without the architecture. `tensors`: names by block,
    without its number; empty where the file is one part of several. `blocks`: without those that
    only draft."""

    architecture: str
    keys: ModelConfig
    lists: Mapping[str, tuple[Any, ...]]
    tensors: Mapping[int, frozenset[str]]
    blocks: int

    def of_block(self, key: str, block: int) -> Any:
        """Return the block's value of a list; None where there is no list."""
        values = self.lists.get(key, ())
        if block < len(values):
            return values[block]
        return None


def layers_of_file(file: FileLayers) -> dict[str, Any]:
    """Return the layers by kind, and the widths of the linear ones, by the names of `Geometry`."""
    if "attention.compress_ratios" in file.lists:
        return _compressed(file)
    kinds = [_kinds_of_block(file, block) for block in range(file.blocks)]
    attending = [
        block for block, kind in enumerate(kinds[: _keeping(file)]) if "attention" in kind
    ]
    linear = sum(1 for kind in kinds if "linear" in kind)
    window, sliding = _sliding(file, attending)
    full = [block for block in attending if block not in sliding]
    layers: dict[str, Any] = {
        "full_layers": len(full),
        "sliding_layers": len(sliding),
        "sliding_window": window if sliding else 0,
        **(_linear_widths(file.keys) if linear else {}),
        "linear_layers": linear,
    }
    heads = [file.of_block("attention.head_count_kv", block) for block in full]
    if heads and all(type(count) is int and count > 0 for count in heads) and len(set(heads)) > 1:
        layers["full_entries"] = sum(heads) / max(heads)
    return layers


def kv_heads_of(file: FileLayers, default: int) -> tuple[int, int]:
    """Return the KV heads of full layers, and of sliding ones."""
    attending = [
        block for block in range(_keeping(file)) if file.of_block("attention.head_count_kv", block)
    ]
    _, sliding = _sliding(file, attending)
    counts = {block: file.of_block("attention.head_count_kv", block) for block in attending}
    full_heads = [count for block, count in counts.items() if block not in sliding]
    sliding_heads = [count for block, count in counts.items() if block in sliding]
    return max(full_heads, default=default), max(sliding_heads, default=default)


def _keeping(file: FileLayers) -> int:
    """Return how many blocks keep what they have read: the last ones of Gemma 3n read what others
    kept.
    """
    last = file.blocks - 1
    return file.blocks - file.keys.whole("attention.shared_kv_layers", low=0, high=last, default=0)


def _kinds_of_block(file: FileLayers, block: int) -> tuple[str, ...]:
    """Return what one block has: attention, linear, both, or neither."""
    recurrent = file.of_block("attention.recurrent_layers", block)
    interval = file.keys.whole(
        "full_attention_interval", default=_FULL_INTERVAL.get(file.architecture, 0) or 1
    )
    if recurrent is None and file.architecture in _FULL_INTERVAL:
        recurrent = (block + 1) % interval != 0
    if recurrent is not None:
        if recurrent:
            return ("linear",)
        return ("attention",)
    if file.tensors:
        return _kinds_of_tensors(file.tensors.get(block, frozenset()))
    without_heads = file.of_block("attention.head_count_kv", block) == 0
    is_hybrid = file.keys.get("kda.head_dim", "ssm.state_size") is not None
    if without_heads:
        return ("linear",) if is_hybrid else ()
    return ("attention",)


def _kinds_of_tensors(names: frozenset[str]) -> tuple[str, ...]:
    if any(name.startswith("ssm_") for name in names):
        if names >= _BESIDE_ATTENTION:
            return ("linear", "attention")
        return ("linear",)
    attends = any(
        name.startswith("attn_") and not name.startswith(_NOT_ATTENTION) for name in names
    )
    return ("attention",) if attends else ()


def _sliding(file: FileLayers, attending: list[int]) -> tuple[int, frozenset[int]]:
    """Return the window, and which of these blocks slide."""
    keys = file.keys
    window = keys.whole(
        "attention.sliding_window",
        low=0,
        high=_MAX_WINDOW,
        default=_WINDOW.get(file.architecture, 0),
    )
    if not window or window >= keys.whole("context_length", high=_MAX_WINDOW, default=_MAX_WINDOW):
        return 0, frozenset()
    pattern = file.lists.get("attention.sliding_window_pattern")
    if pattern and all(isinstance(entry, bool) for entry in pattern):
        return window, frozenset(
            block
            for block in attending
            if file.of_block("attention.sliding_window_pattern", block)
        )
    stated = keys.get("attention.sliding_window_pattern")
    step = _PATTERN.get(file.architecture, 0)
    if type(stated) is int and stated > 0:
        step = stated
    full = {block for place, block in enumerate(attending) if step and place % step == step - 1}
    return window, frozenset(attending) - full


def _compressed(file: FileLayers) -> dict[str, Any]:
    """Return the layers of DeepSeek V4: they keep one entry for several tokens, and the window."""
    keys = file.keys
    ratios = file.lists["attention.compress_ratios"][: file.blocks]
    if len(ratios) < file.blocks or any(
        type(ratio) is not int or not 0 <= ratio <= 1 << 20 for ratio in ratios
    ):
        raise keys.wrong(
            "attention.compress_ratios", list(ratios), f"a list of {file.blocks} numbers of tokens"
        )
    width = keys.whole("attention.key_length")
    index = keys.whole("attention.indexer.key_length", default=128) / width
    entries = entries_of(ratios, index)
    return {
        "full_layers": sum(1 for ratio in ratios if ratio),
        "full_entries": entries or None,
        "sliding_layers": file.blocks,
        "sliding_window": keys.whole("attention.sliding_window", high=_MAX_WINDOW),
        "mla_rank": width,
        "mla_rope_dim": 0,
    }


def _linear_widths(keys: ModelConfig) -> dict[str, int]:
    """Return the widths of a linear layer. Delta nets, Mamba and Mamba-2 are under `ssm`: groups
    are key heads, the rank is value heads.
    """
    convolution = keys.whole("ssm.conv_kernel", low=0, high=1024, default=4)
    if keys.get("kda.head_dim") is not None:
        return _equal_widths(
            keys.whole("attention.head_count"), keys.whole("kda.head_dim"), convolution
        )
    if keys.get("ssm.state_size") is None:  # lightning attention
        return _equal_widths(
            keys.whole("attention.head_count"), keys.whole("attention.key_length"), 0
        )
    v_heads = keys.whole("ssm.time_step_rank")
    inner = keys.whole("ssm.inner_size", high=1 << 24)
    return {
        "linear_k_heads": keys.whole("ssm.group_count", default=1),
        "linear_v_heads": v_heads,
        "linear_k_dim": keys.whole("ssm.state_size"),
        "linear_v_dim": max(1, inner // v_heads),
        "conv_kernel": convolution,
    }


def _equal_widths(heads: int, width: int, convolution: int) -> dict[str, int]:
    """Return the widths of layers whose keys and values have the same heads."""
    return {
        "linear_k_heads": heads,
        "linear_v_heads": heads,
        "linear_k_dim": width,
        "linear_v_dim": width,
        "conv_kernel": convolution,
    }
