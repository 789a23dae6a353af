"""Notices of alerts and how they are sent: by a command, or to ntfy, Slack or any other receiver.

Messages contain texts of servers: they are made one line of plain characters, and known secrets
are taken out. When a notice is due is decided in `alerts`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, Protocol

import msgspec

from skep.config.settings import COMMAND_WORDS, Hook, Monitor, Shape, check_webhook
from skep.errors import UserError
from skep.monitor.describe import clock
from skep.monitor.records import Alert, AlertRule
from skep.monitor.status import alert_document
from skep.units import format_seconds, one_line
from skep.wire.client import WireFailure, fetch_once
from skep.wire.openai import KINDS_OF_ERRORS

MAX_TEXT = 1000
MIN_SECRET = 4  # a shorter one would be found inside of words
URGENT = (AlertRule.DOWN, AlertRule.DISK)
NTFY_HIGH = 4
NTFY_DEFAULT = 3
_NAMES = {
    AlertRule.DOWN: "down",
    AlertRule.SLOWER: "slower than usual",
    AlertRule.TTFT: "late with its first token",
    AlertRule.DISK: "short of disk",
    AlertRule.SHIFT: "changed for the worse",
}


class Notice(msgspec.Struct, frozen=True):
    """One message: that an alert opened or closed, or, after quiet hours, that it did both in
    them.
    """

    event: Literal["opened", "closed"]
    alert: Alert
    at: float = 0.0
    host: str = ""
    held: int = 0  # how often it opened and closed in quiet hours; the last time is `alert`

    @property
    def title(self) -> str:
        name = _NAMES.get(self.alert.rule, self.alert.rule)
        if self.held:
            state = f"was {name} in quiet hours"
        elif self.event == "closed":
            state = f"no longer {name}"
        else:
            state = name
        return f"{self.alert.target or self.host}: {state}"

    @property
    def text(self) -> str:
        alert = self.alert
        if self.event == "opened" or alert.closed_at is None:
            return alert.message
        if self.held:
            if self.held == 1:
                times = ""
            else:
                times = f"{self.held} times, the last one "
            begin = clock(alert.opened_at)
            end = clock(alert.closed_at)
            return (
                f"in quiet hours, and over: {times}from {begin} to {end}: {alert.message}; "
                f"{alert.closed_because}"
            )
        return (
            f"{self.title} after {format_seconds(alert.closed_at - alert.opened_at)}: "
            f"{alert.closed_because}"
        )


class Secrets:
    """Secret values to be replaced in texts."""

    def __init__(self, values: Iterable[str | None]) -> None:
        self._values = sorted(
            {text for text in values if text and len(text) >= MIN_SECRET}, key=len, reverse=True
        )

    def scrub(self, text: str) -> str:
        """Return the text as one line of bounded length, without secrets and user names in
        URLs.
        """
        for value in self._values:
            text = text.replace(value, "***")
        return one_line(re.sub(r"(?<=://)[^/\s@]+@", "***@", text), MAX_TEXT)


def body_of(notice: Notice, shape: Shape, hook: Hook) -> dict[str, Any]:
    """Return the JSON body for a webhook."""
    if notice.event == "opened":
        mark = "warning"
    else:
        mark = "white_check_mark"
    if shape == "ntfy":
        if notice.event == "opened" and notice.alert.rule in URGENT:
            priority = NTFY_HIGH
        else:
            priority = NTFY_DEFAULT
        texts = {"title": f"{notice.title} ({notice.host})", "message": notice.text}
        return {"topic": hook.topic, **texts, "priority": priority, "tags": [mark]}
    if shape == "slack":
        # Escaped, since `<!channel>` would call all.
        return {"text": f":{mark}: {escape(f'{notice.text} ({notice.host})', quote=False)}"}
    return {**notice_fields(notice), "source": "skep", "at": notice.at}


def notice_fields(notice: Notice) -> dict[str, Any]:
    return {
        **alert_document(notice.alert),
        "event": notice.event,
        "message": notice.text,
        "title": notice.title,
        "host": notice.host,
    }


def argv_of(command: Iterable[str], notice: Notice) -> list[str]:
    """Fill `{message}` and the like into the command.

    No shell reads them; what is not known is empty.
    """
    fields = notice_fields(notice)
    placeholder = re.compile(r"\{(" + "|".join(COMMAND_WORDS) + r")\}")
    return [placeholder.sub(lambda match: _plain(fields[match[1]]), part) for part in command]


def log_line(notice: Notice) -> str:
    alert = notice.alert
    text = notice.text.replace('"', "'")
    return f'alert.{notice.event} rule={alert.rule} target={alert.target or "-"} message="{text}"'


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and abs(value) < 1e9:
        return f"{value:.10g}"
    return f"{value}"


COMMAND_S = 30.0
WEBHOOK_S = 10.0
MAX_OUTPUT = 2000

Log = Callable[[str], None]


class Notifier(Protocol):
    """A way to send a notice.

    `send` is bounded in time, raises only on cancellation, and returns what went wrong.
    """

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
        argv = argv_of(self.command, notice)
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"`{argv[0]}` cannot be started: {getattr(error, 'strerror', None) or error}"
        output = b""
        ended = False
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
            text = self.secrets.scrub(output.decode(errors="replace"))
            if text:
                self.log(f'alert.command said="{text}"')
        if code == 0:
            return None
        return f"`{argv[0]}` ended with code {code}"


async def _kill(child: asyncio.subprocess.Process) -> None:
    """Kill the command and every process it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


