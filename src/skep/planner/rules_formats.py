"""Rules about number formats: which card computes what, which engine reads what, and what KV may be kept in."""

from __future__ import annotations

from skep.catalog.gpus import Device
from skep.planner.findings import (
    DUAL_3090,
    MARLIN_CC,
    QUAD_3090,
    SWARM,
    Answer,
    Finding,
    capability,
    gguf_engine,
    gpu_engine,
    used_cards,
    without,
)  # fmt: skip
from skep.planner.memory import version_of
from skep.planner.setup import Rig, Setup

MXFP4_CC = 8.0  # vllm issue 23203
E5M2_FIXED = (0, 23)  # vllm pull 45040, merged June 2026: the first release after that
TURBOQUANT_SINCE = (0, 20)  # vllm pull 38479
TURBOQUANT_HYBRID_SINCE = (0, 21)  # vllm pull 39931; 0.20.0 still refuses
INT8_KV_SINCE = (
    0,
    21,
)  # `int8_per_token_head` is in CacheDType of mid-2026 (vllm pull 53299), not in 0.19 (issue 33480)


def engine_reads(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    """GGUF is llama.cpp's; safetensors are everybody else's."""
    quant, engine = setup.quant, setup.engine
    if gguf_engine(setup):
        if quant.family == "gguf" or quant.id == "mxfp4":
            return None
        near = "f16" if quant.family == "half" else "q8_0" if quant.nominal == 8 else "q4_k_m"
        return Finding(
            "engine-format",
            "refused",
            f"{engine} reads GGUF, not {quant.title}",
            "llama.cpp documentation",
            f"--quant {near}",
        )
    if quant.family != "gguf":
        return None
    if engine == "vllm":
        sentence = (
            f"{quant.title} inside vLLM runs at about a fifth of its INT4 kernels' speed (5 to 10 times slower, "
            "says one writer)"
        )
        return Finding("engine-format", "costs", sentence, QUAD_3090, "AWQ in vllm, or llamacpp for GGUF")
    if engine == "sglang":
        return Finding(
            "engine-format",
            "depends",
            f"{quant.title} in sglang: some architectures only",
            "SGLang documentation, quantization",
            "AWQ",
        )
    return Finding(
        "engine-format",
        "refused",
        f"{engine} does not read {quant.title}",
        "TensorRT-LLM documentation",
        "--quant awq or --quant fp8",
    )


def fp8_weights(setup: Setup, rig: Rig) -> Finding | None:
    """The write-ups disagree: `won't run` and `13 % slower than AWQ`. Both are right, for their versions."""
    if setup.quant.family != "fp8" or not gpu_engine(setup):
        return None
    card = without(setup, rig, "fp8")
    if card is None:
        return Finding(
            "fp8-weights", "fine", f"{used_cards(setup, rig)[0].id} computes {setup.quant.title}", "data sheet"
        )
    cc = capability(card)
    if cc is None:
        sentence = (
            f"{card.id} has no FP8 units: {setup.quant.title} falls back to 16-bit arithmetic where a kernel exists"
        )
        return Finding("fp8-weights", "depends", sentence, "vLLM documentation, supported hardware", "INT4")
    if cc < MARLIN_CC or setup.engine == "trtllm":
        sentence = f"{card.id} (SM {cc:g}) has no FP8 units and {setup.engine} no kernel that would do without"
        return Finding("fp8-weights", "refused", sentence, "vllm pull 45306: Marlin needs 7.5", "--quant gptq")
    if setup.engine == "sglang":
        sentence = (
            f"sglang on {card.id} (SM {cc:g}) answers `type fp8e4nv not supported` to {setup.quant.title}; newer "
            "ones may not"
        )
        return Finding("fp8-weights", "depends", sentence, "sglang issues 7715 and 12887", "AWQ, or vllm")
    sentence = (
        f"{card.id} (SM {cc:g}) has no FP8 units: one writer says it won't run, another measured 13 % less than AWQ; "
        "vLLM unpacks the weights in its Marlin kernel"
    )
    return Finding("fp8-weights", "depends", sentence, f"{QUAD_3090}; {SWARM}; vllm pull 5975", "AWQ")


def fp4_weights(setup: Setup, rig: Rig) -> Finding | None:
    quant = setup.quant
    if quant.id != "nvfp4" or not gpu_engine(setup):
        return None
    other = next((card for card in used_cards(setup, rig) if card.vendor != "nvidia"), None)
    if other is not None:
        sentence = f"NVFP4 is NVIDIA's format, {other.id} has no kernel for it"
        return Finding("nvfp4", "refused", sentence, "vLLM documentation, supported hardware", _instead_of_nvfp4(other))
    card = without(setup, rig, "fp4")
    if card is None:
        return Finding("nvfp4", "fine", f"{used_cards(setup, rig)[0].id} computes NVFP4", "data sheet")
    cc = capability(card)
    if cc is None or cc < MARLIN_CC or setup.engine != "vllm":
        level = f"SM {cc:g}" if cc else card.vendor
        return Finding(
            "nvfp4",
            "refused",
            f"{card.id} ({level}) has no FP4 units and {setup.engine} no way around",
            QUAD_3090,
            "--quant awq",
        )
    sentence = (
        f"{card.id} (SM {cc:g}) has no FP4 units: `Blackwell-only` in one write-up, unpacked by Marlin in newer vLLM"
    )
    return Finding("nvfp4", "depends", sentence, f"{QUAD_3090}; vllm pull 45306", "AWQ")


def _instead_of_nvfp4(card: Device) -> str:
    """AMD's cards with FP4 units compute the other four-bit format."""
    return "--quant mxfp4" if "fp4" in card.formats else "--quant awq"


def mxfp4_weights(setup: Setup, rig: Rig) -> Finding | None:
    if setup.quant.id != "mxfp4" or not gpu_engine(setup):
        return None
    card = without(setup, rig, "fp4")
    if card is None:
        return Finding("mxfp4", "fine", f"{used_cards(setup, rig)[0].id} computes MXFP4", "data sheet")
    cc = capability(card)
    if cc is not None and cc < MXFP4_CC:
        return Finding(
            "mxfp4",
            "refused",
            f"{card.id} (SM {cc:g}) is too old for the kernels that unpack MXFP4",
            "vllm issue 23203",
            "--engine llamacpp",
        )
    level = f"SM {cc:g}" if cc else card.vendor
    sentence = (
        f"{card.id} ({level}) has no FP4 units: MXFP4 is unpacked by Marlin or Triton in newer versions of "
        f"{setup.engine}"
    )
    return Finding(
        "mxfp4",
        "depends",
        sentence,
        f"{QUAD_3090} (`no MXFP4 path`); vllm issues 22290 and 22331 (3090 and A100 run)",
        "llamacpp",
    )


def int8_weights(setup: Setup, rig: Rig) -> Finding | None:
    if setup.quant.family != "int8" or not gpu_engine(setup):
        return None
    source = "vLLM documentation, INT8 W8A8"
    for card in used_cards(setup, rig):
        cc = capability(card)
        if cc is not None and cc >= 10:
            sentence = f"INT8 W8A8 is not supported on {card.id} (SM {cc:g}); weights alone in INT8 (W8A16) load"
            return Finding("int8-weights", "depends", sentence, source, "FP8")
        if cc is not None and cc < MARLIN_CC:
            return Finding(
                "int8-weights", "refused", f"{card.id} (SM {cc:g}) has no INT8 tensor cores", source, "--quant gptq"
            )
        if "int8" not in card.formats:
            return Finding(
                "int8-weights", "depends", f"nobody told whether {card.id} computes INT8", "data sheet", "INT4 or FP8"
            )
    return Finding("int8-weights", "fine", f"{used_cards(setup, rig)[0].id} computes {setup.quant.title}", source)


def half_precision(setup: Setup, rig: Rig) -> Finding | None:
    """Activations are BF16 whatever the weights are."""
    card = without(setup, rig, "bf16")
    if card is None or gguf_engine(setup):
        return None
    if setup.model.id.startswith("gemma"):
        sentence = (
            f"{card.id} has no BF16 and {setup.model.id} overflows in FP16: {setup.engine} refuses or computes in FP32"
        )
        return Finding(
            "bf16",
            "refused",
            sentence,
            "vLLM: `does not support float16. Reason: Numerical instability`",
            "--engine llamacpp",
        )
    sentence = f"{card.id} has no BF16: {setup.model.id} runs with --dtype half, at the risk of overflow in some models"
    return Finding("bf16", "costs", sentence, "vLLM documentation, --dtype", "--dtype half")


def int4_kernels(setup: Setup, rig: Rig) -> Finding | None:
    """Marlin makes INT4 quick; other kernels make it run."""
    quant = setup.quant
    if quant.family != "int4" or not gpu_engine(setup):
        return None
    for card in used_cards(setup, rig):
        cc = capability(card)
        if cc is None:
            sentence = (
                f"{quant.title} on {card.id}: no Marlin outside NVIDIA, the speed depends on the backend's own kernel"
            )
            return Finding("int4-kernels", "depends", sentence, "vLLM documentation, supported hardware", None)
        if cc < MARLIN_CC:
            verdict: Answer = "refused" if quant.id == "awq" else "costs"
            sentence = f"{quant.title} on {card.id} (SM {cc:g}): AWQ needs 7.5, GPTQ runs on an older, slower kernel"
            remedy = "--quant gptq" if quant.id == "awq" else None
            return Finding("int4-kernels", verdict, sentence, "vLLM documentation, supported hardware", remedy)
        if cc < 8.0:
            sentence = (
                f"{quant.title} on {card.id} (SM {cc:g}): Marlin for 7.5 came late, older versions take a slower kernel"
            )
            return Finding("int4-kernels", "depends", sentence, "vllm pull 45306", None)
    if quant.id == "autoround":
        sentence = (
            f"{quant.title}: `slower kernels` in one write-up, the fastest single stream on a 3090 (100 tok/s, "
            "patched vLLM) in another"
        )
        return Finding("int4-kernels", "depends", sentence, f"{QUAD_3090}; {DUAL_3090}", "compare with AWQ")
    return Finding(
        "int4-kernels", "fine", f"{quant.title} runs in the Marlin kernel on {used_cards(setup, rig)[0].id}", QUAD_3090
    )


def kv_engine(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    """Each engine has its own words for a small KV."""
    kv, engine = setup.kv, setup.engine
    if kv.family == "half":
        return None
    if gguf_engine(setup) and kv.family != "gguf":
        return Finding(
            "kv-engine",
            "refused",
            f"{engine} keeps KV in 16 bit, q8_0, q5_0 or q4_0, not in {kv.title}",
            "llama.cpp --cache-type-k",
            "--kv q8_0",
        )
    if not gguf_engine(setup) and kv.family == "gguf":
        return Finding(
            "kv-engine",
            "refused",
            f"{engine} does not keep KV in {kv.title}, that is llama.cpp's",
            "vLLM --kv-cache-dtype",
            "--kv fp8",
        )
    if engine != "vllm" and kv.family in ("turboquant", "int8"):
        verdict: Answer = "depends" if engine == "trtllm" and kv.family == "int8" else "refused"
        return Finding(
            "kv-engine",
            verdict,
            f"{kv.title} KV is vLLM's, {engine} was asked for",
            "engines' documentation",
            "--kv fp8",
        )
    return None


def kv_fp8(setup: Setup, rig: Rig) -> Finding | None:
    """e4m3 needs hardware or a kernel that converts; e5m2 is plain truncation and works on Ampere."""
    kv = setup.kv
    if kv.family != "fp8" or not gpu_engine(setup):
        return None
    if kv.id == "fp8_e5m2":
        return _kv_e5m2(setup)
    card = without(setup, rig, "fp8")
    if card is None:
        return Finding("kv-fp8", "fine", f"{used_cards(setup, rig)[0].id} reads {kv.title} KV", "data sheet")
    cc = capability(card)
    if cc is not None and cc < 8.0:
        sentence = f"{kv.title} KV (e4m3) is refused on {card.id} (SM {cc:g})"
        return Finding("kv-fp8", "refused", sentence, "vllm issue 18182: `type fp8e4nv not supported`", "--kv bf16")
    if cc is None:
        sentence = (
            f"{kv.title} KV (e4m3) on {card.id}: {setup.engine} on {card.vendor} converts it where a kernel exists"
        )
        return Finding("kv-fp8", "depends", sentence, "vLLM documentation, quantized KV cache", "bf16")
    sentence = (
        f"{kv.title} KV (e4m3) on {card.id} (SM {cc:g}): `fails on Ampere` in one write-up, `--kv-cache-dtype fp8` "
        "ran on two 3090s in another, with FlashInfer"
    )
    return Finding("kv-fp8", "depends", sentence, f"{QUAD_3090}; {DUAL_3090}; vllm pull 45306", "fp8_e5m2")


def _kv_e5m2(setup: Setup) -> Finding:
    quant, version = setup.quant, version_of(setup.version)
    if quant.family == "fp8":
        sentence = f"fp8_e5m2 KV is refused with {quant.title} checkpoints"
        return Finding(
            "kv-fp8", "refused", sentence, "vLLM attention.py: `not supported with fp8 checkpoints`", "--kv fp8_e4m3"
        )
    if quant.family not in ("int4", "int8", "fp4") or setup.engine != "vllm":
        return Finding("kv-fp8", "fine", f"fp8_e5m2 KV beside {quant.title}: half of BF16's bytes", DUAL_3090)
    if version is not None and version[:2] >= E5M2_FIXED:
        return Finding(
            "kv-fp8", "fine", f"vLLM {setup.version} takes fp8_e5m2 KV beside {quant.title}", "vllm pull 45040"
        )
    sentence = (
        f"fp8_e5m2 KV beside {quant.title}: gated for compressed-tensors checkpoints before mid-2026, `gated` in "
        "one write-up, "
        "in use with awq_marlin and auto_round in another"
    )
    return Finding(
        "kv-fp8",
        "depends",
        sentence,
        f"{QUAD_3090}; {DUAL_3090}; vllm pull 45040",
        "vLLM of mid-2026, or an auto_round checkpoint",
    )


def kv_int8(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    if setup.kv.family != "int8" or setup.engine != "vllm":
        return None
    version = version_of(setup.version)
    source = f"{QUAD_3090} (vllm issue 33480); vllm pull 53299"
    if version is not None and version[:2] < INT8_KV_SINCE:
        return Finding("kv-int8", "refused", f"vLLM {setup.version} has no INT8 KV", source, "--kv fp8_e5m2")
    sentence = f"{setup.kv.title} KV: not implemented in vLLM 0.19, `int8_per_token_head` in those of mid-2026"
    return Finding("kv-int8", "depends", sentence, source, "fp8_e5m2")


def kv_turboquant(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    if setup.kv.family != "turboquant" or setup.engine != "vllm":
        return None
    version, title = version_of(setup.version), setup.kv.title
    if version is not None and version[:2] < TURBOQUANT_SINCE:
        return Finding("turboquant", "refused", f"vLLM {setup.version} has no {title}, 0.20 has", QUAD_3090, "--kv fp8")
    if setup.model.is_hybrid:
        if version is not None and version[:2] >= TURBOQUANT_HYBRID_SINCE:
            sentence = (
                f"{title} on the hybrid {setup.model.id}: refused by vLLM 0.20, merged since; vLLM "
                f"{setup.version} may take it"
            )
            return Finding("turboquant", "depends", sentence, f"{DUAL_3090}; vllm pull 39931", "fp8_e5m2")
        sentence = (
            f"{title} is refused on the hybrid {setup.model.id} ({setup.model.linear_layers} linear layers) by "
            "stock vLLM"
        )
        return Finding(
            "turboquant",
            "refused",
            sentence,
            f"{DUAL_3090}: `NotImplementedError`",
            "--kv fp8_e5m2, vLLM after 0.20, or the Genesis patches",
        )
    sentence = (
        f"{title} trades 50 to 65 % of decode speed for a larger pool in one write-up, 8 % in another (82.5 "
        "against 89.5 tok/s)"
    )
    return Finding("turboquant", "costs", sentence, f"{QUAD_3090}; {DUAL_3090}", "fp8 while KV fits")


def kv_nvfp4(setup: Setup, rig: Rig) -> Finding | None:
    if setup.kv.id != "nvfp4" or not gpu_engine(setup):
        return None
    card = without(setup, rig, "fp4") or next((c for c in used_cards(setup, rig) if c.vendor != "nvidia"), None)
    if card is not None:
        return Finding(
            "kv-nvfp4", "refused", f"NVFP4 KV needs NVIDIA's FP4 units, {card.id} has none", "vllm pull 53299", "fp8"
        )
    return Finding(
        "kv-nvfp4",
        "depends",
        f"NVFP4 KV on {used_cards(setup, rig)[0].id}: new, and not in every attention kernel",
        "vllm pull 53299",
        "fp8",
    )
