"""Alert rules, and the watcher that evaluates them after each probe.

A rule takes plain values and returns a finding that is wrong, right again, or undecided; it
returns nothing where there are too few values. An undecided finding leaves an open alert open, so
that a figure at its limit does not open and close one with every probe. `AlertWatcher` stores the
alerts and sends a notice when one opens or closes. It never raises: a full disk, a broken store or
a receiver that hangs costs a line of the log, not the loop."""

from __future__ import annotations

import asyncio
import math
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from skep.config.settings import Monitor, QuietHours, parse_quiet_hours
from skep.errors import SkepError, UserError
from skep.monitor.describe import clock, in_words, percent
from skep.monitor.history import primary_keys, series_began
from skep.monitor.notify import Notice, Notifier, Secrets, log_line, notifiers_of
from skep.monitor.records import (
    BUSY,
    DAY_S,
    Alert,
    AlertRule,
    Heat,
    Probe,
    ProbeOutcome,
    ProbeShape,
    ProbeTarget,
    SeriesChange,
    SeriesKey,
    SeriesMetric,
    SeriesPoint,
)
from skep.monitor.status import alert_document, target_statuses
from skep.monitor.store import SeriesStore
from skep.stats.percentiles import mad, median
from skep.units import format_bytes, format_seconds


class RuleFinding(msgspec.Struct, frozen=True):
    """What a rule found for a target.

    Where it is right again, `message` says why the alert is over.
    """

    rule: AlertRule
    target: str | None
    wrong: bool | None  # None: undecided, so that an open alert stays open
    message: str
    value: float | None = None
    limit: float | None = None
    # When the event itself was, where the rule knows; a later one is an event of its own.
    since: float | None = None


def judge_findings(
    stored: Sequence[Alert], findings: Iterable[RuleFinding], now: float
) -> tuple[list[Alert], list[tuple[Alert, str]]]:
    """Return the alerts that findings open, and the stored ones that they close, with the reason.

    `stored`: newest first. At most one alert is open for a rule and target.
    """
    opened = list[Alert]()
    closed = list[tuple[Alert, str]]()
    for finding in findings:
        same_kind = [
            alert
            for alert in stored
            if (alert.rule, alert.target) == (finding.rule, finding.target)
        ]
        still_open = [alert for alert in same_kind if alert.closed_at is None]
        is_news = finding.since is None or not same_kind or finding.since > same_kind[0].opened_at
        if finding.wrong is False:
            closed += [(alert, finding.message) for alert in still_open]
        elif finding.wrong and is_news and (not still_open or finding.since is not None):
            closed += [(alert, "another one followed") for alert in still_open]
            opened.append(
                Alert(
                    rule=finding.rule,
                    target=finding.target,
                    opened_at=now,
                    message=finding.message,
                    value=finding.value,
                    limit=finding.limit,
                )
            )
    return opened, closed


RUNS_IN_MEDIAN = 3  # a single run says little, the median of three a good deal more
BASELINE_S = 7 * DAY_S
MIN_BASELINE = 24
NOISE_SIGMAS = 3.0  # of the baseline's runs; see docs/watch.md for what it does to false alarms
SIGMA_OF_MAD = 1.4826
TTFT_CLEARS = 0.9
MIN_SHIFT = 0.02
SHIFT_HOLDS_S = 7 * DAY_S
DISK_CLEARS = 1.1
MAX_ERROR = 200
SPEEDS = (SeriesMetric.TOK_S, SeriesMetric.ENGINE_TOK_S, SeriesMetric.EFFECTIVE_TOK_S)
LOOK_BACK_S = 2 * BASELINE_S  # the last three runs may lie some days back
MISSED_BETWEEN = 50
REFUSED_MOST = 24  # a target that refuses so many probes in a row counts as down


def down(target: str, probes: Sequence[Probe], after: int) -> RuleFinding | None:
    """Judge whether a target is down. `probes`: newest first.

    Missed probes count for nothing; a busy target is neither down nor up, unless it is busy for
    very long.
    """
    tried = [probe for probe in probes if probe.outcome is not ProbeOutcome.MISSED]
    refused = next(
        (place for place, probe in enumerate(tried) if probe.error_kind != BUSY), len(tried)
    )
    if refused >= REFUSED_MOST:
        counted = tried
    else:
        counted = [probe for probe in tried if probe.error_kind != BUSY]
    failed = next(
        (place for place, probe in enumerate(counted) if probe.outcome is ProbeOutcome.DONE),
        len(counted),
    )
    if counted and not failed:
        return RuleFinding(AlertRule.DOWN, target, wrong=False, message="it answers again")
    if failed < after:
        return None
    why = (counted[0].error or counted[0].error_kind or "no answer")[:MAX_ERROR]
    count = "the last probe" if failed == 1 else f"{failed} probes in a row"
    text = f"{target} is down: {count} failed: {why}"
    return RuleFinding(
        AlertRule.DOWN, target, wrong=True, message=text, value=float(failed), limit=float(after)
    )


