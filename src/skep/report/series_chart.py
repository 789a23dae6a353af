"""Series over time as a picture: points, rolling median with its band, changes, events, what failed and was missed.

Pure: values in, SVG text out, written by hand, because a page draws it for every request. All colours are attributes in
the day colours of `theme`, so that `theme.night_rules` turns them. Each picture is drawn twice, for a desk and for a
phone; the style sheet shows the one that fits.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from html import escape
from itertools import pairwise

from skep.monitor.records import SeriesPoint
from skep.report import theme
from skep.report.markup import Markup, join, tag, trusted
from skep.report.ticks import ValueScale, offsets, tick_number, time_ticks, value_scale, when
from skep.units import number, printable, shortened

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
    scale: ValueScale

    def x(self, at: float) -> float:
        return self.left + (at - self.since) / (self.until - self.since) * (self.right - self.left)

    def y(self, value: float) -> float:
        share = (value - self.scale.low) / (self.scale.high - self.scale.low)
        return self.bottom - min(max(share, 0.0), 1.0) * (self.bottom - self.top)


def frame_of(window: tuple[float, float], size: tuple[int, int], top: int, scale: ValueScale, *, narrow: bool) -> Frame:
    """Return a frame with room at the left for the longest value."""
    width, height = size
    longest = max((len(tick_number(tick, scale.ticks)) for tick in scale.ticks), default=1)
    left = round(10 + _LETTER_PX * max(longest, 3))
    since, until = window
    right, bottom = width - (6 if narrow else 12), height - 26
    return Frame(since, max(until, since + 1), width, height, left, right, top, bottom, narrow, scale)


def value_range(values: Sequence[float], most: int) -> ValueScale:
    """Return the scale of all values, without a few far outliers that would flatten the rest."""
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


def outliers(points: Sequence[SeriesPoint], frame: Frame, colour: str) -> str:
    """Return small triangles at the edge for values beyond it, with their number."""
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


_MARK_LETTER_PX = 6.4  # of 12 px text, on the safe side


@dataclass(frozen=True, slots=True)
class ChangeMark:
    """A change point. `between` is where it lies with 95 %; `words` is the whole sentence."""

    at: float
    between: tuple[float, float]
    label: str
    words: str
    worse: bool
    levels: tuple[float, float] | None = None  # medians before and after


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that happened. `number` is its place in the table beneath the picture."""

    at: float
    number: int
    words: str


def shift_label(ratio: float) -> str:
    """ "−4.1 %", "+12 %" or "2.3×": what fits above a line."""
    if ratio >= 2:
        return f"{number(ratio, digits=1)}×"
    size = 100 * (ratio - 1)
    return f"{'+' if size > 0 else ''}{number(size, digits=1)} %"


def bracket(shift: ChangeMark, frame: Frame) -> str:
    left, right = (frame.x(min(max(at, frame.since), frame.until)) for at in shift.between)
    if right - left < 2:
        return ""
    colour = theme.ROSE if shift.worse else theme.MOSS
    size = f'y="{frame.top}" width="{right - left:.1f}" height="{frame.bottom - frame.top}"'
    return f'<rect x="{left:.1f}" {size} fill="{colour}" fill-opacity=".1"/>'


def levels(shifts: Sequence[ChangeMark], frame: Frame, measured: tuple[float, float]) -> str:
    """The medians on both sides of each change, as far as was `measured`: a rolling one is late to tell of it."""
    told = sorted((one for one in shifts if frame.since <= one.at <= frame.until), key=lambda one: one.at)
    edges = [measured[0], *(one.at for one in told), measured[1]]
    parts = []
    for place, one in enumerate(told):
        if one.levels is not None:
            colour = theme.ROSE if one.worse else theme.MOSS
            left, middle, right = (frame.x(at) for at in edges[place : place + 3])
            before, after = (frame.y(level) for level in one.levels)
            path = f"M{left:.1f} {before:.1f}H{middle:.1f}M{middle:.1f} {after:.1f}H{right:.1f}"
            parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="1.6" stroke-dasharray="2 3" fill="none"/>')
    return "".join(parts)


