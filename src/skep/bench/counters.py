"""The engine's own counters over one run of a level, from `/metrics` before and after.

Sums and counts, never buckets: vLLM's lowest bucket for the time between tokens is 10 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from skep.wire.client import Pool
from skep.wire.fetch import fetch_if_there
from skep.wire.prometheus import parse_metrics

GATEWAYS_OWN = "skep_build_info"

# What a figure is called here, and what engines call its sum and its count.
MEANS: Mapping[str, tuple[str, ...]] = {
    "ttft_s": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "tpot_s": (
        "vllm:request_time_per_output_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
    ),
    "queue_s": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    "prefill_s": ("vllm:request_prefill_time_seconds",),
    "decode_s": ("vllm:request_decode_time_seconds",),
    "total_s": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
}
_TOTALS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "output_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "cached_tokens": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "cache_queries": ("vllm:prefix_cache_queries_total",),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "drafted_tokens": (
        "vllm:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
    "accepted_tokens": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
    ),
    "prompt_busy_s": ("llamacpp:prompt_seconds_total",),
    "decode_busy_s": ("llamacpp:tokens_predicted_seconds_total",),
}


async def read_counters(pool: Pool, headers: Mapping[str, str], model: str) -> dict[str, float]:
    """Return every sample of the engine's `/metrics`, over its labels; empty where there is none.

    skep's gateway has metrics of its own there; those of the engines behind it stand beside them.
    """
    found = parse_metrics(await _metrics_text(pool, headers, "/metrics"))
    if GATEWAYS_OWN in found:
        found |= parse_metrics(await _metrics_text(pool, headers, f"/metrics/engines?model={quote(model)}"))
    return found


async def _metrics_text(pool: Pool, headers: Mapping[str, str], path: str) -> str:
    answer = await fetch_if_there(pool, "GET", path, headers=dict(headers), timeout_s=10.0)
    return answer.text if answer else ""


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what changed between two readings; empty if a counter fell, because the engine was restarted."""
    changes = {name: after[name] - before.get(name, 0.0) for name in after}
    figures: dict[str, float] = {}
    for figure, names in MEANS.items():
        name = next((name for name in names if changes.get(f"{name}_count", 0) > 0), None)
        if name is not None and f"{name}_sum" in changes:
            figures[figure] = changes[f"{name}_sum"] / changes[f"{name}_count"]
    for figure, names in _TOTALS.items():
        name = next((name for name in names if name in changes), None)
        if name is not None:
            figures[figure] = changes[name]
    return {} if any(value < 0 for value in figures.values()) else figures
