"""From raw request rows to what people compare. Pure: the same rows give the same figures, whenever it is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from skep.records import LevelSummary, Percentiles, RepeatSummary, Request, SweepSummary
from skep.stats.percentiles import percentiles


def summarise(run_id: str, rows: Sequence[Request], client_limited: Mapping[int, bool]) -> SweepSummary:
    """Levels in order of C. Warm-up rows (level 0) are stored, not counted. `client_limited` by level."""
    by_level: dict[int, list[Request]] = {}
    for row in rows:
        if row.level > 0:
            by_level.setdefault(row.level, []).append(row)
    serial_speed = task_tok_s(by_level.get(1, ()))
    levels = tuple(
        _level(level, by_level[level], serial_speed, limited=client_limited.get(level, False))
        for level in sorted(by_level)
    )
    serial = next((level for level in levels if level.concurrency == 1), None)
    swarm = levels[-1] if levels and levels[-1].concurrency > 1 else None
    return SweepSummary(
        run_id=run_id,
        levels=levels,
        serial_wall_s=serial.wall_s if serial else None,
        swarm_wall_s=swarm.wall_s if swarm else None,
        speedup=_speedup(serial, swarm),
        client_limited=any(level.client_limited for level in levels),
    )


def complete_rows(rows: Sequence[Request], tasks: int) -> list[Request]:
    """Without the runs of a level that were broken off before all their tasks were done."""
    counts: dict[tuple[int, int], int] = {}
    for row in rows:
        counts[row.level, row.repeat] = counts.get((row.level, row.repeat), 0) + 1
    return [row for row in rows if counts[row.level, row.repeat] >= tasks]


def _speedup(serial: LevelSummary | None, swarm: LevelSummary | None) -> float | None:
    """Only where both did the same work: as many requests, none failed."""
    if serial is None or swarm is None or swarm.wall_s <= 0:
        return None
    if serial.failed or swarm.failed or serial.requests != swarm.requests:
        return None
    return serial.wall_s / swarm.wall_s


def task_tok_s(rows: Iterable[Request]) -> float | None:
    """Median over tasks of output tokens over the time from the first token to the last."""
    speeds = [
        row.output_tokens / (row.last_token_s - row.first_token_s)
        for row in rows
        if row.ok
        and row.output_tokens
        and row.first_token_s is not None
        and row.last_token_s is not None
        and row.last_token_s > row.first_token_s
    ]
    return median(speeds) if speeds else None


def ttft_ms(rows: Iterable[Request]) -> Percentiles | None:
    """From sending the request to the first content, reasoning or tool-call bytes."""
    return percentiles(
        [(row.first_token_s - row.started_s) * 1000 for row in rows if row.ok and row.first_token_s is not None]
    )


def tpot_ms(rows: Iterable[Request]) -> Percentiles | None:
    """(last - first token) / (tokens - 1)."""
    return percentiles(
        [
            (row.last_token_s - row.first_token_s) * 1000 / (row.output_tokens - 1)
            for row in rows
            if row.ok
            and row.first_token_s is not None
            and row.last_token_s is not None
            and row.output_tokens is not None
            and row.output_tokens > 1
            and row.last_token_s > row.first_token_s
        ]
    )


def _level(concurrency: int, rows: Sequence[Request], serial_speed: float | None, *, limited: bool) -> LevelSummary:
    repeats = _repeats(rows)
    tokens = sum(repeat.output_tokens for repeat in repeats)
    wall_s = sum(repeat.wall_s for repeat in repeats)
    speed = task_tok_s(rows)
    speeds = [repeat.effective_tok_s for repeat in repeats]
    engine = [row.engine.decode_tok_s for row in rows if row.ok and row.engine.decode_tok_s]
    contention = 100 * (1 - speed / serial_speed) if speed and serial_speed else None
    return LevelSummary(
        concurrency=concurrency,
        requests=len(rows),
        failed=sum(not row.ok for row in rows),
        output_tokens=tokens,
        wall_s=wall_s,
        effective_tok_s=tokens / wall_s if tokens and wall_s > 0 else None,
        effective_low=min(speeds, default=None) if tokens else None,
        effective_high=max(speeds, default=None) if tokens else None,
        task_tok_s=speed,
        contention_pct=contention,
        ttft_ms=ttft_ms(rows),
        tpot_ms=tpot_ms(rows),
        engine_tok_s=median(engine) if engine else None,
        cached_prompt_share=_cached_share(rows),
        truncated=sum(row.finish_reason == "length" for row in rows),
        client_limited=limited,
        repeats=repeats,
    )


def _repeats(rows: Sequence[Request]) -> tuple[RepeatSummary, ...]:
    by_repeat: dict[int, list[Request]] = {}
    for row in rows:
        by_repeat.setdefault(row.repeat, []).append(row)
    return tuple(_repeat(number, by_repeat[number]) for number in sorted(by_repeat))


def _repeat(number: int, rows: Sequence[Request]) -> RepeatSummary:
    """Failed requests count with their time, not with tokens: what a swarm got for its wait."""
    wall_s = max(row.ended_s for row in rows) - min(row.started_s for row in rows)
    tokens = sum(row.output_tokens or 0 for row in rows if row.ok)
    return RepeatSummary(number, wall_s, tokens, tokens / wall_s if wall_s > 0 else 0.0)


def _cached_share(rows: Sequence[Request]) -> float | None:
    known = [row for row in rows if row.engine.cached_tokens is not None and row.prompt_tokens]
    prompt = sum(row.prompt_tokens or 0 for row in known)
    return sum(row.engine.cached_tokens or 0 for row in known) / prompt if prompt else None