@dataclass(frozen=True, repr=False)
class Webhook:
    """An HTTP address that notices are posted to. Logs and errors name only its server."""

    via = "webhook"

    hook: Hook
    shape: Shape
    token: str | None = None
    limit_s: float = WEBHOOK_S

    async def send(self, notice: Notice) -> str | None:
        if self.token:
            headers = {"authorization": f"Bearer {self.token}"}
        else:
            headers = {}
        body = body_of(notice, self.shape, self.hook)
        hook = self.hook
        try:
            answer = await fetch_once(
                hook.origin, "POST", hook.path, body=body, headers=headers, timeout_s=self.limit_s
            )
        except WireFailure as failure:
            if "certificate" in str(failure).lower():
                why = "its certificate is not trusted"
            else:
                why = failure.kind
            return f"{hook}: {KINDS_OF_ERRORS[why][1] if why in KINDS_OF_ERRORS else why}"
        except (OSError, ValueError) as failure:
            return f"{hook}: {type(failure).__name__}"
        if 200 <= answer.status < 300:
            return None
        return f"{hook} answered {answer.status}"


def webhook_of(settings: Monitor, env: Mapping[str, str]) -> Hook | None:
    """Return the configured webhook.

    Raise UserError where its variable is not set or holds no URL.
    """
    url = settings.webhook
    name = "`monitor.webhook`"
    if url is None and settings.webhook_env is None:
        return None
    variables = (
        (settings.webhook_env, "address", "webhook_env"),
        (settings.webhook_token_env, "token", "webhook_token_env"),
    )
    for variable, content, setting in variables:
        if variable is not None and not env.get(variable):
            hint = f"it should hold the {content} of the webhook, see `monitor.{setting}`"
            raise UserError(f"the variable `{variable}` is not set", hint=hint)
    if settings.webhook_env is not None:
        url = env[settings.webhook_env]
        name = f"the address in `{settings.webhook_env}`"
    return check_webhook(url or "", settings.webhook_shape, name=name)


def notifiers_of(
    settings: Monitor, env: Mapping[str, str], secrets: Secrets, log: Log
) -> list[Notifier]:
    """Return the configured notifiers; one that cannot be used is named in the log."""
    notifiers: list[Notifier] = []
    if settings.command:
        notifiers.append(Command(settings.command, env, secrets, log))
    try:
        hook = webhook_of(settings, env)
    except UserError as error:
        log(f'alert.webhook unusable because="{error.message}"')
    else:
        if settings.webhook_token_env:
            token = env.get(settings.webhook_token_env)
        else:
            token = None
        if hook is not None:
            notifiers.append(Webhook(hook, settings.webhook_shape, token))
    return notifiers
