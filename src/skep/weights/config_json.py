"""A model's geometry from a Hugging Face config.json: by the keys that architectures share, by name where not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from skep.catalog.gpus import ValueOrigin
from skep.catalog.models import Geometry
from skep.errors import UserError
from skep.planner.setup import parts_of

_HINT = "take the config.json that lies beside the model's weights"
_INNER = ("text_config", "llm_config", "language_config")
_MAX_WINDOW = 1 << 40
_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
# Layers that differ from each other in ways of their own: a guess would be wrong by gigabytes.
_ODD_LAYERS = ("block_configs", "compress_ratios", "hybrid_layer_pattern", "linear_attn_config")
_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
_LINEAR = ("linear", "mamba", "recurrent", "kda", "gdn", "lightning")
_SLIDING = ("sliding", "chunked", "local")
_NOTHING = ("conv", "none", "mlp", "moe", "no_op", "noop")
_COUNT = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_k")
_SHARED = (
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
)  # fmt: skip
_MAX_WIDTH = 1 << 20
_MAX_LAYERS = 1000
_MAX_VOCAB = 1 << 24
_BITS_OF = {"fp8": 8.0, "fbgemm_fp8": 8.0, "mxfp4": 4.25, "nvfp4": 4.5, "modelopt_fp4": 4.5, "awq": 4.0, "gptq": 4.0}
_DRAFT_LAYERS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules")
_TIED_BY_DEFAULT = ("gemma", "cohere")
_WRITES_NOTHING = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
                   "ForImageClassification")  # fmt: skip


def counted(drawn: Geometry, total: float | None = None) -> Geometry:
    """`total` where it is known better than from the widths. A mixture reads its chosen experts for a token."""
    parts = parts_of(replace(drawn, params_total=0.0))  # with no total to scale to, parts are what the widths give
    if total is None:
        body = parts.attention + parts.linear + parts.mlp + parts.shared + parts.experts
        total = parts.embedding + parts.head + body
    active = total
    if drawn.is_moe:
        active -= parts.experts * (1 - drawn.experts_per_token / drawn.experts)
        active -= 0 if drawn.tied_embeddings else parts.embedding
    return replace(drawn, params_total=total, params_active=active if active > 0 else total)


def parsed(text_or_mapping: str | bytes | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if isinstance(text_or_mapping, Mapping):
        return text_or_mapping
    try:
        document = json.loads(text_or_mapping)
    except (ValueError, RecursionError) as error:
        what = f" in line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"`{name}` is not JSON{what}", hint=_HINT) from None
    if not isinstance(document, dict):
        raise UserError(f"`{name}` holds no object of settings", hint=_HINT)
    return document


class ModelConfig(msgspec.Struct, frozen=True):
    """The text model's settings, and those around them: a key is looked for inside first. `null` is absent."""

    name: str  # what errors call the file
    inner: Mapping[str, Any]
    outer: Mapping[str, Any]
    prefix: str = ""  # of its keys, in errors
    hint: str = _HINT

    @classmethod
    def of(cls, document: Mapping[str, Any], name: str) -> ModelConfig:
        inner = next((document[key] for key in _INNER if isinstance(document.get(key), Mapping)), document)
        return cls(f"`{name}`", inner, document)

    def get(self, *keys: str) -> Any:
        """Return the first of these keys that has a value."""
        for settings in (self.inner, self.outer):
            for key in keys:
                if settings.get(key) is not None:
                    return settings[key]
        return None

    def whole(self, *keys: str, low: int = 1, high: int = _MAX_WIDTH, default: int | None = None) -> int:
        """Return a whole number within bounds. With no default, the first key must be there."""
        found = next((key for key in keys if self.get(key) is not None), None)
        if found is None:
            if default is None:
                raise self.missing(keys[0])
            return default
        value = self.get(found)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(found, value, f"a whole number from {low} to {high}")
        return value

    def typed(self, key: str, kind: Any, wanted: str) -> Any:
        """Return a value of this type; None where there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(key, value, wanted)
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.typed(key, bool, "true or false")
        return default if value is None else bool(value)

    def text(self, key: str) -> str:
        return self.typed(key, str, "a text") or ""

    def list_of(self, key: str, length: int | None = None) -> Sequence[Any] | None:
        wanted = "a list" if length is None else f"a list of {length}, one for each layer"
        value: list[Any] | None = self.typed(key, list, wanted)
        if value is not None and length is not None and len(value) != length:
            raise self.wrong(key, value, wanted)
        return value

    def table(self, key: str) -> Mapping[str, Any] | None:
        value = self.get(key)
        return value if isinstance(value, Mapping) else None

    def wrong(self, key: str, value: Any, wanted: str) -> UserError:
        shown = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        return UserError(f"{self.name}: `{self.prefix}{key}` is {shown}, not {wanted}", hint=self.hint)

    def missing(self, key: str) -> UserError:
        return UserError(f"{self.name} has no `{self.prefix}{key}`", hint=self.hint)


def block_pattern(settings: ModelConfig) -> str:
    """Nemotron-H: a letter for each layer, which is either Mamba, attention, an MLP or experts. Empty for others."""
    blocks = settings.list_of("layers_block_type")
    if blocks is None or settings.text("hybrid_override_pattern"):
        return settings.text("hybrid_override_pattern")
    return "".join(_LETTERS.get(str(block), "?") for block in blocks)


def layers_of(settings: ModelConfig, layers: int) -> dict[str, Any]:
    """Return the layers by kind, and the widths of the linear ones, by the names of `Geometry`."""
    odd = next((key for key in _ODD_LAYERS if settings.get(key) is not None), None)
    if odd is not None or settings.text("model_type").casefold().startswith("llama4"):
        what = f"`{odd}`" if odd else "Llama 4's layers"
        raise UserError(f"{settings.name}: skep does not read {what}", hint="name a model of `skep catalog models`")
    keys = ("sliding_window", "attention_chunk_size", "sliding_window_size")
    window = settings.whole(*keys, low=0, high=_MAX_WINDOW, default=0)
    full, sliding, linear = _counts(settings, layers, window)
    if sliding and not window:
        said = settings.get("sliding_window")
        raise settings.wrong("sliding_window", said, "a window, which some of its layers need")
    found = {"full_layers": full, "sliding_layers": sliding, "sliding_window": window if sliding else 0}
    names = ("linear_k_heads", "linear_v_heads", "linear_k_dim", "linear_v_dim", "conv_kernel")
    widths = dict(zip(names, _linear_widths(settings), strict=True)) if linear else {}
    return {**found, "linear_layers": linear, **widths}


def _counts(settings: ModelConfig, layers: int, window: int) -> tuple[int, int, int]:
    """Return how many layers are full, sliding, linear; the rest keeps nothing."""
    if pattern := block_pattern(settings):
        if len(pattern) != layers or set(pattern) - set("M*-E"):
            raise settings.wrong("hybrid_override_pattern", pattern, f"{layers} letters of M * - E")
        return pattern.count("*"), 0, pattern.count("M")
    if (kinds := settings.list_of("layer_types", layers)) is not None:
        return _by_names(settings, [str(kind) for kind in kinds], layers, window)
    if (types := settings.list_of("attn_type_list", layers)) is not None:  # MiniMax: 1 full, 0 linear
        linear = sum(1 for kind in types if kind == 0)
        return layers - linear, 0, linear
    if settings.get("full_attention_interval") is not None:
        full = layers // settings.whole("full_attention_interval", high=layers)
        return full, 0, layers - full
    return *_windows(settings, layers, window), 0


def _by_names(settings: ModelConfig, kinds: list[str], layers: int, window: int) -> tuple[int, int, int]:
    linear = sum(1 for kind in kinds if any(word in kind for word in _LINEAR))
    sliding = sum(1 for kind in kinds if any(word in kind for word in _SLIDING))
    nothing = sum(1 for kind in kinds if kind in _NOTHING)
    if not window and not settings.flag("use_sliding_window", default=True):
        sliding = 0
    return layers - linear - sliding - nothing, sliding, linear


def _windows(settings: ModelConfig, layers: int, window: int) -> tuple[int, int]:
    """Full and sliding layers of a model that states a window and perhaps a pattern."""
    context = settings.whole("max_position_embeddings", high=_MAX_WINDOW, default=_MAX_WINDOW)
    if not window or window >= context or not settings.flag("use_sliding_window", default=True):
        return layers, 0
    model_type = settings.text("model_type").casefold()
    default = _PATTERN.get(model_type, 0)
    pattern = settings.whole("sliding_window_pattern", "_sliding_window_pattern", low=0, high=layers, default=default)
    above = settings.whole("max_window_layers", low=0, default=0)  # Qwen 2: layers from here on slide
    full = layers // pattern if pattern else min(above, layers)
    return full, layers - full


def _linear_widths(settings: ModelConfig) -> tuple[int, ...]:
    """Key heads, value heads, key width, value width, convolution. Mamba-2: groups and state stand for the keys."""
    if settings.get("linear_num_value_heads") is not None:
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        widths = tuple(settings.whole(f"linear_{name}") for name in names)
        return *widths, settings.whole("linear_conv_kernel_dim", low=0, high=1024, default=4)
    return (
        settings.whole("n_groups", "mamba_n_groups", default=1),
        settings.whole("mamba_num_heads", "mamba_n_heads"),
        settings.whole("ssm_state_size", "mamba_d_state"),
        settings.whole("mamba_head_dim", "mamba_d_head"),
        settings.whole("conv_kernel", "mamba_d_conv", low=0, high=1024, default=4),
    )


def experts_of(settings: ModelConfig, layers: int) -> dict[str, Any]:
    """Return the widths of the MLPs, by the names of `Geometry`."""
    count = settings.whole(*_COUNT, low=0, default=0)
    pattern = block_pattern(settings)
    gated = 1.0 if settings.text("mlp_hidden_act") != "relu2" else 2 / 3
    if count < 2 or (pattern and "E" not in pattern):
        dense = _width(settings) * gated
        return {"intermediate": round(dense * pattern.count("-") / layers) if pattern else round(dense)}
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
    return settings.whole("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")


def _dense_width(settings: ModelConfig) -> int:
    """Of the layers without experts, where those have a width of their own."""
    keys = ("intermediate_size_mlp", "dense_intermediate_size")
    return settings.whole(*keys, default=0) or _width(settings)


def _shared(settings: ModelConfig, width: int) -> int:
    if settings.get("enable_moe_block"):  # Gemma 4: a dense MLP beside the experts
        return _width(settings)
    said = settings.whole(*_SHARED, low=0, default=0)
    return said or width * settings.whole("n_shared_experts", "num_shared_experts", low=0, high=1024, default=0)


def _expert_layers(settings: ModelConfig, layers: int) -> int:
    if (kinds := settings.list_of("mlp_layer_types", layers)) is not None:
        return sum(1 for kind in kinds if kind == "sparse")
    if isinstance(settings.get("moe_layer_freq"), list):
        return sum(1 for kind in settings.list_of("moe_layer_freq", layers) or () if kind)
    dense = settings.whole("first_k_dense_replace", low=0, high=layers, default=0)
    dense += len(settings.list_of("mlp_only_layers") or ())
    step = settings.whole("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", high=layers, default=1)
    return max(0, (layers - dense) // step)


class Quantization(msgspec.Struct, frozen=True):
    """What `quantization_config` says; None where it does not."""

    method: str
    bits: float | None  # of one value without its scales
    floats: bool | None = None  # whether values are floating-point numbers


def geometry_from_config(
    text_or_mapping: str | bytes | Mapping[str, Any], name: str, *, title: str | None = None
) -> Geometry:
    """`name` is what errors call the file, and the geometry's title where it has no other."""
    document = parsed(text_or_mapping, name)
    settings = ModelConfig.of(document, name)
    _writes(settings)
    title = title or name
    listed = len(block_pattern(settings)) or None
    layers = settings.whole("num_hidden_layers", "n_layer", "num_layers", "n_layers", high=_MAX_LAYERS, default=listed)
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
        **_attention(settings, hidden),
        **layers_of(settings, layers),
        **experts_of(settings, layers),
        mtp_layers=settings.whole(*_DRAFT_LAYERS, low=0, high=64, default=0),
        vision_params=_vision(settings),
        tied_embeddings=settings.flag("tie_word_embeddings", default=tied),
        max_context=settings.whole("max_position_embeddings", "n_positions", high=1 << 40, default=0) or None,
    )
    quantization = quantization_from_config(document, name)
    bits = None if quantization is None else quantization.bits
    origins = {"geometry": ValueOrigin(f"`{name}`", "A"), "params_total": ValueOrigin("counted from the widths", "B")}
    return replace(counted(drawn), native_bits=bits, origins=origins)


