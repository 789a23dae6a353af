"""The climb as a picture: a bar for each configuration that was the best of its time, and between the bars a thin mark
for every attempt that was not kept; of many, one row for all between two bars. Pure: values in, SVG text out.

The axis begins at zero. Whiskers are 95 % intervals. Each decision has a shape of its own, so that no reader needs the
colour, which is an attribute in the day colours of `theme`, so that `theme.night_rules` turns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from textwrap import wrap

from skep.records import Interval
from skep.report import theme
from skep.report.figures import known, milliseconds, number, printable, shortened
from skep.report.ticks import Scale, tick_number, value_scale
from skep.report.tuning_words import (
    KEPT,
    after_each,
    best_of,
    decision_words,
    given_up,
    headline,
    model_words,
    ratio_range,
    ratio_words,
    shape_words,
    tally,
    unit_of,
)
from skep.tunings import Decision, Stage, Tuning

_WIDTH = 860
_PLOT, _END = 318, 700  # where bars begin and the axis ends; values stand behind
_TOP = 30
_ROW, _BAR, _THIN = 38, 22, 20
_LINE, _MOST_LINES = 15, 4  # of a name beside its bar
_LETTER, _BOLD_LETTER, _SMALL_LETTER = 7.0, 7.9, 6.0
_MOST_ROWS = 24  # attempts that were not kept with a row each; of more, those between two bars share one
_STRIP, _LANE, _LANES = 40, 9, 3  # such a row, and its lanes, so that neighbours do not hide each other
_LEGEND_ROW = 20

_COLOURS = {
    Decision.WORSE: theme.ROSE,
    Decision.SAME: theme.MUTED,
    Decision.FAILED: theme.ROSE,
    Decision.OVER_LIMIT: theme.HONEY,
    Decision.ANSWERS_WORSE: theme.PLUM,
    Decision.UNDECIDED: theme.MUTED,
}


def climb_element(tuning: Tuning, stages: Sequence[Stage]) -> str | None:
    """An `<svg>` element that takes the width it is given; None while there is nothing to draw."""
    if not stages:
        return None
    inner, height = _drawing(tuning, stages, 0)
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" {_role(tuning, stages)}>{_told(tuning, stages)}{inner}</svg>'


def climb_picture(tuning: Tuning, stages: Sequence[Stage]) -> str:
    """An SVG document of its own, with its own background, readable on a page of any colour."""
    inner, height = _drawing(tuning, stages, 62)
    name = shortened(f"{headline(tuning, stages)}", 96)
    marks = ["SIMULATED"] if tuning.simulated else []
    below = " · ".join([*marks, model_words(tuning), tuning.engine, tuning.rig, shape_words(tuning)])
    colour = theme.ROSE if marks else theme.MUTED
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}" {_role(tuning, stages)} font-family="{escape(theme.FONT)}">'
        f"{_told(tuning, stages)}<style>{theme.night_rules('svg')}</style>"
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="10" fill="{theme.PAPER}" '
        f'stroke="{theme.GRID}"/>'
        f'<text x="18" y="28" font-size="16" font-weight="600" fill="{theme.INK}">{_text(name)}</text>'
        f'<text x="18" y="47" font-size="12" fill="{colour}">{_text(shortened(below, 130))}</text>{inner}</svg>'
    )


def climb_caption(stages: Sequence[Stage]) -> str:
    left = sum(one.decision not in KEPT for one in stages)
    thin = " Thin marks: attempts that were not kept." if left else ""
    strips = " Those between two bars share a row; a mark tells more where a pointer rests." if _is_long(stages) else ""
    return f"One bar for each configuration that was the best of its time; whiskers: 95 % interval.{thin}{strips}"


def picture_words(tuning: Tuning, stages: Sequence[Stage]) -> str:
    """For a reader who sees no picture."""
    kept = [one for one in stages if one.decision in KEPT and one.figure is not None]
    steps = ", ".join(f"{one.title} {number(one.figure.estimate)}" for one in kept if one.figure)
    left = len(stages) - len(kept)
    simulated = "Simulated. " if tuning.simulated else ""
    return f"{simulated}The climb in {unit_of(tuning)}: {steps or 'nothing measured'}; {left} attempts were not kept"


def stage_words(stage: Stage, unit: str) -> str:
    """All of a stage in one sentence, for a pointer that rests on it."""
    parts = [f"{stage.number}: {stage.title}"]
    if stage.figure is not None:
        parts.append(f"{number(stage.figure.estimate)} {unit}{_between(stage.figure)}")
    if stage.ratio is not None:
        parts.append(f"{ratio_words(stage.ratio)} the best of that moment (95 %: {ratio_range(stage.ratio)})")
    if stage.tpot_ms is not None:
        parts.append(f"TPOT {milliseconds(stage.tpot_ms)}")
    if stage.ttft_ms is not None:
        parts.append(f"TTFT {milliseconds(stage.ttft_ms)}")
    return ", ".join([*parts, f"{decision_words(stage)}: {stage.why}" if stage.why else decision_words(stage)])


def _between(figure: Interval) -> str:
    if not (known(figure.low) and known(figure.high)):
        return ""
    return f" (95 %: {number(figure.low)}–{number(figure.high)})"


def _drawing(tuning: Tuning, stages: Sequence[Stage], above: float) -> tuple[str, float]:
    """The parts below a heading that is `above` high, and how high all of it is."""
    scale, unit, strips = _scale(tuning, stages), unit_of(tuning), _is_long(stages)
    best, lost = best_of(stages), given_up(stages)
    parts: list[str] = []
    y = float(_TOP)
    for kept, left in after_each(stages):
        if kept is not None:
            mark = "best" if kept is best and kept.decision is not Decision.BASELINE else ""
            names = _name_lines(kept, bold=mark == "best")
            high = max(_ROW, _LINE * len(names) + 8)
            bar = _bar(kept, names, scale, y + high / 2, "died later" if kept.number in lost else mark)
            parts.append(_titled(kept, unit, bar))
            y += high
        if strips and left:
            parts.append(_strip(left, scale, y, unit))
            y += _STRIP
            continue
        for one in left:
            parts.append(_titled(one, unit, _attempt(one, scale, y)))
            y += _THIN
    legend, tall = _legend(stages, y + 44)
    whole = _axis(scale, y, unit) + "".join(parts) + _target(tuning, scale, y) + legend
    return f'<g transform="translate(0 {above:.0f})">{whole}</g>', above + y + 44 + tall


def _is_long(stages: Sequence[Stage]) -> bool:
    return sum(one.decision not in KEPT for one in stages) > _MOST_ROWS


def _titled(stage: Stage, unit: str, drawn: str) -> str:
    return f"<g><title>{_text(stage_words(stage, unit))}</title>{drawn}</g>"


def _scale(tuning: Tuning, stages: Sequence[Stage]) -> Scale:
    figures = [one.figure for one in stages if one.figure is not None and known(one.figure.estimate)]
    most = max((figure.estimate for figure in figures), default=0.0)
    ends = [min(figure.high, 1.5 * most) for figure in figures if known(figure.high)]
    aimed = [tuning.aim.target] if tuning.aim.target is not None and tuning.aim.target < 3 * most else []
    return value_scale(0.0, max([most, *ends, *aimed]) or 1.0)


def _x(value: float, scale: Scale) -> float:
    return _PLOT + (_END - _PLOT) * min(max(scale.share(value), 0.0), 1.0)


def _axis(scale: Scale, bottom: float, unit: str) -> str:
    parts = []
    for tick in scale.ticks:
        x = _x(tick, scale)
        parts.append(f'<path d="M{x:.1f} {_TOP - 8}V{bottom:.1f}" stroke="{theme.GRID}"/>')
        parts.append(_label(x, bottom + 16, tick_number(tick, scale.ticks), anchor="middle"))
    parts.append(f'<path d="M{_PLOT} {_TOP - 8}V{bottom:.1f}" stroke="{theme.STONE}"/>')
    return "".join(parts) + _label(_END + 14, bottom + 16, unit)


def _bar(stage: Stage, names: Sequence[str], scale: Scale, middle: float, mark: str) -> str:
    """`mark`: said behind its figure. One that died later is an outline only."""
    best = mark == "best"
    colour = theme.HONEY if best else theme.STONE if stage.decision is Decision.BASELINE else theme.SKY
    look = f'fill="{colour}"'
    if mark and not best:
        look = f'fill="none" stroke="{theme.ROSE}" stroke-width="1.6" stroke-dasharray="4 3"'
    named = _name(stage, names, middle, bold=best)
    if stage.figure is None or not known(stage.figure.estimate):
        return named + _label(_PLOT + 8, middle + 4, decision_words(stage) + ", no figure")
    right = _x(stage.figure.estimate, scale)
    wide = max(right - _PLOT, 1.5)
    drawn = (
        f'<rect x="{_PLOT}" y="{middle - _BAR / 2:.1f}" width="{wide:.1f}" height="{_BAR}" rx="3" {look}/>'
        f"{_whisker(stage.figure, scale, middle, theme.INK, 5)}"
    )
    end = _x(stage.figure.high, scale) if known(stage.figure.high) else right
    said = number(stage.figure.estimate) + (f" ← {mark}" if mark else "")
    value = _label(max(end, right) + 9, middle - 1, said, colour=theme.INK, size=13, weight=600)
    note = _interval_words(stage)
    return named + drawn + value + _label(max(end, right) + 9, middle + 12, note, size=10.5)


def _interval_words(stage: Stage) -> str:
    if stage.ratio is not None and known(stage.ratio.estimate):
        return f"{ratio_words(stage.ratio)} ({ratio_range(stage.ratio)})"
    figure = stage.figure
    return f"{number(figure.low)}–{number(figure.high)}" if figure and known(figure.low) and known(figure.high) else ""


def _attempt(stage: Stage, scale: Scale, y: float) -> str:
    middle = y + _THIN / 2
    colour = _COLOURS[stage.decision]
    title = shortened(printable(stage.title), int((_PLOT - 44) / _SMALL_LETTER))
    named = _label(30, middle + 4, f"{stage.number}.", size=11, anchor="end") + _label(36, middle + 4, title, size=11)
    measured = stage.figure if stage.figure is not None and known(stage.figure.estimate) else None
    at = _PLOT + 9 if measured is None else _x(measured.estimate, scale)
    whisker = "" if measured is None else _whisker(measured, scale, middle, colour, 0)
    end = at if measured is None or not known(measured.high) else max(_x(measured.high, scale), at)
    ratio = f", {ratio_words(stage.ratio)}" if stage.ratio is not None and known(stage.ratio.estimate) else ""
    words = _label(end + 11, middle + 4, f"{decision_words(stage)}{ratio}", size=11)
    return named + whisker + shape(stage.decision, at, middle) + words


def _strip(left: Sequence[Stage], scale: Scale, y: float, unit: str) -> str:
    """Attempts in one row, each at its figure; those without one stand at the axis."""
    middle = y + _STRIP / 2
    most = int((_PLOT - 44) / _SMALL_LETTER)
    lines = [f"{len(left)} not kept:", *wrap(tally(left), most)]
    lines = [*lines[:2], shortened(" ".join(lines[2:]), most)] if len(lines) > 2 else lines
    top = middle + 4 - 6.5 * (len(lines) - 1)
    parts = [_label(36, top + 13 * place, line, size=11) for place, line in enumerate(lines)]
    silent = 0
    for place, stage in enumerate(left):
        lane = middle + _LANE * (place % _LANES - (_LANES - 1) / 2)
        if stage.figure is not None and known(stage.figure.estimate):
            at = _x(stage.figure.estimate, scale)
        else:
            at = _PLOT + 9 + 11 * (silent // _LANES)
            lane = middle + _LANE * (silent % _LANES - (_LANES - 1) / 2)
            silent += 1
        parts.append(_titled(stage, unit, shape(stage.decision, at, lane)))
    return "".join(parts)


def shape(decision: Decision, x: float, y: float) -> str:
    """The mark of an attempt that was not kept."""
    colour = _COLOURS[decision]
    hollow = f'fill="{theme.PAPER}" stroke="{colour}" stroke-width="1.6"'
    match decision:
        case Decision.WORSE:
            return f'<path d="M{x - 5:.1f} {y - 4:.1f}h10l-5 9z" fill="{colour}"/>'
        case Decision.SAME:
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {hollow}/>'
        case Decision.FAILED:
            cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
            return f'<path d="{cross}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-linecap="round"/>'
        case Decision.OVER_LIMIT:
            return f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z" {hollow}/>'
        case Decision.ANSWERS_WORSE:
            return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}"/>'
        case _:
            dots = "".join(f'<circle cx="{x + by:.1f}" cy="{y:.1f}" r="1.6" fill="{colour}"/>' for by in (-5, 0, 5))
            return f"<g>{dots}</g>"


def _whisker(figure: Interval, scale: Scale, y: float, colour: str, half: float) -> str:
    """From the lower to the upper end of the interval; `half` is how far its ends stand up."""
    if not (known(figure.low) and known(figure.high)):
        return ""
    low, high = _x(figure.low, scale), _x(figure.high, scale)
    ends = "" if not half else "".join(f"M{x:.1f} {y - half:.1f}v{2 * half:.1f}" for x in (low, high))
    return f'<path d="M{low:.1f} {y:.1f}H{high:.1f}{ends}" fill="none" stroke="{colour}" stroke-width="1.4"/>'


def _target(tuning: Tuning, scale: Scale, bottom: float) -> str:
    target = tuning.aim.target
    if target is None or not scale.low <= target <= scale.high:
        return ""
    x = _x(target, scale)
    line = (
        f'<path d="M{x:.1f} {_TOP - 8}V{bottom:.1f}" stroke="{theme.MOSS}" stroke-width="1.6" stroke-dasharray="6 4"/>'
    )
    return line + _label(x, _TOP - 12, f"target {number(target)}", colour=theme.MOSS, anchor="middle")


def _legend(stages: Sequence[Stage], top: float) -> tuple[str, float]:
    """A sample of each mark that occurs, and how high that is."""
    met = [one for one in Decision if one in _COLOURS and any(stage.decision is one for stage in stages)]
    parts, x, y = [], 18.0, top
    for one in met:
        wide = 26 + _SMALL_LETTER * len(one.value) + 18
        if x + wide > _WIDTH - 18:
            x, y = 18.0, y + _LEGEND_ROW
        parts.append(shape(one, x + 7, y) + _label(x + 20, y + 4, one.value, size=11))
        x += wide
    return "".join(parts), (y - top + _LEGEND_ROW) if met else 0.0


def _name_lines(stage: Stage, *, bold: bool) -> list[str]:
    """What stands beside a bar: a leap of several changes needs more lines than one, and breaks between them."""
    most = int((_PLOT - 44) / (_BOLD_LETTER if bold else _LETTER))
    words = ", ".join(str(one).replace(" ", "\u00a0") for one in stage.changes) or stage.title
    lines = [line.replace("\u00a0", " ") for line in wrap(printable(words), most)] or [""]
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], shortened(" ".join(lines[_MOST_LINES - 1 :]), most)]
    return lines


def _name(stage: Stage, lines: Sequence[str], middle: float, *, bold: bool) -> str:
    low = middle + 4.5 - _LINE / 2 * (len(lines) - 1)
    weight = 600 if bold else 400
    told = [_label(30, low, f"{stage.number}.", size=13, anchor="end")]
    told += [_label(36, low + _LINE * n, one, colour=theme.INK, size=13, weight=weight) for n, one in enumerate(lines)]
    return "".join(told)


def _label(
    x: float,
    y: float,
    words: str,
    *,
    colour: str = theme.MUTED,
    size: float = 12,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    bold = "" if weight == 400 else f' font-weight="{weight}"'
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{bold}{side} fill="{colour}">{_text(words)}</text>'


def _role(tuning: Tuning, stages: Sequence[Stage]) -> str:
    return f'role="img" aria-label="{_text(shortened(picture_words(tuning, stages), 600))}"'


def _told(tuning: Tuning, stages: Sequence[Stage]) -> str:
    """What programs read aloud: the name of the picture and all of its stages."""
    every = "; ".join(stage_words(one, unit_of(tuning)) for one in stages)
    return f"<title>{_text(headline(tuning, stages))}</title><desc>{_text(shortened(every, 4000))}</desc>"


def _text(words: str) -> str:
    return escape(printable(words))
