"""Which target is the faster one, in one sentence, for `skep monitor status`, the landing view and
the public page.

A machine of our own is compared with each server of somebody else; where all are of one kind, the
fastest with the others. The figure is the speed of hot runs by the client's clock: the one clock
that every target has."""

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
        target_median, other_median = map(figure, self.medians)
        medians = f"({medians_of(self.window_s)} {target_median} and {other_median})"
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
        """Return what to know of the sentence: which figure, how sure, which models."""
        details = [in_words(self.key)]
        if self.judgement is not Judgement.UNKNOWN:
            ratio = self.ratio
            details.append(
                f"ratio {ratio.estimate:.2f} (95 %: {ratio.low:.2f} to {ratio.high:.2f})"
            )
        details.append(f"{self.counts[0]} and {self.counts[1]} values")
        if None not in self.models and self.models[0] != self.models[1]:
            details.append(f"different models, {self.models[0]} and {self.models[1]}")
        if self.simulated:
            details.append(f"{' and '.join(self.simulated)} simulated")
        if self.away:
            details.append(f"{' and '.join(self.away)} without figures now")
        return details

    @property
    def line(self) -> str:
        return "; ".join([self.sentence, *self.details])

    def document(self) -> dict[str, Any]:
        derived = {"series": self.key.kind, "sentence": self.sentence, "details": self.details}
        fields = {
            name: value for name, value in msgspec.to_builtins(self).items() if name != "key"
        }
        return {**fields, **derived}


def in_percent(ratio: float) -> str:
    """Return a ratio as "118 % faster than", "54 % slower than", "12.3 times as fast as"."""
    if ratio >= MANY_TIMES:
        return f"{ratio:.1f} times as fast as"
    percent = 100 * abs(ratio - 1)
    decimals = 0 if percent >= 10 else 1
    word = "faster" if ratio >= 1 else "slower"
    return f"{percent:.{decimals}f} % {word} than"


def headlines_of(
    series: SeriesStore, standings: Sequence[TargetStatus], now: float
) -> list[SpeedHeadline]:
    """Return the headlines of the watched targets, without pairs that lack a figure."""
    away = {standing.target.name for standing in standings if standing.state in _AWAY}
    headlines = []
    for standing, rival in _pairs(standings):
        headline = headline_of(
            series, standing.target.name, rival.target.name, now - WINDOW_S, now
        )
        if headline is not None:
            headlines.append(
                replace(headline, away=tuple(name for name in headline.names if name in away))
            )
        if len(headlines) == MOST_HEADLINES:
            break
    return headlines


def _pairs(standings: Sequence[TargetStatus]) -> list[tuple[TargetStatus, TargetStatus]]:
    """Return which targets to compare. The gateway stands for the replicas behind it."""
    by_kind = {
        kind: [standing for standing in standings if standing.target.kind is kind]
        for kind in TargetKind
    }
    own_standings = by_kind[TargetKind.GATEWAY] or by_kind[TargetKind.REPLICA]
    others = by_kind[TargetKind.ENDPOINT]
    if own_standings and others:
        return [(standing, rival) for standing in own_standings for rival in others]
    ordered = sorted([*own_standings, *others], key=_speed, reverse=True)
    return [(ordered[0], rival) for rival in ordered[1:]]


def _speed(standing: TargetStatus) -> float:
    first = standing.first("tok/s")
    if first is not None and first.week is not None:
        return first.week.median
    return 0.0


def headline_of(
    series: SeriesStore, target: str, rival: str, since: float, until: float
) -> SpeedHeadline | None:
    """Return the headline of the short runs, else of the long ones.

    None: the two have no figure in common in the window.
    """
    for shape in (ProbeShape.SHORT, ProbeShape.LONG):
        key = SeriesKey(target, Heat.HOT, shape, 1, SeriesMetric.TOK_S)
        comparison = compare_series(series, key, rival, target, since, until)
        if comparison.ratio is None or comparison.a is None or comparison.b is None:
            continue
        return SpeedHeadline(
            target,
            rival,
            key=key,
            window_s=until - since,
            judgement=comparison.judgement,
            ratio=comparison.ratio,
            medians=(comparison.b.median, comparison.a.median),
            counts=(comparison.b.count, comparison.a.count),
            models=(served_model(series, target), served_model(series, rival)),
            simulated=tuple(
                name for name in (target, rival) if series.is_simulated(name, since, until)
            ),
        )
    return None
