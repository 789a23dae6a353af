"""The figures of a level, each described once for terminals, pages, Markdown, CSV and JSON, and the tables of a page.

A column that no level has a value for is left out where it is marked so; what is unknown in a column is a dash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from skep.bench.records import LevelSummary
from skep.report.columns import Column, chosen, html_table, present
from skep.report.markup import Markup, join, section, tag, text
from skep.store.records import Request
from skep.units import UNKNOWN, Interval, known, number, percent, seconds, shortened

COLD = 0.05  # a cache that held less than this share of the prompts' tokens
_LevelColumn = Column[LevelSummary]
_count = partial(number, digits=0)


def _share(value: float) -> str:
    return percent(100 * value)


def _part(name: str, part: str) -> Callable[[LevelSummary], Any]:
    """Return what reads a part of one of its figures, as `p50` of `ttft_ms`; None where that is unknown."""
    return lambda level: None if (whole := getattr(level, name)) is None else getattr(whole, part)


def _figure(name: str, title: str, key: str = "", text: Callable[[Any], str] = number, **more: Any) -> _LevelColumn:
    return Column(key or name, title, lambda level: getattr(level, name), text, **more)


def _percentiles(name: str, title: str, **more: Any) -> Iterator[_LevelColumn]:
    for part in ("p50", "p95", "p99", "mean"):
        group = (title[0].upper() + title[1:], part)
        value, key = _part(f"{name}_ms", part), f"{name}_{part}_ms"
        yield Column(key, f"{title} {part}", value, number, unit=" ms", group=group, **more)


def _bounds(name: str, key: str) -> Iterator[_LevelColumn]:
    for part in ("low", "high"):
        yield Column(key.format(part), f"95 % {part}", _part(f"{name}_interval", part))


def _energy(part: str, title: str, text: Callable[[Any], str] = number, **more: Any) -> _LevelColumn:
    return Column(part, title, _part("energy", part), text, group=("GPUs", title), optional=True, **more)


def _listed(counts: Sequence[tuple[str, int]]) -> str:
    return ";".join(f"{name}={count}" for name, count in counts)


LEVEL_COLUMNS: tuple[_LevelColumn, ...] = (
    _figure("concurrency", "C", text=str),
    _figure("traffic", "class", text=str, right=False),
    _figure("requests", "requests", text=_count, group=("Requests", "sent")),
    _figure("failed", "failed", text=_count, group=("Requests", "failed"), style="bad"),
    _figure("truncated", "cut", text=_count),
    Column("runs", "runs", lambda level: len(level.counted)),
    Column("runs_left_out", "runs left out", lambda level: len(level.left_out)),
    _figure("wall_s", "wall", text=seconds, group=("Wall", "time")),
    _figure("output_tokens", "tokens", text=_count),
    _figure("effective_tok_s", "eff tok/s", group=("Effective tok/s", "all runs"), style="strong"),
    _figure("effective_low", "slowest run", "effective_low_tok_s"),
    _figure("effective_high", "fastest run", "effective_high_tok_s"),
    *_bounds("effective", "effective_ci95_{}_tok_s"),
    _figure("plateau_tok_s", "plateau", group=("Effective tok/s", "plateau"), optional=True),
    _figure("task_tok_s", "task tok/s", group=("Per task", "tok/s")),
    _figure("task_tok_s_whole", "with TTFT", "task_with_ttft_tok_s", group=("Per task", "with TTFT"), optional=True),
    _figure("contention_pct", "contention", text=percent, group=("Per task", "contention")),
    _figure("engine_tok_s", "engine tok/s", group=("Engine", "tok/s")),
    *_percentiles("ttft", "TTFT"),
    *_bounds("ttft", "ttft_median_ci95_{}_ms"),
    *_percentiles("tpot", "TPOT"),
    *_bounds("tpot", "tpot_median_ci95_{}_ms"),
    *_percentiles("first_byte", "first byte", optional=True),
    *_percentiles("gap", "gap", optional=True),
    *_percentiles("total", "total", optional=True),
    *_percentiles("queued", "queued", optional=True),
    _figure("prompt_tokens", "tokens in", "prompt_tokens_mean", group=("Tokens, mean", "in"), optional=True),
    _figure("output_tokens_each", "tokens out", "output_tokens_mean", group=("Tokens, mean", "out"), optional=True),
    _figure("cached_prompt_share", "cached", text=_share, group=("Cached", "of prompt"), optional=True),
    _figure("delivered", "in flight", "delivered_share", _share, group=("In flight", "of C"), optional=True),
    _figure("client_limited", "client-limited", text=str),
    Column("finish_reasons", "ended by", lambda level: _listed(level.finish_reasons), right=False),
    Column("errors", "failed by", lambda level: _listed(level.errors), right=False),
    _energy("joules", "J"),
    _energy("joules_per_token", "J/token", partial(number, digits=2)),
    _energy("mean_w", "mean W"),
    _energy("max_w", "max W"),
    Column("throttled", "throttled", lambda level: None if level.energy is None else ";".join(level.energy.throttled)),
    Column(
        "disagreements", "clocks", lambda level: "; ".join(f"{one.clock.value}: {one.cause}" for one in level.clocks)
    ),
)


def range_text(interval: Interval | None, runs: Sequence[float]) -> str:
    """Return a 95 % interval; of two runs, which have none, the two values, marked so."""
    if interval is not None:
        return f"{number(interval.low)}..{number(interval.high)}"
    return f"{number(min(runs))}..{number(max(runs))} ({len(runs)} runs)" if len(runs) > 1 else UNKNOWN


def spread_text(level: LevelSummary) -> str:
    speeds = [one.effective_tok_s for one in level.counted] if known(level.effective_tok_s) else []
    return range_text(level.effective_interval, speeds)


def interval_text(interval: Interval | None) -> str:
    if interval is None or not (known(interval.low) and known(interval.high)):
        return UNKNOWN
    return f"{number(interval.low)}–{number(interval.high)}"


def runs_text(level: LevelSummary) -> str:
    """Return how many runs its figures are of; "1 of 2" where some were left out."""
    counted, every = len(level.counted), len(level.repeats)
    return str(counted) if counted == every else f"{counted} of {every}"


def counted(counts: Sequence[tuple[str, int]]) -> str:
    """ "stop 40, length 8"; a dash where there are none."""
    return ", ".join(f"{name} {count}" for name, count in counts) or UNKNOWN


def _notes(level: LevelSummary) -> Markup:
    flag = tag("span", text("client-limited"), class_="flag") if level.client_limited else Markup("")
    notes = []
    if level.left_out:
        notes.append(f"{len(level.left_out)} run{'s' if len(level.left_out) > 1 else ''} left out: client-limited")
    if level.truncated:
        notes.append(f"{level.truncated} cut at the token limit")
    if level.cached_prompt_share is not None and level.cached_prompt_share >= COLD:
        notes.append(f"{percent(100 * level.cached_prompt_share)} of prompt cached")
    return join([flag, text(", ".join(notes))])


# Several figures in one cell: only people read them.
_IN_WORDS: tuple[_LevelColumn, ...] = (
    Column("spread", "95 %", spread_text, group=("Effective tok/s", "95 %"), style="soft", optional=True),
    Column("counted", "runs", runs_text, group=("Runs", "counted")),
    Column(
        "ended",
        "ended by",
        lambda level: counted(level.finish_reasons),
        right=False,
        optional=True,
        group=("Ended", "by reason"),
    ),
    Column(
        "failed_by",
        "failed by",
        lambda level: counted(level.errors),
        right=False,
        optional=True,
        group=("Failed", "by kind"),
    ),
    Column(
        "slowed",
        "throttled",
        lambda level: level.energy and (", ".join(level.energy.throttled) or "no"),
        right=False,
        optional=True,
        group=("GPUs", "throttled"),
    ),
    Column(
        "measured_by",
        "measured by",
        _part("energy", "source"),
        right=False,
        optional=True,
        group=("GPUs", "measured by"),
    ),
    Column("notes", "Notes", lambda _: "", style="note", right=False, html=_notes),
)


def level_columns(keys: str) -> list[_LevelColumn]:
    """Return the columns of the keys, as `chosen` does."""
    return chosen((*LEVEL_COLUMNS, *_IN_WORDS), keys)


def level_table(levels: Sequence[LevelSummary]) -> Markup:
    best = best_level(levels)
    columns = level_columns(
        "concurrency requests failed effective_tok_s spread plateau_tok_s task_tok_s task_with_ttft_tok_s "
        "contention_pct ttft_p50_ms ttft_p95_ms ttft_p99_ms tpot_p50_ms tpot_p95_ms engine_tok_s wall_s counted notes"
    )
    below = "The level with the highest effective tok/s is tinted. – stands for unknown."
    if any(level.client_limited for level in levels):
        below += " Client-limited levels are not ranked."
    tinted = [place for place, level in enumerate(levels) if level is best]
    made = html_table("Every level of the sweep", columns, levels, best=tinted)
    return join([made, tag("p", text(below), class_="below")])


def class_table(classes: Sequence[LevelSummary]) -> Markup | None:
    """Return one row for each kind of traffic of a level; None where a load has one kind only."""
    columns = level_columns(
        "concurrency traffic requests failed effective_tok_s task_tok_s ttft_p50_ms ttft_p95_ms tpot_p50_ms "
        "tpot_p95_ms total_p50_ms total_p95_ms queued_p50_ms notes"
    )
    rows = sorted(classes, key=lambda level: level.concurrency)
    return html_table("Levels by kind of traffic", columns, rows) if rows else None


def request_table(levels: Sequence[LevelSummary]) -> Markup | None:
    """Return what the requests of each level were and how they ended; None where nothing of it is known."""
    columns = level_columns(
        "concurrency prompt_tokens_mean output_tokens_mean cached_prompt_share first_byte_p50_ms gap_p50_ms gap_p99_ms "
        "total_p50_ms total_p95_ms queued_p50_ms queued_p95_ms delivered_share ended failed_by"
    )
    return html_table("The requests of every level", columns, levels) if len(present(columns, levels)) > 1 else None


def energy_table(levels: Sequence[LevelSummary]) -> Markup | None:
    """Return what the GPUs drew at each level; None where nothing measures it."""
    columns = level_columns("concurrency joules_per_token joules mean_w max_w slowed measured_by")
    return html_table("Energy of every level", columns, levels) if any(level.energy for level in levels) else None


def failure_table(rows: Sequence[Request]) -> Markup | None:
    """Failed requests by kind and level; None when there were none."""
    kinds: dict[tuple[int, str], list[Request]] = {}
    for row in rows:
        if not row.ok:
            kinds.setdefault((row.level, str(row.error_kind)), []).append(row)
    columns: list[Column[list[Request]]] = [
        Column("level", "C", lambda same: same[0].level or "warm-up"),
        Column("kind", "Kind", lambda _: "", right=False, html=lambda same: tag("code", text(same[0].error_kind))),
        Column("count", "Count", len, right=False, style="left bad"),
        Column(
            "error",
            "First message",
            lambda same: next((row.error for row in same if row.error), None),
            lambda error: shortened(error, 240),
            right=False,
            style="wide",
        ),
    ]
    found = [kinds[key] for key in sorted(kinds)]
    made = html_table("Failed requests by kind", columns, found)
    return section("failures", "Failed requests", made) if found else None


def best_level(levels: Sequence[LevelSummary]) -> LevelSummary | None:
    """Of those that the client did not limit: the others are lower bounds, and are not ranked."""
    ranked = [level for level in levels if known(level.effective_tok_s) and not level.client_limited]
    return max(ranked, key=lambda level: level.effective_tok_s or 0.0, default=None)
