"""A promise to users, such as a first token within a second, held against what was measured. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from skep.bench.metrics import tpot_values, ttft_values
from skep.errors import UserError
from skep.records import Promise, Request
from skep.stats.percentiles import median, percentile
from skep.stats.slo import share_of_limit
from skep.units import parse_seconds


@dataclass(frozen=True, slots=True)
class Limit:
    """At most so many milliseconds in so many of a hundred requests."""

    name: str  # "ttft" | "tpot" | "total"
    ms: float
    percent: float = 95.0

    def __str__(self) -> str:
        return f"{self.name}_p{self.percent:g}={format(self.ms, 'f').rstrip('0').rstrip('.')}ms"


@dataclass(frozen=True, slots=True)
class Limits:
    """What users are promised. Failed requests keep no promise: more than five in a hundred break it as well."""

    limits: tuple[Limit, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.limits))

    @classmethod
    def parse(cls, text: str) -> Limits:
        """ "ttft=1s,tpot=50ms" or "ttft_p99=2s"."""
        return cls(tuple(_limit(part.strip(), text) for part in text.split(",") if part.strip()) or _none(text))

    def share(self, rows: Sequence[Request]) -> float:
        """The worst of them as a share of its limit: 1 or less is within, infinity where nothing was answered."""
        failed = sum(not row.ok for row in rows)
        if not rows or failed > TOLERATED_FAILURES * len(rows):
            return inf
        return share_of_limit((_figure(one, rows), one.ms) for one in self.limits)


TOLERATED_FAILURES = 0.05
_HINT = "write it as --slo ttft=1s,tpot=50ms; the names are ttft, tpot and total, with _p50, _p90, _p95 or _p99"
_VALUES: Mapping[str, Callable[[Sequence[Request]], list[float]]] = {
    "ttft": ttft_values,
    "tpot": tpot_values,
    "total": lambda rows: [(row.ended_s - row.due_s) * 1000 for row in rows if row.ok],
}


def _limit(part: str, text: str) -> Limit:
    name, equals, value = part.partition("=")
    kind, _, tail = name.strip().lower().partition("_p")
    try:
        percent = float(tail) if tail else 95.0
    except ValueError:
        percent = -1.0
    if not equals or kind not in _VALUES or not 0 < percent < 100:
        raise UserError(f"--slo `{text}` has no limit that is known in `{part}`", hint=_HINT)
    seconds = parse_seconds(value)
    if seconds <= 0:
        raise UserError(f"--slo `{part}` cannot be met", hint=_HINT)
    return Limit(kind, seconds * 1000, percent)


def _figure(limit: Limit, rows: Sequence[Request]) -> float | None:
    values = _VALUES[limit.name](rows)
    return percentile(values, limit.percent) if values else None


def promise_of(limits: Limits, runs: Mapping[int, Sequence[Sequence[Request]]]) -> Promise:
    """What the runs of each level say of the limits; the middle run decides."""
    shares = {level: median(limits.share(rows) for rows in some) for level, some in runs.items()}
    met = [level for level, share in shares.items() if share <= 1]
    failed = min((level for level, share in shares.items() if share > 1), default=None)
    safe = max((level for level in met if failed is None or level < failed), default=None)
    return Promise(str(limits), max(met, default=None), failed, safe)


def _none(text: str) -> tuple[Limit, ...]:
    raise UserError(f"--slo `{text}` names no limit", hint=_HINT)
