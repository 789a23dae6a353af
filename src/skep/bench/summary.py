"""A whole run in figures, from what is stored of it: levels, turning points, speedup, drift. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import Any

from skep.bench.counters import MEANS
from skep.bench.limits import Limits, promise_of
from skep.bench.metrics import Key, by_repeat, classes_of, levels_of
from skep.bench.workers import with_workers
from skep.records import Energy, Interval, LevelSummary, Promise, Request, Speedup, SweepSummary
from skep.stats.intervals import ratio_of_medians_interval
from skep.stats.turning import LevelPoint, find_turning
from skep.store.rows import ClientSample, LevelFact


def summarise(
    run_id: str,
    rows: Sequence[Request],
    samples: Sequence[ClientSample] = (),
    facts: Sequence[LevelFact] = (),
    *,
    closed: bool = True,
    slo: Limits | None = None,
    simulated: bool = False,
) -> SweepSummary:
    """`closed`: a level is a number of agents, not a rate."""
    limited = {(sample.level, sample.repeat) for sample in samples if sample.client_limited}
    counted = _without_limited(rows, limited)
    figures = levels_of(counted, limited, _energy(facts, counted), _counters(facts, counted), closed=closed)
    levels = _with_late(with_workers(figures, facts), facts)
    serial = next((level for level in levels if level.concurrency == 1), None) if closed else None
    swarm = levels[-1] if closed and levels and levels[-1].concurrency > 1 else None
    same = serial is not None and swarm is not None and serial.requests == swarm.requests
    speedups = _speedup(counted, serial, swarm)
    return SweepSummary(
        run_id=run_id,
        levels=levels,
        serial_wall_s=serial.wall_s if serial and same else None,
        swarm_wall_s=swarm.wall_s if swarm and same else None,
        speedup=_plain_speedup(serial, swarm),
        client_limited=any(level.client_limited for level in levels),
        classes=classes_of(counted, limited, closed=closed),
        turning=find_turning([_point(level) for level in levels]) if closed and len(levels) > 1 else None,
        speedups=speedups,
        promise=_promise(slo, counted) if slo is not None else None,
        drift=_drift([row for row in counted if row.level == 1]) if closed else None,
        simulated=simulated,
    )


def _promise(limits: Limits, rows: Sequence[Request]) -> Promise:
    measured = [row for row in rows if row.level]
    levels = sorted({row.level for row in measured})
    runs = {level: list(by_repeat(row for row in measured if row.level == level).values()) for level in levels}
    return promise_of(limits, runs)


def repeat_figure(level: LevelSummary) -> tuple[float, ...]:
    """What one run of a level gave: over its plateau where it had one, else over the whole batch."""
    plateaus = [repeat.plateau_tok_s for repeat in level.repeats]
    if level.thinking:  # one agent alone is "full" whenever it does not think, many hardly ever
        return tuple(repeat.effective_tok_s for repeat in level.repeats)
    if all(value is not None for value in plateaus):
        return tuple(value for value in plateaus if value is not None)
    return tuple(repeat.effective_tok_s for repeat in level.repeats)


def _point(level: LevelSummary) -> LevelPoint:
    return LevelPoint(level.concurrency, repeat_figure(level), limited=level.client_limited)


def _without_limited(rows: Sequence[Request], limited: set[Key]) -> list[Request]:
    """A run whose client was the limit counts only where its level has no other. All of them stay stored."""
    failed = {(row.level, row.repeat) for row in rows if not row.ok}  # a failure is the server's, whoever was the limit
    left_out = limited - failed
    free = {row.level for row in rows if (row.level, row.repeat) not in left_out}
    return [row for row in rows if row.level not in free or (row.level, row.repeat) not in left_out]


def _plain_speedup(serial: LevelSummary | None, swarm: LevelSummary | None) -> float | None:
    """Only where both did the same work: as many requests, none failed."""
    if serial is None or swarm is None or swarm.wall_s <= 0:
        return None
    if serial.failed or swarm.failed or serial.requests != swarm.requests:
        return None
    return serial.wall_s / swarm.wall_s


def _speedup(rows: Sequence[Request], serial: LevelSummary | None, swarm: LevelSummary | None) -> Speedup | None:
    by_wall = _plain_speedup(serial, swarm)
    if by_wall is None or serial is None or swarm is None:
        return None
    one = [row for row in rows if row.level == 1]
    many = [row for row in rows if row.level == swarm.concurrency]
    cut = {(row.repeat, row.index) for row in (*one, *many) if row.finish_reason == "length"}
    one_whole = [row for row in one if (row.repeat, row.index) not in cut]
    many_whole = [row for row in many if (row.repeat, row.index) not in cut]
    both = bool(one_whole and many_whole)
    runs = len(by_repeat(one))
    return Speedup(
        tasks=serial.requests // max(1, runs),
        concurrency=swarm.concurrency,
        serial_wall_s=serial.wall_s / runs,
        swarm_wall_s=swarm.wall_s / max(1, len(by_repeat(many))),
        by_wall=by_wall,
        by_tokens=_ratio(_speed(many), _speed(one)),
        by_wall_whole=_ratio(_busy_s(one_whole), _busy_s(many_whole)) if both else None,
        by_tokens_whole=_ratio(_speed(many_whole), _speed(one_whole)) if both else None,
        truncated_serial=serial.truncated,
        truncated_swarm=swarm.truncated,
        tokens_serial=serial.output_tokens,
        tokens_swarm=swarm.output_tokens,
    )


def _busy_s(rows: Sequence[Request]) -> float:
    """Time in which at least one of them was under way: without the others, the batch would have taken that long."""
    total, until = 0.0, float("-inf")
    for row in sorted(rows, key=lambda row: (row.repeat, row.started_s)):
        total += max(0.0, row.ended_s - max(row.started_s, until))
        until = max(until, row.ended_s)
    return total


def _speed(rows: Sequence[Request]) -> float:
    busy = _busy_s(rows)
    return sum(row.output_tokens or 0 for row in rows if row.ok) / busy if busy > 0 else 0.0


def _ratio(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


def _drift(rows: Sequence[Request]) -> Interval | None:
    """One agent alone at the end of the run against the beginning: heat, clocks, a filling cache."""
    repeats = list(by_repeat(rows).values())
    if len(repeats) < 2:
        return None
    first, last = _speeds(repeats[0]), _speeds(repeats[-1])
    if min(len(first), len(last)) < 2:
        return None
    return ratio_of_medians_interval(last, first, rng=Random(len(rows)))


def _speeds(rows: Sequence[Request]) -> list[float]:
    return [row.output_tokens / (row.ended_s - row.started_s) for row in rows if row.ok and row.output_tokens]


def _counters(facts: Sequence[LevelFact], rows: Sequence[Request]) -> dict[int, dict[str, float]]:
    """Over the runs of a level that are counted: totals summed, means averaged."""
    kept = {(row.level, row.repeat) for row in rows}
    found: dict[int, list[Mapping[str, float]]] = {}
    for fact in facts:
        if fact.name == "counters" and (fact.level, fact.repeat) in kept:
            found.setdefault(fact.level, []).append(fact.fact)
    return {level: _combined(some) for level, some in found.items()}


def _combined(counters: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for one in counters for name in one}
    told = {name: [one[name] for one in counters if name in one] for name in names}
    return {name: fmean(values) if name in MEANS else sum(values) for name, values in told.items()}


def _with_late(levels: Sequence[LevelSummary], facts: Sequence[LevelFact]) -> tuple[LevelSummary, ...]:
    """Over the runs of a level that are counted: the latest beginning of its load, where it marks the run."""
    late = {(fact.level, fact.repeat): float(fact.fact["late_ms"]) for fact in facts if fact.name == "late"}
    return tuple(replace(level, late_ms=_latest(level, late)) for level in levels)


def _latest(level: LevelSummary, late: Mapping[Key, float]) -> float | None:
    keys = [(level.concurrency, one.repeat) for one in level.repeats]
    return max((late[key] for key in keys if key in late), default=None)


def _energy(facts: Sequence[LevelFact], rows: Sequence[Request]) -> dict[int, Energy]:
    """Over the runs of a level; tokens are those of the same runs."""
    drawn: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
    kept = {(row.level, row.repeat) for row in rows}
    for fact in facts:
        if fact.name == "energy" and (fact.level, fact.repeat) in kept:
            drawn.setdefault(fact.level, []).append((fact.repeat, fact.fact))
    found: dict[int, Energy] = {}
    for level, some in drawn.items():
        repeats = {repeat for repeat, _ in some}
        tokens = sum(row.output_tokens or 0 for row in rows if row.level == level and row.repeat in repeats and row.ok)
        joules, seconds = sum(fact["joules"] for _, fact in some), sum(fact["seconds"] for _, fact in some)
        found[level] = Energy(
            joules=joules,
            seconds=seconds,
            joules_per_token=joules / tokens if tokens else None,
            mean_w=joules / seconds if seconds else 0.0,
            max_w=max(fact["max_w"] for _, fact in some),
            throttled=tuple(sorted({reason for _, fact in some for reason in fact.get("throttled", ())})),
            source=str(some[0][1].get("source", "NVML")),
        )
    return found
