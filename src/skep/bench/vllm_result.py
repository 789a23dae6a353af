"""Reads what `vllm bench serve --save-result` writes, with and without `--save-detailed`. Pure.

One file is one level; with `--append-result` it is one a line. Known from vLLM 0.6 to 0.28.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from typing import Any

from skep.bench.foreign import (
    ASKED,
    EXPECTED,
    IN_FLIGHT,
    Found,
    Told,
    all_four,
    last_line,
    listed,
    nth,
    number,
    plain,
    tpots_of,
    ttfts_of,
    whole,
    word,
)
from skep.errors import UserError
from skep.records import Percentiles, Request
from skep.stats.percentiles import percentiles

VLLM = "vllm bench serve"


def read_vllm(documents: Sequence[Mapping[str, Any]], name: str) -> Found:
    models = {model for document in documents if (model := word(document.get("model_id")))}
    if len(models) > 1:
        raise UserError(f"`{name}` holds results of several models: {', '.join(sorted(models))}", hint="split it")
    told = [_level(document, name) for document in documents]
    dates = [_date(document.get("date")) for document in documents]
    return Found(
        tool=VLLM,
        model=models.pop() if models else None,
        created_at=min((date for date in dates if date is not None), default=None),
        told=tuple(told),
    )


def _level(document: Mapping[str, Any], name: str) -> Told:
    completed, wall_s = whole(document.get("completed")), number(document.get("duration"))
    tokens = whole(document.get("total_output_tokens"))
    if completed is None or wall_s is None or wall_s <= 0 or tokens is None:
        raise UserError(
            f"`{name}` tells no `completed`, `duration` or `total_output_tokens`",
            hint="results of embedding and pooling runs have no output tokens and cannot be compared",
        )
    rows, all_times = _rows(document)
    answered = [row for row in rows if row.ok]
    failed = _failed(document, completed, rows)
    if failed is None:
        raise UserError(f"`{name}` tells neither `failed` nor `num_prompts`", hint=EXPECTED)
    total_ms = percentiles([(row.ended_s - row.started_s) * 1000 for row in answered if row.arrivals_s])
    total_ms = total_ms or _percentiles(document, "e2el", completed)
    concurrency, how = _concurrency(document, completed + failed, completed, total_ms, wall_s, name)
    prompt_tokens = number(document.get("total_input_tokens"))
    effective = number(document.get("output_throughput")) or tokens / wall_s
    return Told(
        concurrency=concurrency,
        requests=completed + failed,
        failed=failed,
        output_tokens=tokens,
        wall_s=wall_s,
        effective_tok_s=effective if tokens else None,
        # vLLM's first token is the first event with choices; an event that carries only the role counts.
        ttft_ms=percentiles(ttfts_of(answered)) or _percentiles(document, "ttft", completed),
        # Its TPOT is ours: (latency - TTFT) / (tokens - 1). Its ITL is from event to event, whatever they carry.
        tpot_ms=percentiles(tpots_of(answered)) or _percentiles(document, "tpot", completed),
        total_ms=total_ms,
        prompt_tokens=prompt_tokens / completed if prompt_tokens is not None and completed else None,
        rows=tuple(replace(row, level=concurrency) for row in rows),
        all_times=all_times,
        all_in_flight=all(row.ok and row.arrivals_s for row in rows),
        config={**plain(document), "concurrency": how},
    )


def _rows(document: Mapping[str, Any]) -> tuple[list[Request], bool]:
    """What `--save-detailed` lists, and whether it tells when each began (vLLM does since 0.15)."""
    tokens, ttfts, itls = (listed(document, field) for field in ("output_lens", "ttfts", "itls"))
    if not tokens or len({len(tokens), len(ttfts), len(itls)}) > 1:
        return [], False
    starts = [number(start) for start in listed(document, "start_times")]
    known = [start for start in starts if start is not None]
    all_times = len(known) == len(tokens)
    origin = min(known, default=0.0)
    prompts, errors = listed(document, "input_lens"), listed(document, "errors")
    rows = []
    for index in range(len(tokens)):
        began = known[index] - origin if all_times else 0.0
        ttft, error = number(ttfts[index]), word(nth(errors, index))
        gaps = [number(gap) or 0.0 for gap in itls[index]] if isinstance(itls[index], list) else []
        arrivals = tuple(accumulate(gaps, initial=began + ttft)) if ttft and ttft > 0 else ()
        failed = error is not None or not (ttft or whole(tokens[index]))
        rows.append(
            Request(
                level=0,
                repeat=0,
                index=index,
                kind="imported",
                started_s=began,
                ended_s=arrivals[-1] if arrivals else began,  # the last that is known of it; a failed one went on
                first_token_s=arrivals[0] if arrivals else None,
                last_token_s=arrivals[-1] if arrivals else None,
                prompt_tokens=whole(nth(prompts, index)),
                output_tokens=whole(tokens[index]),
                error_kind="failed" if failed else None,
                error=last_line(error),
                arrivals_s=arrivals,
            )
        )
    return rows, all_times


def _failed(document: Mapping[str, Any], completed: int, rows: Sequence[Request]) -> int | None:
    told, asked = whole(document.get("failed")), whole(document.get("num_prompts"))
    if told is not None:
        return told
    if rows:
        return max(0, len(rows) - completed)
    return None if asked is None else max(0, asked - completed)


def _concurrency(
    document: Mapping[str, Any],
    requests: int,
    completed: int,
    total_ms: Percentiles | None,
    wall_s: float,
    name: str,
) -> tuple[int, str]:
    asked, rate = whole(document.get("max_concurrency")), document.get("request_rate")
    if asked:
        return asked, ASKED
    if rate in ("inf", math.inf) and requests:
        return requests, "all at once"
    if total_ms is not None:  # Little's law
        return max(1, round(completed * total_ms.mean / 1000 / wall_s)), IN_FLIGHT
    raise UserError(
        f"`{name}` tells no concurrency: `max_concurrency` is not set, and `request_rate` is {rate}",
        hint="run `vllm bench serve` with `--max-concurrency N`, or save it with `--save-detailed`",
    )


def _percentiles(document: Mapping[str, Any], metric: str, completed: int) -> Percentiles | None:
    """p95 is in the file only where `--metric-percentiles` asked for it. An empty sample is written as zeros."""
    if not completed:
        return None
    p50 = number(document.get(f"median_{metric}_ms"))
    return all_four(p50, *(number(document.get(f"{which}_{metric}_ms")) for which in ("p95", "p99", "mean")))


def _date(value: Any) -> float | None:
    """ "20261115-093000", in the local time of the machine that wrote it: read as that of this one."""
    try:
        return datetime.strptime(str(value), "%Y%m%d-%H%M%S").astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        return None
