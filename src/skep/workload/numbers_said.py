"""Numbers as models write them: `1,234.50`, `−3`, `1/2`, `\\frac{1}{2}`, `1e3`, `50 %`, `**12**.`"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

CALM = Context(prec=40, traps=[])  # nothing raises; a difference is zero only of equal numbers

_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d{1,40})\}\{(\d{1,40})\}")
# A sign counts where it cannot be a dash: `5-3` ends with 3. Digits glued to a letter before them belong to a name
# (`m2`, `x1`) and are not a number that is said.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]])[-+])?"
    r"(?<![^\W_])"
    r"(?:(?<!/)(?P<over>\d{1,40})/(?P<under>\d{1,40})(?![/\d])"
    r"|(?P<whole>\d{1,3}(?:[,\u00a0\u202f]\d{3})+(?!\d)|\d+(?:_\d{3})*)(?P<part>\.\d+)?|(?<!\d\.)(?P<bare>\.\d+))"
    r"(?P<power>[eE][-+]?\d{1,4}(?!\w))?"
    r"(?P<percent>[ \u00a0\u202f]?\\?%)?"
)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_DIVIDERS = re.compile(r"[,_\u00a0\u202f]")


@dataclass(frozen=True, slots=True)
class Said:
    """`text` is as it was written."""

    value: Decimal
    percent: bool
    text: str


def last_number(text: str) -> Said | None:
    """The last one in the text, or in its last `\\boxed{}`; None: there is none."""
    text = _FRACTION.sub(r"\1/\2", text.replace("\u2212", "-").replace("{,}", ","))
    boxed = last_boxed(text)
    found = _last(_NUMBER, boxed) if boxed else None
    found = found or _last(_NUMBER, text)
    return None if found is None else _said(found)


def last_boxed(text: str) -> str | None:
    """How models that were trained on mathematics mark their answer."""
    found = _last(_BOXED, text)
    return None if found is None else found.group(1)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def value_of(given: Any) -> Decimal | None:
    """Of an answer in an item: a number, or a text that is one, such as `1/3`; None: it is none."""
    if isinstance(given, bool):
        return None
    if isinstance(given, int | float):
        value = Decimal(repr(given))
        return value if value.is_finite() else None
    match = _NUMBER.fullmatch(str(given).strip().replace("\u2212", "-"))
    return None if match is None else _said(match).value


def _said(match: re.Match[str]) -> Said:
    if match["over"] is not None:  # over zero: not a number, and equal to none
        value = CALM.divide(Decimal(match["over"]), Decimal(match["under"]))
        return Said(
            value.copy_negate() if match["sign"] == "-" else value, match["percent"] is not None, match.group().strip()
        )
    digits = _DIVIDERS.sub("", match["whole"] or "0") + (match["part"] or match["bare"] or "") + (match["power"] or "")
    value = Decimal(digits)
    return Said(
        value.copy_negate() if match["sign"] == "-" else value, match["percent"] is not None, match.group().strip()
    )
