"""The charts of a tuning: its ladder as bars, and the winner against the baseline over C, which is a table as well.

Knows nothing of pages. A curve is drawn only where at least one configuration was measured at some level.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from skep.report import theme
from skep.report.charts import ChartCurve, Spec, bars_chart, curves_chart
from skep.report.levels import interval_text
from skep.report.markup import Markup, table, tag, text
from skep.tuner.records import CurvePoint, KnobConfig, StageDecision, TuneStage, Tuning
from skep.tuner.summary import KEPT, best_of, config_name, given_up, ratio_words, unit_of
from skep.units import UNKNOWN, Interval, known, milliseconds, number, printable, shortened

_TALLEST = 1.6  # of the largest figure: the interval of two repeats may be of any width
_LOOKS = (
    (theme.STONE, (6, 4), "square"),
    (theme.HONEY, (), "circle"),
    (theme.SKY, (2, 3), "triangle-up"),
    (theme.PLUM, (9, 3, 2, 3), "diamond"),
)


def ladder_chart(tuning: Tuning, stages: Sequence[TuneStage]) -> Spec | None:
    """Draw a bar for each configuration that was the best of its time. None where nothing was measured."""
    best, lost = best_of(stages), given_up(stages)
    kept = [(one, one.figure) for one in stages if one.decision in KEPT and one.figure is not None]
    rows = [
        _ladder_row(one, figure, best=one is best, lost=one.number in lost)
        for one, figure in kept
        if known(figure.estimate)
    ]
    if not rows:
        return None
    largest = max(row["value"] for row in rows)
    for row in rows:
        row["high"] = min(row["high"], _TALLEST * largest)
    return bars_chart(rows, unit_of(tuning), least=36)


def _ladder_row(stage: TuneStage, figure: Interval, *, best: bool, lost: bool) -> Spec:
    bounded = known(figure.low) and known(figure.high)
    low, high = (max(0.0, figure.low), figure.high) if bounded else (figure.estimate, figure.estimate)
    words, colour = [number(figure.estimate)], theme.STONE
    if stage.decision is StageDecision.ACCEPTED:
        mark, colour = ("died later", theme.ROSE) if lost else ("best", theme.HONEY) if best else ("", theme.SKY)
        words += [ratio_words(stage.ratio), *([mark] if mark else [])]
    name = f"{stage.number}. {shortened(printable(stage.title), 48)}"
    return {"name": name, "value": figure.estimate, "low": low, "high": high, "label": ", ".join(words),
            "colour": colour}  # fmt: skip


def curve_chart(
    tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint], height: int = 270
) -> Spec | None:
    """A line for each configuration, named at its end. None where nothing was measured."""
    curves = []
    for look, config in zip(cycle(_LOOKS), _configs(tuning, points), strict=False):
        figures = {one.concurrency: one.figure for one in points if one.config == config}
        found = sorted((c, one) for c, one in figures.items() if one is not None and known(one.estimate))
        ranges = {c: (one.low, one.high) for c, one in found if known(one.low) and known(one.high)}
        colour, dash, shape = look
        end = config_name(config, tuning, stages)
        curves.append(ChartCurve([(c, one.estimate) for c, one in found], colour, end, dash, shape, ranges=ranges))
    return curves_chart(curves, "tok/s", height=height, labelled=True)


def first_token_chart(tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint]) -> Spec | None:
    """What the queue costs: TTFT over C, in the looks of the other chart."""
    curves = []
    for look, config in zip(cycle(_LOOKS), _configs(tuning, points), strict=False):
        found = sorted((one.concurrency, one.ttft_ms) for one in points if one.config == config and known(one.ttft_ms))
        measured = [(c, ms) for c, ms in found if ms is not None]
        if measured:
            end = f"{config_name(config, tuning, stages)}  {milliseconds(measured[-1][1])}"
            curves.append(ChartCurve(measured, look[0], end, *look[1:]))
    return curves_chart(curves, "ms", height=270)


def curve_table(tuning: Tuning, stages: Sequence[TuneStage], points: Sequence[CurvePoint]) -> Markup | None:
    """A row for each C; of each configuration its figure, interval, TTFT and TPOT; then the last over the first."""
    configs = _configs(tuning, points)
    if not configs:
        return None
    names = [config_name(config, tuning, stages) for config in configs]
    columns = ("tok/s", "95 %", "TTFT p50", "TPOT p50")
    groups = [tag("th", text(name), colspan=str(len(columns)), scope="colgroup") for name in names]
    pair = len(configs) > 1
    last = tag("th", text(f"{names[-1]} over {names[0]}"), rowspan="2", scope="col") if pair else None
    first = tag("th", text("C"), rowspan="2", scope="col")
    head = [
        tag("tr", first, *groups, last, class_="group"),
        tag("tr", *(tag("th", text(one), scope="col") for _ in configs for one in columns)),
    ]
    rows = [_row(c, configs, points) for c in sorted({one.concurrency for one in points})]
    return table("Effective tok/s over concurrency", head, rows)


def _configs(tuning: Tuning, points: Sequence[CurvePoint]) -> list[KnobConfig]:
    """The baseline first, then in the order of the points."""
    met = list(dict.fromkeys(one.config for one in points))
    return sorted(met, key=lambda config: config != tuning.baseline)


def _row(c: int, configs: Sequence[KnobConfig], points: Sequence[CurvePoint]) -> Markup:
    met = {one.config: one for one in points if one.concurrency == c}
    cells = [tag("th", text(c), scope="row")]
    for config in configs:
        one = met.get(config)
        figure = None if one is None else one.figure
        cells += [
            tag("td", text(number(None if figure is None else figure.estimate))),
            tag("td", text(interval_text(figure)), class_="soft"),
            tag("td", text(milliseconds(None if one is None else one.ttft_ms))),
            tag("td", text(milliseconds(None if one is None else one.tpot_ms))),
        ]
    if len(configs) > 1:
        cells.append(tag("td", text(_over(met.get(configs[0]), met.get(configs[-1])))))
    return tag("tr", *cells)


def _over(base: CurvePoint | None, one: CurvePoint | None) -> str:
    if base is None or one is None or base.figure is None or one.figure is None:
        return UNKNOWN
    a, b = base.figure.estimate, one.figure.estimate
    return f"{number(b / a, digits=2)}×" if known(a) and known(b) and a > 0 else UNKNOWN