def shift_marks(shifts: Sequence[ChangeMark], frame: Frame) -> Iterable[str]:
    """A dashed line with its size on top. One whose label would cover the last one's has only the line."""
    free_from = -1.0
    for shift in sorted(shifts, key=lambda one: one.at):
        if not frame.since <= shift.at <= frame.until:
            continue
        x = frame.x(shift.at)
        colour = theme.ROSE if shift.worse else theme.MOSS
        wide = 12 + 7.2 * len(shift.label)
        left = min(max(x - wide / 2, 1), frame.width - wide - 1)
        line = f'<path d="M{x:.1f} 18V{frame.bottom}" stroke="{colour}" stroke-width="1.6" stroke-dasharray="5 4"/>'
        label = ""
        if left > free_from:
            free_from = left + wide + 2
            label = (
                f'<rect x="{left:.1f}" y="1" width="{wide:.1f}" height="18" rx="9" fill="{colour}"/>'
                f'<text x="{left + wide / 2:.1f}" y="14" font-size="12" font-weight="650" text-anchor="middle" '
                f'fill="{theme.PAPER}">{_text(shift.label)}</text>'
            )
        yield f'<g class="shift"><title>{_text(shift.words)}</title>{line}{label}</g>'


def _grouped(flags: Sequence[Flag], frame: Frame) -> list[list[Flag]]:
    """Those whose signs would cover each other become one."""
    groups: list[list[Flag]] = []
    for flag in sorted(flags, key=lambda one: one.at):
        if groups and frame.x(flag.at) - frame.x(groups[-1][0].at) < _sign(groups[-1])[1] + 2:
            groups[-1].append(flag)
        else:
            groups.append([flag])
    return groups


def _sign(group: Sequence[Flag]) -> tuple[str, int]:
    """What stands on it, and its width."""
    first, last = group[0].number, group[-1].number
    sign = str(first) if first == last else f"{first}–{last}"
    return sign, 10 + 7 * len(sign)


def flag_lines(flags: Sequence[Flag], frame: Frame) -> Iterable[str]:
    places = sorted({round(frame.x(flag.at)) for flag in flags if frame.since <= flag.at <= frame.until})
    lines = "".join(f"M{x} {frame.top - 6}V{frame.bottom}" for x in places[:200])
    return [f'<path d="{lines}" stroke="{theme.PLUM}" stroke-opacity=".45" fill="none"/>'] if lines else []


def flag_marks(flags: Sequence[Flag], frame: Frame, top: float, zone: tzinfo | None) -> Iterable[str]:
    """Return marks numbered as in the table, with their words where there is room."""
    inside = [flag for flag in flags if frame.since <= flag.at <= frame.until]
    groups = _grouped(inside, frame)
    ends = [*(frame.x(group[0].at) for group in groups[1:]), frame.width]
    for group, end in zip(groups, ends, strict=False):
        sign, wide = _sign(group)
        x = min(frame.x(group[0].at), frame.width - wide - 1)
        told = "; ".join(f"{when(flag.at, zone)}: {flag.words}" for flag in group[:12])
        room = int((end - x - wide - 12) / _MARK_LETTER_PX)
        words = shortened(printable(group[0].words), min(room, 42)) if room >= 9 and len(group) == 1 else ""
        beside = (
            f'<text x="{x + wide + 4:.1f}" y="{top + 12}" font-size="12" fill="{theme.MUTED}">{_text(words)}</text>'
        )
        yield (
            f'<g class="event"><title>{_text(told)}</title>'
            f'<path d="M{x:.1f} {top}h{wide}v15h{-wide}z" fill="{theme.PLUM}"/>'
            f'<text x="{x + wide / 2:.1f}" y="{top + 11.5}" font-size="11" font-weight="650" text-anchor="middle" '
            f'fill="{theme.PAPER}">{sign}</text>{beside if words else ""}</g>'
        )


_SIZES = {"full": ((1040, 380), (344, 300)), "small": ((344, 190), (344, 190))}
_MOST_TICKS = 400  # failed probes that get a mark of their own

Band = tuple[float, float, float, float]  # at, median, lower and upper edge


@dataclass(frozen=True, slots=True)
class Track:
    """One line of a picture. `band` is drawn as a line with a shade around it, `points` as dots beneath.

    At `steps` the line begins anew: nothing joins what was before to what came after.
    """

    name: str
    points: Sequence[SeriesPoint] = ()
    band: Sequence[Band] = ()
    colour: str = theme.SKY
    steps: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    words: str  # what a reader who sees no picture is told
    unit: str
    since: float
    until: float
    tracks: Sequence[Track]
    shifts: Sequence[ChangeMark] = ()
    flags: Sequence[Flag] = ()
    failed: Sequence[float] = ()
    missed: Sequence[tuple[float, float]] = ()
    band_words: str = "rolling median, with the middle half"

    @property
    def empty(self) -> bool:
        return not any(track.points or track.band for track in self.tracks)