def slower(key: SeriesKey, points: Sequence[SeriesPoint], pct: float) -> RuleFinding | None:
    """Compare the median of the last three runs with that of the 7 days before them.

    It is wrong where the drop exceeds the limit and three times the deviation from run to run, on
    the scale of ratios, and none of the three is back within half of the limit: two odd runs of
    three are no rarity where runs differ much.
    """
    quiet = [point for point in points if not point.busy]
    lately = [point.value for point in quiet[-RUNS_IN_MEDIAN:]]
    edge = quiet[-RUNS_IN_MEDIAN].at if len(quiet) > RUNS_IN_MEDIAN else 0.0
    before = [point.value for point in quiet if edge - BASELINE_S <= point.at < edge]
    if len(before) < MIN_BASELINE or min(*lately, *before) <= 0:
        return None
    late = median(lately)
    usual = median(before)
    noise = NOISE_SIGMAS * SIGMA_OF_MAD * mad([math.log(value) for value in before])
    limit = min(usual * (1 - pct / 100), usual * math.exp(-noise))
    drop = 100 * (1 - late / usual)
    finding = partial(RuleFinding, AlertRule.SLOWER, key.target, value=late, limit=limit)
    figure = f"{late:.4g} {key.metric.unit}"
    if late < limit and max(lately) < usual * (1 - pct / 200):
        text = (
            f"{key.target}, {in_words(key)} {late:.4g}, {drop:.1f} % below its 7-day median, "
            f"{usual:.4g}"
        )
        return finding(wrong=True, message=text)
    return finding(
        wrong=False if drop <= pct / 2 else None,
        message=f"{figure}, its 7-day median is {usual:.4g}",
    )


def first_token(
    key: SeriesKey, points: Sequence[SeriesPoint], limit_ms: float
) -> RuleFinding | None:
    quiet = [point.value for point in points if not point.busy][-RUNS_IN_MEDIAN:]
    if len(quiet) < RUNS_IN_MEDIAN:
        return None
    late = median(quiet)
    ttft = format_seconds(late / 1000)
    finding = partial(RuleFinding, AlertRule.TTFT, key.target, value=late, limit=limit_ms)
    if late > limit_ms:
        limit = format_seconds(limit_ms / 1000)
        return finding(
            wrong=True, message=f"{key.target}: first token after {ttft}, the limit is {limit}"
        )
    if late <= TTFT_CLEARS * limit_ms:
        return finding(wrong=False, message=f"first token after {ttft}")
    return None


def shift(target: str, changes: Sequence[SeriesChange], now: float) -> RuleFinding:
    """Look for a change for the worse in the last 7 days that its series has not made good.

    An older one is the usual level by now.
    """
    last = {change.key: change for change in sorted(changes, key=lambda change: change.at)}
    recent = [change for change in last.values() if now - change.at <= SHIFT_HOLDS_S]
    worse = [change for change in recent if change.worse and abs(change.ratio - 1) >= MIN_SHIFT]
    finding = partial(RuleFinding, AlertRule.SHIFT, target)
    if not worse:
        if recent:
            text = "it is as it was before"
        else:
            text = "no change for the worse in the last 7 days"
        return finding(wrong=False, message=text)
    change = max(worse, key=lambda change: (change.at, _log_size(change.ratio)))
    low, high = (100 * (ratio - 1) for ratio in (change.ratio_low, change.ratio_high))
    size = f"{percent(change.ratio)} ({low:+.1f} to {high:+.1f} %)"
    because = f", when {change.because}" if change.because else ""
    text = f"{change.key.target}, {in_words(change.key)} {size} since {clock(change.at)}{because}"
    return finding(
        wrong=True, message=text, value=change.after, limit=change.before, since=change.at
    )


