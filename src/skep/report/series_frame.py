"""The frame of a picture over time: where a moment and a value lie, the axes, and what lies outside of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from html import escape

from skep.report import theme
from skep.report.ticks import Scale, tick_number, time_ticks, value_scale
from skep.series import Point

_FAR = 6.0  # middle halves beyond the middle: drawn at the edge, so that the rest can be seen
_LETTER_PX = 7.2


@dataclass(frozen=True, slots=True)
class Frame:
    """The edges of the plot inside the drawing, in pixels."""

    since: float
    until: float
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    narrow: bool
    scale: Scale

    def x(self, at: float) -> float:
        return self.left + (at - self.since) / (self.until - self.since) * (self.right - self.left)

    def y(self, value: float) -> float:
        share = (value - self.scale.low) / (self.scale.high - self.scale.low)
        return self.bottom - min(max(share, 0.0), 1.0) * (self.bottom - self.top)


def frame_of(window: tuple[float, float], size: tuple[int, int], top: int, scale: Scale, *, narrow: bool) -> Frame:
    """With room at the left for the longest value."""
    width, height = size
    longest = max((len(tick_number(tick, scale.ticks)) for tick in scale.ticks), default=1)
    left = round(10 + _LETTER_PX * max(longest, 3))
    since, until = window
    return Frame(
        since,
        max(until, since + 1),
        width,
        height,
        left,
        width - (6 if narrow else 12),
        top,
        height - 26,
        narrow,
        scale,
    )


def value_range(values: Sequence[float], most: int) -> Scale:
    """Of all values, but for a few that lie so far off that they would press the others flat."""
    if not values:
        return value_scale(0.0, 1.0, most)
    ordered = sorted(values)
    count = len(ordered)
    if count >= 20:
        low, middle, high = ordered[count // 4], ordered[count // 2], ordered[(3 * count) // 4]
        reach = _FAR * max(high - low, 0.02 * abs(middle))
        kept = [value for value in ordered if low - reach <= value <= high + reach]
        if count - len(kept) <= 0.02 * count:
            ordered = kept
    return value_scale(ordered[0], ordered[-1], most)


def axes(frame: Frame, unit: str, zone: tzinfo | None) -> str:
    return "".join([_upright(frame, unit), _along(frame, zone)])


def outliers(points: Sequence[Point], frame: Frame, colour: str) -> str:
    """Small triangles at the edge for what lies beyond it, with how many there are."""
    above = [point for point in points if point.value > frame.scale.high]
    below = [point for point in points if point.value < frame.scale.low]
    parts = []
    for found, y, tall, word in ((above, frame.top, 7, "above"), (below, frame.bottom, -7, "below")):
        if not found:
            continue
        told = f"{len(found)} {word} the axis: {min(p.value for p in found):,.4g} to {max(p.value for p in found):,.4g}"
        for busy, look in ((False, f'fill="{colour}"'), (True, f'fill="none" stroke="{colour}" stroke-width="1.1"')):
            some = [point for point in found if point.busy is busy][:200]
            marks = "".join(f"M{frame.x(point.at) - 4:.1f} {y + tall}h8l-4 {-tall}z" for point in some)
            parts.append(f'<path d="{marks}" {look}><title>{escape(told)}</title></path>' if marks else "")
    return "".join(parts)


def _upright(frame: Frame, unit: str) -> str:
    """Grid lines and their values. Where the axis does not begin at zero, it is broken and says so."""
    scale = frame.scale
    parts = []
    for tick in scale.ticks:
        y = frame.y(tick)
        line = theme.STONE if tick == 0 else theme.GRID
        parts.append(
            f'<path d="M{frame.left} {y:.1f}H{frame.right}" stroke="{line}"/>'
            f'<text x="{frame.left - 6}" y="{y + 4:.1f}" font-size="12" text-anchor="end" fill="{theme.MUTED}">'
            f"{tick_number(tick, scale.ticks)}</text>"
        )
    cut = "the axis does not begin at 0" if scale.cut else ""
    told = " · ".join(part for part in (unit, cut) if part)
    place = f'x="{frame.left}" y="{frame.top - 7}" font-size="11"'
    parts.append(f'<text {place} fill="{theme.MUTED}">{escape(told)}</text>')
    if scale.cut:
        x, y = frame.left, frame.bottom
        parts.append(
            f'<path d="M{x} {y - 20}l-5 3l10 4l-10 4l10 4l-5 3" fill="none" stroke="{theme.STONE}" stroke-width="1.4">'
            "<title>The axis does not begin at zero</title></path>"
        )
    return "".join(parts)


def _along(frame: Frame, zone: tzinfo | None) -> str:
    y = frame.bottom
    parts = [f'<path d="M{frame.left} {y}H{frame.right}" stroke="{theme.STONE}"/>']
    end = -1.0
    for tick in time_ticks(frame.since, frame.until, 4 if frame.narrow else 10, zone):
        x = frame.x(tick.at)
        half = len(tick.label) * _LETTER_PX / 2
        place = min(max(x, half), frame.width - half)
        mark = f'<path d="M{x:.1f} {y}v5" stroke="{theme.STONE}"/>'
        if tick.strong:
            mark += f'<path d="M{x:.1f} {frame.top}V{y}" stroke="{theme.GRID}" stroke-dasharray="2 3"/>'
        parts.append(mark)
        if place - half < end:
            continue
        end = place + half + 4
        weight = ' font-weight="600"' if tick.strong else ""
        parts.append(
            f'<text x="{place:.1f}" y="{y + 19}" font-size="12" text-anchor="middle"{weight} '
            f'fill="{theme.MUTED}">{escape(tick.label)}</text>'
        )
    return "".join(parts)
