"""A preset's published figures beside the planned and the measured ones,
as a table and in words.
"""

from __future__ import annotations

from msgspec.structs import replace

from skep.bench.published import CheckedFigure, PresetCheck
from skep.report.columns import Column, print_records
from skep.report.plan import correction_words
from skep.report.sweep_text import interval_text
from skep.report.terminal import note
from skep.units import UNKNOWN, number, percent


def _lengths(one: CheckedFigure) -> str:
    told = (one.published.input_tokens, one.published.output_tokens)
    return " / ".join(UNKNOWN if length is None else f"{length:,}" for length in told)


_PLANNED: tuple[Column[CheckedFigure], ...] = (
    Column("concurrency", "C", lambda one: one.published.concurrency),
    Column("metric", "tok/s of", lambda one: one.published.metric, right=False),
    Column("lengths", "in / out", _lengths),
    Column("published", "published", lambda one: one.published.tok_s, number),
    Column("planned", "planned", lambda one: one.planned_tok_s, number),
    Column("uncorrected", "uncorrected", lambda one: one.uncorrected_tok_s, number, optional=True),
)
_MEASURED: Column[CheckedFigure] = Column(
    "measured", "measured", lambda one: one.measured_tok_s, number
)
_COMPARED: tuple[Column[CheckedFigure], ...] = (
    Column("interval", "95 %", lambda one: interval_text(one.measured_interval)),
    Column(
        "share",
        "of published",
        lambda one: None if one.share is None else 100 * one.share,
        percent,
    ),
)


def print_check(found: PresetCheck) -> None:
    if found.simulated:
        measured = replace(_MEASURED, title="SIMULATED")
    else:
        measured = _MEASURED
    print_records((*_PLANNED, measured, *_COMPARED), found.figures)
    if found.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")


def check_remarks(found: PresetCheck) -> list[str]:
    """Return where the figures come from, and the run that measured them."""
    corrected = correction_words(
        found.figures, ("planned", "uncorrected", "planned beside published")
    )
    if found.simulated:
        measured = f"simulated: on {found.rig or found.hardware}, not measured"
    else:
        measured = "measured: here, now"
    if found.rig is None:
        planned = f"; planned: for {found.hardware}"
    else:
        planned = f", on {found.hardware}"
    return [
        f"published: {found.source}{planned}; {measured}",
        *filter(None, [corrected]),
        f"stored as run {found.run}; `skep runs report {found.run}` writes the report",
    ]
