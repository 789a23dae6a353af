"""Which format a checkpoint's weights have, by what the preset says or by how people name such files."""

from __future__ import annotations

import re

from skep.catalog.geometry import Geometry
from skep.catalog.presets import Preset
from skep.planner.quants import QUANTS, Quant, known_quant

_GGUF = ("llamacpp", "embedded", "ollama")
_NEAREST = {"q4_1": "q4_k_m", "q4_k_s": "q4_k_m", "q5_0": "q5_k_m", "q5_1": "q5_k_m", "q5_k_s": "q5_k_m",
            "q3_k_l": "q3_k_m", "q3_k_s": "q3_k_m", "q6_k_l": "q6_k", "bf16": "f16"}  # fmt: skip
_GGUF_WORD = re.compile(r"(?<![a-z0-9])(i?q\d(?:_(?:k_[sml]|k_xl|k|nl|xs|\d))?|bf16|f16|mxfp4)(?![a-z0-9])")
_WORDS = ("awq", "gptq", "autoround", "auto_round", "nvfp4", "mxfp4", "fp8", "w8a8", "int8", "w4a16", "int4", "4bit",
          "bf16")  # fmt: skip


def quant_of(preset: Preset, model: Geometry | None = None) -> Quant | None:
    """None: its name says nothing. vLLM's checkpoints without a word are 16 bit, or as the model was published."""
    told = known_quant(preset.options.quant) if preset.options.quant else None
    if told is not None:
        return told
    name = preset.checkpoint.casefold().replace("int4-autoround", "autoround")
    if preset.engine in _GGUF:
        words = _GGUF_WORD.findall(name)
        found = _NEAREST.get(words[-1], words[-1]) if words else "q4_k_m"
        return QUANTS.get("gguf_mxfp4" if found == "mxfp4" else found) or known_quant(found)
    word = next((word for word in _WORDS if word in name), None)
    if word is not None:
        return known_quant(word)
    bits = model.native_bits if model is not None else None
    return QUANTS["bf16" if bits is None else "mxfp4" if bits < 5 else "fp8"]
