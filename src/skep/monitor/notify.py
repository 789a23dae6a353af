"""What somebody is told about an alert: the words, and their form for a command, ntfy, Slack or any other receiver.

Pure. Texts of servers stand in the messages, so they are made one line of plain characters, and every secret that is
known here is taken out of them before they go anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Any, Literal, Protocol

from skep.config.monitor import Hook, Monitor, QuietHours, Shape, check_webhook
from skep.errors import UserError
from skep.monitor.records import Alert, AlertRule, one_line
from skep.monitor.status import alert_document
from skep.units import format_seconds, shortened
from skep.wire.client import WireFailure
from skep.wire.fetch import HttpResponse, fetch_once
from skep.wire.retry import KINDS

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


MAX_TEXT = 1000
MIN_SECRET = 4  # a shorter one would be found inside of words
URGENT = (AlertRule.DOWN, AlertRule.DISK)
NTFY_HIGH, NTFY_DEFAULT = 4, 3


@dataclass(frozen=True, slots=True)
class Notice:
    """One message. `alerts` are several only where they came and went in quiet hours."""

    what: What
    alerts: tuple[Alert, ...]
    title: str
    text: str
    at: float
    host: str

    @property
    def urgent(self) -> bool:
        return self.what == "opened" and any(alert.rule in URGENT for alert in self.alerts)


class Secrets:
    """Secret values to be replaced in texts. `repr` never shows them."""

    def __init__(self, values: Iterable[str | None]) -> None:
        self._values = sorted({text for text in values if text and len(text) >= MIN_SECRET}, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<Secrets {len(self._values)}>"

    def scrub(self, text: str) -> str:
        """Return the text as one line of bounded length, without secrets and user names in URLs."""
        for value in self._values:
            text = text.replace(value, "***")
        return shortened(one_line(re.sub(r"(?<=://)[^/\s@]+@", "***@", text)), MAX_TEXT)

    def scrubbed(self, alert: Alert) -> Alert:
        because = None if alert.closed_because is None else self.scrub(alert.closed_because)
        return replace(alert, message=self.scrub(alert.message), closed_because=because)


def make_notice(word: Notification, now: float, host: str, zone: tzinfo | None = None) -> Notice:
    if word.what == "passed":
        many = len(word.alerts)
        text = f"came and went in quiet hours: {'; '.join(_passed(alert, zone) for alert in word.alerts)}"
        title = f"{many} alert{'s' if many != 1 else ''} came and went on {host}"
        return Notice(word.what, word.alerts, title, text[:MAX_TEXT], now, host)
    (alert,) = word.alerts
    about, name = alert.target or host, _NAMES[alert.rule]
    if word.what == "opened":
        return Notice(word.what, word.alerts, f"{about}: {name}", alert.message, now, host)
    lasted = f" after {format_seconds(alert.closed_at - alert.opened_at)}" if alert.closed_at is not None else ""
    title = f"{about}: no longer {name}"
    return Notice(word.what, word.alerts, title, f"{title}{lasted}: {alert.closed_because or 'it is over'}", now, host)


def body_of(notice: Notice, shape: Shape, hook: Hook) -> dict[str, Any]:
    """Return the JSON body for a webhook."""
    if shape == "ntfy":
        return {
            "topic": hook.topic,
            "title": f"{notice.title} ({notice.host})",
            "message": notice.text,
            "priority": NTFY_HIGH if notice.urgent else NTFY_DEFAULT,
            "tags": ["warning" if notice.what == "opened" else "white_check_mark"],
        }
    if shape == "slack":
        mark = ":warning:" if notice.what == "opened" else ":white_check_mark:"
        return {"text": f"{mark} {_for_slack(notice.text)} ({_for_slack(notice.host)})"}
    first = alert_document(notice.alerts[0]) if len(notice.alerts) == 1 else {}
    return {
        **first,
        "source": "skep",
        "event": notice.what,
        "host": notice.host,
        "at": notice.at,
        "title": notice.title,
        "message": notice.text,
        "alerts": [alert_document(alert) for alert in notice.alerts],
    }


def variables_of(notice: Notice) -> dict[str, str]:
    """Return the variables `SKEP_ALERT_*` for a command; unknown values are empty."""
    one = notice.alerts[0] if len(notice.alerts) == 1 else None
    told = {
        "EVENT": notice.what,
        "MESSAGE": notice.text,
        "TITLE": notice.title,
        "HOST": notice.host,
        "RULE": one.rule if one else None,
        "TARGET": one.target if one else None,
        "VALUE": one.value if one else None,
        "LIMIT": one.limit if one else None,
        "OPENED_AT": one.opened_at if one else None,
        "CLOSED_AT": one.closed_at if one else None,
    }
    return {f"SKEP_ALERT_{name}": "" if value is None else _plain(value) for name, value in told.items()}


def argv_of(command: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Fill `{message}` and the like into the command. No shell reads them; other braces stay."""
    words = {name.removeprefix("SKEP_ALERT_").lower(): value for name, value in variables.items()}
    known = re.compile(r"\{(" + "|".join(words) + r")\}")
    return [known.sub(lambda found: words[found[1]], part) for part in command]


