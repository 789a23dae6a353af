"""A model's geometry from a Hugging Face config.json: by the keys that architectures share, else
by the architecture's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from skep.catalog.gpus import ValueOrigin
from skep.catalog.models import Geometry
from skep.errors import UserError
from skep.planner.setup import parts_of
from skep.units import one_line
from skep.weights.layer_kinds import (
    INDEXED_RATIO,
    blocks_of,
    kinds_of,
    layer_key,
    linear_widths,
    window_of,
)
from skep.weights.model_config import ModelConfig, parsed

_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
_COUNT = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_top_k",
    "moe_k",
)
_SHARED = (
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
    "shared_intermediate_size", "share_expert_dim",
)  # fmt: skip
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
# layers before this one have no experts
_FIRST_EXPERTS = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
_EXPERT_STEPS = (
    "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "expert_layer_period",
)  # fmt: skip
_MAX_LAYERS = 1000
_LONGEST_NAME = 100  # that a file gives to something, in errors
_MAX_VOCAB = 1 << 24
_BITS_OF = {
    "fp8": 8.0,
    "fbgemm_fp8": 8.0,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    "modelopt_fp4": 4.5,
    "awq": 4.0,
    "gptq": 4.0,
}
# by a key that only they have
_UNCOUNTED = {"block_types": "RecurrentGemma", "mb_per_layer": "Phi-4-mini-flash"}
_DRAFT_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules")
_TIED_BY_DEFAULT = ("gemma", "cohere", "lfm2")
_CONVOLUTION = 4  # square matrices around the short convolution of a layer of LFM2
_WRITES_NOTHING = (
    "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
    "ForImageClassification",
)  # fmt: skip


def counted(drawn: Geometry, total: float | None = None) -> Geometry:
    """Return the geometry with its parameters counted. `total`: where it is known from elsewhere.

    A mixture of experts reads its chosen experts for a token.
    """
    # With no total to scale to, parts are what the widths give.
    parts = parts_of(replace(drawn, params_total=0.0))
    if total is None:
        body = parts.attention + parts.linear + parts.mlp + parts.shared + parts.experts
        total = parts.embedding + parts.head + body
    active = total
    if drawn.is_moe:
        active -= parts.experts * (1 - drawn.experts_per_token / drawn.experts)
        active -= 0 if drawn.tied_embeddings else parts.embedding
    return replace(drawn, params_total=total, params_active=active if active > 0 else total)


def block_pattern(settings: ModelConfig) -> str:
    """Return a letter for each layer of Nemotron-H, which is Mamba, attention, an MLP or experts.

    Empty for other models.
    """
    blocks = settings.list_of("layers_block_type")
    if blocks is None or settings.text("hybrid_override_pattern"):
        return settings.text("hybrid_override_pattern")
    return "".join(_LETTERS.get(str(block), "?") for block in blocks)


def layers_of(settings: ModelConfig, layers: int) -> dict[str, Any]:
    """Return the layers by kind, and the widths of the linear ones, by the names of `Geometry`."""
    kinds = kinds_of(settings, layers)
    window = window_of(settings)
    linear = kinds.count("linear")
    # what a layer has compressed it keeps beside its window
    sliding = layers if is_compressed(settings) else kinds.count("sliding")
    if sliding and not window:
        window_value = settings.get("sliding_window")
        raise settings.wrong(
            "sliding_window", window_value, "a window, which some of its layers need"
        )
    return {
        "full_layers": kinds.count("full"),
        "full_entries": kinds.entries,
        "sliding_layers": sliding,
        "sliding_window": window if sliding else 0,
        "linear_layers": linear,
        **(linear_widths(settings) if linear else {}),
    }


def is_compressed(settings: ModelConfig) -> bool:
    """Return whether layers keep one entry for several tokens (DeepSeek V4)."""
    layer_table = layer_key(settings)
    return layer_table is not None and layer_table.form == "ratios"


def experts_of(settings: ModelConfig, layers: int) -> dict[str, Any]:
    """Return the widths of the MLPs, by the names of `Geometry`."""
    count = settings.whole(*_COUNT, low=0, default=0)
    pattern = block_pattern(settings)
    # Without a gate, two matrices of three.
    gated = 2 / 3 if settings.text("mlp_hidden_act") == "relu2" else 1.0
    if count < 2 or (pattern and "E" not in pattern):
        dense = _width(settings) * gated
        if pattern:
            dense = dense * pattern.count("-") / layers
        return {"intermediate": round(dense)}
    with_experts = pattern.count("E") if pattern else _expert_layers(settings, layers)
    if not with_experts:
        return {"intermediate": _dense_width(settings)}
    width = settings.whole("moe_intermediate_size", "moe_ffn_hidden_size", default=0)
    width = width or _width(settings)
    per_token = settings.whole(*_PER_TOKEN, high=count)
    latent = settings.whole("moe_latent_size", "routed_expert_hidden_size", low=0, default=0)
    narrow = latent / settings.whole("hidden_size") if latent else 1.0
    return {
        "shared_intermediate": round(_shared(settings, width) * gated),
        "intermediate": 0 if with_experts >= layers or pattern else _dense_width(settings),
        "experts": count,
        "experts_per_token": per_token,
        "expert_intermediate": max(1, round(width * gated * narrow)),
        "expert_layers": with_experts,
    }


def _width(settings: ModelConfig) -> int:
    if settings.get("block_configs") is not None:
        return _mean_width(settings)
    width = settings.whole("block_ff_dim", default=0)
    width = width or settings.whole("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if not settings.flag("block_auto_adjust_ff_dim", default=False):
        return width
    multiple = settings.whole("block_multiple_of", default=256)  # LFM2: two thirds, rounded up
    return -(-(2 * width // 3) // multiple) * multiple


def _mean_width(settings: ModelConfig) -> int:
    """Return the mean width of unlike blocks. A matrix in place of an MLP is a third of one."""
    layers = settings.whole("num_hidden_layers", high=_MAX_LAYERS)
    hidden = settings.whole("hidden_size")
    widths = [
        hidden / 3 if block.linear_mlp else block.width for block in blocks_of(settings, layers)
    ]
    return max(1, round(sum(widths) / layers))


def _dense_width(settings: ModelConfig) -> int:
    """Return the width of the layers without experts, which may be another."""
    keys = ("intermediate_size_mlp", "dense_intermediate_size")
    return settings.whole(*keys, default=0) or _width(settings)


def _shared(settings: ModelConfig, width: int) -> int:
    if settings.get("enable_moe_block"):  # Gemma 4: a dense MLP beside the experts
        return _width(settings)
    if settings.text("model_type").casefold().startswith("llama4"):
        return width
    shared_width = settings.whole(*_SHARED, low=0, default=0)
    return shared_width or width * settings.whole(*_SHARED_COUNT, low=0, high=1024, default=0)


def _expert_layers(settings: ModelConfig, layers: int) -> int:
    if (kinds := settings.list_of("mlp_layer_types", layers)) is not None:
        return sum(1 for kind in kinds if kind == "sparse")
    if isinstance(settings.get("moe_layer_freq"), list):
        return sum(1 for kind in settings.list_of("moe_layer_freq", layers) or () if kind)
    dense = settings.whole(*_FIRST_EXPERTS, low=0, high=layers, default=0)
    dense += len(settings.list_of("mlp_only_layers") or ())
    step = settings.whole(*_EXPERT_STEPS, high=layers, default=1)
    return max(0, (layers - dense) // step)


class Quantization(msgspec.Struct, frozen=True):
    """What `quantization_config` says; None where it does not."""

    method: str
    bits: float | None  # of one value without its scales
    floats: bool | None = None  # whether values are floating-point numbers


def geometry_from_config(
    text_or_mapping: str | bytes | Mapping[str, Any], name: str, *, title: str | None = None
) -> Geometry:
    """Return a geometry. `name`: what errors call the file, and its title where it has none."""
    document = parsed(text_or_mapping, name)
    settings = ModelConfig.of(document, name)
    _writes(settings)
    _refuse_uncounted(settings)
    title = title or name
    listed = len(block_pattern(settings)) or None
    layers = settings.whole(
        "num_hidden_layers", "n_layer", "num_layers", "n_layers", high=_MAX_LAYERS, default=listed
    )
    hidden = settings.whole("hidden_size", "n_embd", "d_model", "dim")
    tied = settings.text("model_type").casefold().startswith(_TIED_BY_DEFAULT)
    drawn = Geometry(
        id="-".join(title.casefold().split()) or "unnamed",
        title=title,
        hidden=hidden,
        layers=layers,
        vocab=settings.whole("vocab_size", high=_MAX_VOCAB),
        params_total=0.0,
        params_active=0.0,
        **layers_of(settings, layers),
        **_attention(settings, hidden, layers),
        **experts_of(settings, layers),
        mtp_layers=settings.whole(*_DRAFT_LAYERS, low=0, high=64, default=0),
        vision_params=_vision(settings),
        tied_embeddings=settings.flag("tie_word_embeddings", default=tied),
        max_context=settings.whole(
            "max_position_embeddings", "n_positions", high=1 << 40, default=0
        )
        or None,
    )
    quantization = quantization_from_config(document, name)
    bits = None if quantization is None else quantization.bits
    origins = {
        "geometry": ValueOrigin(f"`{name}`", "A"),
        "params_total": ValueOrigin("counted from the widths", "B"),
    }
    return replace(counted(drawn), native_bits=bits, origins=origins)


def _refuse_uncounted(settings: ModelConfig) -> None:
    """Raise for models that would be counted wrongly, by the key that says it."""
    hint = "plan a GGUF file of it, whose tensors tell all of its parameters"
    if layered := settings.whole("hidden_size_per_layer_input", low=0, default=0):
        refusal = settings.wrong(
            "hidden_size_per_layer_input",
            layered,
            "0: skep does not count embeddings of each layer",
        )
        raise UserError(refusal.message, hint=hint)
    for key, family in _UNCOUNTED.items():
        if settings.get(key) is not None:
            raise UserError(
                f"{settings.name}: skep does not count the layers of {family} (`{key}`)", hint=hint
            )


def quantization_from_config(
    text_or_mapping: str | bytes | Mapping[str, Any], name: str
) -> Quantization | None:
    """Return what `quantization_config` says; None: the model is not quantized."""
    settings = ModelConfig.of(parsed(text_or_mapping, name), name)
    document = settings.table("quantization_config")
    if document is None:
        return None
    inner = ModelConfig(settings.name, document, document)
    method = inner.text("quant_method") or inner.text("quant_algo") or "unknown"
    method = one_line(method, _LONGEST_NAME).casefold()
    algorithm = (inner.text("quant_algo") or method).casefold()
    # most weights of DeepSeek V4, whatever the others are in
    if settings.get("expert_dtype") == "fp4":
        method = "mxfp4"
        algorithm = method
    groups = _weight_groups(document)
    bits: float | None = inner.whole("bits", "w_bit", high=32, default=0) or None
    if bits is None:
        bits = _fewest_bits(groups) or _BITS_OF.get(algorithm)
    types = (group["type"] for group in groups if group.get("type") in ("int", "float"))
    kind = next(types, None)
    floats = None if kind is None else kind == "float"
    return Quantization(method, None if bits is None else float(bits), floats)


def _weight_groups(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tables on weights of compressed-tensors and modelopt, which say for each group
    its bits, and whether it holds `int` or `float`.
    """
    groups = document.get("config_groups")
    if not isinstance(groups, Mapping):
        return []
    weights = (group.get("weights") for group in groups.values() if isinstance(group, Mapping))
    return [table for table in weights if isinstance(table, Mapping)]


