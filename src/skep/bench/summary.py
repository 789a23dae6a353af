"""A whole run in figures, from what is stored of it: levels, turning points, speedup, drift. Pure:
knows neither clock nor store.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import inf
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.metrics import (
    Energy,
    Key,
    LevelSummary,
    Promise,
    RunMarks,
    SearchEnd,
    SweepSummary,
    by_repeat,
    levels_of,
    total_values,
    tpot_values,
    ttft_values,
)
from skep.bench.speedup import speedup_of
from skep.stats.percentiles import median, percentile, runs_interval
from skep.stats.slo import SloLimit, SloLimits, share_of_limit
from skep.stats.turning import LevelPoint, find_turning
from skep.stats.versus import ratio_of_medians
from skep.store.records import ClientSample, LevelFact, Request
from skep.units import Interval

TOLERATED_FAILURES = 0.05
LAG_LIMIT_MS = 50.0  # p99 of the event loop's lag
CPU_LIMIT = 0.85  # of one core
SEARCH_FACT = "search"  # the fact that says where a search for the knee stopped
FEWEST_TASKS_EACH = 3  # of each agent, in a run that can show a knee or a cliff
LEAST_DELIVERED = 0.95  # of the concurrency asked for; a client that delivers less is the limit
_RunFact = tuple[int, Mapping[str, Any]]  # which run of its level, and what was stored of it
_VALUES: Mapping[str, Callable[[Sequence[Request]], list[float]]] = {
    "ttft": ttft_values,
    "tpot": tpot_values,
    "total": total_values,
}
JOULES_PER_KWH = 3_600_000.0


def worst_share(limits: SloLimits, rows: Sequence[Request]) -> float:
    """Return the worst figure as a share of its limit: 1 or less is within.

    Infinity where nothing was answered, or where too many requests failed.
    """
    failures = sum(not row.ok for row in rows)
    if not rows or failures > TOLERATED_FAILURES * len(rows):
        return inf

    def measured_ms(limit: SloLimit) -> float | None:
        times = _VALUES[limit.name](rows)
        return percentile(times, limit.percent) if times else None

    return share_of_limit((measured_ms(limit), limit.ms) for limit in limits.limits)


def promise_of(limits: SloLimits, rows: Sequence[Request]) -> Promise:
    """Return which levels kept the limits; the median run of a level decides."""
    levels = {row.level for row in rows if row.level}
    shares: dict[int, float] = {}
    for level in sorted(levels):
        runs = by_repeat(row for row in rows if row.level == level)
        shares[level] = median(worst_share(limits, run) for run in runs.values())
    met = [level for level, share in shares.items() if share <= 1]
    failed = [level for level, share in shares.items() if share > 1]
    lowest_failed = min(failed, default=None)
    safe = [level for level in met if lowest_failed is None or level < lowest_failed]
    return Promise(
        limits=str(limits),
        highest_met=max(met, default=None),
        lowest_failed=lowest_failed,
        safe=max(safe, default=None),
    )


def summarise(
    run_id: str,
    rows: Sequence[Request],
    samples: Sequence[ClientSample] = (),
    facts: Sequence[LevelFact] = (),
    *,
    closed: bool = True,
    slo: SloLimits | None = None,
    simulated: bool = False,
    burst: bool = False,
) -> SweepSummary:
    """Return the figures of a run.

    `closed`: a level is a number of agents, not a rate. `burst`: each run gives every agent one
    task.
    """
    limited = {  # the runs whose client was the limit, each with the reason
        (sample.level, sample.repeat): limit_reason(sample)
        for sample in samples
        if sample.client_limited
    }
    left_out = _left_out(rows, limited)
    counted = [row for row in rows if _key(row) not in left_out]
    marks = RunMarks(
        limited=limited,
        left_out=left_out,
        energy=_energy(facts, counted),
        counters=_counters(facts, counted),
    )
    levels = levels_of(rows, marks, closed=closed)
    summary = SweepSummary(
        run_id=run_id,
        levels=levels,
        client_limited=any(level.client_limited for level in levels),
        promise=promise_of(slo, counted) if slo is not None else None,
        simulated=simulated,
        search=_search_end(facts),
    )
    if not closed or not levels:
        return summary
    points = [_point(level, burst=burst) for level in levels]
    return replace(
        summary,
        turning=find_turning(points) if len(levels) > 1 else None,
        speedups=speedup_of(counted, levels[-1].concurrency, facts),
        drift=_drift([row for row in counted if row.level == 1]),
    )


def _search_end(facts: Sequence[LevelFact]) -> SearchEnd | None:
    ends = [fact.fact for fact in facts if fact.name == SEARCH_FACT]
    if ends:
        return msgspec.convert(ends[-1], SearchEnd)
    return None


def repeat_figure(level: LevelSummary) -> tuple[float, ...]:
    """Return the speed of each run of a level: over its plateau if all have one, else over the
    whole batch.
    """
    plateaus = tuple(
        repeat.plateau_tok_s for repeat in level.counted if repeat.plateau_tok_s is not None
    )
    # One agent in conversation is "full" whenever it does not think, many hardly ever are.
    if level.thinking or len(plateaus) < len(level.counted):
        return tuple(repeat.effective_tok_s for repeat in level.counted)
    return plateaus


def _point(level: LevelSummary, *, burst: bool) -> LevelPoint:
    """Return the point of a level on the curve, of the runs in which every agent had enough tasks.

    In other runs most of the time is the beginning and the end. A burst is all beginning and end,
    and its agents have their tasks in as many runs.
    """
    fewest = FEWEST_TASKS_EACH * level.concurrency
    enough = tuple(repeat for repeat in level.repeats if repeat.requests >= fewest)
    if burst and len(level.counted) >= FEWEST_TASKS_EACH:
        enough = level.repeats
    values = repeat_figure(replace(level, repeats=enough))
    speeds = [repeat.effective_tok_s for repeat in level.counted if repeat in enough]
    return LevelPoint(
        level.concurrency,
        values,
        limited=level.client_limited,
        spread=_shown_spread(speeds),
        few=not values,
    )


def _shown_spread(speeds: Sequence[float]) -> tuple[float, float] | None:
    """Return the spread as the table has it: the 95 % interval of the runs' effective tok/s, else
    the slowest and the fastest.
    """
    if not speeds:
        return None
    interval = runs_interval(speeds)
    if interval is None:
        return (min(speeds), max(speeds))
    return (interval.low, interval.high)


def _key(row: Request | LevelFact) -> Key:
    return row.level, row.repeat


def _left_out(rows: Sequence[Request], limited: Collection[Key]) -> frozenset[Key]:
    """Return the runs that do not count: the client was their limit, and their level has others.

    All of them stay stored.
    """
    # A failure is the server's fault, whoever was the limit.
    failed = {_key(row) for row in rows if not row.ok}
    spoiled = {key for key in limited if key not in failed}
    levels_with_others = {row.level for row in rows if _key(row) not in spoiled}
    return frozenset((level, repeat) for level, repeat in spoiled if level in levels_with_others)


def _drift(rows: Sequence[Request]) -> Interval | None:
    """Return the speed of one agent alone at the end of the run over that at its beginning.

    Heat, clocks or a filling cache may change it.
    """
    repeats = list(by_repeat(rows).values())
    if len(repeats) < 2:
        return None
    speeds_at_beginning = _task_speeds(repeats[0])
    speeds_at_end = _task_speeds(repeats[-1])
    return ratio_of_medians(speeds_at_beginning, speeds_at_end)


def _task_speeds(rows: Sequence[Request]) -> list[float]:
    """Return tokens a second of each request, from its start to its end."""
    return [
        row.output_tokens / (row.ended_s - row.started_s)
        for row in rows
        if row.ok and row.output_tokens
    ]


def _facts(
    name: str, facts: Sequence[LevelFact], rows: Sequence[Request]
) -> dict[int, list[_RunFact]]:
    """Return the facts of that name by level, each with its run, of the runs that are counted."""
    counted_keys = {_key(row) for row in rows}
    facts_by_level: dict[int, list[_RunFact]] = {}
    for fact in facts:
        if fact.name == name and _key(fact) in counted_keys:
            of_level = facts_by_level.setdefault(fact.level, [])
            of_level.append((fact.repeat, fact.fact))
    return facts_by_level


def _counters(facts: Sequence[LevelFact], rows: Sequence[Request]) -> dict[int, dict[str, float]]:
    """Return the engine's counters by level, over the runs that count: totals summed, means
    averaged.
    """
    means = counter_names()["means"]
    counters: dict[int, dict[str, float]] = {}
    for level, runs in _facts("counters", facts, rows).items():
        values_by_name: dict[str, list[float]] = {}
        for _, fact in runs:
            for name, value in fact.items():
                values_by_name.setdefault(name, []).append(value)
        counters[level] = {
            name: fmean(values) if name in means else sum(values)
            for name, values in values_by_name.items()
        }
    return counters


def _energy(facts: Sequence[LevelFact], rows: Sequence[Request]) -> dict[int, Energy]:
    """Return the energy by level, over its runs; tokens are those of the same runs."""
    energy: dict[int, Energy] = {}
    for level, runs in _facts("energy", facts, rows).items():
        readings = [fact for _, fact in runs]
        repeats = {repeat for repeat, _ in runs}
        tokens = sum(
            row.output_tokens or 0
            for row in rows
            if row.level == level and row.repeat in repeats and row.ok
        )
        joules = sum(fact["joules"] for fact in readings)
        seconds = sum(fact["seconds"] for fact in readings)
        throttled = {reason for fact in readings for reason in fact.get("throttled", ())}
        energy[level] = Energy(
            joules=joules,
            seconds=seconds,
            joules_per_token=joules / tokens if tokens else None,
            mean_w=joules / seconds if seconds else 0.0,
            max_w=max(fact["max_w"] for fact in readings),
            throttled=tuple(sorted(throttled)),
            source=str(readings[0].get("source", "NVML")),
        )
    return energy


def cost_per_million_tokens(joules_per_token: float, price_per_kwh: float) -> float:
    return joules_per_token * 1_000_000 / JOULES_PER_KWH * price_per_kwh


@cache
def counter_names() -> dict[str, dict[str, list[str]]]:
    """Return, for `means` and `totals`, what a figure is called here and what engines call it."""
    return tomllib.loads(
        files("skep.bench").joinpath("engine_counters.toml").read_text(encoding="utf-8")
    )


def limit_reason(sample: ClientSample) -> str:
    reasons = []
    if (sample.loop_lag_p99_ms or 0.0) > LAG_LIMIT_MS:
        reasons.append(f"event loop lag {sample.loop_lag_p99_ms:,.0f} ms")
    if (sample.cpu_share or 0.0) > CPU_LIMIT:
        reasons.append(f"it used {sample.cpu_share:.0%} of a core".replace("%", " %"))
    if sample.delivered is not None and sample.delivered < LEAST_DELIVERED:
        reasons.append(
            f"{sample.delivered:.0%} of the requests asked for were in flight".replace("%", " %")
        )
    return ", ".join(reasons) or "the reason was not recorded"


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what changed between two readings; empty if a counter fell, because the engine was
    restarted.
    """
    changes = {name: after[name] - before.get(name, 0.0) for name in after}
    counters = counter_names()
    figures: dict[str, float] = {}
    for figure, names in counters["means"].items():
        rising_names = [name for name in names if changes.get(f"{name}_count", 0) > 0]
        if not rising_names:
            continue
        name = rising_names[0]
        total = changes.get(f"{name}_sum")
        if total is not None:
            figures[figure] = total / changes[f"{name}_count"]
    for figure, names in counters["totals"].items():
        known_names = [name for name in names if name in changes]
        if known_names:
            figures[figure] = changes[known_names[0]]
    if any(value < 0 for value in figures.values()):
        return {}
    return figures
