"""A preset's published figures beside the planned and the measured ones, as a table and in words."""

from __future__ import annotations

from skep.bench.published import CheckedFigure, PresetCheck
from skep.report.columns import Column, print_records
from skep.report.plan import correction_words
from skep.report.sweep_text import interval_text
from skep.report.terminal import note
from skep.units import UNKNOWN, number, percent


def _lengths(one: CheckedFigure) -> str:
    told = (one.published.input_tokens, one.published.output_tokens)
    return " / ".join(UNKNOWN if length is None else f"{length:,}" for length in told)


_COLUMNS: tuple[Column[CheckedFigure], ...] = (
    Column("concurrency", "C", lambda one: one.published.concurrency),
    Column("metric", "tok/s of", lambda one: one.published.metric, right=False),
    Column("lengths", "in / out", _lengths),
    Column("published", "published", lambda one: one.published.tok_s, number),
    Column("planned", "planned", lambda one: one.planned_tok_s, number),
    Column("uncorrected", "uncorrected", lambda one: one.uncorrected_tok_s, number, optional=True),
    Column("measured", "measured", lambda one: one.measured_tok_s, number),
    Column("interval", "95 %", lambda one: interval_text(one.measured_interval)),
    Column("share", "of published", lambda one: None if one.share is None else 100 * one.share, percent),
)


def print_check(found: PresetCheck) -> None:
    print_records(_COLUMNS, found.figures)
    if found.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")


def check_remarks(found: PresetCheck) -> list[str]:
    """Return where the figures come from, and the run that measured them."""
    corrected = correction_words(found.figures, ("planned", "uncorrected", "planned beside published"))
    return [
        f"published: {found.source}; planned: for {found.hardware}; measured: here, now",
        *filter(None, [corrected]),
        f"stored as run {found.run}; `skep runs report {found.run}` writes the report",
    ]
