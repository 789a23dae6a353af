"""A model's geometry from a Hugging Face config.json: by the keys that architectures share, by name where they differ.

Parameters are counted from the widths, as a configuration does not state them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skep.catalog.devices import Origin
from skep.catalog.geometry import Geometry
from skep.errors import UserError
from skep.weights.config_experts import Experts, experts_of
from skep.weights.config_layers import Layers, block_pattern, layers_of
from skep.weights.config_values import Settings, parsed
from skep.weights.counting import counted

_MAX_WIDTH = 1 << 20
_MAX_LAYERS = 1000
_MAX_VOCAB = 1 << 24
_METHOD_BITS = {
    "fp8": 8.0,
    "fbgemm_fp8": 8.0,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    "modelopt_fp4": 4.5,
    "awq": 4.0,
    "gptq": 4.0,
}
_TIED_BY_DEFAULT = ("gemma", "cohere")
_ENCODERS = (
    "bert", "roberta", "xlm-roberta", "distilbert", "deberta", "deberta-v2", "electra", "albert", "modernbert",
    "nomic_bert", "mpnet", "camembert", "xlnet", "clip", "siglip", "vit",
)  # fmt: skip
_WRITES_NOTHING = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
                   "ForImageClassification")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantization:
    """What `quantization_config` says. `bits`: of one value without its scales; None where it does not say.

    `floats`: whether the values are floating-point numbers; None where it does not say.
    """

    method: str
    bits: float | None
    floats: bool | None = field(default=None, compare=False)


def geometry_from_config(
    text_or_mapping: str | bytes | Mapping[str, Any], name: str, *, title: str | None = None
) -> Geometry:
    """`name` is what errors call the file, and the geometry's title where it has no other."""
    document = parsed(text_or_mapping, name)
    settings = Settings.of(document, name)
    _writes(settings)
    title = title or name
    listed = len(block_pattern(settings)) or None
    layers = settings.whole("num_hidden_layers", "n_layer", "num_layers", "n_layers", high=_MAX_LAYERS, default=listed)
    hidden = settings.whole("hidden_size", "n_embd", "d_model", "dim", high=_MAX_WIDTH)
    kinds, experts = layers_of(settings, layers), experts_of(settings, layers)
    drawn = Geometry(
        id="-".join(title.casefold().split()) or "unnamed",
        title=title,
        hidden=hidden,
        layers=layers,
        vocab=settings.whole("vocab_size", high=_MAX_VOCAB),
        params_total=0.0,
        params_active=0.0,
        **_attention(settings, hidden),
        **_kinds(kinds),
        **_mlp(experts),
        mtp_layers=_draft_layers(settings),
        vision_params=_vision(settings),
        tied_embeddings=settings.flag("tie_word_embeddings", default=_tied_by_default(settings)),
        max_context=settings.whole("max_position_embeddings", "n_positions", high=1 << 40, default=0) or None,
    )
    quantization = quantization_from_config(document, name)
    return replace(
        counted(drawn),
        native_bits=None if quantization is None else quantization.bits,
        origins={"geometry": Origin(f"`{name}`", "A"), "params_total": Origin("counted from the widths", "B")},
    )


def quantization_from_config(text_or_mapping: str | bytes | Mapping[str, Any], name: str) -> Quantization | None:
    settings = Settings.of(parsed(text_or_mapping, name), name)
    said = settings.table("quantization_config")
    if said is None:
        return None
    inner = Settings(name, said, said)
    method = (inner.text("quant_method") or inner.text("quant_algo") or "unknown").casefold()
    bits = inner.number("bits", low=1, high=32) or inner.number("w_bit", low=1, high=32)
    if bits is None:
        bits = _compressed_bits(said) or _METHOD_BITS.get((inner.text("quant_algo") or method).casefold())
    return Quantization(method, bits, _floats(said))


def read_config(path: Path) -> Geometry:
    """Of a config.json, or of the folder it lies in."""
    return geometry_from_config(_text(path), str(_file(path)), title=_shown(path))


def read_quantization(path: Path) -> Quantization | None:
    return quantization_from_config(_text(path), str(_file(path)))


def _file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def _text(path: Path) -> bytes:
    file = _file(path)
    if not file.is_file():
        raise UserError(f"there is no file `{file}`", hint="name a config.json or the folder it lies in")
    try:
        with file.open("rb") as opened:
            return opened.read(8 << 20)
    except OSError as error:
        raise UserError(f"cannot read `{file}`: {error.strerror or error}") from error


def _shown(path: Path) -> str:
    """A config.json is called by its folder: that is the model's name, also where the folder is this one."""
    folder = path.parent if path.name == "config.json" and not path.is_dir() else path
    return folder.name or folder.resolve().name or path.name


def _writes(settings: Settings) -> None:
    """Raises on encoders: they write no tokens, so no speed that is planned here applies to them."""
    kinds = settings.outer.get("architectures")
    names = [name for name in kinds if isinstance(name, str)] if isinstance(kinds, list) else []
    kind = settings.outer.get("model_type")
    mute = bool(names) and all(name.endswith(_WRITES_NOTHING) for name in names)
    if mute or (isinstance(kind, str) and kind.casefold() in _ENCODERS):
        what = ", ".join(names) or str(kind)
        raise UserError(f"`{settings.name}` is of a model that writes no text: {what}",
                        hint="plans are for models that generate tokens")  # fmt: skip


