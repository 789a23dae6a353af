"""Alerts: evaluate the rules after each probe, store the alerts, and send a notice when one opens or closes. Nothing
here raises: a full disk, a broken store or a receiver that hangs costs a line of the log, never the loop."""

from __future__ import annotations

import asyncio
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from skep.config.settings import Monitor, parse_quiet_hours
from skep.errors import SkepError, UserError
from skep.monitor import evaluate
from skep.monitor.evaluate import Alarms, findings_of
from skep.monitor.history import series_began
from skep.monitor.notify import Notice, NotificationQueues, Notifier, QuietHoursPolicy, Secrets, log_line, notifiers_of
from skep.monitor.records import DAY_S, Alert, Probe, ProbeOutcome
from skep.monitor.status import TargetState, alert_document, target_statuses
from skep.monitor.store import SeriesStore
from skep.units import format_seconds

KNOWN_FOR_S = 30 * DAY_S
UNTOLD_FOR_S = 2 * DAY_S
DISK_EVERY_S = 600.0


def free_bytes_of(path: Path) -> int | None:
    """Return the free bytes of the file system that holds the path, None where they cannot be read."""
    try:
        return shutil.disk_usage(path if path.exists() else path.parent).free
    except OSError:
        return None


class AlertWatcher:
    """`after_probe` after each probe, `tick` every minute or so. `async with` around it lets notices under way end.
    Open alerts come from the store: a restart neither forgets nor repeats them, and tells what was not told before it.
    The store is read in a thread: a probe of another target may be under way, and its clock is the loop's."""

    def __init__(
        self,
        series: SeriesStore,
        wanted: Monitor,
        *,
        env: Mapping[str, str],
        log: Callable[[str], None],
        free_bytes: Callable[[], int | None],
        zone: tzinfo | None = None,
        host: str | None = None,
        notifiers: list[Notifier] | None = None,
    ) -> None:
        """`zone` None: the machine's own time. `notifiers` None: those that are configured."""
        self._series, self._wanted, self._env, self._log = series, wanted, env, log
        self._free_bytes, self._zone = free_bytes, zone
        self._host = host or platform.node() or "this machine"
        self._secrets = self._known_secrets(None)
        self._notifiers = notifiers_of(wanted, env, self._secrets, log) if notifiers is None else notifiers
        self._queues = NotificationQueues(self._notifiers, self._told, log)
        self._alarms = Alarms()
        hours = parse_quiet_hours(wanted.quiet_hours) if wanted.quiet_hours else None
        self._quiet = QuietHoursPolicy(hours, wanted.quiet_except, zone)
        self._trend: list[tuple[float, int]] = []  # free bytes of the last day, of this process
        self._unsaved: list[Alert] = []  # opened while nothing could be stored
        self._unended: list[Alert] = []  # closed, and not stored as such yet
        self._notices: list[Notice] = []  # to be handed over when the thread is done
        self._told_before: dict[int | None, set[str]] = {}  # by the last process, of alerts that are open
        self._now = 0.0
        self._begun = False
        self._lock = asyncio.Lock()  # one event at a time changes the alarms, with all that is stored for it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._queues.end(hurry=raised[0] is not None)

    async def delivered(self, limit_s: float) -> bool:
        """Wait for notices under way. Return False where that takes longer than `limit_s`."""
        return await self._queues.delivered(limit_s)

    async def after_probe(self, probe: Probe, now: float) -> None:
        """Evaluate the rules of the probed target. Its rows and changes are in the store already."""
        if probe.outcome is not ProbeOutcome.MISSED:
            await self._look(now, self._look_at_target, probe.target)

    async def tick(self, now: float) -> None:
        await self._look(now, self._look_around)

    async def _look(self, now: float, look: Callable[..., None], *about: str) -> None:
        async with self._lock:
            self._now = now
            await asyncio.to_thread(look, *about)
            notices, self._notices = self._notices, []
            for notice in notices:
                told = self._told_before.pop(notice.alerts[0].id, ()) if notice.what == "opened" else ()
                self._queues.hand_over(self._dated(notice), told)

    def _dated(self, notice: Notice) -> Notice:
        return replace(notice, at=self._now, host=self._host, zone=self._zone)

    def _look_at_target(self, name: str) -> None:
        with self._never_raising("after_probe"):
            self._begin()
            target = next((one for one in self._series.targets() if one.name == name), None)
            if target is None:  # removed while it was probed
                return
            self._secrets = self._known_secrets(target.key_env)
            began = series_began(self._series, name, self._now + 1)
            self._carry_out(self._alarms.forget_model(name, began, self._now))
            findings = findings_of(self._series, target, self._wanted, self._now, self._zone)
            self._carry_out(self._alarms.feed(findings, self._now))

    def _look_around(self) -> None:
        with self._never_raising("tick"):
            self._begin()
            self._write_ends()
            while self._unsaved:
                alert = self._alarms.stored(self._unsaved[0], self._series.open_alert(self._unsaved[0]))
                self._unsaved.pop(0)
                if alert.id is not None and not self._quiet.stored(alert):
                    for via in ("log", *(notifier.via for notifier in self._notifiers)):
                        self._series.append_notice(alert.id, "opened", self._now, via, None)
            self._carry_out(self._alarms.forget((target.name for target in self._series.targets()), self._now))
        with self._never_raising("disk"):
            now, free, limit = self._now, self._free_bytes(), self._wanted.disk_free_bytes
            if free is not None and limit:
                self._trend = [(at, then) for at, then in self._trend if now - DAY_S <= at <= now]
                if not self._trend or now - self._trend[-1][0] >= DISK_EVERY_S:
                    self._trend.append((now, free))
                finding = evaluate.disk(free, self._trend, limit)
                self._carry_out(self._alarms.feed([finding], now) if finding is not None else [])
        self._notices += self._quiet.release(self._now)

    def _begin(self) -> None:
        """Read the alerts of the last process from the store, once."""
        if self._begun:
            return
        known = self._series.alerts(since=self._now - KNOWN_FOR_S)
        told = [self._series.notices(alert.id) for alert in known]
        self._alarms = Alarms(known)
        self._begun = True
        for alert, entries in reversed([*zip(known, told, strict=True)]):
            sent = [(what, via) for what, _, via, _ in entries if via != "log"]
            opened, closed = ({via for what, via in sent if what == kind} for kind in ("opened", "closed"))
            if alert.closed_at is None:
                if not opened.issuperset(notifier.via for notifier in self._notifiers):
                    self._told_before[alert.id] = opened
                    self._notices += self._quiet.tell(alert, self._now)
            elif not closed and self._now - alert.closed_at <= UNTOLD_FOR_S:
                if opened:
                    self._notices += self._quiet.tell(alert, self._now)
                else:
                    self._quiet.hold("passed", alert)

    def _carry_out(self, changed: Sequence[Alert]) -> None:
        for one in changed:
            alert = self._secrets.scrubbed(one)
            with self._never_raising("store"):
                alert = self._stored(alert)
            notice = self._dated(Notice("opened" if alert.closed_at is None else "closed", (alert,)))
            self._log(log_line(notice))  # at once, quiet hours or not
            self._write_down(notice, "log", None)
            self._notices += self._quiet.tell(alert, self._now)

    def _stored(self, alert: Alert) -> Alert:
        if alert.closed_at is None:
            try:
                return self._alarms.stored(alert, self._series.open_alert(alert))
            except SkepError:
                self._unsaved.append(alert)  # told all the same, stored when the store is well again
                raise
        self._unsaved = [one for one in self._unsaved if (one.rule, one.target) != (alert.rule, alert.target)]
        self._unended.append(alert)  # until it is written: else it would stand there as open for ever
        self._write_ends()
        return alert

    def _write_ends(self) -> None:
        while self._unended:
            alert = self._unended[0]
            if alert.id is not None and alert.closed_at is not None:
                self._series.close_alert(alert.id, alert.closed_at, alert.closed_because or "")
            self._unended.pop(0)

    async def _told(self, notice: Notice, via: str, error: str | None) -> None:
        error = None if error is None else self._secrets.scrub(error)
        if error is not None:
            self._log(f'alert.untold via={via} event={notice.what} error="{error}"')
        await asyncio.to_thread(self._write_down, notice, via, error)

    def _write_down(self, notice: Notice, via: str, error: str | None) -> None:
        with self._never_raising("notices"):
            what = "opened" if notice.what == "opened" else "closed"
            for number in [alert.id for alert in notice.alerts if alert.id is not None]:
                self._series.append_notice(number, what, self._now, via, error)

    def _known_secrets(self, key_env: str | None) -> Secrets:
        names = (self._wanted.webhook_env, self._wanted.webhook_token_env, key_env)
        return Secrets([self._wanted.webhook, *(self._env.get(name) for name in names if name)])

    @contextmanager
    def _never_raising(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            why = error.message if isinstance(error, SkepError) else f"{type(error).__name__}: {error}"
            self._log(f'watch.failed in={what} error="{self._secrets.scrub(why)}"')


def check_document(
    series: SeriesStore, wanted: Monitor, now: float, store: Path | None = None, *, running: bool | None = None
) -> dict[str, Any]:
    """Return what is wrong now and whether the loop runs, for cron. Sends no notice and stores nothing.
    `wrong` has what was found and, with the rule `unwatched`, targets whose probes are overdue by two intervals."""
    if not series.targets():  # cron may run as somebody else: nothing watched is not the same as all well
        raise UserError("nothing is watched here", hint="`skep monitor add NAME --url URL` adds a target")
    known = series.alerts(open_only=True)
    found = [finding for target in series.targets() for finding in findings_of(series, target, wanted, now)]
    free = None if store is None or not wanted.disk_free_bytes else free_bytes_of(store)
    if free is not None and (finding := evaluate.disk(free, (), wanted.disk_free_bytes)):
        found.append(finding)
    places = {(alert.rule, alert.target) for alert in known}
    new = [one for one in found if one.wrong and (one.rule, one.target) not in places]
    judged = [Alert(one.rule, one.target, now, one.message, one.value, one.limit) for one in new]
    wrong = [alert_document(alert) for alert in [*known, *judged]]
    who = "the monitor runs but is late" if running else "the monitor is not running: `skep monitor run` starts it"
    targets = []
    for one in target_statuses(series, now, with_readings=False):
        name, every_s, last, overdue_s = one.target.name, one.target.every_s, one.last, one.overdue_s(now)
        document = {
            "name": name,
            "state": str(one.state if overdue_s is None else TargetState.SILENT),
            "every_s": every_s,
            "last_probe_at": getattr(last, "ended_at", None),
            "overdue": overdue_s is not None,
            "overdue_s": overdue_s or 0.0,
            **{name: getattr(last, name, None) for name in ("error_kind", "error")},
        }
        targets.append(document)
        if overdue_s is not None:
            since = "it was added" if last is None else "the last one"
            text = f"{name}: a probe is overdue by {format_seconds(overdue_s)} since {since}; {who}"
            unwatched = {"rule": "unwatched", "target": name, "message": text, "value": overdue_s}
            never = dict.fromkeys(("opened_at", "closed_at", "closed_because"))
            wrong.append({**unwatched, "limit": 2 * every_s, **never})
    told = {"ok": not wrong, "at": now, "monitor_running": running, "wrong": wrong}
    return {**told, "alerts": [alert_document(alert) for alert in known], "targets": targets}
