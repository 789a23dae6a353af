"""A preset's published figures beside those that were measured. Pure.

Published figures are their author's, of another machine. Only a load of the same lengths repeats
them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from skep.bench.metrics import LevelSummary, SweepSummary
from skep.catalog.presets import Published
from skep.deploy.plan_request import FigureBeside
from skep.units import Interval

SAME_LENGTH_TOLERANCE = 0.2  # lengths that differ by no more are the same load


class PublishedShare(msgspec.Struct, frozen=True):
    """One published figure with what a level of a sweep reached of it."""

    figure: Published
    measured_tok_s: float
    input_tokens: float | None  # means of the level
    output_tokens: float | None

    @property
    def share(self) -> float:
        return self.measured_tok_s / self.figure.tok_s

    @property
    def same_lengths(self) -> bool:
        same_input = _is_alike(self.figure.input_tokens, self.input_tokens)
        return same_input and _is_alike(self.figure.output_tokens, self.output_tokens)


class CheckedFigure(msgspec.Struct, frozen=True):
    """One published figure beside the plan's and the measured one, all counted alike."""

    published: Published
    planned_tok_s: float | None  # None: the planner knows nothing of the model or the cards
    measured_tok_s: float | None  # None: its level was not measured
    measured_interval: Interval | None = None  # 95 %, of plain output
    share: float | None = None  # measured over published
    # Planned without published rows of the layout; None: none correct it.
    uncorrected_tok_s: float | None = None
    corrected_by_it: bool = False  # this figure is one of those rows


class PresetCheck(msgspec.Struct, frozen=True):
    """A preset's published figures of one load, planned and measured."""

    preset: str
    source: str  # of the published figures
    hardware: str  # that they were measured on, and that is planned for
    run: str  # of the sweep that measured it
    simulated: bool
    figures: tuple[CheckedFigure, ...]
    rig: str | None = None  # that it was simulated on, where it is another than the hardware


def checked_figure(
    figure: Published, beside: FigureBeside | None, summary: SweepSummary
) -> CheckedFigure:
    """Return the figure beside the measured and the planned one.

    `beside`: the plan's figure; None: the planner knows nothing of the model or the cards.
    """
    checked = CheckedFigure(figure, None, None)
    if beside is not None:
        checked = replace(
            checked,
            planned_tok_s=beside.predicted_tok_s,
            uncorrected_tok_s=beside.uncorrected_tok_s,
            corrected_by_it=beside.corrected_by_it,
        )
    level = next(
        (level for level in summary.levels if level.concurrency == figure.concurrency), None
    )
    if level is None:
        return checked
    measured = measured_as(figure, level)
    return replace(
        checked,
        measured_tok_s=measured,
        measured_interval=level.effective_interval if figure.metric == "output" else None,
        share=None if measured is None else measured / figure.tok_s,
    )


def published_shares(
    published: Sequence[Published], summary: SweepSummary
) -> list[PublishedShare]:
    """Return a share for each level that has a published figure; of several figures, that of the
    same lengths.
    """
    best_shares = []
    for level in summary.levels:
        figures = [figure for figure in published if figure.concurrency == level.concurrency]
        shares = [share for figure in figures if (share := _share(figure, level)) is not None]
        if shares:
            best_shares.append(max(shares, key=lambda share: share.same_lengths))
    return best_shares


def measured_as(figure: Published, level: LevelSummary) -> float | None:
    """Return what the level measured, counted as the figure is; None: it is not known."""
    match figure.metric:
        case "combined":
            return level.combined_tok_s
        case "decode":
            if level.task_tok_s is None:
                return None
            return level.concurrency * level.task_tok_s
        case _:
            return level.effective_tok_s


def _share(figure: Published, level: LevelSummary) -> PublishedShare | None:
    tok_s = measured_as(figure, level)
    if tok_s is None or level.client_limited:
        return None
    return PublishedShare(figure, tok_s, level.prompt_tokens, level.output_tokens_each)


def _is_alike(published: int | None, measured: float | None) -> bool:
    return (
        published is not None
        and measured is not None
        and abs(measured - published) <= SAME_LENGTH_TOLERANCE * published
    )
