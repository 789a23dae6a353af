"""Number formats of weights and of the KV cache: how many bytes, and which kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass

from skep.errors import UserError


@dataclass(frozen=True, slots=True)
class Quant:
    """`bits` is what one parameter takes with its scales. With `keeps_ends`, embeddings and head stay 16 bit."""

    id: str
    title: str
    bits: float
    nominal: int
    family: str  # int4, int8, fp8, fp4, half, gguf
    keeps_ends: bool = True
    keeps_small: bool = False  # linear attention, shared experts and attention of a MoE stay 16 bit too
    end_bits: float = 16.0
    small_bits: float = 16.0  # of what `keeps_small` keeps
    source: str = ""


@dataclass(frozen=True, slots=True)
class KvType:
    id: str
    title: str
    bytes: float  # of one value, with its scales
    family: str  # half, fp8, int8, turboquant, gguf, fp4


_Q = Quant
QUANTS: dict[str, Quant] = {
    q.id: q
    for q in (
        _Q("bf16", "BF16", 16, 16, "half", source="16 bits"),
        _Q("fp8", "FP8", 8.0, 8, "fp8", source="one byte, a scale a channel or block"),
        _Q("int8", "INT8 W8A8", 8.0, 8, "int8", source="one byte, a scale a channel"),
        _Q("awq", "AWQ 4-bit", 4.156, 4, "int4", source="4 bits, FP16 scale and 4-bit zero a group of 128"),
        _Q("gptq", "GPTQ 4-bit", 4.156, 4, "int4", source="4 bits, FP16 scale and 4-bit zero a group of 128"),
        _Q("autoround", "INT4 AutoRound", 4.156, 4, "int4", source="4 bits, FP16 scale and 4-bit zero a group of 128"),
        _Q("int4", "INT4", 4.156, 4, "int4", source="4 bits, FP16 scale and 4-bit zero a group of 128"),
        _Q("w4a8", "W4A8", 4.156, 4, "int4", source="4-bit weights, 8-bit activations"),
        _Q("nvfp4", "NVFP4", 4.5, 4, "fp4", source="4 bits, FP8 scale a block of 16"),
        _Q("mxfp4", "MXFP4", 4.25, 4, "fp4", keeps_small=True, source="4 bits, 8-bit scale a block of 32"),
        _Q(
            "gguf_mxfp4",
            "MXFP4 GGUF",
            4.25,
            4,
            "gguf",
            keeps_ends=False,
            keeps_small=True,
            small_bits=8.5,
            end_bits=8.5,
            source="experts MXFP4, the rest Q8_0, as published",
        ),
        _Q("q3_k_m", "Q3_K_M", 3.91, 3, "gguf", keeps_ends=False, end_bits=5.5, source="llama.cpp quantize table"),
        _Q("q4_0", "Q4_0", 4.55, 4, "gguf", keeps_ends=False, end_bits=6.56, source="llama.cpp quantize table"),
        _Q("iq4_xs", "IQ4_XS", 4.3, 4, "gguf", keeps_ends=False, end_bits=6.56, source="llama.cpp quantize table"),
        _Q("q4_k_m", "Q4_K_M", 4.85, 4, "gguf", keeps_ends=False, end_bits=6.56, source="llama.cpp quantize table"),
        _Q("q5_k_m", "Q5_K_M", 5.69, 5, "gguf", keeps_ends=False, end_bits=6.56, source="llama.cpp quantize table"),
        _Q("q6_k", "Q6_K", 6.56, 6, "gguf", keeps_ends=False, end_bits=6.56, source="llama.cpp quantize table"),
        _Q("q8_0", "Q8_0", 8.5, 8, "gguf", keeps_ends=False, end_bits=8.5, source="llama.cpp quantize table"),
        _Q("f16", "F16 GGUF", 16, 16, "gguf", keeps_ends=False, end_bits=16, source="16 bits"),
    )
}

KV_TYPES: dict[str, KvType] = {
    k.id: k
    for k in (
        KvType("bf16", "BF16", 2, "half"),
        KvType("fp8", "FP8", 1, "fp8"),
        KvType("fp8_e4m3", "FP8 e4m3", 1, "fp8"),
        KvType("fp8_e5m2", "FP8 e5m2", 1, "fp8"),
        KvType("int8", "INT8 per token and head", 1.03, "int8"),
        KvType("turboquant_k8v4", "TurboQuant K8V4", 0.77, "turboquant"),
        KvType("turboquant_3bit", "TurboQuant 3-bit", 0.42, "turboquant"),
        KvType("nvfp4", "NVFP4", 0.5625, "fp4"),
        KvType("q8_0", "Q8_0", 1.0625, "gguf"),
        KvType("q5_0", "Q5_0", 0.6875, "gguf"),
        KvType("q4_0", "Q4_0", 0.5625, "gguf"),
    )
}

_QUANT_NAMES = {
    "fp16": "bf16", "half": "bf16", "16": "bf16", "w8a8": "int8", "awq-4bit": "awq", "awq_marlin": "awq", "4bit": "awq",
    "gptq-4bit": "gptq", "int4-autoround": "autoround", "auto_round": "autoround", "w4a16": "awq", "q4_k_xl": "q4_k_m",
    "ud-q4_k_xl": "q4_k_m", "q5_k_xl": "q5_k_m", "q8_k_xl": "q8_0", "iq4_ks": "iq4_xs", "compressed-tensors": "awq",
    "8bit": "int8", "autoawq": "awq",
}  # fmt: skip
_KV_NAMES = {"fp16": "bf16", "f16": "bf16", "auto": "bf16", "half": "bf16", "int8_per_token_head": "int8",
             "turboquant3": "turboquant_3bit", "turboquant_3bit_nc": "turboquant_3bit", "e5m2": "fp8_e5m2",
             "e4m3": "fp8_e4m3"}  # fmt: skip


def known_quant(name: str) -> Quant | None:
    """By id or a name people use, whatever the case: `AWQ`, `Q4_K_M`, `w4a16`."""
    wanted = name.strip().lower().replace(" ", "-")
    wanted = _QUANT_NAMES.get(wanted, wanted)
    return QUANTS.get(wanted) or QUANTS.get(wanted.replace("-", "_"))


def find_quant(name: str) -> Quant:
    found = known_quant(name)
    if found is None:
        raise UserError(f"no quantization is called `{name}`", hint="known: " + ", ".join(QUANTS))
    return found


def known_kv(name: str) -> KvType | None:
    wanted = name.strip().lower().replace(" ", "_").replace("-", "_")
    return KV_TYPES.get(_KV_NAMES.get(wanted, wanted))


def find_kv(name: str) -> KvType:
    found = known_kv(name)
    if found is None:
        raise UserError(f"no KV cache type is called `{name}`", hint="known: " + ", ".join(KV_TYPES))
    return found
