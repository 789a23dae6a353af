"""The mixed workload as charts: what more side tasks do to the conversation, and how the side tasks fared at full load.

Knows nothing of SVG and pages. A chart is None where there is nothing to draw; what is unknown is left out, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skep.report import theme
from skep.report.charts import Curve, Spec, label, layer, time_chart
from skep.report.figures import UNKNOWN, known, milliseconds, number, printable, seconds, shortened
from skep.report.subjects import Subject, full_load, keyword_word, verdict_word
from skep.verdicts import MixedLevel, SideFigures

_BAR, _GAP, _BETWEEN = 18, 5, 18
_NAME_PX = 210  # of the tasks' names, at the left
_VERDICT_PX, _KEYWORDS_PX = 100, 190  # of the columns at the right
_TIME_PX = 66  # behind a bar
_COLOURS = {"PASS": theme.MOSS, "FAIL": theme.ROSE, "not judged": theme.MUTED}


def first_token_ms(level: MixedLevel) -> float | None:
    """Of turn 1."""
    return level.turns[0].ttft_ms if level.turns else None


def total_ms(level: MixedLevel) -> float | None:
    return None if level.primary_s is None else 1000 * level.primary_s


def change(value: float | None, base: float | None) -> str | None:
    """Against C = 1: "+41 %"; None where either is unknown."""
    if value is None or base is None or not known(value) or not known(base) or base <= 0:
        return None
    share = 100 * (value / base - 1)
    shown = number(abs(share), digits=0)
    return f"±{shown} %" if shown == "0" else f"{'+' if share > 0 else '−'}{shown} %"


def ttft_chart(subjects: Sequence[Subject], height: int = 200) -> Spec | None:
    """TTFT of turn 1 against C, one line a model."""
    return time_chart(_curves(subjects, first_token_ms), height=height, labelled=len(subjects) == 1)


def total_chart(subjects: Sequence[Subject], height: int = 200) -> Spec | None:
    """Time of the whole conversation against C; upright: its fastest and slowest repeat."""
    return time_chart(_curves(subjects, total_ms, ranged=True), height=height, labelled=len(subjects) == 1)


def side_chart(subjects: Sequence[Subject], width: int = 980) -> Spec | None:
    """One bar a side task and model; at the right what execution said, and what keywords said where that differs."""
    loaded = [(one, level) for one, level in full_load(subjects) if level is not None]
    items = list(dict.fromkeys(side.item for _, level in loaded for side in level.side))
    if not items:
        return None
    longest = max((side.seconds or 0.0 for _, level in loaded for side in level.side), default=0.0) or 1.0
    right = width - _VERDICT_PX - _KEYWORDS_PX
    per_second = (right - _NAME_PX - _TIME_PX) / longest
    texts: list[tuple[Spec, Spec]] = []
    bars: list[Spec] = []
    y = 4.0
    for item in items:
        begin = y
        for one, level in loaded:
            side = next((side for side in level.side if side.item == item), None)
            middle = y + _BAR / 2
            bars += _bar(one, side, y, per_second)
            texts += _texts(one, side, middle, per_second, right, letter=len(subjects) > 1)
            y += _BAR + _GAP
        title = next(side.title for _, level in loaded for side in level.side if side.item == item)
        name = {"x": 0, "y": (begin + y - _GAP) / 2, "label": shortened(printable(f"{item}  {title}"), 27)}
        texts.append((name, label("left", weight=600)))
        y += _BETWEEN
    height = y - _BETWEEN
    frame = {
        "x": {"field": "x", "type": "quantitative", "scale": {"domain": [0, width], "nice": False}, "axis": None},
        "y": {"field": "y", "type": "quantitative", "scale": {"domain": [height, 0], "nice": False}, "axis": None},
    }
    fill = {"field": "colour", "type": "nominal", "scale": None}
    ends = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
    layers = [layer(bars, {"type": "rect", "cornerRadius": 3}, **frame, **ends, color=fill)]
    layers += [layer([row], mark, text="label", **frame) for row, mark in texts]
    return {"width": width, "height": height, "padding": 2, "layer": layers}


def _curves(
    subjects: Sequence[Subject], of: Callable[[MixedLevel], float | None], *, ranged: bool = False
) -> list[Curve]:
    curves = []
    for one in subjects:
        points = [(level.concurrency, value) for level in one.levels if (value := of(level)) is not None]
        points = [(c, value) for c, value in points if known(value)]
        if not points:
            continue
        base = None if one.alone is None else of(one.alone)
        words = [one.look.letter if len(subjects) > 1 else "", milliseconds(points[-1][1])]
        grown = change(points[-1][1], base) if points[-1][0] > 1 else None
        end = "  ".join(filter(None, words)) + (f", {grown}" if grown else "")
        spans = tuple(
            (level.concurrency, 1000 * level.primary_low_s, 1000 * level.primary_high_s)
            for level in (one.levels if ranged else ())
            if level.primary_low_s is not None and level.primary_high_s is not None and known(of(level))
        )
        curves.append(Curve(tuple(points), one.look.colour, end, one.look.dash, one.look.shape, ranges=spans))
    return curves


def _bar(one: Subject, side: SideFigures | None, y: float, per_second: float) -> list[Spec]:
    if side is None or side.seconds is None or not known(side.seconds):
        return []
    end = _NAME_PX + max(side.seconds * per_second, 1.0)
    return [{"x": _NAME_PX, "x2": round(end, 2), "y": y, "y2": y + _BAR, "colour": one.look.colour}]


def _texts(
    one: Subject, side: SideFigures | None, y: float, per_second: float, right: float, *, letter: bool
) -> list[tuple[Spec, Spec]]:
    """The bar's letter, its time, the verdict, and the verdict by keywords where it is another."""
    texts: list[tuple[Spec, Spec]] = []
    if letter:
        texts.append(
            ({"x": _NAME_PX - 8, "y": y, "label": one.look.letter}, label("right", color=one.look.colour, weight=700))
        )
    time = side.seconds if side is not None and known(side.seconds) else None
    after = _NAME_PX + (time or 0.0) * per_second
    words = "not asked" if side is None else seconds(time) if time is not None else UNKNOWN
    texts.append(({"x": after, "y": y, "label": words}, label("left", dx=7)))
    if side is None:
        return texts
    word = verdict_word(side.passed, side.judged)
    colour = _COLOURS.get(word if word in _COLOURS else word.partition(" ")[0], theme.HONEY)
    texts.append(({"x": right, "y": y, "label": word}, label("left", weight=700, color=colour)))
    differs = keyword_word(side)
    if differs is not None:
        where = {"x": right + _VERDICT_PX, "y": y, "label": f"keywords say {differs}"}
        texts.append((where, label("left", color=theme.MUTED)))
    return texts
