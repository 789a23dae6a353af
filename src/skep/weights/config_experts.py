"""How wide a model's MLPs and experts are, and in which layers. Widths are those of a gated MLP of three matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skep.weights.config_layers import block_pattern
from skep.weights.config_values import Settings

_MAX_WIDTH = 1 << 20
_MAX_EXPERTS = 1 << 16
_COUNT = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_k")
_SHARED = (
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
    "share_expert_dim",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Experts:
    dense_width: int
    count: int = 0
    per_token: int = 0
    width: int = 0
    layers: int = 0
    shared_width: int = 0


def experts_of(settings: Settings, layers: int) -> Experts:
    count = settings.whole(*_COUNT, low=0, high=_MAX_EXPERTS, default=0)
    pattern = block_pattern(settings)
    gated = 1.0 if settings.text("mlp_hidden_act") != "relu2" else 2 / 3
    if count < 2 or (pattern and "E" not in pattern):
        dense = _width(settings) * gated
        return Experts(round(dense * pattern.count("-") / layers) if pattern else round(dense))
    with_experts = pattern.count("E") if pattern else _expert_layers(settings, layers)
    if not with_experts:
        return Experts(_dense_width(settings))
    width = settings.whole("moe_intermediate_size", "moe_ffn_hidden_size", high=_MAX_WIDTH, default=0) or _width(
        settings
    )
    per_token = settings.whole(*_PER_TOKEN, high=count)
    latent = settings.whole("moe_latent_size", "routed_expert_hidden_size", low=0, high=_MAX_WIDTH, default=0)
    narrow = latent / settings.whole("hidden_size", high=_MAX_WIDTH) if latent else 1.0
    shared = _shared(settings, width)
    dense = 0 if with_experts >= layers or pattern else _dense_width(settings)
    return Experts(
        dense, count, per_token, max(1, round(width * gated * narrow)), with_experts, round(shared * gated)
    )  # fmt: skip


def _width(settings: Settings) -> int:
    """Some models have one width a layer: their mean."""
    said = settings.get("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if isinstance(said, list) and said and all(type(width) is int and 0 < width <= _MAX_WIDTH for width in said):
        return round(sum(said) / len(said))
    if said is None and (blocks := settings.list_of("block_configs")):
        return _mean_of_blocks(settings, blocks)
    return settings.whole("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", high=_MAX_WIDTH)


def _mean_of_blocks(settings: Settings, blocks: object) -> int:
    """nemotron-nas: a multiple of the hidden size for each layer, two thirds of it rounded up to 256."""
    hidden = settings.whole("hidden_size", high=_MAX_WIDTH)
    widths = []
    for block in blocks if isinstance(blocks, list) else ():
        ffn = block.get("ffn") if isinstance(block, Mapping) else None
        multiple = ffn.get("ffn_mult") if isinstance(ffn, Mapping) else None
        if isinstance(multiple, int | float) and 0 < multiple < 64:
            widths.append(-(-int(2 * multiple * hidden / 3) // 256) * 256)
        else:
            widths.append(0)
    if not any(widths):
        raise settings.wrong("block_configs", blocks, "a list with `ffn_mult` in its blocks")
    return round(sum(widths) / len(widths))


def _dense_width(settings: Settings) -> int:
    """Of the layers without experts, where those have a width of their own."""
    return settings.whole("intermediate_size_mlp", "dense_intermediate_size", high=_MAX_WIDTH, default=0) or _width(
        settings
    )


def _shared(settings: Settings, width: int) -> int:
    if settings.get("enable_moe_block"):  # Gemma 4: a dense MLP beside the experts
        return _width(settings)
    if settings.text("model_type").casefold().startswith("llama4"):
        return width
    said = settings.whole(*_SHARED, low=0, high=_MAX_WIDTH, default=0)
    if said:
        return said
    return width * settings.whole("n_shared_experts", "num_shared_experts", low=0, high=1024, default=0)


def _expert_layers(settings: Settings, layers: int) -> int:
    if (kinds := settings.list_of("mlp_layer_types", layers)) is not None:
        return sum(1 for kind in kinds if kind == "sparse")
    if isinstance(settings.get("moe_layer_freq"), list):
        return sum(1 for kind in settings.list_of("moe_layer_freq", layers) or () if kind)
    dense = settings.whole("first_k_dense_replace", low=0, high=layers, default=0)
    dense += len(settings.list_of("mlp_only_layers") or ())
    step = settings.whole("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", high=layers, default=1)
    return max(0, (layers - dense) // step)
