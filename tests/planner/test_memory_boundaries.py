"""Where people ran out of memory and where they did not: the published boundaries, each as its
author had it.
"""

import pytest
from memory_samples import (
    B70,
    GEMMA4_31B,
    GPT_OSS_20B,
    QWEN3_CODER_30B,
    QWEN25_32B,
    QWEN36_27B,
    QWEN36_35B,
    RTX_3090,
    RTX_4090,
    RTX_5090,
    setup,
)
from msgspec.structs import replace

from skep.planner.memory import fits, kv_capacity_tokens, longest_context, memory, weights_bytes
from skep.planner.setup import find_quant
from skep.units import GIB


def starts(engine, card, context, slots=None, **options):
    return fits(engine, card, context=context, slots=slots, **options).fits


@pytest.mark.parametrize(
    ("model", "quant", "draft", "vision", "published_gb"),
    [
        (QWEN36_27B, "autoround", True, True, 19.0),
        (QWEN36_35B, "awq", True, True, 24.0),
        (QWEN3_CODER_30B, "awq", False, False, 16.9),
        (QWEN25_32B, "awq", False, False, 19.5),
        (GEMMA4_31B, "bf16", False, True, 59.0),
        (GEMMA4_31B, "awq", False, False, 17.0),
        (GPT_OSS_20B, "mxfp4", False, False, 13.8),
    ],
)
def test_checkpoints_weigh_what_their_authors_say(model, quant, draft, vision, published_gb):
    assert weights_bytes(model, find_quant(quant), draft, vision) / 1e9 == pytest.approx(
        published_gb, rel=0.08
    )


def test_qwen_27b_awq_on_two_3090s_runs_out_at_092_with_graphs_and_usual_sequences():
    """Write-up 001, stage 1: `the cudagraph-profiling step OOMed during startup`."""
    tight = setup(QWEN36_27B, "awq", "fp8", tp=2, utilization=0.92)
    verdict = fits(tight, RTX_3090, context=16384)
    assert not verdict.fits
    assert verdict.plan.over_inside_bytes < 0 < verdict.plan.over_outside_bytes
    assert "CUDA graphs" in verdict.sentence
    assert starts(replace(tight, utilization=0.89), RTX_3090, 16384)
    assert starts(tight, RTX_3090, 16384, 8)


@pytest.mark.parametrize(
    ("utilization", "slots", "depth", "runs"),
    [
        (0.97, 1, 5, True),
        (0.97, 2, 5, False),
        (0.97, 2, 3, False),
        (0.92, 2, 3, True),
        (0.92, 2, 5, True),
    ],
)
def test_qwen_27b_int4_on_one_3090(utilization, slots, depth, runs):
    """Write-up 001: 0.97 with one sequence; 0.92 with two, for the buffers of linear attention."""
    engine = setup(
        QWEN36_27B,
        "autoround",
        "fp8_e5m2",
        spec=depth,
        utilization=utilization,
        batched_tokens=2048,
    )
    verdict = fits(engine, RTX_3090, context=20000, slots=slots)
    assert verdict.fits == runs, verdict.sentence
    if not runs:
        assert verdict.plan.over_outside_bytes > 0
        assert verdict.plan.bytes_of("linear-attention scratch") > 0


def test_35b_a3b_awq_with_three_drafts_does_not_start_on_two_3090s():
    """Its draft layer contains experts: write-up 001, `profile_run OOM`."""
    engine = setup(
        QWEN36_35B, "awq", "fp8_e5m2", tp=2, ep=2, spec=3, utilization=0.92, batched_tokens=4096
    )
    verdict = fits(engine, RTX_3090, context=32000, slots=4)
    assert not verdict.fits
    assert starts(replace(engine, spec=None), RTX_3090, 32000, 4)


@pytest.mark.parametrize(
    ("engine", "card", "context", "slots"),
    [
        (setup(QWEN36_27B, "awq", "fp8", tp=2, utilization=0.83), RTX_3090, 16384, 8),
        # what the author did first, at half the speed
        (
            setup(QWEN36_27B, "awq", "bf16", tp=2, utilization=0.92, graphs=False),
            RTX_3090,
            16384,
            None,
        ),
        (
            setup(
                QWEN36_35B, "awq", "fp8_e5m2", tp=2, ep=2, utilization=0.92, batched_tokens=4096
            ),
            RTX_3090,
            32000,
            4,
        ),
        (setup(QWEN36_35B, "awq", "fp8"), RTX_5090, 32000, 4),
        (setup(QWEN3_CODER_30B, "q4_k_m", "bf16", "llamacpp"), RTX_4090, 8192, 5),
    ],
)
def test_what_ran_fits(engine, card, context, slots):
    verdict = fits(engine, card, context=context, slots=slots, at_once=slots)
    assert verdict.fits, verdict.sentence


