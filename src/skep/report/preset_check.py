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


def _lengths(figure: CheckedFigure) -> str:
    lengths = (figure.published.input_tokens, figure.published.output_tokens)
    return " / ".join(UNKNOWN if length is None else f"{length:,}" for length in lengths)


_PLANNED: tuple[Column[CheckedFigure], ...] = (
    Column("concurrency", "C", lambda figure: figure.published.concurrency),
    Column("metric", "tok/s of", lambda figure: figure.published.metric, right=False),
    Column("lengths", "in / out", _lengths),
    Column("published", "published", lambda figure: figure.published.tok_s, number),
    Column("planned", "planned", lambda figure: figure.planned_tok_s, number),
    Column(
        "uncorrected",
        "uncorrected",
        lambda figure: figure.uncorrected_tok_s,
        number,
        optional=True,
    ),
)
_MEASURED: Column[CheckedFigure] = Column(
    "measured", "measured", lambda figure: figure.measured_tok_s, number
)
_COMPARED: tuple[Column[CheckedFigure], ...] = (
    Column("interval", "95 %", lambda figure: interval_text(figure.measured_interval)),
    Column(
        "share",
        "of published",
        lambda figure: None if figure.share is None else 100 * figure.share,
        percent,
    ),
)


def print_check(check: PresetCheck) -> None:
    if check.simulated:
        measured = replace(_MEASURED, title="SIMULATED")
    else:
        measured = _MEASURED
    print_records((*_PLANNED, measured, *_COMPARED), check.figures)
    if check.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")


def check_remarks(check: PresetCheck) -> list[str]:
    """Return where the figures come from, and the run that measured them."""
    corrected = correction_words(
        check.figures, ("planned", "uncorrected", "planned beside published")
    )
    if check.simulated:
        measured = f"simulated: on {check.rig or check.hardware}, not measured"
    else:
        measured = "measured: here, now"
    if check.rig is None:
        planned = f"; planned: for {check.hardware}"
    else:
        planned = f", on {check.hardware}"
    return [
        f"published: {check.source}{planned}; {measured}",
        *filter(None, [corrected]),
        f"stored as run {check.run}; `skep runs report {check.run}` writes the report",
    ]
