"""Tasks with tools by the size of the context before them: how many passed, and why others did
not.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from markupsafe import Markup

from skep.quality.trial_figures import QualitySummary, SizeQuality
from skep.report.columns import Column, as_count, at, print_records
from skep.report.page import html_table
from skep.stats.noninferiority import PairedDifference
from skep.store.verdicts import VerdictOutcome
from skep.units import number, percent

_NAMED = (VerdictOutcome.WRONG_TOOL, VerdictOutcome.BAD_ARGUMENTS)


class SizeRow(msgspec.Struct, frozen=True):
    """The tasks of one size at one concurrency. `points`: against C=1; None: it is C=1."""

    concurrency: int
    size: str
    outcomes: tuple[tuple[str, int], ...]
    points: PairedDifference | None = None

    @property
    def tasks(self) -> int:
        return sum(count for _, count in self.outcomes)

    def count(self, outcome: VerdictOutcome) -> int:
        return dict(self.outcomes).get(outcome.value, 0)

    @property
    def passed(self) -> float | None:
        if not self.tasks:
            return None
        return 100 * self.count(VerdictOutcome.PASSED) / self.tasks

    @property
    def others(self) -> str:
        """Return the outcomes that have no column of their own."""
        in_columns = {outcome.value for outcome in (VerdictOutcome.PASSED, *_NAMED)}
        return ", ".join(
            f"{count} {name}" for name, count in self.outcomes if name not in in_columns
        )


def size_rows(summary: QualitySummary) -> list[SizeRow]:
    """Return a row for each size at C=1, beside the first level, and at each level."""
    rows: list[SizeRow] = []
    for place, level in enumerate(summary.levels):
        if place == 0:
            rows += [SizeRow(1, size.size, size.base) for size in level.sizes]
        rows += [_loaded(level.concurrency, size) for size in level.sizes]
    return rows


def _loaded(concurrency: int, size: SizeQuality) -> SizeRow:
    return SizeRow(concurrency, size.size, size.load, size.difference)


def signed_points(share: float) -> str:
    text = number(100 * share, digits=1)
    if share > 0 and text != "0.0":
        return f"+{text}"
    return text


def bounds_words(difference: PairedDifference) -> str:
    return f"{signed_points(difference.low)} .. {signed_points(difference.high)}"


_COLUMNS: tuple[Column[SizeRow], ...] = (
    Column("concurrency", "C", lambda row: row.concurrency, as_count),
    Column("size", "context", lambda row: row.size),
    Column("tasks", "tasks", lambda row: row.tasks, as_count),
    Column("passed", "passed", lambda row: row.passed, lambda share: percent(share, digits=1)),
    Column("wrong_tool", "wrong tool", lambda row: row.count(VerdictOutcome.WRONG_TOOL), as_count),
    Column(
        "bad_arguments",
        "bad arguments",
        lambda row: row.count(VerdictOutcome.BAD_ARGUMENTS),
        as_count,
    ),
    Column("points", "points", at("points.difference"), signed_points),
    Column("bounds", "95 % bounds", lambda row: row.points, bounds_words),
    Column("others", "other failures", lambda row: row.others, right=False),
)


def print_sizes(summary: QualitySummary) -> None:
    rows = size_rows(summary)
    if rows:
        print()  # noqa: T201
        print_records(_COLUMNS, rows)


def sizes_table(summary: QualitySummary) -> Markup | None:
    rows: Iterable[SizeRow] = size_rows(summary)
    if not rows:
        return None
    return html_table("Each size of context at each concurrency", _COLUMNS, list(rows))
