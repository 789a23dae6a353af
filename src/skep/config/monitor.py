"""What is wanted of the monitor, as plain values. The file that fills them is read elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from skep.catalog.options import Share
from skep.errors import UserError
from skep.units import GIB, parse_bytes, parse_percent, parse_seconds
from skep.wire.heads import Origin, parse_url


class QuietHours(msgspec.Struct, frozen=True):
    """From a minute of the day to another one, as the clock on the wall shows it, summer time or not."""

    start: int
    end: int

    def hold(self, at: float, zone: tzinfo | None = None) -> bool:
        """`zone` None: the machine's own."""
        local = datetime.fromtimestamp(at, zone)
        minute = local.hour * 60 + local.minute
        if self.start <= self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


DAY_MINUTES = 24 * 60
QUIET_HINT = 'write them as "22:00-07:00"; the end may lie on the next day'


def parse_quiet_hours(text: str) -> QuietHours:
    found = re.fullmatch(r"\s*(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)\s*", text)
    numbers = [int(part) for part in found.groups()] if found else []
    minutes = [hour * 60 + minute for hour, minute in zip(numbers[::2], numbers[1::2], strict=True) if minute < 60]
    if len(minutes) != 2 or max(minutes) > DAY_MINUTES:
        raise UserError(f"quiet hours `{text}` are not understood", hint=QUIET_HINT)
    start, end = (minute % DAY_MINUTES for minute in minutes)
    if start == end:
        raise UserError(f"quiet hours `{text}` begin and end at the same time", hint=QUIET_HINT)
    return QuietHours(start, end)


Shape = Literal["json", "ntfy", "slack"]
ALERTS = ("down", "slower", "ttft", "quality", "disk", "shift")
# What `{...}` of a command stands for; the same in capitals, behind SKEP_ALERT_, are its variables.
COMMAND_WORDS = ("event", "message", "title", "host", "rule", "target", "value", "limit", "opened_at", "closed_at")


def _milliseconds(text: str, *, key: str) -> float:
    return 1000 * parse_seconds(text, key=key, above=0)


class Monitor(msgspec.Struct, frozen=True):
    """When something is wrong, who is told, and when nobody is. Addresses and tokens in it are never shown."""

    with_up: bool = True  # the loop runs beside the gateway
    # below its own 7-day median; None: no such alert
    slower_pct: Annotated[float | None, Meta(extra={"key": "slower", "parse": parse_percent})] = 10.0
    ttft_ms: Annotated[float | None, Meta(extra={"key": "ttft", "parse": _milliseconds})] = None
    down_after: Annotated[int, Meta(ge=1, le=100)] = 2  # failed probes in a row
    quality_min: Share | None = None  # of right answers; beside the target's own median
    # 0: the disk is not watched
    disk_free_bytes: Annotated[int, Meta(extra={"key": "disk_free", "parse": parse_bytes})] = 2 * GIB
    quiet_hours: str | None = None  # "22:00-07:00", of the machine's own time
    quiet_except: Annotated[tuple[str, ...], Meta(extra={"one_of": ALERTS})] = ()  # rules that are told all the same
    command: tuple[str, ...] = ()
    webhook: str | None = None
    webhook_env: str | None = None  # the variable with the address, where that is a secret
    webhook_shape: Shape = "json"
    webhook_token_env: str | None = None


class Hook(msgspec.Struct, frozen=True):
    """Where a webhook is called. The path and the query may be the secret: only `str(hook)` is ever shown."""

    origin: Origin
    path: str  # with the query
    topic: str | None = None  # of ntfy

    def __str__(self) -> str:
        return str(self.origin)


def check_command(words: Sequence[str]) -> None:
    """A misspelt `{mesage}` would be handed to the program as it stands. Other braces are none of ours."""
    if words and not words[0]:
        raise UserError("`monitor.command` has no program", hint='write it as ["notify-send", "{message}"]')
    for found in (found for word in words for found in re.findall(r"\{([a-z_]+)\}", word)):
        if found not in COMMAND_WORDS:
            hint = f"known: {', '.join(f'{{{name}}}' for name in COMMAND_WORDS)}"
            raise UserError(f"`monitor.command`: `{{{found}}}` is unknown", hint=hint)


def check_webhook(url: str, shape: Shape, *, name: str) -> Hook:
    """Return the address in its parts. An ntfy address is that of its topic, as everywhere: `https://ntfy.sh/my-topic`.

    A message with a title and a priority goes to the server itself, with the topic inside (ntfy, "Publish as JSON").
    """
    try:
        origin, path = parse_url(url, name=name)
    except UserError:
        raise UserError(f"{name} is not an http(s) URL", hint="write it as https://ntfy.sh/my-topic") from None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if "@" in parts.netloc or re.search(r"[\x00-\x20\x7f-\uffff]", url):
        hint = "percent-encode it, and leave out what stands before an @; `webhook_token_env` names a token"
        raise UserError(f"{name} is not written as a plain http(s) URL", hint=hint)
    if shape != "ntfy":
        return Hook(origin, (path or "/") + (f"?{parts.query}" if parts.query else ""))
    root, _, topic = path.rpartition("/")
    if not re.fullmatch(r"[-_A-Za-z0-9]{1,64}", topic):
        raise UserError(f"{name} does not end in an ntfy topic", hint="write it as https://ntfy.sh/my-topic")
    return Hook(origin, f"{root}/", topic)
