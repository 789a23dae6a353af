"""Two trials of the same items as a table, a sentence and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import to_builtins

from skep.quality.trial_compare import TrialComparison, comparison_words
from skep.report.columns import Column, as_count, at, print_records
from skep.report.quality import EXIT_LOST, EXIT_OK, EXIT_UNSHOWN
from skep.report.tool_sizes import bounds_words, signed_points
from skep.stats.noninferiority import PairedDifference
from skep.units import percent


class TrialComparisonRow(msgspec.Struct, frozen=True):
    """B against A at one concurrency: over all items, or over those of one size of context."""

    concurrency: int
    items: str
    difference: PairedDifference
    claim: str = ""


def comparison_rows(comparison: TrialComparison) -> Iterator[TrialComparisonRow]:
    for level in comparison.levels:
        yield TrialComparisonRow(level.concurrency, "all", level.difference, level.claim.value)
        for size in level.sizes:
            yield TrialComparisonRow(level.concurrency, size.size, size.difference)


def _share(share: float) -> str:
    return percent(100 * share, digits=1)


_COLUMNS: tuple[Column[TrialComparisonRow], ...] = (
    Column("concurrency", "C", lambda row: row.concurrency, as_count),
    Column("items", "context", lambda row: row.items),
    Column("pairs", "pairs", at("difference.pairs"), as_count),
    Column("base_rate", "passed A", at("difference.base_rate"), _share),
    Column("rate", "passed B", at("difference.rate"), _share),
    Column("difference", "points", at("difference.difference"), signed_points),
    Column("bounds", "95 % bounds", lambda row: row.difference, bounds_words),
    Column("lost", "lost", at("difference.lost"), as_count),
    Column("gained", "gained", at("difference.gained"), as_count),
    Column("claim", "claim", lambda row: row.claim, right=False),
)


def print_trial_comparison(comparison: TrialComparison) -> None:
    print_records(_COLUMNS, list(comparison_rows(comparison)))
    print(comparison_words(comparison))  # noqa: T201


def trial_comparison_json(comparison: TrialComparison) -> dict[str, Any]:
    document: dict[str, Any] = to_builtins(comparison)
    return document | {"conclusion": comparison_words(comparison)}


def comparison_exit_code(comparison: TrialComparison) -> int:
    """Return 0 if B is no worse at every level, 4 if it is worse, 1 if neither is shown."""
    if comparison.is_worse:
        return EXIT_LOST
    if comparison.levels and comparison.holds:
        return EXIT_OK
    return EXIT_UNSHOWN