def quantization_from_config(text_or_mapping: str | bytes | Mapping[str, Any], name: str) -> Quantization | None:
    settings = ModelConfig.of(parsed(text_or_mapping, name), name)
    said = settings.table("quantization_config")
    if said is None:
        return None
    inner = ModelConfig(settings.name, said, said)
    method = (inner.text("quant_method") or inner.text("quant_algo") or "unknown").casefold()
    bits: float | None = inner.whole("bits", "w_bit", high=32, default=0) or None
    # compressed-tensors and modelopt say for each group its bits, and whether it holds `int` or `float`
    groups = said["config_groups"].values() if isinstance(said.get("config_groups"), Mapping) else ()
    weights = [group["weights"] for group in groups if isinstance(group, Mapping) and "weights" in group]
    told = [one for one in weights if isinstance(one, Mapping)]
    if bits is None:  # the fewest of any group, which is where most weights are
        stated: list[Any] = [one.get("num_bits") for one in told]
        few = min((float(n) for n in stated if type(n) in (int, float) and 1 <= n <= 32), default=None)
        bits = few or _BITS_OF.get((inner.text("quant_algo") or method).casefold())
    floats = next((one["type"] == "float" for one in told if one.get("type") in ("int", "float")), None)
    return Quantization(method, None if bits is None else float(bits), floats)


