"""The accuracy report: every row of a table predicted, beside what was published and beside the simple formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from skep.planner.bands import band
from skep.planner.baselines import NAMES, baseline
from skep.planner.calibration import tuning_from
from skep.planner.constants import Constants, honest_constants
from skep.planner.points import Case, Unpredictable, read_case
from skep.planner.predict import case_pool_tokens, predict, value_of
from skep.planner.step import UNTUNED


@dataclass(frozen=True, slots=True)
class Point:
    """One row. `error` is a fraction of what was published: 0.2 is 20 %, whichever side."""

    case: Case
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.case.published - 1.0)

    @property
    def inside(self) -> bool:
        return self.low <= self.case.published <= self.high


@dataclass(frozen=True, slots=True)
class Spread:
    rows: int
    median_ape: float | None
    p90_ape: float | None


@dataclass(frozen=True, slots=True)
class Report:
    rows: int
    points: tuple[Point, ...]
    unpredicted: tuple[tuple[int, str], ...]
    calibrated: bool
    calibrated_with: tuple[int, ...] = ()  # rows that served as the one measurement, and are not counted

    @property
    def overall(self) -> Spread:
        return spread([point.error for point in self.points])

    @property
    def covered(self) -> float | None:
        """Share of the rows inside their band, which is meant to hold 80 %."""
        return sum(point.inside for point in self.points) / len(self.points) if self.points else None

    def groups(self) -> dict[str, Spread]:
        names: dict[str, list[float]] = {}
        for point in self.points:
            for name in groups_of(point.case):
                names.setdefault(name, []).append(point.error)
        return {name: spread(errors) for name, errors in sorted(names.items())}

    def baselines(self) -> dict[str, dict[str, Spread]]:
        found = {}
        for name in NAMES:
            errors = [(point.case, abs(baseline(name, point.case) / point.case.published - 1)) for point in self.points]
            found[name] = {
                "all": spread([error for _, error in errors]),
                "C=1": spread([error for case, error in errors if case.load.concurrency == 1]),
                "C>1": spread([error for case, error in errors if case.load.concurrency > 1]),
            }
        return found


def validate(
    rows: Iterable[tuple[int, Mapping[str, str]]],
    *,
    calibrated: bool = False,
    constants_for: Callable[[str], Constants] = honest_constants,
    tick: Callable[[int], None] = lambda _: None,
) -> Report:
    """`constants_for` a source: by default those that were never fitted on it."""
    cases, unpredicted, total = [], [], 0
    for row, cells in rows:
        total += 1
        try:
            case = read_case(row, cells)
            case_pool_tokens(case)
            cases.append(case)
        except Unpredictable as missing:
            unpredicted.append((row, str(missing)))
    firsts = _firsts(cases) if calibrated else {}
    points = []
    for done, case in enumerate(cases):
        tick(done)
        constants, tuning = constants_for(case.source), UNTUNED
        if calibrated:
            first = firsts.get(case.curve)
            if first is None:
                unpredicted.append((case.row, "calibration: no row at C=1 of the same curve"))
                continue
            if first.row == case.row:
                continue
            tuning = tuning_from(first, constants)
        value = value_of(case, predict(case, constants, tuning), constants)
        around = band(case.model, case.card, case.layout, case.spec, case.load.concurrency, engine=case.engine,
                      calibrated=calibrated)  # fmt: skip
        points.append(Point(case, value, value * around.low, value * around.high))
    used = tuple(sorted({first.row for first in firsts.values()}))
    return Report(total, tuple(points), tuple(sorted(unpredicted)), calibrated, used)


def _firsts(cases: Iterable[Case]) -> dict[tuple[str, ...], Case]:
    """The first C=1 row of every curve that has rows beyond it."""
    found: dict[tuple[str, ...], Case] = {}
    for case in cases:
        if case.load.concurrency == 1:
            found.setdefault(case.curve, case)
    return found


def groups_of(case: Case) -> tuple[str, ...]:
    layout = case.layout
    return (
        "C=1" if case.load.concurrency == 1 else "C>1",
        "moe" if case.model.is_moe else "dense",
        "replicas" if layout.replicas > 1 else "tp" if layout.tp > 1 else "split" if case.split else "one card",
        "spec" if case.spec is not None else "no spec",
        f"gpu {case.card.family}",
        f"engine {case.engine}",
        "open loop" if case.load.rate_per_s is not None else "closed loop",
    )


def spread(errors: list[float]) -> Spread:
    if not errors:
        return Spread(0, None, None)
    ordered = sorted(errors)
    return Spread(len(ordered), _quantile(ordered, 0.5), _quantile(ordered, 0.9))


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
