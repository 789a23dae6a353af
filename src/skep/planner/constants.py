"""The speed model's numbers that no data sheet tells: fitted to published and own measurements (`fitted.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from skep.catalog.names import table

_FILE = "fitted.toml"


@lru_cache(maxsize=1)
def fitted_bands() -> Mapping[str, Any]:
    return table(_FILE, "bands")


class Constants(msgspec.Struct, frozen=True):
    """Where the fit starts from and is drawn back to. `bw_` and `mfu_`: shares of the data sheet's rate."""

    # memory bandwidth that a decode step reaches
    bw: float = 0.85  # weights of 8 and 16 bits
    bw_int4: float = 0.85
    bw_gguf: float = 0.78
    bw_experts: float = 0.85  # of that, when weights are read in pieces of single experts
    bw_kv: float = 0.70
    bw_amd: float = 0.75  # of that, on AMD's cards
    unpack: float = 7.8  # bytes of 4-bit weights a cycle and multiprocessor: H200, AWQ (Marlin), shapes of 8B and 32B
    # tensor cores, in prompts and large batches
    mfu: float = 0.70
    mfu_low: float = 0.45  # of the rate of 8 and 4 bits
    mfu_gguf: float = 0.65
    # microseconds that no byte or FLOP explains
    layer_us: float = 45.0
    layer_us_more: float = 15.0  # more for a layer with experts, and for one of linear attention
    layer_us_eager: float = 350.0  # without CUDA graphs
    layer_us_llamacpp: float = 30.0
    sequence_us: float = 15.0  # scheduler, sampling and detokenizing of one sequence
    before_2026: float = 2.0  # times these in vLLM and SGLang of 2025 and before
    batch_gguf: float = 0.028  # cycles of a multiprocessor a weight, for each further token of a small batch
    link_latency: float = 1.0  # times the measured all-reduce of a like link
    draft_us: float = 1000.0  # a draft, beside its bytes
    draft_us_tp: float = 2000.0  # more where cards draft together: outside of graphs, gathered each time

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return cls.__struct_fields__


@lru_cache(maxsize=1)
def published_constants() -> Constants:
    return Constants(**table(_FILE, "constants"))
