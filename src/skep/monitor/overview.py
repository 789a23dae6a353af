"""How all targets stand: each for itself, which one is the faster, what is wrong, what notes have brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from skep.monitor.cold_start import ColdStart, cold_start_of
from skep.monitor.headline import SpeedHeadline, headlines_of
from skep.monitor.history import notes_in_words
from skep.monitor.records import Alert
from skep.monitor.status import WINDOW_S, TargetStatus, alert_document, day_and_time, target_statuses
from skep.monitor.store import SeriesStore


class MonitorStatus(msgspec.Struct, frozen=True):
    at: float
    targets: Sequence[TargetStatus] = ()
    headlines: Sequence[SpeedHeadline] = ()
    cold_starts: Sequence[ColdStart] = ()
    alerts: Sequence[Alert] = ()
    notes: Sequence[str] = ()

    def sentences(self) -> list[str]:
        alerts = [f"alert: {one.message} (since {day_and_time(one.opened_at)})" for one in self.alerts]
        slow_starts = [one.sentence for one in self.cold_starts if one.matters]
        return [*(one.why for one in self.targets if one.why), *alerts, *slow_starts, *self.notes]

    def document(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "targets": [one.document() for one in self.targets],
            "headlines": [one.document() for one in self.headlines],
            "cold_starts": [one.document() for one in self.cold_starts],
            "notes": list(self.notes),
            "alerts": [alert_document(alert) for alert in self.alerts],
        }


def monitor_status(series: SeriesStore, now: float) -> MonitorStatus:
    standings = target_statuses(series, now)
    headlines = headlines_of(series, standings, now)
    starts = cold_starts_of(series, standings, now)
    alerts = series.alerts(open_only=True)
    return MonitorStatus(now, standings, headlines, starts, alerts, notes_in_words(series, now))


def cold_starts_of(series: SeriesStore, standings: Sequence[TargetStatus], now: float) -> list[ColdStart]:
    """Of the targets that have cold and hot runs of the last 7 days."""
    found = (cold_start_of(series, one.target.name, now - WINDOW_S, now) for one in standings)
    return [start for start in found if start is not None]
