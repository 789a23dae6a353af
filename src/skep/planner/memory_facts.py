"""Figures about memory that follow from no formula, each with where it was read, and the engines' defaults.

Those marked "fitted" were chosen so that published pools and published boundaries come out; tests hold them to both.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from skep.catalog.devices import Device
from skep.units import GIB, MIB

# What CUDA reports as a card's memory (GiB) against what is printed on the box. "total capacity of 15.47 GiB" and the
# like in torch's out-of-memory messages (8 to 32 GB: 31.38 in vllm pull 51590, 23.56 in club-3090 issue 58). From 48 on
# nobody was quoted: about 99 %, which the H100's published pools bear out.
_USABLE_GIB = ((0, 0), (8, 7.63), (12, 11.63), (16, 15.47), (24, 23.56), (32, 31.36), (48, 47.4), (80, 79.2),
               (96, 94.97), (141, 139.8), (192, 191.5), (288, 287.5))  # fmt: skip
APPLE_SHARE = 0.75  # of unified memory that Metal lets a process wire down by default (recommendedMaxWorkingSetSize)
UNIFIED_SHARE = 0.95  # DGX Spark reports 121.7 of 128 GiB to CUDA; Strix Halo's GTT limit is set near that by its users
UNIFIED_UTILIZATION = 0.85  # vLLM's recipe for DGX Spark: more is not free when the engine asks
UNIFIED_RESERVE_BYTES = 6 * GIB  # the system and the engine's own host memory, where they share it (a guess)

# A process's CUDA context with its kernels, on the card before the engine takes its first snapshot: vLLM's budget does
# not count it. nvidia-smi shows 260 to 430 MiB for an idle torch process; within that, fitted on the boundary of one
# 3090 at 0.97 (runs with one sequence and not with two), which leaves 40 MiB to either side.
CONTEXT_BYTES = int(0.40 * GIB)
# Beside the torch allocator, counted by vLLM's profile: cuBLAS and FlashInfer workspaces, sampler tables. Fitted on the
# Qwen3-8B pools of arXiv 2601.09527, in which 0.1 to 0.8 GiB stay unexplained otherwise.
ENGINE_BYTES = int(0.30 * GIB)
# NCCL channels and the all-reduce buffers of a card in a group. Inside the budget: fitted on the same runs' TP=2 rows.
COMMUNICATION_BYTES = int(0.15 * GIB)
# Outside it: vllm pull 51590 measured 1.37 GiB over budget at TP=8, of which graphs were 62 MiB and the context some
# 0.4: 0.3 GiB for each doubling of the group.
COMMUNICATION_LATE_BYTES = int(0.30 * GIB)

# Sampling sorts the logits of every sequence: FP32 logits, sorted values, indices (4 bytes each). Between 256 and 1024
# sequences (Qwen3-8B on a 5090, on an H100) memory grows by 1.9 GiB with a vocabulary of 152K: 12 to 16 bytes. The low
# end is taken.
SAMPLER_BYTES = 12
VERIFY_BYTES = 4  # FP32 logits of every drafted position: "256 x 5 x 151936 x 4 B" in a vLLM out-of-memory report

# The profile run encodes pictures of the largest size. Gemma 3: fitted on five runs of arXiv 2601.09527 (2.6 to 2.8 GiB
# on one card, about half on two). Qwen3.5/3.6: vllm issue 52872 (2.0 GiB beside 0.1 GiB a thousand tokens, 0.7 of it
# sampling) and club-3090 issue 104 (1.54 GiB in all at TP=2).
VISION_SCRATCH_BYTES = {"gemma-3": int(2.7 * GIB)}
VISION_SCRATCH_DEFAULT_BYTES = int(1.3 * GIB)

# CUDA graphs. club-3090 issue 104: 5 piecewise graphs of 64 layers 0.13 GiB; a 27B on one card: 15 took 0.22; vllm
# issue 50780: 24 MiB for a full one of a 64-layer hybrid; vLLM logs: 51 + 35 of 28 to 36 layers took 0.64 to 0.78 GiB.
GRAPH_BASE_BYTES = 85 * MIB
GRAPH_PIECEWISE_BYTES = 9 * MIB / 64  # a layer
GRAPH_FULL_BYTES = 24 * MIB / 64  # a layer
GRAPHS_INSIDE_SINCE = (0, 21)  # "CUDA graph memory profiling is enabled (default since v0.21.0)"

CHUNK_TOKENS = 64  # of the chunked scan of linear attention (FLA_CHUNK_SIZE; vllm issue 54775)

LLAMACPP_BATCH_TOKENS = 512  # --ubatch-size
LLAMACPP_ENGINE_BYTES = int(0.15 * GIB)  # cuBLAS workspace and scratch pools beside the compute buffer
LLAMACPP_SLOTS = 4  # without --parallel (llama.cpp pull 16736); that they then share one context is not followed


@dataclass(frozen=True, slots=True)
class Defaults:
    utilization: float
    slots: int
    batched_tokens: int


def usable_bytes(card: Device) -> int:
    """What an engine can have of the card: less than is printed on the box, and less still where memory is shared."""
    if card.unified_memory:
        share = APPLE_SHARE if card.vendor == "apple" else UNIFIED_SHARE
        return int(card.memory_gib * share * GIB)
    last = _USABLE_GIB[-1]
    if card.memory_gib >= last[0]:
        return int(card.memory_gib * last[1] / last[0] * GIB)
    for (below, has), (above, has_above) in pairwise(_USABLE_GIB):
        if below <= card.memory_gib < above:
            return int((has + (has_above - has) * (card.memory_gib - below) / (above - below)) * GIB)
    return 0


def defaults(engine: str, card: Device) -> Defaults:
    """vLLM: EngineArgs.get_batch_defaults for its server: 70 GiB and more, but for the A100, have larger ones."""
    large = card.memory_gib >= 70 and not card.id.startswith("a100") and not card.unified_memory
    if engine == "sglang":
        # mem_fraction_static is worked out at start, near 0.88; requests are bounded by memory: the slots are a guess
        return Defaults(0.88, 256 if large else 64, 8192 if large else 2048)
    if not has_pool(engine):
        return Defaults(1.0, LLAMACPP_SLOTS, LLAMACPP_BATCH_TOKENS)
    use = UNIFIED_UTILIZATION if card.unified_memory else 0.9
    return Defaults(use, 1024 if large else 256, 8192 if large else 2048)


def has_pool(engine: str) -> bool:
    """Whether KV is a pool of what is left (vLLM, SGLang, TensorRT-LLM), or slots x context taken at start."""
    return engine not in ("llamacpp", "ik_llamacpp", "ollama")


def version_of(text: str | None) -> tuple[int, ...] | None:
    """`0.17.1rc0` → (0, 17, 1); None where there is no number to read, or a date."""
    numbers: list[int] = []
    for part in (text or "").lstrip("vV").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers) if numbers and numbers[0] < 1000 else None
