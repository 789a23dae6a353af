"""When an alert begins and ends. A finding goes in, what is to be done comes out; no clock, no store, no rules.

An alert is opened once for an event and closed once it is found to be over. A rule that cannot tell says nothing, and
what is open stays open: between "wrong" and "right again" lies a strip that neither opens nor closes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from skep.series import Alert, Rule

Place = tuple[Rule, str | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says of a target now. `message` of a right one says why it is over."""

    rule: Rule
    target: str | None
    wrong: bool | None  # None: between the two, so that what is open stays open
    message: str
    value: float | None = None
    limit: float | None = None
    since: float | None = None  # when the event itself was, where the rule knows; later ones are events of their own


@dataclass(frozen=True, slots=True)
class Opened:
    alert: Alert


@dataclass(frozen=True, slots=True)
class Closed:
    """`alert` has its end and the reason."""

    alert: Alert


Action = Opened | Closed


class Alarms:
    """Invariant: at most one open alert for a rule and target."""

    def __init__(self, known: Iterable[Alert] = ()) -> None:
        """`known`: alerts of before, open ones and those of late, so that a restart tells nothing twice."""
        self._open: dict[Place, Alert] = {}
        self._last_opened: dict[Place, float] = {}
        for alert in sorted(known, key=lambda alert: alert.opened_at):
            self._last_opened[alert.rule, alert.target] = alert.opened_at
            if alert.closed_at is None:
                self._open[alert.rule, alert.target] = alert

    def __repr__(self) -> str:
        return f"<Alarms {len(self._open)} open>"

    @property
    def open(self) -> list[Alert]:
        return list(self._open.values())

    def stored(self, alert: Alert, alert_id: int) -> Alert:
        """The store gave it a number."""
        kept = replace(alert, id=alert_id)
        place = (alert.rule, alert.target)
        if place in self._open:
            self._open[place] = kept
        return kept

    def feed(self, findings: Sequence[Finding], now: float) -> list[Action]:
        actions: list[Action] = []
        for finding in findings:
            place = (finding.rule, finding.target)
            standing = self._open.get(place)
            if standing is None and finding.wrong and self._is_news(finding):
                actions.append(self._begin(finding, now))
            elif standing is not None and finding.wrong is False:
                actions.append(self._end(standing, finding.message, now))
            elif standing and finding.wrong and finding.since is not None and finding.since > standing.opened_at:
                actions += [self._end(standing, "another one followed", now), self._begin(finding, now)]
        return actions

    def forget(self, targets: Iterable[str], now: float) -> list[Action]:
        """Close what is open for targets other than these: they are watched no more."""
        watched = set(targets)
        gone = [alert for alert in self.open if alert.target is not None and alert.target not in watched]
        return [self._end(alert, "it is no longer watched", now) for alert in gone]

    def _is_news(self, finding: Finding) -> bool:
        last = self._last_opened.get((finding.rule, finding.target))
        return finding.since is None or last is None or finding.since > last

    def _begin(self, finding: Finding, now: float) -> Opened:
        alert = Alert(finding.rule, finding.target, now, finding.message, finding.value, finding.limit)
        self._open[finding.rule, finding.target] = alert
        self._last_opened[finding.rule, finding.target] = now
        return Opened(alert)

    def _end(self, alert: Alert, because: str, now: float) -> Closed:
        del self._open[alert.rule, alert.target]
        return Closed(replace(alert, closed_at=now, closed_because=because))