def _fewest_bits(groups: list[Mapping[str, Any]]) -> float | None:
    """Return the fewest of any group, which is where most weights are."""
    stated: list[Any] = [group.get("num_bits") for group in groups]
    counts = [float(bits) for bits in stated if type(bits) in (int, float) and 1 <= bits <= 32]
    return min(counts, default=None)


def read_config(path: Path) -> Geometry:
    """Return the geometry in a config.json, or in a folder with one, whose name is the model's."""
    is_file = path.name == "config.json" and not path.is_dir()
    folder = path.parent if is_file else path
    title = folder.name or folder.resolve().name or path.name
    return geometry_from_config(*_read(path), title=title)


def read_quantization(path: Path) -> Quantization | None:
    return quantization_from_config(*_read(path))


def _read(path: Path) -> tuple[bytes, str]:
    """Return the text, and what the file is called."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"there is no file `{file}`", hint="name a config.json or the folder it lies in"
        )
    try:
        with file.open("rb") as opened:
            return opened.read(8 << 20), str(file)
    except OSError as error:
        raise UserError(f"cannot read `{file}`: {error.strerror or error}") from error


def _writes(settings: ModelConfig) -> None:
    """Raise for encoders: they write no tokens, so that no speed can be planned."""
    kinds = settings.outer.get("architectures")
    names = []
    if isinstance(kinds, list):
        names = [name for name in kinds if isinstance(name, str)]
    kind = settings.outer.get("model_type")
    mute = bool(names) and all(name.endswith(_WRITES_NOTHING) for name in names)
    if mute or (isinstance(kind, str) and "bert" in kind.casefold()):
        described = one_line(", ".join(names) or str(kind), _LONGEST_NAME)
        raise UserError(
            f"{settings.name} describes a model that writes no text: {described}",
            hint="plans are for models that generate tokens",
        )


def _attention(settings: ModelConfig, hidden: int, layers: int) -> dict[str, Any]:
    heads = settings.whole("num_attention_heads", "n_head", "num_heads", "n_heads")
    if is_compressed(settings):
        return _compressed_attention(settings, hidden, heads, layers)
    rank = settings.whole("kv_lora_rank", low=0, default=0)
    if rank:
        head_dim = settings.whole("v_head_dim", "qk_nope_head_dim", "head_dim")
        rope = settings.whole("qk_rope_head_dim", low=0, default=0)
        return {
            "heads": heads,
            "kv_heads": heads,
            "head_dim": head_dim,
            "mla_rank": rank,
            "mla_rope_dim": rope,
        }
    head_dim = settings.whole("head_dim", "kv_channels", default=0)
    if not head_dim:
        if hidden % heads:
            raise settings.wrong(
                "num_attention_heads", heads, f"a divisor of the hidden size {hidden}"
            )
        head_dim = hidden // heads
    if settings.get("block_configs") is not None:
        return _attention_of_blocks(settings, hidden, heads, head_dim, layers)
    keys = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
    kv_heads = settings.whole(*keys, default=heads)
    if heads % kv_heads:
        raise settings.wrong("num_key_value_heads", kv_heads, f"a divisor of the {heads} heads")
    width = _mean_of_key_and_value(settings, head_dim, "v_head_dim")
    widths: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": width}
    if settings.get("swa_num_key_value_heads") is not None:
        sliding_dim = settings.whole("swa_head_dim", default=head_dim)
        widths |= {
            "full_kv_heads": kv_heads,
            "full_head_dim": width,
            "kv_heads": settings.whole("swa_num_key_value_heads"),
            "head_dim": _mean_of_key_and_value(settings, sliding_dim, "swa_v_head_dim"),
        }
    elif settings.get("global_head_dim") is not None:
        widths["full_head_dim"] = settings.whole("global_head_dim")
        widths["full_kv_heads"] = settings.whole("num_global_key_value_heads", default=kv_heads)
    elif settings.get("conv_L_cache") is not None:
        kinds = kinds_of(settings, layers)
        attending = kinds.count("full") * 2 * hidden * head_dim * (heads + kv_heads)
        widths["attention_params"] = float(
            attending + kinds.count("none") * _CONVOLUTION * hidden * hidden
        )
    return widths


def _mean_of_key_and_value(settings: ModelConfig, key_dim: int, name: str) -> int:
    """Return the mean width of keys and values, which differ in MiMo.

    Memory and weights are those of heads as wide as that.
    """
    return max(1, (key_dim + settings.whole(name, default=key_dim)) // 2)


def _compressed_attention(
    settings: ModelConfig, hidden: int, heads: int, layers: int
) -> dict[str, Any]:
    """Return the attention of DeepSeek V4: one head is key and value at once, queries and output
    go through narrow matrices.
    """
    width = settings.whole("head_dim")
    query_rank = settings.whole("q_lora_rank")
    output_rank = settings.whole("o_lora_rank")
    queries = (hidden + heads * width) * query_rank
    output = (
        heads * width * output_rank + settings.whole("o_groups", default=1) * output_rank * hidden
    )
    index_heads = settings.whole("index_n_heads", default=64)
    index_width = settings.whole("index_head_dim", default=128)
    index = query_rank * index_heads * index_width + hidden * (index_heads + 4 * index_width)
    counted_layers = 0
    for ratio in (settings.list_of("compress_ratios") or ())[:layers]:
        counted_layers += queries + output + hidden * width
        # Its windows overlap, so it compresses with two sets of matrices.
        if ratio == INDEXED_RATIO:
            counted_layers += 4 * hidden * width + index
        elif ratio:
            counted_layers += 2 * hidden * width
    return {
        "heads": heads,
        "kv_heads": 1,
        "head_dim": width,
        "mla_rank": width,
        "attention_params": float(counted_layers),
    }


def _attention_of_blocks(
    settings: ModelConfig, hidden: int, heads: int, head_dim: int, layers: int
) -> dict[str, Any]:
    blocks = blocks_of(settings, layers)
    kv_heads = max(block.kv_heads for block in blocks)
    widths: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    if all(block.kv_heads in (0, kv_heads) and not block.linear_attention for block in blocks):
        return widths
    params = sum(
        2 * hidden * head_dim * (heads + block.kv_heads) for block in blocks if block.kv_heads
    )
    params += hidden * hidden * sum(1 for block in blocks if block.linear_attention)
    return {**widths, "attention_params": float(params)}


def _vision(settings: ModelConfig) -> float:
    """Return the parameters of the vision tower, near enough: attention and MLP of its layers. The
    projector is small beside them.
    """
    tower = settings.table("vision_config")
    if tower is None:
        return 0.0
    inner = ModelConfig(f"{settings.name[:-1]}, vision_config`", tower, tower)
    keys = ("depth", "num_hidden_layers", "layers", "vt_num_hidden_layers")
    depth = inner.whole(*keys, low=0, high=_MAX_LAYERS, default=0)
    width = inner.whole("hidden_size", "width", "embed_dim", "vt_hidden_size", low=0, default=0)
    mlp = inner.whole("intermediate_size", "vt_intermediate_size", low=0, default=4 * width)
    return float(depth * (4 * width * width + 2 * width * mlp))
