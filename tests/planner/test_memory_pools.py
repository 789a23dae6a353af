"""Pools that vLLM 0.12 printed on the 16 and 32 GB cards of arXiv 2601.09527, held against the planner's."""

from dataclasses import replace
from statistics import median

import pytest
from memory_samples import (
    GEMMA3_12B,
    GEMMA3_27B,
    GPT_OSS_20B,
    H100,
    QWEN3_8B,
    RTX_5060_TI,
    RTX_5070_TI,
    RTX_5090,
    setup,
)

from skep.catalog.models import geometry
from skep.planner.fit import kv_capacity_tokens, pool_tokens_as_reported
from skep.planner.memory import memory

# card, TP, model, weights, KV, utilization, tokens as published. The rows whose pool is twice what 16-bit KV could give
# are taken as FP8 although their settings say `auto`.
POOLS = [
    (RTX_5060_TI, 1, GEMMA3_12B, "w4a16", "bf16", 0.9, 5856),
    (RTX_5060_TI, 1, QWEN3_8B, "nvfp4", "bf16", 0.9, 51456),
    (RTX_5060_TI, 2, QWEN3_8B, "nvfp4", "bf16", 0.8, 123328),
    (RTX_5060_TI, 2, QWEN3_8B, "nvfp4", "bf16", 0.9, 149920),
    (RTX_5060_TI, 2, QWEN3_8B, "nvfp4", "bf16", 0.9, 147568),
    (RTX_5060_TI, 2, GEMMA3_12B, "nvfp4", "bf16", 0.8, 28608),
    (RTX_5060_TI, 2, GEMMA3_12B, "nvfp4", "bf16", 0.9, 37136),
    (RTX_5060_TI, 2, GEMMA3_12B, "w4a16", "bf16", 0.9, 38432),
    (RTX_5060_TI, 2, GEMMA3_27B, "w4a16", "bf16", 0.9, 12336),
    (RTX_5070_TI, 1, GEMMA3_12B, "nvfp4", "bf16", 0.9, 4560),
    (RTX_5070_TI, 1, QWEN3_8B, "nvfp4", "bf16", 0.9, 51408),
    (RTX_5070_TI, 2, GEMMA3_12B, "nvfp4", "bf16", 0.7, 20192),
    (RTX_5070_TI, 2, GEMMA3_12B, "nvfp4", "bf16", 0.8, 28640),
    (RTX_5070_TI, 2, GEMMA3_12B, "nvfp4", "bf16", 0.9, 37104),
    (RTX_5070_TI, 2, QWEN3_8B, "nvfp4", "bf16", 0.9, 149808),
    (RTX_5090, 1, GEMMA3_12B, "nvfp4", "bf16", 0.9, 43600),
    (RTX_5090, 1, GPT_OSS_20B, "mxfp4", "fp8", 0.95, 647616),
    (RTX_5090, 1, GPT_OSS_20B, "mxfp4", "fp8", 0.8, 442112),
    (RTX_5090, 1, GPT_OSS_20B, "mxfp4", "bf16", 0.9, 297808),
    (RTX_5090, 1, GPT_OSS_20B, "mxfp4", "bf16", 0.9, 289552),
    (RTX_5090, 1, QWEN3_8B, "nvfp4", "bf16", 0.9, 155536),
    (RTX_5090, 1, QWEN3_8B, "nvfp4", "bf16", 0.9, 151136),
    (RTX_5090, 1, QWEN3_8B, "bf16", "bf16", 0.9, 84368),
    (RTX_5090, 1, GEMMA3_27B, "nvfp4", "bf16", 0.9, 14208),
    (RTX_5090, 1, GEMMA3_27B, "w4a16", "bf16", 0.9, 16400),
    (RTX_5090, 2, GEMMA3_27B, "nvfp4", "fp8", 0.8, 103968),
    (RTX_5090, 2, QWEN3_8B, "nvfp4", "bf16", 0.9, 354480),
    (RTX_5090, 2, QWEN3_8B, "nvfp4", "bf16", 0.9, 344400),
    (RTX_5090, 2, QWEN3_8B, "nvfp4", "bf16", 0.9, 358800),
    (RTX_5090, 2, GEMMA3_12B, "nvfp4", "bf16", 0.9, 115136),
]


def predicted(card, tp, model, quant, kv, utilization):
    made = setup(model, quant, kv, tp=tp, utilization=utilization, version="0.12.0")
    return pool_tokens_as_reported(made, memory(made, card, context=4096))


def test_published_pools_come_out_within_a_tenth_and_half_of_them_within_four_percent():
    errors = [predicted(*row[:-1]) / row[-1] - 1 for row in POOLS]
    assert median(abs(e) for e in errors) < 0.04
    assert max(abs(e) for e in errors) < 0.10


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("llama-3.1-8b", 542_960), ("qwen3-8b", 478_560), ("qwen3-14b", 350_304), ("qwen3-32b", 81_648)],
)
def test_pools_of_an_h100_nvl_come_out_within_four_percent(model, tokens):
    """A public table of vLLM's KV tokens with 1024 sequences and 4096 batched tokens; only the bytes a sampled logit
    takes were read from it.
    """
    card = replace(H100, id="h100-nvl", memory_gib=94.5)
    made = setup(geometry(model), "bf16", batched_tokens=4096)
    assert pool_tokens_as_reported(made, memory(made, card, context=4096, slots=1024)) == pytest.approx(
        tokens, rel=0.04
    )


def test_the_errors_lean_to_neither_side():
    """A pool promised too large sends people into preemption; one promised too small sells them a card."""
    errors = [predicted(*row[:-1]) / row[-1] - 1 for row in POOLS]
    assert abs(median(errors)) < 0.03


@pytest.mark.parametrize("context", [1024, 8192, 32768])
def test_without_windows_the_capacity_is_the_pool_whatever_the_context(context):
    made = setup(QWEN3_8B, "nvfp4")
    assert kv_capacity_tokens(made, RTX_5090, context=context) == pytest.approx(155_500, rel=0.01)


def test_with_windows_long_sequences_cost_less_a_token_than_short_ones():
    made = setup(GEMMA3_12B, "nvfp4")
    assert kv_capacity_tokens(made, RTX_5090, context=65536) > 2 * kv_capacity_tokens(made, RTX_5090, context=2048)
