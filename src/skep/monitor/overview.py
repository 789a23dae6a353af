"""The state of all targets together: each for itself, which one is faster, what is wrong, and what
notes have brought.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from skep.errors import UserError
from skep.monitor.cold_start import ColdStart, cold_start_of
from skep.monitor.describe import describe_probing
from skep.monitor.headline import SpeedHeadline, headline_of, headlines_of
from skep.monitor.history import (
    TargetComparison,
    TargetComparisonRow,
    compare_targets,
    notes_in_words,
)
from skep.monitor.records import Alert
from skep.monitor.status import (
    WINDOW_S,
    TargetStatus,
    alert_document,
    day_and_time,
    target_statuses,
)
from skep.monitor.store import SeriesStore


class MonitorStatus(msgspec.Struct, frozen=True):
    at: float
    targets: Sequence[TargetStatus] = ()
    headlines: Sequence[SpeedHeadline] = ()
    cold_starts: Sequence[ColdStart] = ()
    alerts: Sequence[Alert] = ()
    notes: Sequence[str] = ()

    def sentences(self) -> list[str]:
        alerts = [
            f"alert: {alert.message} (since {day_and_time(alert.opened_at)})"
            for alert in self.alerts
        ]
        slow_starts = [
            cold_start.sentence for cold_start in self.cold_starts if cold_start.matters
        ]
        return [
            *(target.why for target in self.targets if target.why),
            *alerts,
            *slow_starts,
            *self.notes,
        ]

    def document(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "targets": [target.document() for target in self.targets],
            "headlines": [headline.document() for headline in self.headlines],
            "cold_starts": [cold_start.document() for cold_start in self.cold_starts],
            "notes": list(self.notes),
            "alerts": [alert_document(alert) for alert in self.alerts],
        }


def monitor_status(series: SeriesStore, now: float) -> MonitorStatus:
    standings = target_statuses(series, now)
    headlines = headlines_of(series, standings, now)
    starts = cold_starts_of(
        series, (standing.target.name for standing in standings), now - WINDOW_S, now
    )
    alerts = series.alerts(open_only=True)
    return MonitorStatus(now, standings, headlines, starts, alerts, notes_in_words(series, now))


def cold_starts_of(
    series: SeriesStore, names: Iterable[str], since: float, until: float
) -> list[ColdStart]:
    """Return the cost of a pause for each target that has cold and hot runs in the window."""
    starts = (cold_start_of(series, name, since, until) for name in names)
    return [start for start in starts if start is not None]


class TargetPair(msgspec.Struct, frozen=True):
    """Two targets over a window: their headline, every figure that both have, the cost of a pause,
    and how both are probed.
    """

    comparison: TargetComparison
    headline: SpeedHeadline | None  # A against B
    cold_starts: Sequence[ColdStart]
    probing: Sequence[str]

    @property
    def rows(self) -> Sequence[TargetComparisonRow]:
        return self.comparison.rows

    def document(self) -> dict[str, Any]:
        return {
            **self.comparison.document(),
            "headline": self.headline and self.headline.document(),
            "cold_starts": [cold_start.document() for cold_start in self.cold_starts],
            "probing": list(self.probing),
        }


def pair_of(series: SeriesStore, a: str, b: str, since: float, until: float) -> TargetPair:
    """Compare two targets. Raise UserError for one that never existed, and for one with itself."""
    targets = [series.target(name, removed=True) for name in (a, b)]
    if since >= until:
        raise UserError(
            "the time to compare over is empty",
            hint="write it as `--since 7d` or `--since 2026-11-15`",
        )
    if a == b:
        raise UserError(
            f"`{a}` cannot be compared with itself",
            hint="`skep monitor list` shows the other targets",
        )
    return TargetPair(
        compare_targets(series, a, b, since, until),
        headline_of(series, a, b, since, until),
        cold_starts_of(series, (a, b), since, until),
        describe_probing(targets),
    )