def test_a_coder_of_30b_has_16k_tokens_on_one_3090_and_131k_on_two():
    """Write-up 000: `Context is limited to ~16K tokens on a single GPU`, 131K with the second."""
    on_one = setup(QWEN3_CODER_30B, utilization=0.95)
    on_two = setup(QWEN3_CODER_30B, tp=2, utilization=0.92)
    assert 10_000 <= longest_context(on_one, RTX_3090, 4) <= 20_000
    assert not starts(on_one, RTX_3090, 131072, 4)
    assert starts(on_two, RTX_3090, 131072, 4)


def test_a_coder_of_32b_fits_one_3090_without_a_full_context_in_every_slot():
    engine = setup(QWEN25_32B, "awq", utilization=0.95, graphs=False)
    assert fits(engine, RTX_3090, context=8192, slots=4).fits
    assert 1 <= kv_capacity_tokens(engine, RTX_3090, context=8192, slots=4) / 8192 < 4


def test_gemma_4_31b_in_bf16_is_tight_on_four_3090s_and_has_room_in_awq():
    """`would fit TP=4 tight`: a few contexts of 8K, far from its 262K."""
    tight = setup(GEMMA4_31B, "bf16", tp=4)
    assert starts(tight, RTX_3090, 8192, 4)
    assert not starts(setup(GEMMA4_31B, "bf16", tp=2), RTX_3090, 2048, 1)
    roomy = setup(GEMMA4_31B, "awq", tp=4)
    assert starts(roomy, RTX_3090, 262144, 2)
    tight_pool, roomy_pool = (
        memory(engine, RTX_3090, context=8192).pool_bytes for engine in (tight, roomy)
    )
    assert tight_pool < roomy_pool / 2


@pytest.mark.parametrize(("utilization", "kv", "agents"), [(0.95, "bf16", 49), (0.9, "fp8", 50)])
def test_a_27b_in_int4_serves_fifty_agents_on_a_32_gb_b70(utilization, kv, agents):
    """Write-up 002, without the vision tower: 1024 in, 512 out each."""
    engine = setup(QWEN36_27B, "int4", kv, utilization=utilization)
    assert memory(engine, B70, context=1536, slots=64, vision=False).fits
    assert (
        agents <= kv_capacity_tokens(engine, B70, context=1536, slots=64, vision=False) / 1536 < 80
    )


@pytest.mark.parametrize(
    ("model", "quant", "kv", "published_gb"),
    [(GPT_OSS_20B, "mxfp4", "bf16", 14), (QWEN3_CODER_30B, "q4_k_m", "q8_0", 20)],
)
def test_llamacpp_with_five_slots_of_8k_on_a_24_gb_card(model, quant, kv, published_gb):
    """Write-up 004's table; its KV type is not given:
    for Qwen3-Coder 16 bit would be 2 GB more.
    """
    plan = memory(setup(model, quant, kv, "llamacpp"), RTX_4090, context=8192, slots=5)
    assert sum(term.bytes for term in plan.terms) / 1e9 == pytest.approx(published_gb, rel=0.12)
    assert plan.over_inside_bytes < 0


def test_pools_of_3090_rigs_with_a_27b_come_out_near():
    """`Available KV cache memory` of club-3090 issues 104 (TP=2, from which the vision scratch was
    read) and 127 (TP=4, from which nothing was), and the 622K tokens published for the dual rig.
    """
    flags = {"spec": 3, "utilization": 0.92, "batched_tokens": 8192, "version": "0.21"}
    dual = setup(QWEN36_27B, "autoround", "fp8_e5m2", tp=2, **flags)
    quad = setup(QWEN36_27B, "autoround", "fp8_e5m2", tp=4, **flags)
    assert memory(dual, RTX_3090, context=262144, slots=2).pool_bytes / GIB == pytest.approx(
        11.06, rel=0.04
    )
    assert memory(quad, RTX_3090, context=262144, slots=2).pool_bytes / GIB == pytest.approx(
        15.72, rel=0.04
    )
    assert kv_capacity_tokens(dual, RTX_3090, context=262144, slots=2) == pytest.approx(
        622_000, rel=0.04
    )


@pytest.mark.parametrize(("batched", "pool_gib"), [(2048, 9.93), (4096, 9.72), (8192, 8.89)])
def test_the_pool_of_a_5090_shrinks_with_the_batched_tokens(batched, pool_gib):
    """vllm issue 52872; its number of sequences is not given, four are taken."""
    engine = setup(
        QWEN36_27B, "awq", "fp8", utilization=0.93, batched_tokens=batched, version="0.26"
    )
    assert memory(engine, RTX_5090, context=8192, slots=4).pool_bytes / GIB == pytest.approx(
        pool_gib, rel=0.04
    )
