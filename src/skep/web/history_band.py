"""The band of a picture begins anew at every change: a median over both sides of a step would glide through it.

Values from before a change have no say in what came after. Changes from before the window count as well, as the first
days of the window look back at them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from skep.monitor.history import MOST_POINTS, History, read_window
from skep.report.series_chart import Band
from skep.series import Heat, Metric, SeriesKey
from skep.stats.rolling import rolling_median
from skep.store.series import SeriesStore

_UNSURE = 4  # values after a change whose median tells little


def steps_of(series: SeriesStore, key: SeriesKey, since: float, until: float) -> tuple[float, ...]:
    """When the series changed, oldest first. For cold runs changes are not looked for: those of hot ones stand in."""
    found = [change for change in series.changes(key.target, since) if change.at < until]
    own = [change for change in found if change.key == key]
    if not own and key.heat is not Heat.SEEN:
        speed = key.metric is not Metric.TTFT_MS
        own = [one for one in found if (one.key.metric is not Metric.TTFT_MS) is speed and _alike(one.key, key)]
    return tuple(sorted({change.at for change in own}))


def with_steps(series: SeriesStore, history: History) -> tuple[History, tuple[float, ...]]:
    """The history with its band in pieces, and the moments at which a piece begins."""
    far = history.since - history.band_s
    known = {*steps_of(series, history.key, far, history.until), *(change.at for change in history.changes)}
    steps = tuple(sorted(known))
    if not steps or not history.band:
        return history, ()
    values = read_window(series, history.key, far, history.until).quiet(far, history.until)
    band = [row for row in stepped(values, steps, history.band_s) if row[0] >= history.since]
    thinned = tuple(band[:: -(-len(band) // MOST_POINTS)]) if len(band) > MOST_POINTS else tuple(band)
    return replace(history, band=thinned), tuple(step for step in steps if step > history.since)


def stepped(values: Sequence[tuple[float, float]], steps: Sequence[float], width_s: float) -> list[Band]:
    """A rolling median that forgets what was before the last step. `values` and `steps` are oldest first."""
    moments = [at for at, _ in values]
    cuts = [0, *(bisect_left(moments, step) for step in steps), len(values)]
    pieces = [rolling_median(values[begin:end], width_s) for begin, end in pairwise(cuts)]
    return [row for place, piece in enumerate(pieces) for row in (_settled(piece) if place else piece)]


def _settled(piece: Sequence[Band]) -> Sequence[Band]:
    """Without its first rows, which are medians of next to nothing."""
    return piece[_UNSURE:] if len(piece) > 2 * _UNSURE else piece


def _alike(one: SeriesKey, other: SeriesKey) -> bool:
    """Whether a change of the one may stand for a change of the other."""
    quality = Metric.QUALITY
    return one.heat is Heat.HOT and (one.metric is quality) is (other.metric is quality)
