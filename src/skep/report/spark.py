"""A series the size of a word or a card: its median over time, with the middle half around it and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from html import escape

from skep.report import theme
from skep.report.figures import printable
from skep.report.markup import Markup, trusted
from skep.report.series_chart import Track, band_path, line_path
from skep.report.series_frame import Frame, frame_of, value_range
from skep.report.series_marks import Shift
from skep.report.ticks import tick_number, time_ticks

SIZE = (320, 96)
_MOST_DAYS = 5  # moments told beneath it


def spark(
    track: Track, since: float, until: float, words: str, *, shifts: Sequence[Shift] = (), zone: tzinfo | None = None
) -> Markup:
    """Lowest and highest tick at the side, first and last day beneath; the last value is a dot."""
    edges = [edge for one in track.band for edge in one[1:]]
    scale = value_range(edges, 2)
    width, height = SIZE
    frame = frame_of((since, until), SIZE, 8, scale, narrow=True)
    parts = [
        f'<svg class="trend" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(printable(words))}">',
        *_ticks(frame, zone),
    ]
    if track.band:
        parts.append(f'<path d="{band_path(track, frame)}" fill="{track.colour}" fill-opacity=".16"/>')
        look = f'stroke="{track.colour}" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"'
        parts.append(f'<path d="{line_path(track, frame)}" fill="none" {look}/>')
        at, middle = track.band[-1][:2]
        parts.append(f'<circle cx="{frame.x(at):.1f}" cy="{frame.y(middle):.1f}" r="3.4" fill="{track.colour}"/>')
    for shift in shifts:
        if since <= shift.at <= until:
            colour = theme.ROSE if shift.worse else theme.MOSS
            line = f'M{frame.x(shift.at):.1f} {frame.top}V{frame.bottom}" stroke="{colour}" stroke-dasharray="3 3'
            parts.append(f'<path d="{line}"><title>{escape(printable(shift.words))}</title></path>')
    parts.append("</svg>")
    return trusted("".join(parts))


def _ticks(frame: Frame, zone: tzinfo | None) -> list[str]:
    parts = []
    for tick in frame.scale.ticks:
        y = frame.y(tick)
        parts.append(
            f'<path d="M{frame.left} {y:.1f}H{frame.right}" stroke="{theme.GRID}"/>'
            f'<text x="{frame.left - 5}" y="{y + 4:.1f}" font-size="11" text-anchor="end" fill="{theme.MUTED}">'
            f"{tick_number(tick, frame.scale.ticks)}</text>"
        )
    parts.append(f'<path d="M{frame.left} {frame.bottom}H{frame.right}" stroke="{theme.STONE}"/>')
    for one in time_ticks(frame.since, frame.until, _MOST_DAYS, zone):
        half = 3.4 * len(one.label)
        x = min(max(frame.x(one.at), half), frame.width - half)
        look = f'font-size="11" text-anchor="middle" fill="{theme.MUTED}"'
        parts.append(f'<text x="{x:.1f}" y="{frame.bottom + 16}" {look}>{escape(one.label)}</text>')
    return parts