def _log_size(ratio: float) -> float:
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def disk(free: int, limit: int) -> RuleFinding | None:
    finding = partial(RuleFinding, AlertRule.DISK, None, value=float(free), limit=float(limit))
    room = format_bytes(free)
    if free < limit:
        text = f"the disk of the store has {room} left, the limit is {format_bytes(limit)}"
        return finding(wrong=True, message=text)
    if free > DISK_CLEARS * limit:
        return finding(wrong=False, message=f"{room} are free")
    return None


def worst(findings: Iterable[RuleFinding | None]) -> RuleFinding | None:
    """Return the finding of one rule over several series: wrong where one of them is, right again
    where all are.
    """
    decided = [finding for finding in findings if finding is not None]
    wrong = [finding for finding in decided if finding.wrong]
    if wrong:
        return min(wrong, key=lambda finding: (finding.value or 0) / (finding.limit or 1))
    undecided = [finding for finding in decided if finding.wrong is None]
    return next(iter([*undecided, *decided]), None)


def findings_of(
    series: SeriesStore, target: ProbeTarget, settings: Monitor, now: float
) -> list[RuleFinding]:
    """Evaluate the rules for one target. Its own limits go before the configured ones."""
    name = target.name
    began = series_began(series, name, now + 1)  # what was before it is of another model

    def fresh(key: SeriesKey) -> list[SeriesPoint]:
        """Return the points of a series, none where it has ended: a run that is made no more keeps
        no alert open.
        """
        points = series.points(key, max(began, now - LOOK_BACK_S), now + 1)
        if points and now - points[-1].at <= max(DAY_S, 3 * target.every_s):
            return points
        return []

    probes = series.probes(name, 0.0, now + 1, limit=settings.down_after + MISSED_BETWEEN)
    if target.slower_pct is None:
        pct = settings.slower_pct
    else:
        pct = target.slower_pct
    speeds = [key for key in primary_keys(series, name) if key.metric in SPEEDS]
    if target.ttft_ms is None:
        limit_ms = settings.ttft_ms
    else:
        limit_ms = target.ttft_ms
    ttft = SeriesKey(name, Heat.HOT, ProbeShape.SHORT, 1, SeriesMetric.TTFT_MS)
    changes = series.changes(name, max(began, now - SHIFT_HOLDS_S))
    findings = [
        down(name, probes, settings.down_after),
        None if pct is None else worst([slower(key, fresh(key), pct) for key in speeds]),
        None if limit_ms is None else first_token(ttft, fresh(ttft), limit_ms),
        RuleFinding(AlertRule.QUALITY, name, wrong=False, message="quality is no longer probed"),
        shift(name, changes, now),
    ]
    return [finding for finding in findings if finding is not None]


KNOWN_FOR_S = 30 * DAY_S
UNTOLD_FOR_S = 2 * DAY_S  # the end of an alert is no news later
MOST_TRIES = 5  # of one notice by one notifier: at every look, a minute apart or less
GRACE_S = 5.0  # for notices under way when it ends


def free_bytes_of(path: Path) -> int | None:
    """Return the free bytes of the file system that holds the path, None where they cannot be
    read.
    """
    try:
        return shutil.disk_usage(path if path.exists() else path.parent).free
    except OSError:
        return None


AlertPlace = tuple[AlertRule, str | None, float]


