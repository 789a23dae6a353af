"""What the store says of the present: how each watched target stands, open alerts, how soon answers began of late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skep.monitor.records import HOUR_S, Alert, MonitorEvent, SeriesPoint, SpanKind
from skep.monitor.status import TargetStatus, alert_document, target_statuses
from skep.monitor.store import SeriesStore
from skep.stats.percentiles import percentile
from skep.store.database import Store
from skep.web.context import Site

WEEK_S = 7 * 24 * HOUR_S
TTFT_WINDOW_S = 300.0
_MOST_ROWS = 2000
READING = "reading the store …"
# Of an answer that came in one piece, the first byte says nothing of the first token.
_FIRST_BYTES = """
SELECT first_byte_s FROM gateway_requests
WHERE arrived_at >= ? AND streamed AND outcome = 'answered' AND first_byte_s IS NOT NULL
ORDER BY arrived_at DESC LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Ttft:
    """Of streamed answers that ended of late, as the gateway saw them."""

    median_ms: float
    p95_ms: float
    count: int


@dataclass(frozen=True, slots=True)
class MonitorSnapshot:
    standings: tuple[TargetStatus, ...] = ()
    lines: tuple[tuple[SeriesPoint, ...], ...] = ()  # of the first series of each: hours of 7 days
    alerts: tuple[Alert, ...] = ()
    notes: tuple[MonitorEvent, ...] = ()  # the newest events, newest first
    fault: str | None = READING  # why nothing is known; None: the store was read

    def document(self, site: Site) -> dict[str, Any]:
        """A public one has no addresses, and no words of others: an error may hold both."""
        targets = [standing.document() for standing in self.standings]
        for target in targets:
            target["model"] = None if target["model"] is None else site.label(target["model"])
            if site.public:
                del target["url"], target["error"]
                target["alerts"] = [public_alert(alert) for alert in target["alerts"]]
            else:
                target["url"] = site.hide(target["url"])
        alerts = [alert_document(alert) for alert in self.alerts]
        events = [{"at": one.at, "kind": str(one.kind), "target": one.target, "text": one.text} for one in self.notes]
        return {
            "targets": targets,
            "alerts": [public_alert(one) for one in alerts] if site.public else alerts,
            "events": events,
        }


def public_alert(alert: dict[str, Any]) -> dict[str, Any]:
    """Without the words, which may come from a server's answer."""
    return {key: value for key, value in alert.items() if key not in ("message", "closed_because")}


def read_monitor(site: Site, now: float) -> MonitorSnapshot:
    with site.series() as series:
        if series is None:
            return MonitorSnapshot(fault=None)
        found = tuple(target_statuses(series, now))
        newest = series.events(now - WEEK_S, now)[-5:]
        return MonitorSnapshot(
            standings=found,
            lines=tuple(_line(series, standing, now) for standing in found),
            alerts=tuple(series.alerts(open_only=True)),
            notes=tuple(reversed(newest)),
            fault=None,
        )


def read_ttft(site: Site, now: float) -> Ttft | None:
    """None: no streamed answer ended in the last minutes, or the gateway keeps no rows."""
    with site.store() as store:
        values = [] if store is None else _first_bytes(store, now)
    if not values:
        return None
    ordered = sorted(values)
    return Ttft(1000 * percentile(ordered, 50), 1000 * percentile(ordered, 95), len(ordered))


def _first_bytes(store: Store, now: float) -> list[float]:
    return [float(row[0]) for row in store.read(_FIRST_BYTES, now - TTFT_WINDOW_S, _MOST_ROWS)]


def _line(series: SeriesStore, standing: TargetStatus, now: float) -> tuple[SeriesPoint, ...]:
    if not standing.readings:
        return ()
    spans = series.spans(standing.readings[0].key, SpanKind.HOUR, now - WEEK_S, now)
    return tuple(SeriesPoint(span.start, span.median) for span in spans if span.count)
