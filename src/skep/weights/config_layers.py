"""Which layers of a model keep what: full attention, a sliding window, a linear state, nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skep.weights.config_values import Settings

_MAX_WIDTH = 1 << 20
_MAX_WINDOW = 1 << 40
_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
_LINEAR = ("linear", "mamba", "recurrent", "kda", "gdn", "lightning")
_SLIDING = ("sliding", "chunked", "local")
_NOTHING = ("conv", "none", "mlp", "moe", "no_op", "noop")


@dataclass(frozen=True, slots=True)
class Layers:
    """Counts by kind, and the widths of the linear ones."""

    full: int
    sliding: int = 0
    window: int = 0
    linear: int = 0
    k_heads: int = 0
    v_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    conv: int = 0


def block_pattern(settings: Settings) -> str:
    """Nemotron-H: a letter for each layer, which is either Mamba, attention, an MLP or experts. Empty for others."""
    blocks = settings.list_of("layers_block_type")
    if blocks is None or settings.text("hybrid_override_pattern"):
        return settings.text("hybrid_override_pattern")
    return "".join(_LETTERS.get(str(block), "?") for block in blocks)


def layers_of(settings: Settings, layers: int) -> Layers:
    window = settings.whole(
        "sliding_window", "attention_chunk_size", "sliding_window_size", low=0, high=_MAX_WINDOW, default=0
    )
    full, sliding, linear = _counts(settings, layers, window)
    if sliding and not window:
        raise settings.wrong(
            "sliding_window", settings.get("sliding_window"), "a window, which some of its layers need"
        )
    if not linear:
        return Layers(full, sliding, window if sliding else 0)
    k_heads, v_heads, k_dim, v_dim, conv = _linear_widths(settings)
    return Layers(full, sliding, window if sliding else 0, linear, k_heads, v_heads, k_dim, v_dim, conv)


def _counts(settings: Settings, layers: int, window: int) -> tuple[int, int, int]:
    """How many layers are full, sliding, linear; the rest keeps nothing."""
    if pattern := block_pattern(settings):
        if len(pattern) != layers or set(pattern) - set("M*-E"):
            raise settings.wrong("hybrid_override_pattern", pattern, f"{layers} letters of M * - E")
        return pattern.count("*"), 0, pattern.count("M")
    if (kinds := settings.list_of("layer_types")) is not None:
        return _by_names(settings, [str(kind) for kind in kinds], layers, window)
    if (ratios := settings.list_of("compress_ratios")) is not None and window:  # DeepSeek V4: one entry for r tokens
        kept = sum(1 / ratio for ratio in ratios if type(ratio) is int and ratio > 0)
        full = min(layers, max(1, round(kept / 2)))  # K and V are one
        return full, layers - full, 0
    if (types := settings.list_of("attn_type_list", layers)) is not None:  # MiniMax: 1 full, 0 linear
        linear = sum(1 for kind in types if kind == 0)
        return layers - linear, 0, linear
    if (slides := settings.list_of("hybrid_layer_pattern", layers)) is not None:  # MiMo: 1 sliding, 0 full
        sliding = sum(1 for kind in slides if kind == 1)
        return layers - sliding, sliding, 0
    if (blocks := settings.list_of("block_configs", layers)) is not None:
        idle = sum(1 for block in blocks if _without_attention(block))
        return layers - idle, 0, 0
    if (linear_config := settings.table("linear_attn_config")) is not None:
        kda = linear_config.get("kda_layers")
        linear = len(kda) if isinstance(kda, list) and len(kda) <= layers else 0
        return layers - linear, 0, linear
    if settings.get("full_attention_interval") is not None:
        full = layers // settings.whole("full_attention_interval", high=layers)
        return full, 0, layers - full
    return *_windows(settings, layers, window), 0


def _by_names(settings: Settings, kinds: list[str], layers: int, window: int) -> tuple[int, int, int]:
    if len(kinds) != layers:
        raise settings.wrong("layer_types", kinds, f"a list of {layers}, one for each layer")
    linear = sum(1 for kind in kinds if any(word in kind for word in _LINEAR))
    sliding = sum(1 for kind in kinds if any(word in kind for word in _SLIDING))
    nothing = sum(1 for kind in kinds if kind in _NOTHING)
    if not window and not settings.flag("use_sliding_window", default=True):
        sliding = 0
    return layers - linear - sliding - nothing, sliding, linear


def _windows(settings: Settings, layers: int, window: int) -> tuple[int, int]:
    """Full and sliding layers of a model that states a window and perhaps a pattern."""
    context = settings.whole("max_position_embeddings", high=_MAX_WINDOW, default=_MAX_WINDOW)
    if not window or window >= context or not settings.flag("use_sliding_window", default=True):
        return layers, 0
    model_type = settings.text("model_type").casefold()
    if model_type.startswith("llama4"):
        full = layers // settings.whole("no_rope_layer_interval", high=layers, default=4)
        return full, layers - full
    default = _PATTERN.get(model_type, 0)
    pattern = settings.whole("sliding_window_pattern", "_sliding_window_pattern", low=0, high=layers, default=default)
    if pattern:
        full = layers // pattern
        return full, layers - full
    above = settings.whole("max_window_layers", low=0, high=1 << 16, default=0)  # Qwen 2: layers from here on slide
    full = min(above, layers)
    return full, layers - full


def _without_attention(block: object) -> bool:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    return isinstance(attention, Mapping) and bool(attention.get("no_op") or attention.get("replace_with_linear"))


def _linear_widths(settings: Settings) -> tuple[int, int, int, int, int]:
    """Key heads, value heads, key width, value width, convolution. Mamba-2: groups and state stand for the keys."""
    if settings.get("linear_num_value_heads") is not None:
        return (
            settings.whole("linear_num_key_heads", high=1 << 16),
            settings.whole("linear_num_value_heads", high=1 << 16),
            settings.whole("linear_key_head_dim", high=_MAX_WIDTH),
            settings.whole("linear_value_head_dim", high=_MAX_WIDTH),
            settings.whole("linear_conv_kernel_dim", low=0, high=1024, default=4),
        )
    if (kda := settings.table("linear_attn_config")) is not None:
        inner = Settings(f"{settings.name}, linear_attn_config", kda, kda)
        heads, width = inner.whole("num_heads", high=1 << 16), inner.whole("head_dim", high=_MAX_WIDTH)
        return heads, heads, width, width, inner.whole("short_conv_kernel_size", low=0, high=1024, default=4)
    if settings.get("attn_type_list") is not None:  # lightning attention: a state as wide as a head
        heads = settings.whole("num_attention_heads", high=1 << 16)
        width = settings.whole("head_dim", high=_MAX_WIDTH)
        return heads, heads, width, width, 0
    return (
        settings.whole("n_groups", "mamba_n_groups", high=1 << 16, default=1),
        settings.whole("mamba_num_heads", "mamba_n_heads", high=1 << 16),
        settings.whole("ssm_state_size", "mamba_d_state", high=_MAX_WIDTH),
        settings.whole("mamba_head_dim", "mamba_d_head", high=_MAX_WIDTH),
        settings.whole("conv_kernel", "mamba_d_conv", low=0, high=1024, default=4),
    )
