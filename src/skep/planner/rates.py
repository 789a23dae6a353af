"""What a card reaches of its data sheet, by kernel: bytes a second of weights and KV, FLOPs of large batches."""

from __future__ import annotations

from dataclasses import dataclass

from skep.catalog.devices import Device
from skep.planner.constants import Constants
from skep.planner.quants import KvType, Quant

LLAMACPP = ("llamacpp", "ollama", "ik_llamacpp")
_DATACENTER = {"volta", "hopper", "blackwell-dc", "cdna4", "cdna3", "cdna2", "cdna"}
_DATACENTER_AMPERE = ("a100", "a30", "a800", "cmp-170hx")  # the die with HBM, not the one of the GeForce cards
_TUNED_AMD = {"cdna3", "cdna4"}  # with kernels of AMD's own for experts
_GGUF_IN_VLLM = 0.2  # "GGUF in vLLM is slow: 5 to 10 times slower than Marlin"


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes and FLOPs a second of one card. `host` scales launches: servers have faster CPUs."""

    read: float  # weights as quantized
    read_half: float  # what stays 16 bit
    read_kv: float
    read_state: float
    compute: float
    compute_half: float
    host: float
    llamacpp: bool
    tuned_experts: bool


def is_datacenter(card: Device) -> bool:
    return card.family in _DATACENTER or (card.family == "ampere" and card.id.startswith(_DATACENTER_AMPERE))


def rates_of(quant: Quant, kv: KvType, card: Device, engine: str, c: Constants, *, weight_only: bool = False) -> Rates:
    llamacpp = engine in LLAMACPP
    bandwidth = card.bandwidth_gbs * 1e9 * _on_card(card, llamacpp, c)
    unpacked = 1.0 if kv.family == "half" else c.bw_kv_quantized
    return Rates(
        read=bandwidth * _share(quant, llamacpp, c),
        read_half=bandwidth * (c.bw_gguf_half if llamacpp else c.bw_half),
        read_kv=bandwidth * c.bw_kv * unpacked,
        read_state=bandwidth * c.bw_kv,
        compute=_compute(quant, card, llamacpp, c, weight_only=weight_only),
        compute_half=_compute(None, card, llamacpp, c),
        host=c.overhead_datacenter if is_datacenter(card) else 1.0,
        llamacpp=llamacpp,
        tuned_experts=llamacpp or card.vendor != "amd" or card.family in _TUNED_AMD,
    )


def _share(quant: Quant, llamacpp: bool, c: Constants) -> float:
    if llamacpp:
        return c.bw_gguf_half if quant.bits >= 16 else c.bw_gguf
    shares = {"int4": c.bw_int4, "int8": c.bw_int8, "fp8": c.bw_fp8, "fp4": c.bw_fp4, "gguf": c.bw_gguf * _GGUF_IN_VLLM}
    return shares.get(quant.family, c.bw_half)


def _on_card(card: Device, llamacpp: bool, c: Constants) -> float:
    share = 1.0
    if card.vendor == "amd":
        share = c.on_amd_llamacpp if llamacpp else c.on_amd
    elif card.vendor == "intel":
        share = c.on_intel
    elif card.vendor == "apple":
        share = c.on_apple
    if card.unified_memory and card.vendor != "apple":
        share *= c.on_unified
    if is_datacenter(card):
        share *= c.on_datacenter_llamacpp if llamacpp else c.on_datacenter
    if card.vendor == "nvidia" and card.family == "blackwell" and not card.unified_memory:
        share *= c.on_blackwell
    return share


def _compute(quant: Quant | None, card: Device, llamacpp: bool, c: Constants, *, weight_only: bool = False) -> float:
    """In a large batch. A format without hardware for it is unpacked and computed in 16 bit."""
    fp16 = card.fp16_tflops or card.bandwidth_gbs * 0.06
    if llamacpp:
        rate = fp16 * c.mfu_gguf
    elif quant is None or quant.family == "half":
        rate = fp16 * c.mfu_half
    elif weight_only:
        rate = fp16 * c.mfu_int4
    elif quant.family in ("fp8", "int8"):
        told = card.fp8_tflops if quant.family == "fp8" else card.int8_tops
        fast = told or (2 * fp16 if quant.family in card.formats else 0.0)
        rate = max(fp16 * c.mfu_int4, fast * c.mfu_eight)
    elif quant.family == "fp4" and "fp4" in card.formats:
        rate = max(fp16 * c.mfu_int4, (card.fp4_tflops or 8 * fp16) * c.mfu_fp4 * 0.5)
    else:
        rate = fp16 * c.mfu_int4
    if card.vendor in ("amd", "huawei"):
        rate *= c.mfu_amd
    elif card.vendor == "intel":
        rate *= c.mfu_intel
    if card.unified_memory:
        rate *= c.mfu_unified
    if is_datacenter(card):
        rate *= c.mfu_datacenter
    return rate * 1e12
