"""Numbers and facts as a reader meets them. What is unknown is an en dash, never a zero."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sized
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from skep.units import format_bytes, format_seconds

UNKNOWN = "–"
_LONGEST_FACT = 400


def known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def number(value: float | None, *, digits: int | None = None) -> str:
    """Three figures or the given digits: "1,234", "87.5", "0.42"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if digits is None:
        digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 0.95 else 2
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−") if float(text.replace(",", "")) else text.lstrip("-")


def percent(value: float | None, *, digits: int = 0) -> str:
    text = number(value, digits=digits)
    return text if text == UNKNOWN else f"{text} %"


def seconds(value: float | None) -> str:
    return format_seconds(value) if value is not None and math.isfinite(value) else UNKNOWN


def milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else seconds(value / 1000)


def times(value: float | None) -> str:
    text = number(value)
    return text if text == UNKNOWN else f"{text}×"


def moment(unix_time: float | None) -> str:
    if unix_time is None:
        return UNKNOWN
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def printable(text: str) -> str:
    """Without the characters that XML forbids: control characters and lone surrogates."""
    return "".join(c if c in "\t\n" or (ord(c) >= 32 and c.isprintable()) or c.isspace() else "�" for c in text)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def public_url(url: str) -> str:
    """The URL without user name and password: a report is made to be passed on."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def fact_list(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A JSON object as labels and texts, in its own order."""
    return [(_label(key), shortened(_fact(key, value), _LONGEST_FACT)) for key, value in facts.items()]


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
            return ", ".join(f"{_label(k)} {_fact(k, v)}" for k, v in value.items() if v is not None)
        case list() | tuple():
            nested = any(isinstance(item, Mapping | list | tuple) for item in value)
            return ("; " if nested else ", ").join(_fact(key, item) for item in value)
        case _:
            return str(value)


def public_name(model: str) -> str:
    """Of a model that is a file or an address, its last part; names of the hub stay as they are."""
    if "://" in model:
        _, slash, path = re.split(r"[?#]", model.partition("://")[2])[0].partition("/")
        model = slash + path
    far = model.startswith(("/", "~", ".")) or "\\" in model or model.count("/") > 1
    return (re.split(r"[/\\]", model.rstrip("/\\"))[-1] if far else model) or "a model"
