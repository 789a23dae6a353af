"""Reads guidellm's JSON report. Pure.

Until 0.3 a benchmark has `args` and flat requests; since 0.4 `config`, and requests with `info.timings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skep.bench.foreign import (
    ASKED,
    EXPECTED,
    IN_FLIGHT,
    Found,
    Told,
    all_four,
    at,
    first_number,
    last_line,
    listed,
    number,
    plain,
    times,
    tpots_of,
    ttfts_of,
    whole,
    word,
)
from skep.errors import UserError
from skep.records import EngineTimings, Percentiles, Request
from skep.stats.percentiles import percentiles

GUIDELLM = "guidellm"


def read_guidellm(document: Mapping[str, Any], name: str) -> Found:
    benchmarks = [one for one in document["benchmarks"] if isinstance(one, dict)]
    if not benchmarks:
        raise UserError(f"`{name}` holds no benchmarks", hint="guidellm writes them when the first level has ended")
    begins = [begin for one in benchmarks if (begin := number(one.get("start_time"))) is not None]
    told = [_level(one, min(begins, default=0.0), name) for one in benchmarks]
    version = word(at(document, "metadata", "guidellm_version"))
    places = (("config", "backend", "model"), ("worker", "backend_model"))
    models = [word(at(benchmarks[0], *place)) for place in places]
    models += [word(at(document, "config", "spec", "backend", "model")), word(at(document, "args", "model"))]
    return Found(
        tool=f"{GUIDELLM} {version}" if version else GUIDELLM,
        model=next((model for model in models if model), None),
        created_at=min(begins, default=None),
        told=tuple(told),
    )


def _level(benchmark: Mapping[str, Any], origin: float, name: str) -> Told:
    metrics = benchmark.get("metrics")
    counts = at(metrics, "request_totals") or at(benchmark, "request_totals")
    done, failed, cut = (whole(at(counts, how)) for how in ("successful", "errored", "incomplete"))
    tokens = whole(at(metrics, "output_token_count", "successful", "total_sum"))
    wall_s = _duration(benchmark)
    if done is None or tokens is None or wall_s is None or wall_s <= 0:
        raise UserError(f"`{name}` tells no requests, output tokens or duration of a benchmark", hint=EXPECTED)
    rows = _rows(benchmark, origin)
    if len(rows) != done + (failed or 0):  # a sample of them, or some without times
        rows = []
    good = [row for row in rows if row.ok]
    concurrency, how = _concurrency(benchmark, name)
    effective = number(at(metrics, "output_tokens_per_second", "successful", "mean")) or tokens / wall_s
    latency_ms = times(_percentiles(metrics, "request_latency"), 1000)
    strategy = at(benchmark, "config", "strategy") or at(benchmark, "args", "strategy")
    return Told(
        concurrency=concurrency,
        requests=done + (failed or 0),  # those that guidellm cut off at the end of its time count neither way
        failed=failed or 0,
        output_tokens=tokens,
        wall_s=wall_s,
        effective_tok_s=effective if tokens else None,
        ttft_ms=percentiles(ttfts_of(good)) or _percentiles(metrics, "time_to_first_token_ms"),
        # A request's `inter_token_latency_ms` is (last - first) / (tokens - 1): our TPOT. `time_per_output_token_ms`
        # is not: it divides by all tokens, until 0.3 from the first token on and since 0.4 from the sending.
        # Without the requests the distribution is guidellm's, where each request weighs as much as it has tokens.
        tpot_ms=percentiles(tpots_of(good)) or _percentiles(metrics, "inter_token_latency_ms"),
        total_ms=percentiles([(row.ended_s - row.started_s) * 1000 for row in good]) or latency_ms,
        prompt_tokens=number(at(metrics, "prompt_token_count", "successful", "mean")),
        rows=tuple(replace(row, level=concurrency, index=index) for index, row in enumerate(rows)),
        all_times=bool(rows),
        all_in_flight=not cut,
        config={**plain(strategy), "incomplete": cut, "concurrency": how},
    )


def _rows(benchmark: Mapping[str, Any], origin: float) -> list[Request]:
    """In order of their sending."""
    requests = benchmark.get("requests")
    some = [_row(row, origin) for how in ("successful", "errored") for row in listed(requests, how)]
    return sorted((row for row in some if row is not None), key=lambda row: row.started_s)


def _row(row: Any, origin: float) -> Request | None:
    """None: it does not tell when it ran."""
    timings = at(row, "info", "timings")
    began = first_number(at(row, "request_start_time"), at(row, "start_time"), at(timings, "request_start"))
    ended = first_number(at(row, "request_end_time"), at(row, "end_time"), at(timings, "request_end"))
    if began is None or ended is None:
        return None
    first = first_number(at(timings, "first_token_iteration"), at(row, "first_token_time"))
    last = first_number(at(timings, "last_token_iteration"), at(row, "last_token_time"))
    error = word(at(row, "info", "error")) or word(at(row, "error"))
    failed = error is not None or at(row, "info", "status") == "errored"
    return Request(
        level=0,
        repeat=0,
        index=0,
        kind="imported",
        started_s=began - origin,
        ended_s=ended - origin,
        first_token_s=None if first is None else first - origin,
        last_token_s=None if last is None else last - origin,
        prompt_tokens=whole(at(row, "prompt_tokens")),
        output_tokens=whole(at(row, "output_tokens")),
        error_kind="failed" if failed else None,
        error=last_line(error),
        engine=EngineTimings(cached_tokens=whole(at(row, "cached_tokens"))),
    )


def _duration(benchmark: Mapping[str, Any]) -> float | None:
    begin, end = number(benchmark.get("start_time")), number(benchmark.get("end_time"))
    between = end - begin if begin is not None and end is not None else None
    return first_number(benchmark.get("duration"), between)


def _concurrency(benchmark: Mapping[str, Any], name: str) -> tuple[int, str]:
    strategy = at(benchmark, "config", "strategy") or at(benchmark, "args", "strategy")
    kind = word(at(strategy, "type_"))
    asked = whole(at(strategy, "streams"))
    if kind == "throughput":  # for a rate, the cap says nothing of the load
        asked = whole(at(strategy, "max_concurrency"))
    if kind == "synchronous" or asked:
        return asked or 1, ASKED
    in_flight = at(benchmark, "metrics", "request_concurrency")
    mean = number(at(in_flight, "total", "mean")) or number(at(in_flight, "successful", "mean"))
    if mean:
        return max(1, round(mean)), IN_FLIGHT
    raise UserError(
        f"`{name}` holds a benchmark of strategy `{kind}` that tells no concurrency",
        hint="run guidellm with the profile `concurrent`",
    )


def _percentiles(metrics: Any, metric: str) -> Percentiles | None:
    """An empty sample is written as zeros."""
    found = at(metrics, metric, "successful")
    if not number(at(found, "count")):
        return None
    p50, p95, p99 = (number(at(found, "percentiles", which)) for which in ("p50", "p95", "p99"))
    return all_four(p50, p95, p99, number(at(found, "mean")))
