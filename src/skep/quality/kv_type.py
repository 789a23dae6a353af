"""The KV type that an endpoint serves with, as far as it tells."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import quote

from skep.bench.endpoint import Endpoint
from skep.planner.setup import known_kv
from skep.wire.client import Pool, WireFailure, fetch_if_there

LONGEST_METRICS = 2_000_000  # characters of a page of metrics that are searched
LONGEST_NAME = 40
# vLLM's, also behind skep's gateway, which hands on the metrics of its engines.
METRIC = "cache_config_info{"
LABEL = 'cache_dtype="'
# What skep's own setup says nothing of is as the engine has it by itself: of 16 bits.
USUAL = "bf16"


async def served_kv(endpoint: Endpoint) -> str | None:
    """Return the KV type as skep's planner calls it; None: the endpoint does not tell."""
    setup = endpoint.engine.get("setup")
    if isinstance(setup, dict) and setup:
        return named_kv(setup.get("kv", USUAL))
    pool = Pool(endpoint.origin)
    try:
        with suppress(WireFailure):
            return await _told_by_engine(pool, endpoint)
    finally:
        await pool.close()
    return None


async def _told_by_engine(pool: Pool, endpoint: Endpoint) -> str | None:
    headers = dict(endpoint.headers)
    for path in ("/metrics", f"/metrics/engines?model={quote(endpoint.model)}"):
        answer = await fetch_if_there(pool, "GET", path, headers=headers, timeout_s=5.0)
        if answer is not None and answer.status == 200:
            text = answer.body[:LONGEST_METRICS].decode(errors="replace")
            types = set(map(named_kv, _cache_types(text)))
            if len(types) == 1:
                return types.pop()
    info = await fetch_if_there(pool, "GET", "/get_server_info", headers=headers, timeout_s=5.0)
    if info is not None and info.status == 200:
        return named_kv(info.document().get("kv_cache_dtype"))
    return None


def _cache_types(metrics: str) -> list[str]:
    """Return the KV type of each engine whose metrics name it."""
    lines = [line for line in metrics.splitlines() if METRIC in line and LABEL in line]
    return [line.partition(LABEL)[2].partition('"')[0] for line in lines]


def named_kv(word: Any) -> str | None:
    """Return a KV type as the planner calls it; one that it does not know as it is called."""
    if not isinstance(word, str) or not word.strip():
        return None
    kind = known_kv(word)
    return kind.id if kind is not None else word.strip().lower()[:LONGEST_NAME]


def kv_words(kv: str | None) -> str:
    """Return a KV type as people say it."""
    if kv is None:
        return "an unknown KV type"
    kind = known_kv(kv)
    if kind is None:
        return f"KV {kv}"
    if kind.family == "half":
        return "KV of 16 bits"
    return f"KV {kind.id}"
