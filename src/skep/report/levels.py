"""The tables of a sweep's page: its levels, its kinds of traffic, its requests and its failures.

A column that no level has a value for is left out where it is marked so; what is unknown in a column is a dash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skep.bench.records import Energy, LevelSummary
from skep.report.markup import Markup, join, section, table, tag, text
from skep.stats.percentiles import Percentiles
from skep.store.records import Request
from skep.units import UNKNOWN, Interval, known, number, percent, shortened

COLD = 0.05  # a cache that held less than this share of the prompts' tokens


@dataclass(frozen=True, slots=True)
class Column:
    """`optional`: left out where it would hold dashes only."""

    group: str
    name: str
    cell: Callable[[LevelSummary], str]
    optional: bool = False
    style: str | None = None


def level_table(levels: Sequence[LevelSummary]) -> Markup:
    best = best_level(levels)
    columns = _present(_LEVEL_COLUMNS, levels)
    measured = [level for level in levels if known(level.effective_tok_s)]
    if measured and all(level.effective_interval is not None for level in measured):
        columns = [column for column in columns if column.cell is not _range]
    rows = [
        tag(
            "tr",
            tag("th", text(level.concurrency), scope="row"),
            *(_cell(column, level) for column in columns),
            tag("td", *_notes(level), class_="note"),
            class_="best" if level is best else None,
        )
        for level in levels
    ]
    below = "The level with the highest effective tok/s is tinted. – stands for unknown."
    if any(level.client_limited for level in levels):
        below += " Client-limited levels are not ranked."
    return join(
        [
            table("Every level of the sweep", _head(columns, ("C",), notes=True), rows),
            tag("p", text(below), class_="below"),
        ]
    )


def class_table(classes: Sequence[LevelSummary]) -> Markup | None:
    """Return one row for each kind of traffic of a level; None where a load has one kind only."""
    if not classes:
        return None
    columns = _present(_CLASS_COLUMNS, classes)
    rows = [
        tag(
            "tr",
            tag("th", text(level.concurrency), scope="row"),
            tag("td", text(level.traffic or UNKNOWN), class_="left"),
            *(_cell(column, level) for column in columns),
            tag("td", *_notes(level), class_="note"),
        )
        for level in sorted(classes, key=lambda level: level.concurrency)
    ]
    return table("Levels by kind of traffic", _head(columns, ("C", "Traffic"), notes=True), rows)


def request_table(levels: Sequence[LevelSummary]) -> Markup | None:
    """Return what the requests of each level were and how they ended; None where nothing of it is known."""
    return _optional_table("The requests of every level", _REQUEST_COLUMNS, levels)


def energy_table(levels: Sequence[LevelSummary]) -> Markup | None:
    """Return what the GPUs drew at each level; None where nothing measures it."""
    return _optional_table("Energy of every level", _ENERGY_COLUMNS, levels)


def _optional_table(caption: str, among: Sequence[Column], levels: Sequence[LevelSummary]) -> Markup | None:
    columns = _present(among, levels)
    if not columns:
        return None
    rows = [
        tag("tr", tag("th", text(level.concurrency), scope="row"), *(_cell(column, level) for column in columns))
        for level in levels
    ]
    return table(caption, _head(columns, ("C",), notes=False), rows)


def failure_table(rows: Sequence[Request]) -> Markup | None:
    """Failed requests by kind and level; None when there were none."""
    failed = [row for row in rows if not row.ok]
    body = [_failure_row(level, kind, failed) for level, kind in sorted({_kind(row) for row in failed})]
    if not body:
        return None
    head = tag(
        "tr",
        tag("th", text("C")),
        *(tag("th", text(name), class_="left") for name in ("Kind", "Count", "First message")),
    )
    return section("failures", "Failed requests", table("Failed requests by kind", [head], body))


def best_level(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    """Of those that the client did not limit: the others are lower bounds, and are not ranked."""
    ranked = [level for level in levels if known(level.effective_tok_s) and not level.client_limited]
    return max(ranked, key=lambda level: level.effective_tok_s or 0.0, default=None)


def interval_text(interval: Interval | None) -> str:
    if interval is None or not (known(interval.low) and known(interval.high)):
        return UNKNOWN
    return f"{number(interval.low)}–{number(interval.high)}"


def spread_text(level: LevelSummary) -> str:
    speeds = [one.effective_tok_s for one in level.counted] if known(level.effective_tok_s) else []
    return range_text(level.effective_interval, speeds)


def range_text(interval: Interval | None, runs: Sequence[float]) -> str:
    """Return a 95 % interval; of two runs, which have none, the two values, marked so."""
    if interval is not None:
        return f"{number(interval.low)}..{number(interval.high)}"
    return f"{number(min(runs))}..{number(max(runs))} ({len(runs)} runs)" if len(runs) > 1 else UNKNOWN


def runs_text(level: LevelSummary) -> str:
    """Return how many runs its figures are of; "1 of 2" where some were left out."""
    counted, every = len(level.counted), len(level.repeats)
    return str(counted) if counted == every else f"{counted} of {every}"


def counted(counts: Sequence[tuple[str, int]]) -> str:
    """ "stop 40, length 8"; a dash where there are none."""
    return ", ".join(f"{name} {count}" for name, count in counts) or UNKNOWN


def _of(percentiles: Percentiles | None, name: str) -> str:
    return UNKNOWN if percentiles is None else number(getattr(percentiles, name))


def _share(value: float | None) -> str:
    return percent(None if value is None else 100 * value, digits=1)


def _range(level: LevelSummary) -> str:
    if not (known(level.effective_low) and known(level.effective_high)):
        return UNKNOWN
    return f"{number(level.effective_low)}–{number(level.effective_high)}"


def _energy(group: str, name: str, cell: Callable[[Energy], str], style: str | None = None) -> Column:
    return Column(group, name, lambda level: UNKNOWN if level.energy is None else cell(level.energy), True, style)


_ENERGY_COLUMNS = (
    _energy("GPUs", "J/token", lambda energy: number(energy.joules_per_token)),
    _energy("GPUs", "J", lambda energy: number(energy.joules)),
    _energy("GPUs", "mean W", lambda energy: number(energy.mean_w)),
    _energy("GPUs", "max W", lambda energy: number(energy.max_w)),
    _energy("GPUs", "throttled", lambda energy: ", ".join(energy.throttled) or "no", "left"),
    _energy("GPUs", "measured by", lambda energy: energy.source, "left"),
)
_SENT = (
    Column("Requests", "sent", lambda level: number(level.requests, digits=0)),
    Column("Requests", "failed", lambda level: number(level.failed, digits=0), style="bad"),
)
_LEVEL_COLUMNS = (
    *_SENT,
    Column("Effective tok/s", "all runs", lambda level: number(level.effective_tok_s), style="strong"),
    Column("Effective tok/s", "95 %", lambda level: interval_text(level.effective_interval), True, "soft"),
    Column("Effective tok/s", "low–high", _range, style="soft"),
    Column("Effective tok/s", "plateau", lambda level: number(level.plateau_tok_s), True),
    Column("Per task", "tok/s", lambda level: number(level.task_tok_s)),
    Column("Per task", "with TTFT", lambda level: number(level.task_tok_s_whole), True),
    Column("Per task", "contention", lambda level: percent(level.contention_pct, digits=1)),
    Column("TTFT, ms", "p50", lambda level: _of(level.ttft_ms, "p50")),
    Column("TTFT, ms", "p95", lambda level: _of(level.ttft_ms, "p95")),
    Column("TTFT, ms", "p99", lambda level: _of(level.ttft_ms, "p99")),
    Column("TPOT, ms", "p50", lambda level: _of(level.tpot_ms, "p50")),
    Column("TPOT, ms", "p95", lambda level: _of(level.tpot_ms, "p95")),
    Column("Engine", "tok/s", lambda level: number(level.engine_tok_s)),
    Column("Wall", "s", lambda level: number(level.wall_s)),
    Column("Runs", "counted", lambda level: runs_text(level) if level.repeats else UNKNOWN),
)
_CLASS_COLUMNS = (
    *_SENT,
    Column("Effective", "tok/s", lambda level: number(level.effective_tok_s), style="strong"),
    Column("Per task", "tok/s", lambda level: number(level.task_tok_s)),
    Column("TTFT, ms", "p50", lambda level: _of(level.ttft_ms, "p50")),
    Column("TTFT, ms", "p95", lambda level: _of(level.ttft_ms, "p95")),
    Column("TPOT, ms", "p50", lambda level: _of(level.tpot_ms, "p50")),
    Column("TPOT, ms", "p95", lambda level: _of(level.tpot_ms, "p95")),
    Column("Whole, ms", "p50", lambda level: _of(level.total_ms, "p50"), True),
    Column("Whole, ms", "p95", lambda level: _of(level.total_ms, "p95"), True),
    Column("Queued, ms", "p50", lambda level: _of(level.queued_ms, "p50"), True),
)
_REQUEST_COLUMNS = (
    Column("Tokens, mean", "in", lambda level: number(level.prompt_tokens), True),
    Column("Tokens, mean", "out", lambda level: number(level.output_tokens_each), True),
    Column("Cached", "of prompt", lambda level: _share(level.cached_prompt_share), True),
    Column("First byte, ms", "p50", lambda level: _of(level.first_byte_ms, "p50"), True),
    Column("Gap, ms", "p50", lambda level: _of(level.gap_ms, "p50"), True),
    Column("Gap, ms", "p99", lambda level: _of(level.gap_ms, "p99"), True),
    Column("Whole, ms", "p50", lambda level: _of(level.total_ms, "p50"), True),
    Column("Whole, ms", "p95", lambda level: _of(level.total_ms, "p95"), True),
    Column("Queued, ms", "p50", lambda level: _of(level.queued_ms, "p50"), True),
    Column("Queued, ms", "p95", lambda level: _of(level.queued_ms, "p95"), True),
    Column("In flight", "of C", lambda level: _share(level.delivered), True),
    Column("Ended", "by reason", lambda level: counted(level.finish_reasons), True, "left"),
    Column("Failed", "by kind", lambda level: counted(level.errors), True, "left"),
)


def _present(columns: Sequence[Column], levels: Sequence[LevelSummary]) -> list[Column]:
    return [
        column for column in columns if not column.optional or any(column.cell(level) != UNKNOWN for level in levels)
    ]


def _head(columns: Sequence[Column], first: tuple[str, ...], *, notes: bool) -> list[Markup]:
    spans = Counter(column.group for column in columns)
    groups = [tag("th", text(name), colspan=str(span), scope="colgroup") for name, span in spans.items()]
    before = [tag("th", text(name), rowspan="2", scope="col", class_="left") for name in first]
    last = [tag("th", text("Notes"), rowspan="2", scope="col", class_="left")] if notes else []
    names = (tag("th", text(c.name), scope="col", class_="left" if c.style == "left" else None) for c in columns)
    return [tag("tr", *before, *groups, *last, class_="group"), tag("tr", *names)]


def _cell(column: Column, level: LevelSummary) -> Markup:
    value = column.cell(level)
    if column.style == "strong":
        return tag("td", tag("b", text(value)))
    style = None if column.style == "bad" and value == "0" else column.style
    return tag("td", text(value), class_=style)


def _notes(level: LevelSummary) -> list[Markup]:
    flag = [tag("span", text("client-limited"), class_="flag")] if level.client_limited else []
    notes = []
    if level.left_out:
        notes.append(f"{len(level.left_out)} run{'s' if len(level.left_out) > 1 else ''} left out: client-limited")
    if level.truncated:
        notes.append(f"{level.truncated} cut at the token limit")
    if level.cached_prompt_share is not None and level.cached_prompt_share >= COLD:
        notes.append(f"{percent(100 * level.cached_prompt_share)} of prompt cached")
    return [*flag, text(", ".join(notes))]


def _kind(row: Request) -> tuple[int, str]:
    return row.level, str(row.error_kind)


def _failure_row(level: int, kind: str, failed: Sequence[Request]) -> Markup:
    same = [row for row in failed if _kind(row) == (level, kind)]
    message = next((row.error for row in same if row.error), UNKNOWN)
    return tag(
        "tr",
        tag("th", text(str(level) if level else "warm-up"), scope="row"),
        tag("td", tag("code", text(kind)), class_="left"),
        tag("td", text(str(len(same))), class_="left bad"),
        tag("td", text(shortened(message, 240)), class_="wide"),
    )
