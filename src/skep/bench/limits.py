"""A promise to users, such as a first token within a second, held against what was measured. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from skep.bench.metrics import tpot_values, ttft_values
from skep.bench.records import Promise
from skep.stats.percentiles import median, percentile
from skep.stats.slo import Limit, Limits, share_of_limit
from skep.store.records import Request

TOLERATED_FAILURES = 0.05
_VALUES: Mapping[str, Callable[[Sequence[Request]], list[float]]] = {
    "ttft": ttft_values,
    "tpot": tpot_values,
    "total": lambda rows: [(row.ended_s - row.due_s) * 1000 for row in rows if row.ok],
}


def worst_share(limits: Limits, rows: Sequence[Request]) -> float:
    """Return the worst of them as a share of its limit: 1 or less is within, infinity where nothing was answered."""
    failed = sum(not row.ok for row in rows)
    if not rows or failed > TOLERATED_FAILURES * len(rows):
        return inf
    return share_of_limit((_figure(one, rows), one.ms) for one in limits.limits)


def _figure(limit: Limit, rows: Sequence[Request]) -> float | None:
    values = _VALUES[limit.name](rows)
    return percentile(values, limit.percent) if values else None


def promise_of(limits: Limits, runs: Mapping[int, Sequence[Sequence[Request]]]) -> Promise:
    """What the runs of each level say of the limits; the middle run decides."""
    shares = {level: median(worst_share(limits, rows) for rows in some) for level, some in runs.items()}
    met = [level for level, share in shares.items() if share <= 1]
    failed = min((level for level, share in shares.items() if share > 1), default=None)
    safe = max((level for level in met if failed is None or level < failed), default=None)
    return Promise(str(limits), max(met, default=None), failed, safe)
