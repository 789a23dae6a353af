"""How all targets stand: each for itself, which one is the faster, what is wrong, what notes have brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from skep.monitor.headline import SpeedHeadline, headlines_of
from skep.monitor.history import notes_in_words
from skep.monitor.records import Alert
from skep.monitor.status import TargetStatus, alert_document, day_and_time, target_statuses
from skep.monitor.store import SeriesStore


class MonitorStatus(msgspec.Struct, frozen=True):
    at: float
    targets: Sequence[TargetStatus] = ()
    headlines: Sequence[SpeedHeadline] = ()
    alerts: Sequence[Alert] = ()
    notes: Sequence[str] = ()

    def sentences(self) -> list[str]:
        alerts = [f"alert: {one.message} (since {day_and_time(one.opened_at)})" for one in self.alerts]
        return [*(one.why for one in self.targets if one.why), *alerts, *self.notes]

    def document(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "targets": [one.document() for one in self.targets],
            "headlines": [one.document() for one in self.headlines],
            "notes": list(self.notes),
            "alerts": [alert_document(alert) for alert in self.alerts],
        }


def monitor_status(series: SeriesStore, now: float) -> MonitorStatus:
    standings = target_statuses(series, now)
    headlines = headlines_of(series, standings, now)
    return MonitorStatus(now, standings, headlines, series.alerts(open_only=True), notes_in_words(series, now))
