"""Every figure of a level under the name that a program reads it by, with its unit in the name."""

from __future__ import annotations

from collections.abc import Callable

from skep.records import Energy, LevelSummary, Percentiles

Cell = str | int | float | None
Figure = Callable[[LevelSummary], Cell]


def _percentiles(name: str, of: Callable[[LevelSummary], Percentiles | None]) -> dict[str, Figure]:
    def one(which: str) -> Figure:
        return lambda level: None if (some := of(level)) is None else float(getattr(some, which))

    return {f"{name}_{which}_ms": one(which) for which in ("p50", "p95", "p99", "mean")}


def _energy(of: Callable[[Energy], Cell]) -> Figure:
    return lambda level: None if level.energy is None else of(level.energy)


def _interval(name: str, which: str) -> Figure:
    return lambda level: None if (some := getattr(level, name)) is None else float(getattr(some, which))


def _counts(counts: tuple[tuple[str, int], ...]) -> str:
    return ";".join(f"{name}={count}" for name, count in counts)


LEVEL_FIGURES: dict[str, Figure] = {
    "concurrency": lambda level: level.concurrency,
    "traffic": lambda level: level.traffic,
    "requests": lambda level: level.requests,
    "failed": lambda level: level.failed,
    "truncated": lambda level: level.truncated,
    "runs": lambda level: len(level.counted),
    "runs_left_out": lambda level: len(level.left_out),
    "wall_s": lambda level: level.wall_s,
    "output_tokens": lambda level: level.output_tokens,
    "effective_tok_s": lambda level: level.effective_tok_s,
    "effective_low_tok_s": lambda level: level.effective_low,
    "effective_high_tok_s": lambda level: level.effective_high,
    "effective_ci95_low_tok_s": _interval("effective_interval", "low"),
    "effective_ci95_high_tok_s": _interval("effective_interval", "high"),
    "plateau_tok_s": lambda level: level.plateau_tok_s,
    "task_tok_s": lambda level: level.task_tok_s,
    "task_with_ttft_tok_s": lambda level: level.task_tok_s_whole,
    "contention_pct": lambda level: level.contention_pct,
    "engine_tok_s": lambda level: level.engine_tok_s,
    **_percentiles("ttft", lambda level: level.ttft_ms),
    "ttft_median_ci95_low_ms": _interval("ttft_interval", "low"),
    "ttft_median_ci95_high_ms": _interval("ttft_interval", "high"),
    **_percentiles("tpot", lambda level: level.tpot_ms),
    "tpot_median_ci95_low_ms": _interval("tpot_interval", "low"),
    "tpot_median_ci95_high_ms": _interval("tpot_interval", "high"),
    **_percentiles("first_byte", lambda level: level.first_byte_ms),
    **_percentiles("gap", lambda level: level.gap_ms),
    **_percentiles("total", lambda level: level.total_ms),
    **_percentiles("queued", lambda level: level.queued_ms),
    "prompt_tokens_mean": lambda level: level.prompt_tokens,
    "output_tokens_mean": lambda level: level.output_tokens_each,
    "cached_prompt_share": lambda level: level.cached_prompt_share,
    "delivered_share": lambda level: level.delivered,
    "client_limited": lambda level: level.client_limited,
    "finish_reasons": lambda level: _counts(level.finish_reasons),
    "errors": lambda level: _counts(level.errors),
    "joules": _energy(lambda energy: energy.joules),
    "joules_per_token": _energy(lambda energy: energy.joules_per_token),
    "mean_w": _energy(lambda energy: energy.mean_w),
    "max_w": _energy(lambda energy: energy.max_w),
    "throttled": _energy(lambda energy: ";".join(energy.throttled)),
    "disagreements": lambda level: "; ".join(f"{one.clock.value}: {one.cause}" for one in level.clocks),
}
