"""What is kept of workers on other machines that made a level's load, and what it means for its figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from skep.records import LevelSummary, Workers
from skep.store.rows import LevelFact

WORKERS = "workers"  # the fact's name


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """One worker in one run of one level."""

    node: str  # its address
    node_id: str
    requests: int
    cpu_share: float
    lag_p99_ms: float
    lag_max_ms: float
    clock_ahead_s: float  # of ours, at the end of the run
    clock_error_ms: float  # its rows' times on our clock are not further off
    drift_ppm: float | None  # since the first look at it; None: too short ago to say
    drift_within_ppm: float | None
    late_ms: float = 0.0  # it began so long after the moment that all were to begin at


def workers_fact(workers: Sequence[WorkerFact]) -> dict[str, Any]:
    return {"workers": [asdict(one) for one in workers]}


def with_workers(levels: Sequence[LevelSummary], facts: Sequence[LevelFact]) -> tuple[LevelSummary, ...]:
    """Each level with those who made its load, where it was made elsewhere."""
    return tuple(replace(level, workers=_of(level, facts)) for level in levels)


def _of(level: LevelSummary, facts: Sequence[LevelFact]) -> Workers | None:
    walls = {repeat.repeat: repeat.wall_s for repeat in level.repeats}
    found = {
        fact.repeat: fact.fact["workers"]
        for fact in facts
        if fact.name == WORKERS and fact.level == level.concurrency and fact.repeat in walls and fact.fact["workers"]
    }
    if not found:
        return None
    errors = {repeat: _error_ms(some) for repeat, some in found.items()}
    every = [one for some in found.values() for one in some]
    drifts = [one["drift_ppm"] for one in every if _is_seen(one)]
    return Workers(
        number=max(len(some) for some in found.values()),
        nodes=tuple(sorted({one["node"] for one in every})),
        clock_error_ms=max(errors.values()),
        clock_error_share=max(_share(errors[repeat], walls[repeat]) for repeat in found),
        drift_ppm=max(drifts, key=abs, default=None),
    )


def _error_ms(some: Sequence[Mapping[str, Any]]) -> float:
    """Between the first start and the last end, which may be two workers'."""
    worst = sorted((float(one["clock_error_ms"]) for one in some), reverse=True)
    return sum(worst[:2])


def _is_seen(one: Mapping[str, Any]) -> bool:
    """A drift smaller than what it is known by may be none."""
    return one["drift_ppm"] is not None and abs(one["drift_ppm"]) > one["drift_within_ppm"]


def _share(error_ms: float, wall_s: float) -> float:
    return error_ms / 1000 / wall_s if wall_s > 0 else 1.0
