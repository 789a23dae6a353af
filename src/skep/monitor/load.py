"""Who else is at a target: requests that run and wait there, as it tells them itself.

A busy box is no regression. Asked just before a probe's first request and just after its last one; what came and went
in between is found by the tokens that were produced beyond the probe's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from skep.bench.counters import parse_counters
from skep.wire.client import Pool, WireFailure
from skep.wire.fetch import fetch

ASK_S = 5.0
LOOKS = 5  # after the last request: an engine may need a moment to let go of its slot
BETWEEN_LOOKS_S = 0.1
TOKENS_OF_CHANCE = 8  # more than these beyond one's own, and a twentieth: somebody else's

# What runs and what waits, in the order of who stands in front of whom.
_GAUGES = (
    ("skep_slots_busy", "skep_queue_length"),
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
_FRONTS = {"skep_slots_busy": "skep_slots"}  # a gauge without values is zero where this one is there
_TOKENS = (
    "skep_output_tokens_total",
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
)


@dataclass(frozen=True, slots=True)
class Load:
    """None: the target does not tell."""

    running: int | None = None
    waiting: int | None = None
    tokens_total: float | None = None  # of output, since its process began
    process_began_at: float | None = None

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)


async def read_load(pool: Pool, headers: Mapping[str, str]) -> Load:
    """From `/metrics`, else from llama.cpp's `/slots`. Raises nothing for a target that has neither."""
    try:
        answer = await fetch(pool, "GET", "/metrics", headers=dict(headers), timeout_s=ASK_S)
        load = load_of(parse_counters(answer.body.decode("utf-8", "replace"))) if answer.status == 200 else Load()
        if load.running is None:
            slots = await fetch(pool, "GET", "/slots", headers=dict(headers), timeout_s=ASK_S)
            busy = count_busy(slots.json()) if slots.status == 200 else None
            return Load(busy, None, load.tokens_total, load.process_began_at)
    except WireFailure:
        return Load()
    return load


async def read_load_after(pool: Pool, headers: Mapping[str, str]) -> Load:
    """When one's own requests have ended: a slot that is not yet given back must not pass for somebody else."""
    load = await read_load(pool, headers)
    for _ in range(LOOKS - 1):
        if not load.busy:
            break
        await asyncio.sleep(BETWEEN_LOOKS_S)
        load = await read_load(pool, headers)
    return load


def load_of(counters: Mapping[str, float]) -> Load:
    running = waiting = None
    for runs, waits in _GAUGES:
        if runs in counters or _FRONTS.get(runs) in counters:
            running, waiting = _whole(counters.get(runs, 0.0)), _whole(counters.get(waits, 0.0))
            break
    tokens = next((counters[name] for name in _TOKENS if name in counters), None)
    return Load(running, waiting, tokens, counters.get("process_start_time_seconds"))


def count_busy(slots: object) -> int | None:
    """llama.cpp's `/slots`: how many are processing. None where the answer is something else."""
    if not isinstance(slots, list):
        return None
    return sum(1 for slot in slots if isinstance(slot, dict) and slot.get("is_processing"))


def company(before: Load, after: Load, own_tokens: int | None) -> tuple[int | None, int | None]:
    """Requests of others that ran and waited, at most. `own_tokens`: None where not all of them are known."""
    running, waiting = _most(before.running, after.running), _most(before.waiting, after.waiting)
    if not running and own_tokens is not None and before.tokens_total is not None and after.tokens_total is not None:
        others = after.tokens_total - before.tokens_total - own_tokens
        if others > max(TOKENS_OF_CHANCE, own_tokens / 20):
            running = 1  # at least
    return running, waiting


def _most(a: int | None, b: int | None) -> int | None:
    return max((n for n in (a, b) if n is not None), default=None)


def _whole(value: float) -> int | None:
    return round(value) if 0 <= value < float("inf") else None