def series_picture(picture: Picture, name: str, zone: tzinfo | None = None, *, size: str = "full") -> Markup:
    """Both drawings and what the script needs for its crosshair. `name` is unlike any other of the page.

    A small picture is drawn once: it is as wide as a phone.
    """
    kinds = ("wide", "narrow") if size == "full" else ("only",)
    drawings = [
        trusted(series_svg(picture, f"{name}-{kind}", one, kind, zone))
        for kind, one in zip(kinds, _SIZES[size], strict=False)
    ]
    data = trusted(f'<script type="application/json" class="chart-data">{_island(picture, zone)}</script>')
    hint = "Left and right arrow move from point to point"
    live = tag("output", class_="chart-tip", aria_live="polite", hidden="")
    return tag("div", *drawings, data, live, class_="chart", id=name, tabindex="0", role="group", aria_label=hint)


def series_svg(
    picture: Picture, name: str, size: tuple[int, int] = (1040, 380), kind: str = "wide", zone: tzinfo | None = None
) -> str:
    """Return one drawing. `name` is used for its ids."""
    narrow = size[0] < 600
    most = 4 if narrow else 6
    lanes = (20 if picture.shifts else 0) + (20 if picture.flags else 0)
    scale = value_range(_values(picture), most)
    frame = frame_of((picture.since, picture.until), size, 20 + lanes, scale, narrow=narrow)
    parts = [
        _opening(picture, name, frame, kind),
        _hatch(name) if picture.missed else "",
        _gaps(picture.missed, frame, name),
        axes(frame, picture.unit, zone),
        *(bracket(shift, frame) for shift in picture.shifts),
        *(flag_lines(picture.flags, frame)),
        *(_shade(track, frame) for track in picture.tracks),
        *(_dots(track, frame, alone=len(picture.tracks) == 1) for track in picture.tracks),
        *(_line(track, frame) for track in picture.tracks),
        *(outliers(track.points, frame, track.colour) for track in picture.tracks),
        levels(picture.shifts, frame, _measured(picture)),
        _failures(picture.failed, frame),
        *(shift_marks(picture.shifts, frame)),
        *(flag_marks(picture.flags, frame, 22 if picture.shifts else 2, zone)),
        '<g class="cross"></g></svg>',
    ]
    return "".join(parts)


def legend(picture: Picture) -> Markup:
    """Return the meaning of each kind of mark that is drawn."""
    alone = len(picture.tracks) == 1
    colour = picture.tracks[0].colour if picture.tracks else theme.SKY
    dot = f'<circle cx="8" cy="8" r="2.6" fill="{colour}" fill-opacity=".45"/>'
    ring = f'<circle cx="8" cy="8" r="3" fill="none" stroke="{colour}" stroke-width="1.3"/>'
    line = f'<path d="M1 8h14" stroke="{colour}" stroke-width="2.6" fill="none"/>'
    shade = f'<rect x="1" y="2" width="14" height="12" fill="{colour}" fill-opacity=".16"/>'
    tick = f'<path d="M8 4v9" stroke="{theme.ROSE}" stroke-width="2.4" fill="none"/>'
    edge = f'<path d="M4 5h9l-4.5 7z" fill="{colour}"/>'
    level = f'<path d="M1 5h7M8 11h8" stroke="{theme.ROSE}" stroke-width="1.6" stroke-dasharray="2 2" fill="none"/>'
    gap = f'<path d="M2 14L12 2M6 15L16 3" stroke="{theme.STONE}" fill="none"/>'
    busy = any(point.busy for track in picture.tracks for point in track.points)
    entries = [
        (dot, "one run", any(track.points for track in picture.tracks)),
        (ring, "others were there too: not counted", busy),
        (shade + line, picture.band_words, any(track.band for track in picture.tracks)),
        (level, "median before and after a change", any(shift.levels for shift in picture.shifts)),
        (edge, "beyond the axis", _beyond(picture)),
        (tick, "failed", bool(picture.failed)),
        (gap, "missed: nobody was there to probe", bool(picture.missed)),
    ]
    if not alone:
        entries = [(_sample(track.colour), track.name, True) for track in picture.tracks] + entries[1:2] + entries[3:]
    items = [
        tag("li", trusted(f'<svg viewBox="0 0 17 16" aria-hidden="true">{drawn}</svg>'), trusted(escape(words)))
        for drawn, words, there in entries
        if there
    ]
    return tag("ul", *items, class_="chart-legend") if items else join([])


