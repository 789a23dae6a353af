"""Which target is the faster one, in one sentence. `skep monitor status`, the landing view and the
public page say it.

An own machine is set against each server of somebody else; where all are of one kind, the fastest
against the others. The figure is the speed of hot runs by the client's clock: the one clock that
every target has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.monitor.describe import figure, in_words, medians_of
from skep.monitor.history import compare_series, served_model
from skep.monitor.records import Heat, ProbeShape, SeriesKey, SeriesMetric, TargetKind
from skep.monitor.status import WINDOW_S, TargetState, TargetStatus
from skep.monitor.store import SeriesStore
from skep.stats.versus import Judgement
from skep.units import Interval

MOST_HEADLINES = 3
MANY_TIMES = 10.0  # a ratio from which percent are no longer read
_AWAY = (TargetState.FAILING, TargetState.SILENT)


class SpeedHeadline(msgspec.Struct, frozen=True):
    """A target against another one over a window. Pairs: of the target, of the other one."""

    target: str
    other: str
    key: SeriesKey  # of the target
    window_s: float
    judgement: Judgement  # of the target
    ratio: Interval  # of the medians, the target over the other one
    medians: tuple[float, float]
    counts: tuple[int, int]
    models: tuple[str | None, str | None]
    simulated: tuple[str, ...] = ()  # of these no model answered some probes
    away: tuple[str, ...] = ()  # these bring no figures now

    @property
    def names(self) -> tuple[str, str]:
        return (self.target, self.other)

    @property
    def sentence(self) -> str:
        medians = (
            f"({medians_of(self.window_s)} {figure(self.medians[0])} and "
            f"{figure(self.medians[1])})"
        )
        if self.judgement is Judgement.UNKNOWN:
            return (
                f"{self.target} and {self.other} are not compared: their probes ask for "
                f"different lengths {medians}"
            )
        if self.judgement is Judgement.SAME:
            return f"{self.target} and {self.other} cannot be told apart {medians}"
        return f"{self.target} is {in_percent(self.ratio.estimate)} {self.other} {medians}"

    @property
    def details(self) -> list[str]:
        """What to know of the sentence: which figure, how sure, which models."""
        told = [in_words(self.key)]
        if self.judgement is not Judgement.UNKNOWN:
            ratio = self.ratio
            told.append(f"ratio {ratio.estimate:.2f} (95 %: {ratio.low:.2f} to {ratio.high:.2f})")
        told.append(f"{self.counts[0]} and {self.counts[1]} values")
        if None not in self.models and self.models[0] != self.models[1]:
            told.append(f"different models, {self.models[0]} and {self.models[1]}")
        told += [f"{' and '.join(self.simulated)} simulated"] if self.simulated else []
        told += [f"{' and '.join(self.away)} without figures now"] if self.away else []
        return told

    @property
    def line(self) -> str:
        return "; ".join([self.sentence, *self.details])

    def document(self) -> dict[str, Any]:
        derived = {"series": self.key.kind, "sentence": self.sentence, "details": self.details}
        return {
            name: value for name, value in msgspec.to_builtins(self).items() if name != "key"
        } | derived


def in_percent(ratio: float) -> str:
    """ "118 % faster than", "54 % slower than", "12.3 times as fast as"."""
    if ratio >= MANY_TIMES:
        return f"{ratio:.1f} times as fast as"
    size = 100 * abs(ratio - 1)
    return f"{size:.{0 if size >= 10 else 1}f} % {'faster' if ratio >= 1 else 'slower'} than"


def headlines_of(
    series: SeriesStore, standings: Sequence[TargetStatus], now: float
) -> list[SpeedHeadline]:
    """Of targets that are watched; none where a figure of one of them is missing."""
    away = {standing.target.name for standing in standings if standing.state in _AWAY}
    found = []
    for one, other in _pairs(standings):
        headline = headline_of(series, one.target.name, other.target.name, now - WINDOW_S, now)
        if headline is not None:
            found.append(
                replace(headline, away=tuple(name for name in headline.names if name in away))
            )
        if len(found) == MOST_HEADLINES:
            break
    return found


def _pairs(standings: Sequence[TargetStatus]) -> list[tuple[TargetStatus, TargetStatus]]:
    """The gateway stands for the replicas behind it."""
    by_kind = {
        kind: [standing for standing in standings if standing.target.kind is kind]
        for kind in TargetKind
    }
    own = by_kind[TargetKind.GATEWAY] or by_kind[TargetKind.REPLICA]
    others = by_kind[TargetKind.ENDPOINT]
    if own and others:
        return [(one, other) for one in own for other in others]
    ordered = sorted([*own, *others], key=_speed, reverse=True)
    return [(ordered[0], other) for other in ordered[1:]]


def _speed(standing: TargetStatus) -> float:
    first = standing.first("tok/s")
    if first is not None and first.week is not None:
        return first.week.median
    return 0.0


def headline_of(
    series: SeriesStore, target: str, other: str, since: float, until: float
) -> SpeedHeadline | None:
    """Of the short runs, else of the long ones.

    None: they have no figure in common in the window.
    """
    for shape in (ProbeShape.SHORT, ProbeShape.LONG):
        key = SeriesKey(target, Heat.HOT, shape, 1, SeriesMetric.TOK_S)
        found = compare_series(series, key, other, target, since, until)
        if found.ratio is None or found.a is None or found.b is None:
            continue
        return SpeedHeadline(
            target,
            other,
            key=key,
            window_s=until - since,
            judgement=found.judgement,
            ratio=found.ratio,
            medians=(found.b.median, found.a.median),
            counts=(found.b.count, found.a.count),
            models=(served_model(series, target), served_model(series, other)),
            simulated=tuple(
                name for name in (target, other) if series.is_simulated(name, since, until)
            ),
        )
    return None
