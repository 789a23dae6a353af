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

from skep.report import theme
from skep.report.figures import printable
from skep.report.markup import Markup, join, tag, trusted
from skep.report.series_frame import Frame, axes, frame_of, outliers, value_range
from skep.report.series_marks import Flag, Shift, bracket, flag_lines, flag_marks, levels, shift_marks
from skep.report.ticks import offsets
from skep.series import Point

_SIZES = {"full": ((1040, 380), (344, 300)), "small": ((344, 190), (344, 190))}
_MOST_TICKS = 400  # failed probes that get a mark of their own

Band = tuple[float, float, float, float]  # at, median, lower and upper edge


@dataclass(frozen=True, slots=True)
class Track:
    """One line of a picture. `band` is drawn as a line with a shade around it, `points` as dots beneath.

    At `steps` the line begins anew: nothing joins what was before to what came after.
    """

    name: str
    points: Sequence[Point] = ()
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
    shifts: Sequence[Shift] = ()
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
    """One drawing. `name` is used for its ids."""
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
    """What each kind of mark means, of those that are drawn."""
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
    """Those of busy moments have no say in the axis, unless there are no others."""
    free = [point.value for track in picture.tracks for point in track.points if not point.busy]
    edges = [edge for track in picture.tracks for one in track.band[:: 1 + len(track.band) // 400] for edge in one[2:]]
    return free + edges or [point.value for track in picture.tracks for point in track.points]


def _measured(picture: Picture) -> tuple[float, float]:
    """The first and the last moment of all that is drawn."""
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
