"""The terms one by one, the engines' defaults, and what always holds."""

import dataclasses

import pytest
from memory_samples import (
    A100,
    B70,
    DEEPSEEK_V3,
    GEMMA4_31B,
    H100,
    M4_MAX,
    QWEN3_8B,
    QWEN3_CODER_30B,
    QWEN36_27B,
    QWEN36_35B,
    RTX_3090,
    RTX_5090,
    setup,
)

from skep.planner.memory import (
    capture_sizes,
    defaults,
    fits,
    full_sizes,
    graph_bytes,
    graphs_inside,
    kv_bytes_per_token,
    longest_context,
    memory,
    scratch_bytes,
    state_bytes,
    usable_bytes,
    workspace_bytes,
)
from skep.units import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("engine", "kv_bytes"),
    [
        (setup(QWEN36_27B), 65536),  # by the full layers of a hybrid only
        (
            setup(QWEN36_27B, spec=3),
            65536 * 17 / 16,
        ),  # a model that drafts itself keeps one more layer
        (setup(QWEN36_35B, tp=2), 10240),
        (setup(QWEN36_35B, tp=4), 10240),  # fewer KV heads than cards are copied
        (setup(DEEPSEEK_V3), 70272),
        (setup(DEEPSEEK_V3, tp=8), 70272),  # compressed KV is whole on every card of a group
        (setup(QWEN3_8B), 147456),
        (setup(QWEN3_8B, pp=5), 147456 * 8 / 36),  # of pipeline stages the fullest counts
        (setup(GEMMA4_31B), 81920),  # its full layers have their own heads
    ],
)
def test_bytes_of_kv_that_a_token_keeps_on_a_card(engine, kv_bytes):
    assert kv_bytes_per_token(engine) == kv_bytes


def test_every_draft_keeps_a_state():
    assert state_bytes(setup(QWEN36_27B)) == 153_944_064
    assert state_bytes(setup(QWEN36_27B, spec=3, tp=2)) == 153_944_064 * 4 / 2


def test_the_scan_of_linear_attention_takes_what_was_published():
    """vllm issue 54775, 48 heads of 128."""
    alone = scratch_bytes(setup(QWEN36_27B), 1, 2048) - scratch_bytes(setup(QWEN36_27B), 1, 1024)
    assert alone == 1024 * 72 * KIB
    assert scratch_bytes(setup(QWEN3_8B), 8, 8192) == 0


def test_the_expert_workspace_takes_what_was_published():
    """`requires 448.06 MB` at 8192 batched tokens on 35B-A3B with expert parallel."""
    assert workspace_bytes(setup(QWEN36_35B, tp=2, ep=2), 8192) == 448 * MIB


def test_graphs_are_captured_for_the_sequences_that_decode_at_once():
    assert capture_sizes(1) == (1, 2)
    assert capture_sizes(4) == (1, 2, 4, 8)
    assert capture_sizes(2, 5) == (1, 2, 4, 8, 16, 24)
    assert (len(capture_sizes(256)), len(full_sizes(256))) == (51, 35)  # as vLLM's log counts them
    assert full_sizes(8, 3) == ()


def test_graphs_take_nothing_where_they_are_off_or_on_intel():
    assert graph_bytes(setup(QWEN36_27B), RTX_3090, 256) > GIB
    assert graph_bytes(setup(QWEN36_27B, graphs=False), RTX_3090, 256) == 0
    assert graph_bytes(setup(QWEN36_27B), B70, 256) == 0


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        (None, False),
        ("0.19.2", False),
        ("v0.21.0rc1", True),
        ("0.24", True),
        ("2026-07", False),
        ("nightly", False),
    ],
)
def test_newer_vllm_counts_graphs_in_its_budget(version, inside):
    """A version is read as far as it is a number."""
    assert graphs_inside(setup(QWEN3_8B, version=version)) == inside
    plan = memory(setup(QWEN3_8B, version=version), RTX_3090, context=4096)
    assert [term.inside for term in plan.terms if "graphs" in term.name] == [inside]


@pytest.mark.parametrize(
    ("card", "slots", "batched_tokens"),
    [(RTX_3090, 256, 2048), (H100, 1024, 8192), (A100, 256, 2048)],
    ids=lambda value: getattr(value, "id", None),
)
def test_large_cards_but_the_a100_take_larger_batches(card, slots, batched_tokens):
    default = defaults("vllm", card)
    assert (default.slots, default.batched_tokens) == (slots, batched_tokens)


def test_each_engine_fills_its_own_share_of_a_card():
    assert defaults("vllm", H100).utilization == 0.9
    assert defaults("sglang", H100).utilization == 0.88


def test_a_card_reports_less_than_its_box_says():
    assert usable_bytes(RTX_3090) == int(23.56 * GIB)
    assert usable_bytes(RTX_5090) == int(31.36 * GIB)
    between = dataclasses.replace(RTX_3090, memory_gib=20)
    assert usable_bytes(between) / GIB == pytest.approx(19.5, abs=0.1)
    huge = dataclasses.replace(RTX_3090, memory_gib=600)
    assert 0.9 < usable_bytes(huge) / (600 * GIB) < 1


def test_an_engine_takes_its_memory_in_its_own_way():
    """vLLM's pool is what is left of its budget, SGLang keeps its activations beside it, llama.cpp
    takes the KV of all slots at the start; of memory that is shared with the system a part is left
    to it."""
    plan = memory(setup(QWEN3_CODER_30B), RTX_5090, context=8192)
    assert sum(t.bytes for t in plan.terms if t.inside) == plan.budget_bytes
    plan = memory(setup(QWEN3_8B, engine="sglang"), RTX_3090, context=4096)
    assert all(not t.inside for t in plan.terms if t.name == "activations")
    gguf = setup(QWEN3_8B, "q4_k_m", engine="llamacpp")
    plan = memory(gguf, RTX_3090, context=8192, slots=4)
    assert (plan.bytes_of("KV pool"), plan.at_once) == (4 * 8192 * 147456, 4)
    shared = memory(gguf, M4_MAX, context=8192, slots=4)
    assert (shared.usable_bytes, shared.bytes_of("unified-memory reserve") > 0) == (96 * GIB, True)


def test_a_model_that_fits_nowhere_names_its_largest_term():
    verdict = fits(setup(DEEPSEEK_V3, "fp8", tp=8), RTX_3090, context=8192, slots=4)
    assert not verdict.fits
    assert verdict.plan.largest.name == "weights"
    assert verdict.over_bytes > 50 * GIB
    assert "rtx-3090" in verdict.sentence


def test_the_largest_context_holds_and_a_larger_one_does_not():
    engine = setup(QWEN3_8B, "nvfp4")
    longest = longest_context(engine, RTX_3090, 8)
    assert fits(engine, RTX_3090, context=longest, slots=8, at_once=8).fits
    assert not fits(engine, RTX_3090, context=longest + 256, slots=8, at_once=8).fits
    assert longest_context(setup(DEEPSEEK_V3, "fp8"), RTX_3090, 1) == 0
