"""Corrects the prediction of a layout by what others have measured of it on such cards.

Two boxes with the same setup differ (docs/accuracy.md), and so a row is followed the further, the
less certain the prediction is, and the more sources there are. Knows nothing of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from skep.planner.candidates import as_published
from skep.planner.predict import SpeedModel, prospect
from skep.planner.published import PublishedRow, rows_of_layout
from skep.planner.setup import QUANTS, Rig, Setup
from skep.planner.step import Constants, StepTuning

# deviation of a source's figure from its setup's mean, as a logarithm: two sources differ by 26 %
SOURCE_DEVIATION = 0.34
_IN_BAND = 1.28  # deviations in half of a band that holds 80 %
_LEAST = 0.1
_MOST = 10.0
_ROUNDS = 4  # the figure is nearly proportional to 1 / factor: a few corrections settle it
_ROOM = 1.1  # times the tokens of all tasks: what was measured had room


class Correction(msgspec.Struct, frozen=True):
    """`factor`: what times of decode steps are multiplied with. `rows`: what it comes from."""

    factor: float
    rows: tuple[PublishedRow, ...]

    @property
    def tuning(self) -> StepTuning:
        return StepTuning(decode=self.factor, rests_on="corrected")


def correction(
    setup: Setup, rig: Rig, constants: Constants, agents: int, band_half: float
) -> Correction | None:
    """Return how a setup's prediction is corrected; None where nobody has measured the layout.

    `band_half`: half of the prediction's band, as a logarithm.
    """
    return correction_by(rows_of_layout(setup, rig), setup, rig, constants, agents, band_half)


def correction_by(
    rows: Sequence[PublishedRow],
    setup: Setup,
    rig: Rig,
    constants: Constants,
    agents: int,
    band_half: float,
) -> Correction | None:
    """Return the correction by these rows of a layout. Each source counts once, by its likest
    row.
    """
    rows = [row for row in rows if row.has_lengths and row.quant is not None]
    if not rows:
        return None
    by_source: dict[str, list[PublishedRow]] = {}
    for row in sorted(rows, key=lambda row: _variance(row, agents)):
        by_source.setdefault(row.source, []).append(row)
    of_sources = [
        _mean_factor(of_source, setup, rig, constants, agents) for of_source in by_source.values()
    ]
    weight = sum(1 / variance for _, variance in of_sources)
    mean_log = sum(log / variance for log, variance in of_sources) / weight
    doubt = (band_half / _IN_BAND) ** 2
    followed = doubt / (doubt + 1 / weight)
    used = tuple(row for of_source in by_source.values() for row in of_source)
    return Correction(math.exp(followed * mean_log), used)


def _mean_factor(
    rows: Sequence[PublishedRow], setup: Setup, rig: Rig, constants: Constants, agents: int
) -> tuple[float, float]:
    """Return the logarithm of one source's factor, and its variance: that of its likest row."""
    logs = [math.log(_factor(_as_measured(setup, row), rig, constants, row)) for row in rows]
    variances = [_variance(row, agents) for row in rows]
    weight = sum(1 / variance for variance in variances)
    weighed = sum(log / variance for log, variance in zip(logs, variances, strict=True))
    return weighed / weight, min(variances)


def _variance(row: PublishedRow, agents: int) -> float:
    """Return how little a row says: at another number of agents less.

    Formats and drafts of one layout share what makes a box faster or slower: otherwise those that
    nobody measured would win.
    """
    doublings = abs(math.log2(row.concurrency / agents))
    return (SOURCE_DEVIATION * (1.0 + doublings)) ** 2


def _as_measured(setup: Setup, row: PublishedRow) -> Setup:
    plain = replace(setup, slots=None, context=None, utilization=None, cpu_moe=0)
    if row.is_of(setup):
        return plain
    return replace(
        plain,
        quant=as_published(QUANTS[row.quant or ""], setup.model, setup.engine),
        spec=row.spec,
    )


@lru_cache(maxsize=256)
def _factor(setup: Setup, rig: Rig, constants: Constants, row: PublishedRow) -> float:
    """Return the factor on decode steps with which the row's load comes out as published."""
    factor = 1.0
    for _ in range(_ROUNDS):
        predicted = _model(setup, rig, constants, row, factor).figure(row.load, row.metric)
        factor = min(_MOST, max(_LEAST, factor * predicted / row.tok_s))
    return factor


def _model(
    setup: Setup, rig: Rig, constants: Constants, row: PublishedRow, factor: float
) -> SpeedModel:
    load = row.load
    context = int(load.input_tokens + load.output_tokens)
    slots = math.ceil(load.concurrency / setup.layout.replicas)
    speed_model = prospect(
        replace(setup, slots=slots),
        rig,
        constants,
        context=context,
        tuning=StepTuning(decode=factor),
    )
    return replace(
        speed_model, pool_tokens=max(speed_model.pool_tokens, _ROOM * load.concurrency * context)
    )
