"""A preset in the planner's words: its layout, its weight format, and the setup that its engine is
started with.

Knows no machine. Whether the setup fits somewhere is asked elsewhere.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

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

_GGUF = ("llamacpp", "embedded", "ollama")
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
    """None: its name says nothing. vLLM's checkpoints without a word are 16 bit, or as the model
    was published.
    """
    if preset.options.quant and (told := known_quant(preset.options.quant)) is not None:
        return told
    name = preset.checkpoint.casefold().replace("int4-autoround", "autoround")
    if preset.engine in _GGUF:
        words = _GGUF_WORD.findall(name)
        if words:
            found = _NEAREST.get(words[-1], words[-1])
        else:
            found = "q4_k_m"
        return QUANTS.get("gguf_mxfp4" if found == "mxfp4" else found) or known_quant(found)
    if (word := next((word for word in _FORMAT_WORDS if word in name), None)) is not None:
        return known_quant(word)
    bits = model.native_bits if model is not None else None
    return QUANTS["bf16" if bits is None else "mxfp4" if bits < 5 else "fp8"]


def layout_of(preset: Preset) -> Layout | None:
    """None: it says something that no layout does, such as ranks that share nothing inside one
    engine.
    """
    options = preset.options
    if options.dp > 1:
        shared = options.ep and preset.replicas == 1
        if shared:
            return Layout(options.tp, options.pp, options.tp * options.dp, options.dp)
        return None
    if options.split is not None and options.cards == 1:
        each = len(preset.gpus) // preset.replicas
        cut = {"tensor": Layout(tp=each), "layer": Layout(pp=each), "none": Layout()}.get(
            options.split
        )
        if cut is not None and each:
            return replace(cut, replicas=preset.replicas)
        return None
    return Layout(options.tp, options.pp, options.tp if options.ep else 1, preset.replicas)


def setup_of_preset(preset: Preset, model: Geometry, quant: Quant) -> Setup:
    """Return it as the planner sees it: what the planner knows nothing of is left out."""
    options = preset.options
    layout = layout_of(preset) or Layout(options.tp, options.pp, 1, preset.replicas * options.dp)
    kv = (known_kv(options.kv) if options.kv else None) or KV_TYPES["bf16"]
    if options.draft is not None:
        spec = Speculation(options.draft.method, options.draft.depth)
    else:
        spec = None
    return Setup(
        model,
        quant,
        kv,
        "llamacpp" if preset.engine == "embedded" else preset.engine,
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
