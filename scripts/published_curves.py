"""Rows of one published curve or pair, the planner scaled to a curve's own row at C=1, and
constants by source.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from statistics import median

from skep.planner.step import Constants, StepTuning, published_constants
from skep.planner.validation import PublishedCase, ValidationPoint, predict

_SAME = (
    "source_url", "gpu", "n_gpu", "interconnect", "model", "quant_bits", "kv_dtype", "engine",
    "tp", "ep", "replicas", "spec",
)  # fmt: skip
_LEAST = 0.1
_MOST = 10.0
_WITHOUT = Path(__file__).parent.parent / "tests" / "data" / "fitted_without.json"
_DIFFERS = math.log(1.05)  # two figures that differ by less are the same


@lru_cache(maxsize=1)
def _folds() -> dict[str, dict[str, float]]:
    return json.loads(_WITHOUT.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def honest_constants(source: str) -> Constants:
    """Never fitted on that source: what a row from it is to be predicted with."""
    if source in _folds():
        return Constants(**_folds()[source])
    return published_constants()


def curve_of(cells: Mapping[str, str]) -> str:
    """What stays the same in a table of measurements while concurrency changes."""
    return cells["curve"]


def tuning_from(case: PublishedCase, constants: Constants) -> StepTuning:
    """How much longer a step takes on this machine than predicted, from one measured point at C=1.

    Prompts are left as predicted: they are bound by the tensor cores, of which decoding says
    nothing."""
    slow = 1.0
    for _ in range(4):  # the value is nearly proportional to 1 / slow: a few corrections settle it
        value = predict(case, constants, StepTuning(decode=slow))
        slow = min(_MOST, max(_LEAST, slow * value / case.published))
    return StepTuning(decode=slow)


def calibrated(
    points: Iterable[tuple[PublishedCase, str]],
) -> Iterator[tuple[PublishedCase, StepTuning]]:
    """Yield each case of a curve that has a row at C=1, but for that row, with the tuning it
    gives.
    """
    cases = list(points)
    firsts: dict[str, PublishedCase] = {}
    for case, curve in cases:
        if case.load.concurrency == 1:
            firsts.setdefault(curve, case)
    for case, curve in cases:
        first = firsts.get(curve)
        if first is not None and first is not case:
            yield case, tuning_from(first, honest_constants(case.source))


def pairs(points: Iterable[ValidationPoint], kind: str) -> tuple[int, int]:
    """Of rows of one source that differ in the layout, or in speculation, alone: how many, how
    many come out right.
    """
    groups: dict[tuple[object, ...], list[ValidationPoint]] = {}
    for point in points:
        setup = point.case.setup
        load = point.case.load
        lengths = [
            round(2 * math.log2(tokens)) for tokens in (load.input_tokens, load.output_tokens)
        ]
        alike = [
            point.case.source,
            point.case.metric,
            setup.model.id,
            setup.quant.id,
            setup.kv.id,
            setup.engine,
            setup.version,
            setup.graphs,
            point.case.card.id,
            load.concurrency,
            load.shape,
            *lengths,
        ]
        alike += [setup.spec] if kind == "layout" else [setup.layout, point.case.rig.default_link]
        groups.setdefault(tuple(alike), []).append(point)
    found = right = 0
    for group in groups.values():
        for place, one in enumerate(group):
            for other in group[place + 1 :]:
                ours = one.case.setup
                theirs = other.case.setup
                if kind == "layout":
                    apart = ours.layout != theirs.layout
                else:
                    apart = (ours.spec is None) != (theirs.spec is None)
                measured = math.log(one.case.published / other.case.published)
                if apart and abs(measured) >= _DIFFERS:
                    found += 1
                    right += measured * math.log(one.predicted / other.predicted) > 0
    return found, right


def disagreements(points: Iterable[ValidationPoint]) -> list[float]:
    """How far two sources are apart that name the same model, cards, bits, engine, method and
    agents: 0.4 is 40 %.

    What they do not tell (prompts, power limits, drivers) differs. No prediction can be nearer to
    both than half of it."""
    groups: dict[tuple[object, ...], dict[str, list[float]]] = {}
    for point in points:
        setup = point.case.setup
        case = point.case
        method = None if setup.spec is None else setup.spec.method
        weights = (setup.model.id, setup.quant.family, setup.quant.nominal)
        told = (
            *weights,
            case.card.id,
            setup.layout,
            setup.engine,
            method,
            case.load.concurrency,
            case.metric,
        )
        groups.setdefault(told, {}).setdefault(case.source, []).append(case.published)
    logs = [[math.log(median(rows)) for rows in sources.values()] for sources in groups.values()]
    return sorted(
        math.exp(abs(a - b)) - 1.0 for values in logs for a, b in combinations(values, 2)
    )