def read_config(path: Path) -> Geometry:
    """Of a config.json, or of the folder it lies in, by which it is called: that is the model's name."""
    folder = path.parent if path.name == "config.json" and not path.is_dir() else path
    title = folder.name or folder.resolve().name or path.name
    return geometry_from_config(*_read(path), title=title)


def read_quantization(path: Path) -> Quantization | None:
    return quantization_from_config(*_read(path))


def _read(path: Path) -> tuple[bytes, str]:
    """Return the text, and what the file is called."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"there is no file `{file}`", hint="name a config.json or the folder it lies in")
    try:
        with file.open("rb") as opened:
            return opened.read(8 << 20), str(file)
    except OSError as error:
        raise UserError(f"cannot read `{file}`: {error.strerror or error}") from error


def _writes(settings: ModelConfig) -> None:
    """Raises on encoders: they write no tokens, so no speed that is planned here applies to them."""
    kinds = settings.outer.get("architectures")
    names = [name for name in kinds if isinstance(name, str)] if isinstance(kinds, list) else []
    kind = settings.outer.get("model_type")
    mute = bool(names) and all(name.endswith(_WRITES_NOTHING) for name in names)
    if mute or (isinstance(kind, str) and "bert" in kind.casefold()):
        what = ", ".join(names) or str(kind)
        raise UserError(f"{settings.name} describes a model that writes no text: {what}",
                        hint="plans are for models that generate tokens")  # fmt: skip


def _attention(settings: ModelConfig, hidden: int) -> dict[str, Any]:
    heads = settings.whole("num_attention_heads", "n_head", "num_heads", "n_heads")
    rank = settings.whole("kv_lora_rank", low=0, default=0)
    if rank:
        head_dim = settings.whole("v_head_dim", "qk_nope_head_dim", "head_dim")
        rope = settings.whole("qk_rope_head_dim", low=0, default=0)
        return {"heads": heads, "kv_heads": heads, "head_dim": head_dim, "mla_rank": rank, "mla_rope_dim": rope}
    keys = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
    kv_heads = settings.whole(*keys, default=heads)
    head_dim = settings.whole("head_dim", "kv_channels", default=0)
    if not head_dim:
        if hidden % heads:
            raise settings.wrong("num_attention_heads", heads, f"a divisor of the hidden size {hidden}")
        head_dim = hidden // heads
    if heads % kv_heads:
        raise settings.wrong("num_key_value_heads", kv_heads, f"a divisor of the {heads} heads")
    found: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    if settings.get("global_head_dim") is not None:
        found["full_head_dim"] = settings.whole("global_head_dim")
        found["full_kv_heads"] = settings.whole("num_global_key_value_heads", default=kv_heads)
    return found


def _vision(settings: ModelConfig) -> float:
    """Near enough: attention and MLP of the tower's layers; the projector is small beside them."""
    tower = settings.table("vision_config")
    if tower is None:
        return 0.0
    inner = ModelConfig(f"{settings.name[:-1]}, vision_config`", tower, tower)
    depth = inner.whole("depth", "num_hidden_layers", "layers", low=0, high=_MAX_LAYERS, default=0)
    width = inner.whole("hidden_size", "width", "embed_dim", low=0, default=0)
    mlp = inner.whole("intermediate_size", low=0, default=4 * width)
    return float(depth * (4 * width * width + 2 * width * mlp))
