"""A run's figures on a terminal: the table, and what it means in a line or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from skep.bench.records import LevelSummary, Promise, Speedup, SweepSummary
from skep.bench.summary import cost_per_million_tokens
from skep.cli.output import note
from skep.report.checks import clock_figure, drift_sentence, has_curve, left_out_sentences, turning_sentence
from skep.report.columns import Column, print_records
from skep.report.levels import level_columns
from skep.units import format_seconds, number

# The rank behind a key: in a narrow terminal the highest goes first.
LEVEL_KEYS = (
    "effective_tok_s spread~1 plateau_tok_s~7 task_tok_s~1 contention_pct~2 ttft_p50_ms ttft_p95_ms~5 tpot_p50_ms~4 "
    "engine_tok_s~8 cached_prompt_share~9 counted~6 wall_s~6 failed joules_per_token~3"
)
CLASS_KEYS = (
    "traffic requests ttft_p50_ms ttft_p95_ms~2 tpot_p50_ms~1 total_p95_ms~2 task_tok_s~1 queued_p50_ms~3 failed"
)


def print_summary(
    summary: SweepSummary, *, price: float | None = None, title: str = "C", names: Sequence[str] = ()
) -> None:
    """`title` and `names` of the levels, where they are no concurrencies."""
    print_levels(summary.levels, price=price, title=title, names=names)
    if summary.classes:
        print_records(level_columns(CLASS_KEYS), summary.classes)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    note(*remarks(summary, names))


def print_levels(
    levels: Sequence[LevelSummary], *, price: float | None = None, title: str = "C", names: Sequence[str] = ()
) -> None:
    def name(level: LevelSummary) -> str:
        shown = names[level.concurrency - 1] if names else str(level.concurrency)
        return f"{shown}{'*' if level.client_limited else ''}"

    columns = [replace(one, optional=True) for one in level_columns(LEVEL_KEYS)]
    if price is not None:
        columns.append(
            Column("cost", "cost per M", partial(_cost, price), partial(number, digits=2), "", 3, optional=True)
        )
    print_records([Column[LevelSummary]("concurrency", title, name), *columns], levels)


def remarks(summary: SweepSummary, names: Sequence[str] = ()) -> list[str]:
    """`names` of the levels, where they are no concurrencies."""
    titles = [names[level.concurrency - 1] for level in summary.levels] if names else []
    found = left_out_sentences(summary.levels, titles)
    if summary.speedups is not None:
        found.extend(_speedup(summary.speedups))
    if summary.promise is not None:
        found.append(_promise(summary.promise))
    if summary.turning is not None and len(summary.levels) > 2 and has_curve(summary.levels):
        found.append(turning_sentence(summary.turning))
    if summary.drift is not None and not summary.drift.contains(1.0):
        found.append(f"warning: {drift_sentence(summary)}")
    for level in summary.levels:
        if level.energy is not None and level.energy.throttled:
            found.append(f"C={level.concurrency}: the GPU was slowed down: {', '.join(level.energy.throttled)}")
        found.extend(
            f"C={level.concurrency}: {one.clock.value} is {clock_figure(one.clock, one.client)} by the client and "
            f"{clock_figure(one.clock, one.engine)} by the engine: {one.cause}"
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
        f"{number(found.by_tokens, digits=2)}x by tokens ({found.tokens_serial:,} and {found.tokens_swarm:,})"
    )
    cut = found.truncated_serial + found.truncated_swarm
    if not cut:
        return [first]
    told = f"{found.truncated_serial} and {found.truncated_swarm} answers ran into the token limit"
    if found.by_wall_whole is None:
        return [first, f"{told}: none is left without them"]
    whole = f"{found.by_wall_whole:.2f}x by wall time, {number(found.by_tokens_whole, digits=2)}x by tokens"
    return [first, f"{told}; without them {whole}"]


def _promise(found: Promise) -> str:
    if found.highest_met is None:
        return f"{found.limits} is not kept, not even by one agent alone"
    failed = f"; not at C={found.lowest_failed}" if found.lowest_failed is not None else "; no level failed"
    if found.safe != found.highest_met:
        return f"{found.limits} is kept up to C={found.safe or 'none'}, and once more at C={found.highest_met}{failed}"
    return f"{found.limits} is kept up to C={found.safe}{failed}"


def _cost(price: float, level: LevelSummary) -> float | None:
    joules = level.energy.joules_per_token if level.energy else None
    return None if joules is None else cost_per_million_tokens(joules, price)
