"""A preset in the planner's words: its layout, its weight format, its engine's setup.

Knows no machine. Whether the setup fits somewhere is asked elsewhere.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from skep.catalog.engines import kind_of, planned_name
from skep.catalog.models import Geometry
from skep.catalog.presets import Preset
from skep.planner.setup import (
    KV_TYPES,
    QUANTS,
    Layout,
    Quant,
    Setup,
    Speculation,
    known_kv,
    known_quant,
)

_NEAREST = {
    "q4_1": "q4_k_m", "q4_k_s": "q4_k_m", "q5_0": "q5_k_m", "q5_1": "q5_k_m", "q5_k_s": "q5_k_m",
    "q3_k_l": "q3_k_m", "q3_k_s": "q3_k_m", "q6_k_l": "q6_k", "bf16": "f16",
}  # fmt: skip
_GGUF_WORD = re.compile(
    r"(?<![a-z0-9])(i?q\d(?:_(?:k_[sml]|k_xl|k|nl|xs|\d))?|bf16|f16|mxfp4)(?![a-z0-9])"
)
_FORMAT_WORDS = (
    "awq", "gptq", "autoround", "auto_round", "nvfp4", "mxfp4", "fp8", "w8a8", "int8", "w4a16",
    "int4", "4bit", "bf16",
)  # fmt: skip


def quant_of(preset: Preset, model: Geometry | None = None) -> Quant | None:
    """Return the preset's weight format; None: it is not known.

    vLLM's checkpoints whose names say nothing are of 16 bits, or as the model was published.
    """
    if preset.options.quant and (quant := known_quant(preset.options.quant)) is not None:
        return quant
    name = preset.checkpoint.casefold().replace("int4-autoround", "autoround")
    if kind_of(preset.engine).reads_gguf:
        return _gguf_quant(name)
    if (word := next((word for word in _FORMAT_WORDS if word in name), None)) is not None:
        return known_quant(word)
    bits = model.native_bits if model is not None else None
    if bits is None:
        return QUANTS["bf16"]
    return QUANTS["mxfp4" if bits < 5 else "fp8"]


def _gguf_quant(name: str) -> Quant | None:
    words = _GGUF_WORD.findall(name) or ["q4_k_m"]
    quant = _NEAREST.get(words[-1], words[-1])
    return QUANTS.get("gguf_mxfp4" if quant == "mxfp4" else quant) or known_quant(quant)


def layout_of(preset: Preset) -> Layout | None:
    """Return the preset's layout; None: no layout is like it, such as ranks that share nothing
    inside one engine.
    """
    options = preset.options
    if options.dp > 1:
        shared = options.ep and preset.replicas == 1
        if shared:
            return Layout(options.tp, options.pp, options.tp * options.dp, options.dp)
        return None
    if options.split is not None and options.cards == 1:
        cards_each = len(preset.gpus) // preset.replicas
        cut = {
            "tensor": Layout(tp=cards_each),
            "layer": Layout(pp=cards_each),
            "none": Layout(),
        }.get(options.split)
        if cut is not None and cards_each:
            return replace(cut, replicas=preset.replicas)
        return None
    return Layout(options.tp, options.pp, options.tp if options.ep else 1, preset.replicas)


def setup_of_preset(preset: Preset, model: Geometry, quant: Quant) -> Setup:
    """Return the preset as the planner sees it: what the planner does not know is left out."""
    options = preset.options
    layout = layout_of(preset) or Layout(options.tp, options.pp, 1, preset.replicas * options.dp)
    kv = (known_kv(options.kv) if options.kv else None) or KV_TYPES["bf16"]
    spec = None
    if options.draft is not None:
        spec = Speculation(options.draft.method, options.draft.depth)
    return Setup(
        model,
        quant,
        kv,
        planned_name(preset.engine),
        layout,
        slots=max(1, preset.slots // options.dp),
        context=preset.context_tokens,
        utilization=options.memory_share,
        graphs=options.graphs is not False,
        spec=spec,
        batched_tokens=options.batched_tokens,
        version=preset.engine_version,
        vision=not options.text_only,
    )