def _sample(colour: str) -> str:
    return f'<path d="M1 8h14" stroke="{colour}" stroke-width="3" fill="none"/>'


def _values(picture: Picture) -> list[float]:
    """Return the values that set the axis: without busy ones, unless there are no others."""
    free = [point.value for track in picture.tracks for point in track.points if not point.busy]
    edges = [edge for track in picture.tracks for one in track.band[:: 1 + len(track.band) // 400] for edge in one[2:]]
    return free + edges or [point.value for track in picture.tracks for point in track.points]


def _measured(picture: Picture) -> tuple[float, float]:
    """Return the first and the last moment of all that is drawn."""
    ends = [one for track in picture.tracks for one in (*track.points[:1], *track.points[-1:])]
    moments = [one.at for one in ends] + [
        row[0] for track in picture.tracks for row in (*track.band[:1], *track.band[-1:])
    ]
    return min(moments, default=picture.since), max(moments, default=picture.until)


def _beyond(picture: Picture) -> bool:
    scale = value_range(_values(picture), 6)
    return any(not scale.low <= point.value <= scale.high for track in picture.tracks for point in track.points)


def _opening(picture: Picture, name: str, frame: Frame, kind: str) -> str:
    where = (
        f'data-since="{frame.since:.0f}" data-until="{frame.until:.0f}" data-left="{frame.left}" '
        f'data-right="{frame.right}" data-top="{frame.top}" data-bottom="{frame.bottom}" '
        f'data-low="{frame.scale.low:g}" data-high="{frame.scale.high:g}"'
    )
    return (
        f'<svg class="series {kind}" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-labelledby="{name}-t {name}-d" {where}><title id="{name}-t">{_text(picture.title)}</title>'
        f'<desc id="{name}-d">{_text(picture.words)}</desc>'
    )


def _hatch(name: str) -> str:
    return (
        f'<defs><pattern id="{name}-h" width="7" height="7" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><path d="M0 0v7" stroke="{theme.STONE}" stroke-opacity=".55"/></pattern></defs>'
    )


def _gaps(missed: Sequence[tuple[float, float]], frame: Frame, name: str) -> str:
    """Neighbours that touch on the screen are one."""
    found: list[list[float]] = []
    for begin, end in sorted(missed):
        left, right = frame.x(max(begin, frame.since)), frame.x(min(end, frame.until))
        if right < frame.left or left > frame.right:
            continue
        if found and left - found[-1][1] < 1:
            found[-1][1] = max(found[-1][1], right)
        else:
            found.append([left, right])
    tall = frame.bottom - frame.top
    return "".join(
        f'<rect x="{left:.1f}" y="{frame.top}" width="{max(right - left, 1.5):.1f}" height="{tall}" '
        f'fill="url(#{name}-h)"/>'
        for left, right in found
    )


def _runs(track: Track) -> Iterable[Sequence[Band]]:
    """The band in pieces: where nothing was measured for long, no line claims to know."""
    band = track.band
    if not band:
        return []
    strides = sorted(b[0] - a[0] for a, b in pairwise(band))
    longest = 6 * max(strides[len(strides) // 2], 1.0) if len(strides) > 1 else float("inf")
    moments = [row[0] for row in band]
    anew = {bisect_left(moments, step) for step in track.steps}
    cuts = [i for i in range(1, len(band)) if i in anew or moments[i] - moments[i - 1] > longest]
    return [band[a:b] for a, b in zip([0, *cuts], [*cuts, len(band)], strict=True)]


def band_path(track: Track, frame: Frame) -> str:
    parts = []
    for piece in _runs(track):
        if len(piece) < 2:
            continue
        places = [(frame.x(at), frame.y(low), frame.y(high)) for at, _, low, high in _thinned(piece, frame)]
        there = "L".join([f"{x:.1f} {high:.1f}" for x, _, high in places])
        back = "L".join([f"{x:.1f} {low:.1f}" for x, low, _ in reversed(places)])
        parts.append(f"M{there}L{back}Z")
    return "".join(parts)


def line_path(track: Track, frame: Frame) -> str:
    parts = []
    for piece in _runs(track):
        places = "L".join([f"{frame.x(one[0]):.1f} {frame.y(one[1]):.1f}" for one in _thinned(piece, frame)])
        parts.append(f"M{places}" + ("" if len(piece) > 1 else "h.1"))
    return "".join(parts)


def _thinned(piece: Sequence[Band], frame: Frame) -> Sequence[Band]:
    """One for every two pixels at most: a rolling median has nothing finer to tell."""
    share = (piece[-1][0] - piece[0][0]) / (frame.until - frame.since)
    step = 2 * len(piece) // max(round(share * (frame.right - frame.left)), 2)
    return piece if step < 2 else [*piece[:-1:step], piece[-1]]


def _shade(track: Track, frame: Frame) -> str:
    path = band_path(track, frame)
    return f'<path d="{path}" fill="{track.colour}" fill-opacity=".16"/>' if path else ""


def _line(track: Track, frame: Frame) -> str:
    path = line_path(track, frame)
    look = f'fill="none" stroke="{track.colour}" stroke-width="2.4" stroke-linejoin="round" stroke-linecap="round"'
    return f'<path d="{path}" {look}/>' if path else ""


def _dots(track: Track, frame: Frame, *, alone: bool) -> str:
    """All that are alike are one path: a thousand elements would make the page slow."""
    low, high = frame.scale.low, frame.scale.high
    left, bottom = frame.left, frame.bottom
    across = (frame.right - left) / (frame.until - frame.since)
    up = (bottom - frame.top) / (high - low)
    inside = [point for point in track.points if low <= point.value <= high]
    places = [(left + (p.at - frame.since) * across, bottom - (p.value - low) * up) for p in inside]
    many = len(inside)
    size = (4.6 if many < 250 else 3.6 if many < 900 else 2.8) * (0.8 if frame.narrow else 1)
    ink = (0.5 if many < 400 else 0.34) * (1 if alone else 0.6)
    free = [place for place, point in zip(places, inside, strict=True) if not point.busy]
    if many > 600:  # by whole pixels, and none twice
        drawn = "".join([f"M{x} {y}h0" for x, y in {(int(x), int(y)) for x, y in free}])
    else:
        drawn = "".join([f"M{x:.1f} {y:.1f}h0" for x, y in free])
    busy = "".join(_ring(x, y, size / 2) for (x, y), point in zip(places, inside, strict=True) if point.busy)
    look = f'stroke-width="{size:.1f}" stroke-linecap="round" stroke-opacity="{ink:.2f}"'
    dots = f'<path d="{drawn}" fill="none" stroke="{track.colour}" {look}/>' if drawn else ""
    rings = f'<path d="{busy}" fill="none" stroke="{track.colour}" stroke-width="1.1" stroke-opacity=".8"/>'
    return dots + (rings if busy else "")


def _ring(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y:.1f}a{r:.1f} {r:.1f} 0 1 0 {2 * r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-2 * r:.1f} 0"


def _failures(failed: Sequence[float], frame: Frame) -> str:
    """Ticks along the bottom; what falls on the same pixel is one."""
    places = sorted({round(frame.x(at)) for at in failed if frame.since <= at <= frame.until})[:_MOST_TICKS]
    if not places:
        return ""
    marks = "".join(f"M{x} {frame.bottom - 9}v9" for x in places)
    return (
        f'<path d="{marks}" fill="none" stroke="{theme.ROSE}" stroke-width="2">'
        f"<title>{len(failed)} failed</title></path>"
    )


def _island(picture: Picture, zone: tzinfo | None) -> str:
    """Times as seconds after the first, so that they stay short; never a `<` that could end the element."""
    values = [abs(value) for value in _values(picture)]
    digits = max(0, 4 - len(str(int(max(values, default=0.0)))))
    since = picture.since
    tracks = [
        {
            "name": track.name,
            "points": [[int(p.at - since), round(p.value, digits), int(p.busy)] for p in track.points],
            "band": [
                [int(one[0] - since), *(round(edge, digits) for edge in one[1:])]
                for one in track.band[:: 1 + len(track.band) // 400]
            ],
        }
        for track in picture.tracks
    ]
    document = {
        "since": since,
        "unit": picture.unit,
        "tracks": tracks,
        "offsets": offsets(since, picture.until, zone),
        "flags": [[int(flag.at - since), flag.words] for flag in picture.flags],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _text(words: str) -> str:
    return escape(printable(words))