def log_line(notice: Notice) -> str:
    rules = ",".join(alert.rule for alert in notice.alerts)
    targets = ",".join(alert.target or "-" for alert in notice.alerts)
    return f'alert.{notice.what} rule={rules} target={targets} message="{notice.text.replace(chr(34), chr(39))}"'


_NAMES = {
    AlertRule.DOWN: "down",
    AlertRule.SLOWER: "slower than usual",
    AlertRule.TTFT: "late with its first token",
    AlertRule.QUALITY: "wrong more often than usual",
    AlertRule.DISK: "short of disk",
    AlertRule.SHIFT: "changed for the worse",
}


def _passed(alert: Alert, zone: tzinfo | None) -> str:
    moments = [datetime.fromtimestamp(at, zone).strftime("%H:%M") for at in (alert.opened_at, alert.closed_at) if at]
    return f"{alert.target or 'the machine'} {_NAMES[alert.rule]} {' to '.join(moments)}"


def _for_slack(text: str) -> str:
    """Escape Slack's three characters of markup: `<!channel>` in an error message would notify everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) and abs(value) < 1e9 else f"{value}"


COMMAND_S = 30.0
WEBHOOK_S = 10.0
RETRIES_S = (2.0, 10.0, 60.0, 300.0)
MAX_RETRY_AFTER_S = 300.0
AGAIN = (408, 425, 429)  # and everything from 500 on
MAX_OUTPUT = 2000
MAX_WAITING = 100
GRACE_S = 5.0

Sleep = Callable[[float], Awaitable[None]]
Log = Callable[[str], None]


class Notifier(Protocol):
    """A way to send a notice. `send` is bounded in time, raises only on cancellation, and returns what went wrong."""

    via: str

    async def send(self, notice: Notice) -> str | None: ...


@dataclass(frozen=True, repr=False)
class Command:
    """A program of the user, started without a shell; its output goes to the log."""

    via = "command"

    command: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Secrets
    log: Log
    limit_s: float = COMMAND_S

    async def send(self, notice: Notice) -> str | None:
        variables = variables_of(notice)
        argv = argv_of(self.command, variables)
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**self.env, **variables},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"`{argv[0]}` cannot be started: {getattr(error, 'strerror', None) or error}"
        output, ended = b"", False
        try:
            async with asyncio.timeout(self.limit_s):
                assert child.stdout is not None
                while chunk := await child.stdout.read(65536):
                    output = (output + chunk)[:MAX_OUTPUT]
                code = await child.wait()
                ended = True
        except TimeoutError:
            return f"`{argv[0]}` did not end within {self.limit_s:g} s"
        finally:
            if not ended:
                await asyncio.shield(_kill(child))
            if said := self.secrets.scrub(output.decode(errors="replace")):
                self.log(f'alert.command said="{said}"')
        return None if code == 0 else f"`{argv[0]}` ended with {code}"


async def _kill(child: asyncio.subprocess.Process) -> None:
    """Kill the command and every process it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


@dataclass(frozen=True, repr=False)
class Webhook:
    """An HTTP address that notices are posted to, with retries. Logs and errors name only its server."""

    via = "webhook"

    hook: Hook
    shape: Shape
    token: str | None = None
    sleep: Sleep = asyncio.sleep
    retries_s: tuple[float, ...] = RETRIES_S
    limit_s: float = WEBHOOK_S

    async def send(self, notice: Notice) -> str | None:
        error: str | None = None
        for pause_s in (*self.retries_s, None):
            error, wait_s = await self._try(notice)
            if error is None or wait_s is None or pause_s is None:
                break
            await self.sleep(max(pause_s, wait_s))
        return error

    async def _try(self, notice: Notice) -> tuple[str | None, float | None]:
        """Return what went wrong and the shortest wait before a retry; a wait of None means no retry."""
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        body = body_of(notice, self.shape, self.hook)
        try:
            answer = await fetch_once(
                self.hook.origin, "POST", self.hook.path, body=body, headers=headers, timeout_s=self.limit_s
            )
        except WireFailure as failure:
            why = "its certificate is not trusted" if "certificate" in str(failure).lower() else failure.kind
            return f"{self.hook}: {KINDS[why][1] if why in KINDS else why}", 0.0
        except (OSError, ValueError) as failure:
            return f"{self.hook}: {type(failure).__name__}", 0.0
        if 200 <= answer.status < 300:
            return None, None
        again = answer.status in AGAIN or answer.status >= 500
        return f"{self.hook} answered {answer.status}", _retry_after(answer) if again else None


