"""What somebody is told about an alert: the words, and their form for a command, ntfy, Slack or any other receiver.

Pure. Texts of servers stand in the messages, so they are made one line of plain characters, and every secret that is
known here is taken out of them before they go anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Any

from skep.monitor.config import Hook, Shape
from skep.monitor.quiet import What, Word
from skep.monitor.standing import alert_document
from skep.series import Alert, Rule
from skep.units import format_seconds

MAX_TEXT = 1000
MIN_SECRET = 4  # a shorter one would be found inside of words
URGENT = (Rule.DOWN, Rule.DISK)
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
    """Takes what must not be seen out of texts. Never shows what it holds."""

    def __init__(self, values: Iterable[str | None]) -> None:
        self._values = sorted({text for text in values if text and len(text) >= MIN_SECRET}, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<Secrets {len(self._values)}>"

    def scrub(self, text: str) -> str:
        """One line without them, without user names in addresses, and of bounded length."""
        for value in self._values:
            text = text.replace(value, "***")
        text = re.sub(r"(?<=://)[^/\s@]+@", "***@", text)
        text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
        return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"

    def scrubbed(self, alert: Alert) -> Alert:
        because = None if alert.closed_because is None else self.scrub(alert.closed_because)
        return replace(alert, message=self.scrub(alert.message), closed_because=because)


def put_into_words(word: Word, now: float, host: str, zone: tzinfo | None = None) -> Notice:
    if word.what == "passed":
        many = len(word.alerts)
        text = f"came and went in quiet hours: {'; '.join(_passed(alert, zone) for alert in word.alerts)}"
        title = f"{many} alert{'s' if many != 1 else ''} came and went on {host}"
        return Notice(word.what, word.alerts, title, text[:MAX_TEXT], now, host)
    (alert,) = word.alerts
    about = alert.target or host
    if word.what == "opened":
        return Notice(word.what, word.alerts, f"{about}: {_names(alert.rule)}", alert.message, now, host)
    lasted = f" after {format_seconds(alert.closed_at - alert.opened_at)}" if alert.closed_at is not None else ""
    text = f"{about}: no longer {_names(alert.rule)}{lasted}: {alert.closed_because or 'it is over'}"
    return Notice(word.what, word.alerts, f"{about}: no longer {_names(alert.rule)}", text, now, host)


def body_of(notice: Notice, shape: Shape, hook: Hook) -> dict[str, Any]:
    """What a webhook is sent, as JSON."""
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
    """`SKEP_ALERT_*` for a command; what is not known is empty."""
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
    """`{message}` and the like are put in as they are: no shell ever reads them, other braces stay."""
    words = {name.removeprefix("SKEP_ALERT_").lower(): value for name, value in variables.items()}
    known = re.compile(r"\{(" + "|".join(words) + r")\}")
    return [known.sub(lambda found: words[found[1]], part) for part in command]


def log_line(notice: Notice) -> str:
    rules = ",".join(alert.rule for alert in notice.alerts)
    targets = ",".join(alert.target or "-" for alert in notice.alerts)
    return f'alert.{notice.what} rule={rules} target={targets} message="{notice.text.replace(chr(34), chr(39))}"'


def _names(rule: Rule) -> str:
    return {
        Rule.DOWN: "down",
        Rule.SLOWER: "slower than usual",
        Rule.TTFT: "late with its first token",
        Rule.QUALITY: "wrong more often than usual",
        Rule.DISK: "short of disk",
        Rule.SHIFT: "changed for the worse",
    }[rule]


def _passed(alert: Alert, zone: tzinfo | None) -> str:
    moments = [datetime.fromtimestamp(at, zone).strftime("%H:%M") for at in (alert.opened_at, alert.closed_at) if at]
    return f"{alert.target or 'the machine'} {_names(alert.rule)} {' to '.join(moments)}"


def _for_slack(text: str) -> str:
    """Its three characters of markup: `<!channel>` in an error message would call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) and abs(value) < 1e9 else f"{value}"
