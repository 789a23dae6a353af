"""The speed model's numbers that no data sheet tells, from `fitted.toml`: of all sources, and without each one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from skep.catalog.names import table, table_texts

_FILE = "fitted.toml"


@lru_cache(maxsize=1)
def fitted_constants() -> Mapping[str, float]:
    return table(_FILE, "constants")


def constants_without(source: str) -> Mapping[str, float] | None:
    """Return those fitted without that source's rows; None for a source that was not fitted on at all."""
    name = f'without."{source}'  # the quote at the end is taken off, as of all names
    return {**fitted_constants(), **table(_FILE, name)} if name in table_texts(_FILE) else None


@lru_cache(maxsize=1)
def fitted_bands() -> Mapping[str, Any]:
    return table(_FILE, "bands")


class Constants(msgspec.Struct, frozen=True):
    """The defaults are where the fit starts from and is drawn back to: plausible values with round figures.

    Shares (`bw_`, `mfu_`) are of the data sheet's rate. `_us` are microseconds of a step that no byte or FLOP explains.
    """

    # share of memory bandwidth that a decode step reaches, by kernel
    bw_half: float = 0.80
    bw_int4: float = 0.70
    bw_int8: float = 0.75
    bw_fp8: float = 0.75
    bw_fp4: float = 0.65
    bw_gguf: float = 0.72
    bw_gguf_half: float = 0.80
    bw_experts: float = 0.75  # of that, when weights are read in pieces of single experts
    bw_kv: float = 0.60
    bw_kv_quantized: float = 0.70  # of that, when the cache has to be unpacked
    # share of that on other than NVIDIA's cards, and on memory shared with the CPU
    on_amd: float = 0.70
    on_amd_llamacpp: float = 0.90
    on_intel: float = 0.70
    on_apple: float = 0.85
    on_unified: float = 0.90
    on_datacenter: float = 0.90
    on_datacenter_llamacpp: float = 0.60
    on_blackwell: float = 0.95
    # share of the tensor cores' rate in prefill and in large batches
    mfu_half: float = 0.55
    mfu_int4: float = 0.45
    mfu_eight: float = 0.45
    mfu_fp4: float = 0.30
    mfu_gguf: float = 0.35
    mfu_experts: float = 0.45
    mfu_amd: float = 0.50
    mfu_intel: float = 0.90
    mfu_unified: float = 0.80
    mfu_datacenter: float = 0.75
    mfu_linear: float = 0.50  # of that, in layers of linear attention
    # overheads
    step_us: float = 900.0
    step_us_llamacpp: float = 300.0
    layer_us: float = 25.0
    layer_us_llamacpp: float = 30.0
    batch_llamacpp: float = 0.08  # of reading the weights, more for each further token of a small batch
    batch_llamacpp_moe: float = 0.25  # the same of a whole step where there are experts
    layer_us_moe: float = 30.0  # more for a layer with experts
    layer_us_moe_amd: float = 500.0  # where kernels for experts are not tuned for the card
    layer_us_linear: float = 25.0  # more for a layer of linear attention
    layer_us_linear_llamacpp: float = 10.0
    layer_us_eager: float = 350.0
    sequence_us: float = 40.0  # scheduler, sampling and detokenizing of one sequence
    overhead_datacenter: float = 0.8  # hosts of such cards have faster CPUs
    engine_sglang: float = 1.0  # times a step of vLLM's
    engine_trtllm: float = 1.0
    engine_ik: float = 0.97
    # tensor parallel
    link_latency: float = 1.0  # times the measured all-reduce of a like link
    link_latency_no_p2p: float = 3.0
    link_bytes: float = 1.3
    tp_imbalance: float = 1.07  # for each doubling of the cards
    split_us: float = 150.0  # a hop from card to card where layers are split
    # experts
    routing_skew: float = 0.97  # exponent of the tokens of a batch in the count of distinct experts
    # speculation
    accept_mtp: float = 0.85
    accept_dflash: float = 0.85
    accept_eagle: float = 0.65
    accept_draft: float = 0.50
    accept_ngram: float = 0.30
    draft_us: float = 1200.0
    draft_us_moe: float = 2000.0  # more where the draft layer has experts
    draft_us_tp: float = 3000.0  # more where drafts are made on several cards: launched one by one, gathered each time
    draft_us_llamacpp: float = 1000.0
    spec_batch_llamacpp: float = 0.30  # how much of the gain is left for each doubling of the sequences
    # what runs lose beside steps: stragglers, uneven ends, clients
    run_tail: float = 0.98

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return cls.__struct_fields__


@lru_cache(maxsize=1)
def published_constants() -> Constants:
    return Constants(**fitted_constants())


@lru_cache(maxsize=64)
def honest_constants(source: str) -> Constants:
    """Never fitted on that source: what a row from it is to be predicted with."""
    without = constants_without(source)
    return published_constants() if without is None else Constants(**without)
