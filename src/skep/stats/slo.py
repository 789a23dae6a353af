"""The highest C that keeps a promise such as TTFT under 1 s. Knows shares of limits; knows neither clock nor server.

Each run of a level is told as one number: the worst of its figures as a share of its limit, so that up to 1 is met. A
run that is off the limit by more than a tenth decides its level at once. Nearer to it the answer is noise, and the
level is run again: the median of up to three shares decides, or two that agree. C doubles from 1 until a level fails,
then the gap is halved. Where the first failure was by less than a factor of two, one level beyond it is looked at as
well: engines have favoured batch sizes, and a level above one that failed may keep the promise."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from skep.errors import UserError
from skep.stats.percentiles import median
from skep.units import parse_seconds


class SloLimit(msgspec.Struct, frozen=True):
    """At most so many milliseconds in so many of a hundred requests."""

    name: str  # "ttft" | "tpot" | "total"
    ms: float
    percent: float = 95.0

    def __str__(self) -> str:
        return f"{self.name}_p{self.percent:g}={format(self.ms, 'f').rstrip('0').rstrip('.')}ms"


class SloLimits(msgspec.Struct, frozen=True):
    """What users are promised. Failed requests keep no promise: more than five in a hundred break it as well."""

    limits: tuple[SloLimit, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    @classmethod
    def parse(cls, text: str) -> SloLimits:
        """ "ttft=1s,tpot=50ms" or "ttft_p99=2s"."""
        limits = tuple(_limit(part.strip(), text) for part in text.split(",") if part.strip())
        if not limits:
            raise UserError(f"--slo `{text}` names no limit", hint=_HINT)
        return cls(limits)


KINDS = ("ttft", "tpot", "total")
_HINT = "write it as --slo ttft=1s,tpot=50ms; the names are ttft, tpot and total, with _p50, _p90, _p95 or _p99"


def _limit(part: str, text: str) -> SloLimit:
    name, equals, value = part.partition("=")
    kind, _, tail = name.strip().lower().partition("_p")
    try:
        percent = float(tail) if tail else 95.0
    except ValueError:
        percent = -1.0
    if not equals or kind not in KINDS or not 0 < percent < 100:
        raise UserError(f"--slo `{text}` contains `{part}`, which is not a known limit", hint=_HINT)
    seconds = parse_seconds(value)
    if seconds <= 0:
        raise UserError(f"--slo `{part}` cannot be met", hint=_HINT)
    return SloLimit(kind, seconds * 1000, percent)


NEAR = 0.1
REPEATS = 3  # of a level near its limit
WIDTH = 0.05  # the gap left, as a share of C
NEAR_ENOUGH_TO_LOOK_BEYOND = 2.0


def share_of_limit(figures: Iterable[tuple[float | None, float]]) -> float:
    """Return the worst of (measured, limit). Infinite where a figure is missing: what was not seen was not kept."""
    return max((math.inf if seen is None else seen / limit for seen, limit in figures), default=math.inf)


class SloSearch:
    """Ask `next_level`, run it, tell `measured`; until it is None."""

    def __init__(self, *, max_concurrency: int, budget: int = 40) -> None:
        self._max, self._budget = max_concurrency, budget
        self._shares: dict[int, list[float]] = {}
        self._limited: set[int] = set()
        self.runs = 0

    def measured(self, concurrency: int, share: float, *, limited: bool = False) -> None:
        """One run. A failure where the client was the limit is not the server's, and nothing is asked above it."""
        self.runs += 1
        if limited and share > 1:
            self._limited.add(concurrency)
        else:
            self._shares.setdefault(concurrency, []).append(share)

    def next_level(self) -> int | None:
        """Return the level to run next; None when the search is done."""
        if self.runs >= self._budget:
            return None
        if (unclear := next((c for c in sorted(self._shares) if self._is_met(c) is None), None)) is not None:
            return unclear
        met, failed = self.bracket()
        ceiling = min((c for c in self._limited if c > met), default=None)
        if failed is None and ceiling is None:
            return min(max(1, 2 * met), self._max) if met < self._max else None
        is_near = failed is not None and median(self._shares[failed]) < NEAR_ENOUGH_TO_LOOK_BEYOND
        if failed is not None and is_near and ceiling is None and max(self._shares) == failed < self._max:
            return min(2 * failed, self._max)
        upper = min(edge for edge in (failed, ceiling) if edge is not None)
        return (met + upper) // 2 if upper - met > _step(met) else None

    def remaining(self) -> int:
        """Runs still to come, roughly: how many levels lie near the limit is only known afterwards."""
        if self.next_level() is None:
            return 0
        met, failed = self.bracket()
        if failed is None:
            halvings = (met or 1).bit_length()
        else:
            halvings = math.ceil(math.log2(max(2.0, (failed - met) / _step(met))))
        return max(1, min(self._budget - self.runs, halvings + 2))

    def _is_met(self, concurrency: int) -> bool | None:
        """Return None if the level is near the limit and must be run again."""
        shares = self._shares[concurrency]
        passes = sum(share <= 1 for share in shares)
        majority = 2 * max(passes, len(shares) - passes) > REPEATS
        middle = median(shares)
        return middle <= 1 if len(shares) >= REPEATS or majority or abs(middle - 1) > NEAR else None

    def bracket(self) -> tuple[int, int | None]:
        """Return the highest pass, and the lowest failure above it: between them lies what is looked for."""
        met = max((c for c in self._shares if self._is_met(c)), default=0)
        return met, min((c for c in self._shares if c > met and self._is_met(c) is False), default=None)


def _step(met: int) -> int:
    return max(1, round(WIDTH * met))
