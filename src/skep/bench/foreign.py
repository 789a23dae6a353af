"""What files of other tools tell, read with patience, and levels made of it. Pure.

Numbers may be text, null or NaN there: what cannot be read is None. Knows no tool's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skep.bench.metrics import levels_of
from skep.records import LevelSummary, Percentiles, RepeatSummary, Request

EXPECTED = "expected is JSON of `vllm bench serve --save-result`, or guidellm's report with its list of `benchmarks`"
IN_FLIGHT = "mean in flight"
ASKED = "asked for"
MAX_ERROR_TEXT = 300


@dataclass(frozen=True, slots=True)
class Told:
    """One level, as the file tells it."""

    concurrency: int
    requests: int
    failed: int
    output_tokens: int
    wall_s: float
    effective_tok_s: float | None
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    total_ms: Percentiles | None
    prompt_tokens: float | None
    rows: tuple[Request, ...] = ()
    all_times: bool = False  # rows tell when they began
    all_in_flight: bool = False  # and when they ended, and none that was in flight is missing
    config: Mapping[str, Any] | None = None  # what the tool was asked to do


@dataclass(frozen=True, slots=True)
class Found:
    """One file, as it tells itself."""

    tool: str
    model: str | None
    created_at: float | None
    told: tuple[Told, ...]


def number(value: Any) -> float | None:
    """Finite, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole(value: Any) -> int | None:
    """Of what is counted: never below zero."""
    found = number(value)
    return round(found) if found is not None and found >= 0 else None


def word(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def last_line(text: str | None) -> str | None:
    """Of an error: tools write whole tracebacks."""
    return text.splitlines()[-1][:MAX_ERROR_TEXT] if text else None


def at(value: Any, *path: str) -> Any:
    """What lies there, or None, whatever the file holds on the way."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def listed(value: Any, key: str) -> list[Any]:
    found = at(value, key)
    return found if isinstance(found, list) else []


def nth(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def first_number(*values: Any) -> float | None:
    return next((found for value in values if (found := number(value)) is not None), None)


def plain(value: Any) -> dict[str, Any]:
    """The words and numbers of an object, without its lists and without what JSON cannot say."""
    if not isinstance(value, dict):
        return {}
    return {
        key: None if isinstance(found, float) and not math.isfinite(found) else found
        for key, found in value.items()
        if found is None or isinstance(found, str | int | float)
    }


def all_four(p50: float | None, p95: float | None, p99: float | None, mean: float | None) -> Percentiles | None:
    """None unless all are known, and where all are zero: an empty sample."""
    if p50 is None or p95 is None or p99 is None or not mean:
        return None
    return Percentiles(p50, p95, p99, mean)


def times(some: Percentiles | None, factor: float) -> Percentiles | None:
    if some is None:
        return None
    return Percentiles(some.p50 * factor, some.p95 * factor, some.p99 * factor, some.mean * factor)


def ttfts_of(rows: Iterable[Request]) -> list[float]:
    """From the sending, in milliseconds."""
    return [(row.first_token_s - row.started_s) * 1000 for row in rows if row.first_token_s is not None]


def tpots_of(rows: Iterable[Request]) -> list[float]:
    """(last - first) / (n - 1), in milliseconds, of those with more than one token."""
    return [
        (row.last_token_s - row.first_token_s) * 1000 / (row.output_tokens - 1)
        for row in rows
        if row.first_token_s is not None
        and row.last_token_s is not None
        and row.last_token_s > row.first_token_s
        and row.output_tokens is not None
        and row.output_tokens > 1
    ]


def levels_told(told: Sequence[Told]) -> tuple[LevelSummary, ...]:
    levels = sorted((_level(one) for one in told), key=lambda level: level.concurrency)
    alone = next((level.task_tok_s for level in levels if level.concurrency == 1), None)
    return tuple(
        replace(level, contention_pct=100 * (1 - level.task_tok_s / alone) if level.task_tok_s and alone else None)
        for level in levels
    )


def _level(told: Told) -> LevelSummary:
    effective = told.effective_tok_s
    made = levels_of(told.rows)[0] if told.rows else _nothing_known(told.concurrency)
    sure = told.all_times and told.all_in_flight
    plateau = made.plateau_tok_s if sure and any(row.arrivals_s for row in told.rows) else None  # else of no tokens
    answered = told.requests - told.failed
    return replace(
        made,
        requests=told.requests,
        failed=told.failed,
        output_tokens=told.output_tokens,
        wall_s=told.wall_s,
        effective_tok_s=effective,
        effective_low=effective,
        effective_high=effective,
        ttft_ms=told.ttft_ms,
        tpot_ms=told.tpot_ms,
        total_ms=told.total_ms,
        prompt_tokens=told.prompt_tokens,
        output_tokens_each=told.output_tokens / answered if answered > 0 else None,
        plateau_tok_s=plateau,
        delivered=made.delivered if sure else None,
        finish_reasons=(),  # neither tool keeps them
        repeats=(RepeatSummary(0, told.wall_s, told.output_tokens, effective or 0.0, plateau),),
    )


def _nothing_known(concurrency: int) -> LevelSummary:
    return LevelSummary(
        concurrency=concurrency,
        requests=0,
        failed=0,
        output_tokens=0,
        wall_s=0.0,
        effective_tok_s=None,
        effective_low=None,
        effective_high=None,
        task_tok_s=None,
        contention_pct=None,
        ttft_ms=None,
        tpot_ms=None,
        engine_tok_s=None,
        cached_prompt_share=None,
        truncated=0,
        client_limited=False,
    )