class AlertWatcher:
    """Opens and closes alerts and sends their notices.

    Call `after_probe` after each probe and `tick` every minute or so; leaving `async with` lets
    notices under way end. All it knows is in the store: a restart neither forgets nor repeats an
    alert, and sends the notices that were not sent before it. The store is read in a thread: a
    probe of another target may be under way, and its clock is the loop's.
    """

    def __init__(
        self,
        series: SeriesStore,
        settings: Monitor,
        *,
        env: Mapping[str, str],
        log: Callable[[str], None],
        free_bytes: Callable[[], int | None],
        zone: tzinfo | None = None,
        host: str | None = None,
        notifiers: list[Notifier] | None = None,
    ) -> None:
        """`zone` None: the machine's own time. `notifiers` None: those that are configured."""
        self._series = series
        self._settings = settings
        self._env = env
        self._log = log
        self._free_bytes = free_bytes
        self._zone = zone
        self._host = host or platform.node() or "this machine"
        self._secrets = self._known_secrets(None)
        if notifiers is None:
            self._notifiers = notifiers_of(settings, env, self._secrets, log)
        else:
            self._notifiers = notifiers
        # Sent by this process: of which alert, opened or closed, by which notifier.
        self._sent: set[tuple[AlertPlace, str, str]] = set()
        # Opened, and could not be stored yet.
        self._unstored: dict[tuple[AlertRule, str | None], Alert] = {}
        self._sending: asyncio.Task[None] | None = None
        if settings.quiet_hours:
            self._hours: QuietHours | None = parse_quiet_hours(settings.quiet_hours)
        else:
            self._hours = None
        self._now = 0.0
        self._lock = asyncio.Lock()  # one event at a time changes the alerts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Give notices under way a few seconds. The next process sends what is not sent then."""
        await self.delivered(0.0 if raised[0] is not None else GRACE_S)
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    async def delivered(self, limit_s: float) -> bool:
        """Wait for notices under way. Return whether they ended within `limit_s`."""
        if self._sending is None:
            return True
        done, _ = await asyncio.wait([self._sending], timeout=limit_s)
        return bool(done)

    async def after_probe(self, probe: Probe, now: float) -> None:
        """Evaluate the rules of the probed target, whose rows and changes are stored already."""
        if probe.outcome is not ProbeOutcome.MISSED:
            await self._look("after_probe", now, partial(self._look_at_target, probe.target))

    async def tick(self, now: float) -> None:
        await self._look("tick", now, self._look_at_disk)

    async def _look(self, when: str, now: float, look: Callable[[], None]) -> None:
        async with self._lock:
            self._now = now
            with self._never_raising(when):
                await asyncio.to_thread(look)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())

    def _look_at_target(self, name: str) -> None:
        target = next((target for target in self._series.targets() if target.name == name), None)
        if target is None:  # removed while it was probed
            return
        self._secrets = self._known_secrets(target.key_env)
        began = series_began(self._series, name, self._now + 1)
        for alert in self._series.alerts(open_only=True):
            if (
                alert.target == name
                and alert.opened_at < began
                and alert.rule is not AlertRule.DOWN
            ):
                self._close(alert, "another model answers")
        self._carry_out(findings_of(self._series, target, self._settings, self._now))

    def _look_at_disk(self) -> None:
        free = self._free_bytes()
        limit = self._settings.disk_free_bytes
        if free is not None and limit and (finding := disk(free, limit)) is not None:
            self._carry_out([finding])

    def _carry_out(self, findings: Sequence[RuleFinding]) -> None:
        """Store what opens and closes.

        What cannot be stored is logged all the same: the disk may be full.
        """
        stored = self._series.alerts(since=self._now - KNOWN_FOR_S)
        opened, closed = judge_findings(stored, findings, self._now)
        for finding in findings:
            if finding.wrong is False:
                self._unstored.pop((finding.rule, finding.target), None)
        for alert, because in closed:
            self._close(alert, because)
        for alert in opened:
            place = (alert.rule, alert.target)
            if place not in self._unstored:
                self._unstored[place] = replace(alert, message=self._secrets.scrub(alert.message))
                # At once, quiet hours or not.
                self._log(log_line(self._notice(self._unstored[place])))
            self._series.open_alert(self._unstored[place])
            del self._unstored[place]

    def _close(self, alert: Alert, because: str) -> None:
        because = self._secrets.scrub(because)
        closed_alert = replace(alert, closed_at=self._now, closed_because=because)
        self._log(log_line(self._notice(closed_alert)))
        self._series.close_alert(alert.id or 0, self._now, because)

    def _notice(self, alert: Alert) -> Notice:
        return Notice(
            "opened" if alert.closed_at is None else "closed", alert, self._now, self._host
        )

    async def _send(self) -> None:
        """Send the notices one after the other.

        One that fails is tried again after a later look, a few times.
        """
        with self._never_raising("notices"):
            for notice, notifier in await asyncio.to_thread(self._find_untold):
                try:
                    error = await notifier.send(notice)
                except Exception as failure:
                    error = type(failure).__name__
                if error is None:
                    self._sent.add((_place(notice.alert), notice.event, notifier.via))
                else:
                    error = self._secrets.scrub(error)
                    self._log(
                        f'alert.untold via={notifier.via} event={notice.event} error="{error}"'
                    )
                if notice.alert.id is not None:
                    values = (notice.alert.id, notice.event, self._now, notifier.via, error)
                    await asyncio.to_thread(self._series.append_notice, *values)

    def _find_untold(self) -> list[tuple[Notice, Notifier]]:
        """Return the notices that are to be sent now, each with its notifier.

        Of what opened and closed unsent, only what quiet hours held is sent, once for each rule
        and target.
        """
        if not self._notifiers:
            return []
        notices = []
        stored = self._series.alerts(since=self._now - UNTOLD_FOR_S)
        # To be sent in the morning.
        held = {_place(notice.alert): notice for notice in self._held_notices(stored)}
        for alert in (*reversed(stored), *self._unstored.values()):
            if self._is_quiet(alert):
                continue
            for notifier in self._notifiers:
                done_events = self._done_events(alert, notifier.via)
                if "opened" in done_events:
                    notice = self._notice(alert)
                else:
                    notice = held.get(_place(alert), self._notice(alert))
                is_news = notice.event == "opened" or notice.held or "opened" in done_events
                if is_news and notice.event not in done_events:
                    notices.append((notice, notifier))
        return notices

    def _done_events(self, alert: Alert, via: str) -> set[str]:
        """Return the events of an alert that a notifier has sent or tried to send too often."""
        place = _place(alert)
        events = {
            event
            for sent_place, event, sent_via in self._sent
            if (sent_place, sent_via) == (place, via)
        }
        if alert.id is None:
            return events
        tries = Counter[str]()
        for event, _, row_via, error in self._series.notices(alert.id):
            if row_via == via:
                tries[event] += 1
                if error is None:
                    events.add(event)
        return events | {event for event, count in tries.items() if count >= MOST_TRIES}

    def _held_notices(self, stored: Sequence[Alert]) -> list[Notice]:
        """Return one notice for each rule and target that opened and closed in quiet hours, of the
        last time it did. `stored`: newest first.
        """
        held: dict[tuple[AlertRule, str | None], list[Alert]] = {}
        for alert in stored:
            if alert.closed_at is not None and self._came_and_went(alert, alert.closed_at):
                held.setdefault((alert.rule, alert.target), []).append(alert)
        night_s = 0.0 if self._hours is None else self._hours.length_s
        return [
            replace(
                self._notice(alerts[0]),
                held=sum(alerts[0].opened_at - alert.opened_at < night_s for alert in alerts),
            )
            for alerts in held.values()
        ]

    def _came_and_went(self, alert: Alert, closed_at: float) -> bool:
        """Return whether quiet hours held both its beginning and its end."""
        if self._hours is None or alert.rule in self._settings.quiet_except:
            return False
        return self._hours.hold(alert.opened_at, self._zone) and self._hours.hold(
            closed_at, self._zone
        )

    def _is_quiet(self, alert: Alert) -> bool:
        if self._hours is None or alert.rule in self._settings.quiet_except:
            return False
        return self._hours.hold(self._now, self._zone)

    def _known_secrets(self, key_env: str | None) -> Secrets:
        names = (self._settings.webhook_env, self._settings.webhook_token_env, key_env)
        return Secrets([self._settings.webhook, *(self._env.get(name) for name in names if name)])

    @contextmanager
    def _never_raising(self, step: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, SkepError):
                why = error.message
            else:
                why = f"{type(error).__name__}: {error}"
            self._log(f'watch.failed in={step} error="{self._secrets.scrub(why)}"')


