"""The figures of what is monitored: targets, how they stand, one probe's runs, windows of a series, two compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from skep.monitor.describe import ago, ahead, percent
from skep.monitor.history import TargetComparisonRow
from skep.monitor.records import ProbeSample, ProbeTarget, SeriesKey
from skep.monitor.schedule import format_interval
from skep.monitor.status import SeriesStatus, TargetStatus
from skep.monitor.targets import runs_of
from skep.report.columns import Column
from skep.stats.percentiles import WindowStats

WindowRow = tuple[SeriesKey, str, WindowStats | None]  # a series, the name of the window, what it has
_one, _two = "{:,.1f}".format, "{:,.2f}".format


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


TARGETS: tuple[Column[ProbeTarget], ...] = (
    Column("name", "NAME", lambda one: one.name, right=False),
    Column("kind", "KIND", lambda one: one.kind, rank=3, right=False),
    Column("every_s", "EVERY", lambda one: one.every_s, format_interval, right=False),
    Column("url", "URL", lambda one: one.url, right=False),
    Column("model", "MODEL", lambda one: one.model or "the only one", rank=1, right=False),
    Column("runs", "RUNS", runs_of, rank=2, right=False),
    Column("key_env", "KEY IN", lambda one: one.key_env, rank=4, right=False),
    Column("removed", "NOTE", lambda one: "" if one.removed_at is None else "removed", right=False),
)


def _latest(reading: SeriesStatus | None) -> float | None:
    return None if reading is None or reading.latest is None else reading.latest.value


def _speed(one: TargetStatus) -> SeriesStatus | None:
    return one.first("tok/s")


def status_columns(now: float, *, running: bool) -> tuple[Column[TargetStatus], ...]:
    """Return how each target stands; `running`: there is a loop that makes the next probe."""
    return (
        Column("target", "TARGET", lambda one: one.target.name, right=False),
        Column("state", "STATE", lambda one: one.state, right=False),
        Column("value", "NOW", lambda one: _latest(_speed(one)), lambda value: f"{_one(value)} tok/s"),
        Column("median_7d", "7 D MEDIAN", lambda one: (it := _speed(one)) and it.week and it.week.median, _one, rank=2),
        Column("ratio", "CHANGE", lambda one: (speed := _speed(one)) and speed.ratio, percent),
        Column("ttft_ms", "TTFT", lambda one: _latest(one.first("ms")), lambda value: f"{_one(value)} ms", rank=1),
        Column("probed", "PROBED", lambda one: "never" if one.last is None else ago(now - one.last.ended_at),
               right=False),
        Column("next", "NEXT", lambda one: ahead(one.due_at - now) if running else None, rank=4, right=False),
        Column("covered", "COVERED", lambda one: one.covered, lambda value: f"{100 * value:.0f} %", rank=5),
        Column("alerts", "ALERTS", lambda one: len(one.alerts), rank=3),
    )  # fmt: skip


SAMPLES: tuple[Column[ProbeSample], ...] = (
    Column("run", "RUN", lambda one: f"{one.heat} {one.shape} c{one.concurrency}", right=False),
    Column("tok_s", "TOK/S", lambda one: one.tok_s, _one),
    Column("engine_tok_s", "ENGINE", lambda one: one.engine_tok_s, _one, rank=1),
    Column("effective_tok_s", "EFFECTIVE", lambda one: one.effective_tok_s, _one, rank=2),
    Column("ttft_ms", "TTFT MS", lambda one: one.ttft_ms, _one),
    Column("output_tokens", "TOKENS", lambda one: one.output_tokens, rank=3),
    Column("quality", "QUALITY", lambda one: one.quality, _two, rank=4),
    Column("error", "NOTE", lambda one: one.error or "", right=False),
)


def _figure(name: str, title: str, rank: int = 0) -> Column[WindowRow]:
    """Return a figure of a window, with as many digits as its series has."""

    def text(row: WindowRow) -> str | None:
        value = None if row[2] is None else getattr(row[2], name)
        return None if value is None else _one(value) if row[0].metric.unit else _two(value)

    return Column(name, title, text, rank=rank)


WINDOWS: tuple[Column[WindowRow], ...] = (
    Column("series", "SERIES", lambda row: str(row[0]), right=False),
    Column("over", "OVER", lambda row: row[1], right=False),
    Column("count", "VALUES", lambda row: row[2].count if row[2] else 0, rank=2),
    _figure("median", "MEDIAN"),
    Column("unit", "UNIT", lambda row: row[0].metric.unit, rank=3, right=False),
    _figure("mad", "MAD", 5),
    Column("cv", "CV", lambda row: row[2] and row[2].cv, _share),
    _figure("p05", "P05", 6),
    _figure("p95", "P95", 6),
    _figure("low", "LOW", 4),
    _figure("high", "HIGH", 4),
)


def comparison_columns(a: str, b: str) -> tuple[Column[TargetComparisonRow], ...]:
    """Return both sides, and the ratio of B over A."""
    return (
        Column("run", "RUN", lambda row: row.key.kind.replace("/", " "), right=False),
        Column("unit", "UNIT", lambda row: row.key.metric.unit, rank=4, right=False),
        *_side("a", a, lambda row: row.versus.a),
        *_side("b", b, lambda row: row.versus.b),
        Column("ratio", "RATIO", lambda row: row.versus.ratio and row.versus.ratio.estimate, lambda x: f"{x:,.3f}"),
        Column("interval", "95 %", lambda row: row.versus.ratio, lambda x: f"{x.low:.3f} .. {x.high:.3f}", rank=1),
        Column("judgement", "JUDGEMENT", lambda row: row.versus.judgement.value, right=False),
    )


def _side(
    key: str, name: str, stats: Callable[[TargetComparisonRow], WindowStats | None]
) -> Iterator[Column[TargetComparisonRow]]:
    yield Column(f"median_{key}", name.upper(), lambda row: (side := stats(row)) and side.median, _one)
    yield Column(f"range_{key}", "RANGE", stats, lambda side: f"{_one(side.low)} .. {_one(side.high)}", rank=2)
    yield Column(f"cv_{key}", "CV", lambda row: (side := stats(row)) and side.cv, _share, rank=3)
