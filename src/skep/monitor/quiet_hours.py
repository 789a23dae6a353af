"""Quiet hours: decide which notices wait for their end. Knows no clock and sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Literal

from skep.config.monitor import QuietHours
from skep.monitor.records import Alert, AlertRule

What = Literal["opened", "closed", "passed"]


@dataclass(frozen=True, slots=True)
class Notification:
    """A notice to send. `passed`: alerts that opened and closed in quiet hours, sent together."""

    what: What
    alerts: tuple[Alert, ...]


class QuietHoursPolicy:
    """Decides whether an alert is told now or at the end of the quiet hours. Each is told as open once at most."""

    def __init__(self, hours: QuietHours | None = None, exempt: Sequence[str] = (), zone: tzinfo | None = None) -> None:
        self._hours = hours
        self._exempt = frozenset(exempt)
        self._zone = zone
        self._opened: dict[tuple[AlertRule, str | None, float], Alert] = {}
        self._closed: list[Alert] = []
        self._passed: list[Alert] = []

    def __repr__(self) -> str:
        held = f"{len(self._opened)} opened, {len(self._closed)} closed, {len(self._passed)} passed"
        return f"<QuietHoursPolicy {held} held>"

    def quiet(self, now: float) -> bool:
        return self._hours is not None and self._hours.hold(now, self._zone)

    def opened(self, alert: Alert, now: float) -> list[Notification]:
        if self._silent(alert, now):
            self._opened[_identity(alert)] = alert
            return []
        return [Notification("opened", (alert,))]

    def closed(self, alert: Alert, now: float) -> list[Notification]:
        if self._opened.pop(_identity(alert), None) is not None:
            self._passed.append(alert)
            return []
        if self._silent(alert, now):
            self._closed.append(alert)
            return []
        return [Notification("closed", (alert,))]

    def stored(self, alert: Alert) -> bool:
        """Replace a held alert by the stored one, which has an id. Return False where it is not held."""
        held = _identity(alert) in self._opened
        if held:
            self._opened[_identity(alert)] = alert
        return held

    def passed(self, alert: Alert) -> None:
        """Hold an alert that opened and closed before this process started, without a notice."""
        self._passed.append(alert)

    def release(self, now: float) -> list[Notification]:
        """Return the held notices, once the quiet hours are over."""
        if self.quiet(now):
            return []
        words = [Notification("passed", tuple(self._passed))] if self._passed else []
        words += [Notification("closed", (alert,)) for alert in self._closed]
        words += [Notification("opened", (alert,)) for alert in self._opened.values()]
        self._passed, self._closed, self._opened = [], [], {}
        return words

    def _silent(self, alert: Alert, now: float) -> bool:
        return self.quiet(now) and alert.rule not in self._exempt


def _identity(alert: Alert) -> tuple[AlertRule, str | None, float]:
    return alert.rule, alert.target, alert.opened_at