def _retry_after(answer: HttpResponse) -> float:
    told = (answer.head.get(b"retry-after") or b"").strip()
    return min(float(told), MAX_RETRY_AFTER_S) if told.isdigit() else 0.0


def webhook_of(wanted: Monitor, env: Mapping[str, str]) -> Hook | None:
    """Return the configured webhook. Raise UserError where its variable is not set or holds no URL."""
    url, name = wanted.webhook, "`monitor.webhook`"
    if wanted.webhook_env is not None:
        url, name = env.get(wanted.webhook_env), f"the address in `{wanted.webhook_env}`"
        if not url:
            hint = "it should hold the address of the webhook, see `monitor.webhook_env`"
            raise UserError(f"the variable `{wanted.webhook_env}` is not set", hint=hint)
    if url is None:
        return None
    if wanted.webhook_token_env is not None and not env.get(wanted.webhook_token_env):
        hint = "it should hold the token of the webhook, see `monitor.webhook_token_env`"
        raise UserError(f"the variable `{wanted.webhook_token_env}` is not set", hint=hint)
    return check_webhook(url, wanted.webhook_shape, name=name)


def notifiers_of(wanted: Monitor, env: Mapping[str, str], secrets: Secrets, log: Log) -> list[Notifier]:
    """Return the configured notifiers; one that cannot be used is named in the log."""
    notifiers: list[Notifier] = []
    if wanted.command:
        notifiers.append(Command(wanted.command, env, secrets, log))
    try:
        hook = webhook_of(wanted, env)
    except UserError as error:
        log(f'alert.webhook unusable because="{error.message}"')
        hook = None
    if hook is not None:
        token = env.get(wanted.webhook_token_env) if wanted.webhook_token_env else None
        notifiers.append(Webhook(hook, wanted.webhook_shape, token))
    return notifiers


Done = Callable[[Notice, str, str | None], Awaitable[None]]


class NotificationQueues:
    """A queue and a task for each notifier; whoever hands a notice over does not wait for it.

    A notice that is not sent when they end has no entry in the store, and the next process sends it.
    """

    def __init__(self, notifiers: list[Notifier], done: Done, log: Log) -> None:
        self._queues: dict[str, asyncio.Queue[Notice]] = {one.via: asyncio.Queue(MAX_WAITING) for one in notifiers}
        self._notifiers = notifiers
        self._done = done
        self._log = log
        self._life: asyncio.Task[None] | None = None  # begun with the first notice

    def __repr__(self) -> str:
        waiting = ", ".join(f"{queue.qsize()} for the {via}" for via, queue in self._queues.items())
        return f"<NotificationQueues {waiting or 'to nobody'}>"

    def hand_over(self, notice: Notice, told: Collection[str] = ()) -> None:
        """Queue a notice. Call from the loop's own thread. `told`: notifiers that have sent it already."""
        if self._life is None and self._notifiers:
            self._life = asyncio.ensure_future(self._live())
        for via, queue in self._queues.items():
            if via in told:
                continue
            try:
                queue.put_nowait(notice)
            except asyncio.QueueFull:  # told by the next process, or in `skep monitor status`
                self._log(f"alert.dropped via={via} waiting={queue.qsize()}")

    async def delivered(self, limit_s: float) -> bool:
        """Wait until every queued notice is sent or given up. Return False where that takes too long."""
        try:
            async with asyncio.timeout(limit_s):
                for queue in self._queues.values():
                    await queue.join()
        except TimeoutError:
            return False
        return True

    async def end(self, *, hurry: bool = False) -> None:
        """Stop the tasks; notices under way get a few seconds."""
        try:
            if not hurry:
                await self.delivered(GRACE_S)
        finally:
            life, self._life = self._life, None
            if life is not None:
                life.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await life

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for notifier in self._notifiers:
                tasks.create_task(self._walk(notifier))

    async def _walk(self, notifier: Notifier) -> None:
        queue = self._queues[notifier.via]
        while True:
            notice = await queue.get()
            try:
                error = await notifier.send(notice)
            except Exception as failure:
                error = type(failure).__name__
            await self._done(notice, notifier.via, error)
            queue.task_done()
