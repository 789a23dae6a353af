"""From the rows of one reading to its figures. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from skep.bench.limits import Limits
from skep.bench.metrics import repeat_of, task_tok_s, tpot_values, ttft_values
from skep.records import Request
from skep.stats.intervals import mean_t_interval
from skep.tunings import Aim, Config, CurvePoint, Reading


def reading_of(
    rows: Sequence[Request], aim: Aim, *, limited: bool = False, slo: Limits | None = None, joules: float | None = None
) -> Reading:
    whole = repeat_of(0, rows, None, limited=limited)
    effective = whole.effective_tok_s if whole.output_tokens else None
    each = task_tok_s(rows)
    per_joule = whole.output_tokens / joules if joules and whole.output_tokens else None
    firsts, gaps = ttft_values(rows), tpot_values(rows)
    return Reading(
        figure={"effective_tok_s": effective, "task_tok_s": each, "tok_per_joule": per_joule}[aim.metric],
        effective_tok_s=effective,
        task_tok_s=each,
        ttft_ms=median(firsts) if firsts else None,
        tpot_ms=median(gaps) if gaps else None,
        wall_s=whole.wall_s,
        requests=len(rows),
        failed=sum(not row.ok for row in rows),
        limited=limited,
        over_limit=slo.share(rows) if slo is not None else 0.0,
        tok_per_joule=per_joule,
    )


def foreseen_per_s(batch: Sequence[Request], output_tokens: int) -> float | None:
    """Tasks a second with answers of this length, from a batch of the warm-up, whose answers are shorter."""
    answered = [row for row in batch if row.ok and row.output_tokens]
    firsts, gaps = ttft_values(answered), tpot_values(answered)
    wall_s = repeat_of(0, batch, None).wall_s if answered else 0.0
    if not firsts or wall_s <= 0:
        return None
    first, each = min(firsts), median(gaps) if gaps else 0.0  # the first of them waited for nobody
    short = median(row.output_tokens or 0 for row in answered)
    whole = first + output_tokens * each
    return len(answered) / (wall_s * max(1.0, whole / max(first + short * each, 1e-9)))


def point_of(level: int, config: Config, found: Sequence[Reading]) -> CurvePoint:
    """Of the runs of one level. A speed is never below nothing, however wide two runs lie apart."""
    speeds = [one.effective_tok_s for one in found if one.effective_tok_s is not None and not one.limited]
    interval = mean_t_interval(speeds)
    figure = None if interval is None else replace(interval, low=max(0.0, interval.low))
    firsts = [one.ttft_ms for one in found if one.ttft_ms is not None]
    gaps = [one.tpot_ms for one in found if one.tpot_ms is not None]
    return CurvePoint(level, config, figure, median(firsts) if firsts else None, median(gaps) if gaps else None)


def seed_of(*parts: object) -> int:
    """Other prompts for other parts, whatever process asks."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:6])
