"""Bytes, seconds and rates as people read and type them.

Values inside skep are plain ints and floats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sized
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from skep.errors import UserError


class Interval(msgspec.Struct, frozen=True):
    """`estimate` is the statistic of the sample itself; low <= high."""

    low: float
    estimate: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def half_width(self) -> float:
        """As a share of the estimate: 0.03 is +- 3 %."""
        if self.estimate:
            return (self.high - self.low) / 2 / abs(self.estimate)
        return float("inf")

    @property
    def upper_width(self) -> float:
        """From the estimate up, as a share of it: the whole half of an interval that was cut at
        zero.
        """
        if self.estimate:
            return (self.high - self.estimate) / abs(self.estimate)
        return float("inf")


KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "t": 1000**4,
    "tb": 1000**4,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
}
_DURATION_UNITS = {
    "ms": 0.001,
    "s": 1.0,
    "": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


_LARGEST = 1e18  # of a size or a duration: what is above is a slip
_LONGEST_SHOWN = 60  # characters of a wrong value


def format_bytes(n: int) -> str:
    """`format_bytes(1536 * MIB)` is "1.5 GiB"."""
    for unit, size in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def format_seconds(s: float) -> str:
    """Three figures at most: "850 ms", "12.3 s", "4 min 05 s", "2 h 10 min"."""
    if s < 1:
        return f"{s * 1000:.0f} ms"
    if s < 99.95:
        return f"{s:.1f} s"
    if s < 3600:
        return f"{int(s // 60)} min {int(s % 60):02d} s"
    if s < 2 * 86400:
        return f"{int(s // 3600)} h {int(s % 3600 // 60):02d} min"
    return f"{int(s // 86400)} d {int(s % 86400 // 3600):02d} h"


def parse_bytes(text: str, *, key: str = "") -> int:
    """`key` is named where the text is wrong."""
    return round(_parse(text, _SIZE_UNITS, "size", "512MiB or 2GB", key))


def parse_seconds(text: str, *, key: str = "", above: float | None = None) -> float:
    seconds = _parse(text, _DURATION_UNITS, "duration", "500ms, 90s, 5m, 1h or 30d", key)
    if above is not None and seconds <= above:
        raise UserError(f"`{key}` = `{text}` is too short", hint="write it as 30s, 5m or 2h")
    return seconds


def parse_percent(text: str, *, key: str) -> float | None:
    """`10%` is 10.0, `off` is None."""
    match = re.fullmatch(r"(\d++(?:\.\d++)?)\s*+%?", text.strip())
    if text.strip().lower() == "off":
        return None
    if match is None or not 0 < float(match[1]) < 100:
        short = shortened(text, _LONGEST_SHOWN)
        raise UserError(
            f"`{key}` = `{short}` is not a share in percent", hint='write it as "10%", or "off"'
        )
    return float(match[1])


def parse_int_list(text: str, *, name: str) -> tuple[int, ...]:
    """ "1,2,4" → (1, 2, 4): positive, sorted, without repeats."""
    try:
        values = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        values = []
    if not values or values[0] < 1:
        raise UserError(
            f"{name} `{text}` is not a list of positive numbers",
            hint=f"write it as `{name} 1,2,4,8`",
        )
    return tuple(values)


def _parse(
    text: str, units: dict[str, float] | dict[str, int], kind: str, example: str, key: str
) -> float:
    match = re.fullmatch(r"(\d++(?:\.\d++)?)\s*+([a-zA-Z]*+)", text.strip())
    where = f"`{key}`: " if key else ""
    short = shortened(text, _LONGEST_SHOWN)
    if match is None or match[2].lower() not in units:
        raise UserError(f"{where}`{short}` is not a {kind}", hint=f"write it as {example}")
    value = float(match[1]) * units[match[2].lower()]
    if value > _LARGEST:
        raise UserError(f"{where}`{short}` is too large a {kind}", hint=f"write it as {example}")
    return value


UNKNOWN = "–"
_LONGEST_FACT = 400


def known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def number(value: float | None, *, digits: int | None = None) -> str:
    """Three figures or the given digits: "1,234", "87.5", "0.42"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if digits is None:
        if abs(value) >= 99.95:
            digits = 0
        else:
            digits = 1 if abs(value) >= 0.95 else 2
    text = f"{value:,.{digits}f}"
    if float(text.replace(",", "")):
        return text.replace("-", "−")
    return text.lstrip("-")


def percent(value: float | None, *, digits: int = 0) -> str:
    text = number(value, digits=digits)
    return text if text == UNKNOWN else f"{text} %"


def seconds(value: float | None) -> str:
    if value is not None and math.isfinite(value):
        return format_seconds(value)
    return UNKNOWN


def milliseconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return seconds(value / 1000)


def times(value: float | None) -> str:
    text = number(value)
    return text if text == UNKNOWN else f"{text}×"


def moment(unix_time: float | None) -> str:
    if unix_time is None:
        return UNKNOWN
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def printable(text: str) -> str:
    """Without the characters that XML forbids: control characters and lone surrogates."""
    return "".join(
        c if c in "\t\n" or (ord(c) >= 32 and c.isprintable()) or c.isspace() else "�"
        for c in text
    )


def shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return text[: longest - 1].rstrip() + "…"


def one_line(text: str | None, longest: int = 300) -> str:
    """Return one line that a terminal can be shown: engines, models and people write anything."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text or "")
    return shortened(" ".join(printable.split()), longest)


def public_url(url: str) -> str:
    """Return the URL without user name and password: a report is made to be passed on."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def fact_list(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a JSON object as labels and texts, in its own order."""
    return [
        (_label(key), shortened(_fact(key, value), _LONGEST_FACT)) for key, value in facts.items()
    ]


def _label(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _fact(key: str, value: Any) -> str:
    if value is None or (isinstance(value, Sized) and not len(value)):
        return UNKNOWN
    match value:
        case bool():
            return "yes" if value else "no"
        case int() if key.endswith("_bytes"):
            return format_bytes(value)
        case float():
            return f"{value:g}"
        case Mapping():
            return ", ".join(
                f"{_label(k)} {_fact(k, v)}" for k, v in value.items() if v is not None
            )
        case list() | tuple():
            nested = any(isinstance(item, Mapping | list | tuple) for item in value)
            return ("; " if nested else ", ").join(_fact(key, item) for item in value)
        case _:
            return str(value)


def public_name(model: str) -> str:
    """Of a model that is a file or an address, its last part;
    names of the hub stay as they are.
    """
    if "://" in model:
        _, slash, path = re.split(r"[?#]", model.partition("://")[2])[0].partition("/")
        model = slash + path
    far = model.startswith(("/", "~", ".")) or "\\" in model or model.count("/") > 1
    return (re.split(r"[/\\]", model.rstrip("/\\"))[-1] if far else model) or "a model"


def parse_positive_seconds(text: str, option: str, example: str) -> float:
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise UserError(f"{option} `{text}` is too short", hint=f"write it as {example}")
    return seconds


def parse_share(text: str, option: str) -> float:
    """ "3%" or "0.03"."""
    try:
        if text.endswith("%"):
            share = float(text.removesuffix("%")) / 100
        else:
            share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        short = shortened(text, _LONGEST_SHOWN)
        raise UserError(f"{option} `{short}` is not a share", hint="write it as 3%")
    return share
