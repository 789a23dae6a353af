"""Limits that a latency has to keep, such as TTFT under 1 s in 95 of 100 requests."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from skep.errors import UserError
from skep.units import parse_seconds


class SloLimit(msgspec.Struct, frozen=True):
    """At most so many milliseconds in so many of a hundred requests."""

    name: str  # "ttft" | "tpot" | "total"
    ms: float
    percent: float = 95.0

    def __str__(self) -> str:
        return f"{self.name}_p{self.percent:g}={format(self.ms, 'f').rstrip('0').rstrip('.')}ms"


class SloLimits(msgspec.Struct, frozen=True):
    """The limits that users are promised.

    Failed requests keep no limit: more than five in a hundred break the promise as well.
    """

    limits: tuple[SloLimit, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    @classmethod
    def parse(cls, text: str) -> SloLimits:
        """Read limits such as "ttft=1s,tpot=50ms" or "ttft_p99=2s"."""
        limits = tuple(_limit(part.strip(), text) for part in text.split(",") if part.strip())
        if not limits:
            raise UserError(f"--slo `{text}` names no limit", hint=_HINT)
        return cls(limits)


KINDS = ("ttft", "tpot", "total")
_HINT = (
    "write it as --slo ttft=1s,tpot=50ms; the names are ttft, tpot and total, with _p50, _p90, "
    "_p95 or _p99"
)


def _limit(part: str, text: str) -> SloLimit:
    name, equals, value = part.partition("=")
    kind, _, tail = name.strip().lower().partition("_p")
    try:
        percent = float(tail) if tail else 95.0
    except ValueError:
        percent = -1.0
    if not equals or kind not in KINDS or not 0 < percent < 100:
        raise UserError(
            f"--slo `{text}` contains `{part}`, which is not a known limit", hint=_HINT
        )
    seconds = parse_seconds(value)
    if seconds <= 0:
        raise UserError(f"--slo `{part}` cannot be met", hint=_HINT)
    return SloLimit(kind, seconds * 1000, percent)


def share_of_limit(figures: Iterable[tuple[float | None, float]]) -> float:
    """Return the worst share of measured over limit.

    Infinite where a figure is missing: a limit that was not measured was not kept.
    """
    shares = [math.inf if measured is None else measured / limit for measured, limit in figures]
    return max(shares, default=math.inf)