def _attention(settings: Settings, hidden: int) -> dict[str, Any]:
    heads = settings.whole("num_attention_heads", "n_head", "num_heads", "n_heads", high=1 << 16)
    rank = settings.whole("kv_lora_rank", low=0, high=_MAX_WIDTH, default=0)
    if rank:
        head_dim = settings.whole("v_head_dim", "qk_nope_head_dim", "head_dim", high=_MAX_WIDTH)
        rope = settings.whole("qk_rope_head_dim", low=0, high=_MAX_WIDTH, default=0)
        return {"heads": heads, "kv_heads": heads, "head_dim": head_dim, "mla_rank": rank, "mla_rope_dim": rope}
    sliding_kv = settings.get("swa_num_key_value_heads")
    kv_heads = settings.whole(
        "num_key_value_heads", "num_kv_heads", "n_head_kv", high=1 << 16, default=_grouped(settings, heads)
    )
    head_dim = settings.whole("head_dim", "kv_channels", high=_MAX_WIDTH, default=0)
    if not head_dim:
        if hidden % heads:
            raise settings.wrong("num_attention_heads", heads, f"a divisor of the hidden size {hidden}")
        head_dim = hidden // heads
    if heads % kv_heads:
        raise settings.wrong("num_key_value_heads", kv_heads, f"a divisor of the {heads} heads")
    found: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    if sliding_kv is not None:
        found |= {
            "full_kv_heads": kv_heads,
            "full_head_dim": head_dim,
            "kv_heads": settings.whole("swa_num_key_value_heads", high=1 << 16),
            "head_dim": settings.whole("swa_head_dim", high=_MAX_WIDTH, default=head_dim),
        }
    elif settings.get("global_head_dim") is not None:
        found["full_head_dim"] = settings.whole("global_head_dim", high=_MAX_WIDTH)
        found["full_kv_heads"] = settings.whole("num_global_key_value_heads", high=1 << 16, default=kv_heads)
    return found


def _grouped(settings: Settings, heads: int) -> int:
    """Where KV heads are not stated, every head has its own; nemotron-nas states them by block."""
    for block in settings.list_of("block_configs") or ():
        attention = block.get("attention") if isinstance(block, Mapping) else None
        group = attention.get("n_heads_in_group") if isinstance(attention, Mapping) else None
        if isinstance(group, int) and not isinstance(group, bool) and 0 < group <= heads:
            return heads // group
    return heads


def _kinds(kinds: Layers) -> dict[str, Any]:
    return {
        "full_layers": kinds.full,
        "sliding_layers": kinds.sliding,
        "sliding_window": kinds.window,
        "linear_layers": kinds.linear,
        "linear_k_heads": kinds.k_heads,
        "linear_v_heads": kinds.v_heads,
        "linear_k_dim": kinds.k_dim,
        "linear_v_dim": kinds.v_dim,
        "conv_kernel": kinds.conv,
    }


def _mlp(experts: Experts) -> dict[str, Any]:
    return {
        "intermediate": experts.dense_width,
        "experts": experts.count,
        "experts_per_token": experts.per_token,
        "expert_intermediate": experts.width,
        "expert_layers": experts.layers,
        "shared_intermediate": experts.shared_width,
    }


def _draft_layers(settings: Settings) -> int:
    return settings.whole(
        "mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules", low=0, high=64, default=0
    )


def _vision(settings: Settings) -> float:
    """Near enough: attention and MLP of the tower's layers; the projector is small beside them."""
    tower = settings.table("vision_config")
    if tower is None:
        return 0.0
    inner = Settings(f"{settings.name}, vision_config", tower, tower)
    depth = inner.whole("depth", "num_hidden_layers", "layers", low=0, high=_MAX_LAYERS, default=0)
    width = inner.whole("hidden_size", "width", "embed_dim", low=0, high=_MAX_WIDTH, default=0)
    mlp = inner.whole("intermediate_size", low=0, high=_MAX_WIDTH, default=4 * width)
    return float(depth * (4 * width * width + 2 * width * mlp))


def _floats(said: Mapping[str, Any]) -> bool | None:
    """compressed-tensors and modelopt say for each group whether it holds `int` or `float`."""
    groups = said.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        kind = weights.get("type") if isinstance(weights, Mapping) else None
        if kind in ("int", "float"):
            return bool(kind == "float")
    return None


def _compressed_bits(said: Mapping[str, Any]) -> float | None:
    """compressed-tensors and modelopt: the fewest bits of any group, which is where most weights are."""
    groups = said.get("config_groups")
    found = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
        if isinstance(bits, int | float) and not isinstance(bits, bool) and 1 <= bits <= 32:
            found.append(float(bits))
    return min(found, default=None)


def _tied_by_default(settings: Settings) -> bool:
    return settings.text("model_type").casefold().startswith(_TIED_BY_DEFAULT)
