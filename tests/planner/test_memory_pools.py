"""Pools that vLLM 0.12 printed on the 16 and 32 GB cards of arXiv 2601.09527, held against the planner's."""

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from memory_samples import GEMMA3_12B, H100, QWEN3_8B, RTX_5090, setup

from skep.catalog.gpus import device
from skep.catalog.models import geometry
from skep.planner.fit import kv_capacity_tokens, pool_tokens_as_reported
from skep.planner.memory import memory


def printed_pools():
    """The rows whose pool is twice what 16-bit KV could give are taken as FP8 although their settings say `auto`."""
    with (Path(__file__).parent.parent / "data" / "printed_pools.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def error_of(row):
    flags = {"tp": int(row["tp"]), "utilization": float(row["utilization"]), "version": "0.12.0"}
    made = setup(geometry(row["model"]), row["quant"], row["kv"], **flags)
    return pool_tokens_as_reported(made, memory(made, device(row["card"]), context=4096)) / int(row["tokens"]) - 1


def test_published_pools_come_out_within_a_tenth_and_half_of_them_within_four_percent():
    """And the errors lean to neither side: a pool promised too large sends people into preemption, one promised too
    small sells them a card.
    """
    errors = [error_of(row) for row in printed_pools()]
    assert len(errors) == 30
    assert median(abs(e) for e in errors) < 0.04
    assert max(abs(e) for e in errors) < 0.10
    assert abs(median(errors)) < 0.03


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


@pytest.mark.parametrize("context", [1024, 8192, 32768])
def test_without_windows_the_capacity_is_the_pool_whatever_the_context(context):
    made = setup(QWEN3_8B, "nvfp4")
    assert kv_capacity_tokens(made, RTX_5090, context=context) == pytest.approx(155_500, rel=0.01)


def test_with_windows_long_sequences_cost_less_a_token_than_short_ones():
    made = setup(GEMMA3_12B, "nvfp4")
    assert kv_capacity_tokens(made, RTX_5090, context=65536) > 2 * kv_capacity_tokens(made, RTX_5090, context=2048)
