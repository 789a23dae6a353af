"""A run's figures on a terminal: the table, and what it means in a line or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skep.bench.records import Clock, LevelSummary, Promise, Speedup, SweepSummary
from skep.bench.summary import cost_per_million_tokens
from skep.cli.output import note, number, print_table
from skep.report.checks import has_curve, left_out_sentences, unclear_words
from skep.report.levels import runs_text, spread_text
from skep.stats.turning import Turning
from skep.units import format_seconds

UNITS = {Clock.DECODE: "tok/s", Clock.FIRST_TOKEN: "ms", Clock.TOKENS: "tokens"}
Column = tuple[str, Callable[[LevelSummary], str]]


def milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ms"


TASK_SPEED: Column = ("task tok/s", lambda level: number(level.task_tok_s))
FAILED: Column = ("failed", lambda level: str(level.failed))
LATENCIES: tuple[Column, ...] = (
    ("TTFT p50", lambda level: milliseconds(level.ttft_ms.p50 if level.ttft_ms else None)),
    ("TTFT p95", lambda level: milliseconds(level.ttft_ms.p95 if level.ttft_ms else None)),
    ("TPOT p50", lambda level: "–" if level.tpot_ms is None else f"{level.tpot_ms.p50:.1f} ms"),
)


def print_summary(
    summary: SweepSummary, *, price: float | None = None, title: str = "C", names: Sequence[str] = ()
) -> None:
    """`title` and `names` of the levels, where they are no concurrencies."""
    print_levels(summary.levels, price=price, title=title, names=names)
    if summary.classes:
        print_classes(summary.classes)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    note(*remarks(summary, names))


def print_levels(
    levels: Sequence[LevelSummary], *, price: float | None = None, title: str = "C", names: Sequence[str] = ()
) -> None:
    def name(level: LevelSummary) -> str:
        shown = names[level.concurrency - 1] if names else str(level.concurrency)
        return f"{shown}{'*' if level.client_limited else ''}"

    columns: list[Column] = [
        (title, name),
        ("eff tok/s", lambda level: number(level.effective_tok_s)),
        ("95 %", spread_text),
        ("plateau", lambda level: number(level.plateau_tok_s)),
        TASK_SPEED,
        ("contention", _contention),
        *LATENCIES,
        ("engine tok/s", lambda level: number(level.engine_tok_s)),
        ("cached", lambda level: _percent(level.cached_prompt_share)),
        ("runs", runs_text),
        ("wall", lambda level: format_seconds(level.wall_s)),
        FAILED,
    ]
    if any(level.energy for level in levels):
        columns.append(("J/token", lambda level: number(level.energy.joules_per_token if level.energy else None, 2)))
        if price is not None:
            columns.append(("cost per M", lambda level: _cost(level, price)))
    shown = [column for column in columns if any(column[1](level) != "–" for level in levels)]
    titles = [title for title, _ in shown]
    print_table(titles, [[cell(level) for _, cell in shown] for level in levels], right=titles)


def print_classes(levels: Sequence[LevelSummary]) -> None:
    columns: list[Column] = [
        ("class", lambda level: level.traffic),
        ("requests", lambda level: str(level.requests)),
        *LATENCIES,
        ("total p95", lambda level: milliseconds(level.total_ms.p95 if level.total_ms else None)),
        TASK_SPEED,
        ("queued p50", lambda level: milliseconds(level.queued_ms.p50 if level.queued_ms else None)),
        FAILED,
    ]
    titles = [title for title, _ in columns]
    print_table(titles, [[cell(level) for _, cell in columns] for level in levels], right=titles[1:])


def remarks(summary: SweepSummary, names: Sequence[str] = ()) -> list[str]:
    """`names` of the levels, where they are no concurrencies."""
    titles = [names[level.concurrency - 1] for level in summary.levels] if names else []
    found = left_out_sentences(summary.levels, titles)
    if summary.speedups is not None:
        found.extend(_speedup(summary.speedups))
    if summary.promise is not None:
        found.append(_promise(summary.promise))
    if summary.turning is not None and len(summary.levels) > 2 and has_curve(summary.levels):
        found.append(_turning(summary.turning))
    if summary.drift is not None and not summary.drift.contains(1.0):
        drift = summary.drift
        found.append(
            f"warning: one agent alone was {drift.estimate:.2f} ({drift.low:.2f}..{drift.high:.2f}) times as fast "
            "at the end as at the beginning: heat, clocks or other work on the machine"
        )
    for level in summary.levels:
        if level.energy is not None and level.energy.throttled:
            found.append(f"C={level.concurrency}: the GPU was slowed down: {', '.join(level.energy.throttled)}")
        found.extend(
            f"C={level.concurrency}: {one.clock.value} is {number(one.client)} by the client and "
            f"{number(one.engine)} {UNITS[one.clock]} by the engine: {one.cause}"
            for one in level.clocks
        )
    if summary.client_limited:
        late_ms = max((level.late_ms for level in summary.levels if level.late_ms is not None), default=None)
        why = "" if late_ms is None else f"; load began up to {late_ms:,.0f} ms late"
        found.append(f"warning: the client was the limit at some level (marked *{why}); its figures are a lower bound")
    return found


def _speedup(found: Speedup) -> list[str]:
    first = (
        f"one after the other {format_seconds(found.serial_wall_s)}, {found.concurrency} at once "
        f"{format_seconds(found.swarm_wall_s)}: {found.by_wall:.2f}x by wall time, "
        f"{number(found.by_tokens, 2)}x by tokens ({found.tokens_serial:,} and {found.tokens_swarm:,})"
    )
    cut = found.truncated_serial + found.truncated_swarm
    if not cut:
        return [first]
    told = f"{found.truncated_serial} and {found.truncated_swarm} answers ran into the token limit"
    if found.by_wall_whole is None:
        return [first, f"{told}: none is left without them"]
    whole = f"{found.by_wall_whole:.2f}x by wall time, {number(found.by_tokens_whole, 2)}x by tokens"
    return [first, f"{told}; without them {whole}"]


def _promise(found: Promise) -> str:
    if found.highest_met is None:
        return f"{found.limits} is not kept, not even by one agent alone"
    failed = f"; not at C={found.lowest_failed}" if found.lowest_failed is not None else "; no level failed"
    if found.safe != found.highest_met:
        return f"{found.limits} is kept up to C={found.safe or 'none'}, and once more at C={found.highest_met}{failed}"
    return f"{found.limits} is kept up to C={found.safe}{failed}"


def _turning(found: Turning) -> str:
    parts = []
    if found.knee is not None:
        parts.append(f"knee at C={found.knee}{_bracket(found.knee_bracket)}")
    elif found.sure:
        parts.append("it still grows at the largest C measured: no knee found")
    if found.cliff is not None:
        drop = f", down {found.drop_pct:.0f} %" if found.drop_pct is not None else ""
        parts.append(f"cliff beyond C={found.cliff}{_bracket(found.cliff_bracket)}{drop}")
    elif found.sure:
        parts.append("no cliff")
    if (unclear := unclear_words(found)) is not None:
        parts.append(unclear)
    return "; ".join(parts)


def _bracket(bracket: tuple[int, int] | None) -> str:
    """Without one from 0: that is the first level itself."""
    return "" if bracket is None or not bracket[0] else f", between {bracket[0]} and {bracket[1]}"


def _contention(level: LevelSummary) -> str:
    return "–" if level.contention_pct is None else f"{level.contention_pct + 0.0:.0f} %".replace("-0 %", "0 %")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _cost(level: LevelSummary, price: float) -> str:
    joules = level.energy.joules_per_token if level.energy else None
    return "–" if joules is None else number(cost_per_million_tokens(joules, price), 2)