def _place(alert: Alert) -> AlertPlace:
    """Return what identifies an alert, be it stored or not."""
    return alert.rule, alert.target, alert.opened_at


def check_document(
    series: SeriesStore, now: float, *, running: bool | None = None
) -> dict[str, Any]:
    """Return what is wrong now and whether the loop runs, for cron. Send no notice, store nothing.

    `wrong` has the open alerts and, with the rule `unwatched`, targets whose probes are overdue by
    two intervals.
    """
    # Cron may run as another user: that nothing is watched does not mean that all is well.
    if not series.targets():
        raise UserError(
            "nothing is watched here", hint="`skep monitor add NAME --url URL` adds a target"
        )
    wrong = [alert_document(alert) for alert in series.alerts(open_only=True)]
    if running:
        reason = "the monitor runs but is late"
    else:
        reason = "the monitor is not running: `skep monitor run` starts it"
    for target_status in target_statuses(series, now, with_readings=False):
        name = target_status.target.name
        overdue_s = target_status.overdue_s(now)
        if overdue_s is not None:
            if target_status.last is None:
                since = "it was added"
            else:
                since = "the last one"
            overdue = format_seconds(overdue_s)
            wrong.append(
                {
                    "rule": "unwatched",
                    "target": name,
                    "message": f"{name}: a probe is overdue by {overdue} since {since}; {reason}",
                    "value": overdue_s,
                    "limit": 2 * target_status.target.every_s,
                    "opened_at": None,
                    "closed_at": None,
                    "closed_because": None,
                }
            )
    return {"ok": not wrong, "at": now, "monitor_running": running, "wrong": wrong}
