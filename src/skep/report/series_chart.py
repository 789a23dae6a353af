"""Series over time as a picture: points, rolling median with its band, changes, events, what failed and was missed.

Times are told on the machine's clock, so that days begin at midnight. A picture of a page is drawn twice, for a desk
and for a phone; the style sheet shows the one that fits.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from skep.monitor.describe import describe_change
from skep.monitor.history import Band
from skep.monitor.records import DAY_S, MonitorEvent, SeriesChange, SeriesPoint
from skep.report import theme
from skep.report.charts import MarkSheet, Spec, line
from skep.report.svg import render
from skep.units import number, printable, shortened

_FAR = 6.0  # middle halves beyond the middle: drawn at the edge, so that the rest can be seen
_NEAR_ZERO = 0.35  # a lowest value below this share of the highest: the axis begins at zero
_ROOM = 0.08  # above and below what is drawn
_LETTER_PX = 7.2
_SIZES = {"wide": (1040, 380), "narrow": (344, 300), "only": (344, 190), "trend": (320, 96)}
_MOST_MARKS = 400  # failed probes that get a mark of their own


class Track(msgspec.Struct, frozen=True):
    """One line: `band` with a shade around it, `points` as dots beneath. At `steps` it begins anew."""

    name: str
    points: Sequence[SeriesPoint] = ()
    band: Sequence[Band] = ()
    colour: str = theme.SKY
    steps: Sequence[float] = ()


class Picture(msgspec.Struct, frozen=True):
    title: str
    words: str  # what a reader who sees no picture is told
    unit: str
    since: float
    until: float
    tracks: Sequence[Track]
    changes: Sequence[SeriesChange] = ()
    events: Sequence[tuple[int, MonitorEvent]] = ()  # with their numbers in the table beneath the picture
    failed: Sequence[float] = ()
    missed: Sequence[tuple[float, float]] = ()
    band_words: str = "rolling median, p25 to p75 shaded"

    @property
    def empty(self) -> bool:
        return not any(track.points or track.band for track in self.tracks)

    @property
    def points(self) -> list[SeriesPoint]:
        return [point for track in self.tracks for point in track.points]

    @property
    def goes_beyond(self) -> bool:
        """Whether a value lies outside the axis."""
        low, high = value_range(_axis_values(self))
        return any(not low <= point.value <= high for point in self.points)


def shift_label(ratio: float) -> str:
    """ "−4.1 %", "+12 %" or "2.3×": what fits above a line."""
    if ratio >= 2:
        return f"{number(ratio, digits=1)}×"
    size = 100 * (ratio - 1)
    return f"{'+' if size > 0 else ''}{number(size, digits=1)} %"


def change_colour(change: SeriesChange) -> str:
    return theme.ROSE if change.worse else theme.MOSS


def series_picture(picture: Picture, name: str, *, size: str = "full") -> Markup:
    """Return the drawings and what the script needs for its crosshair; a small picture is as wide as a phone."""
    picture = _steady(picture)
    kinds = ("wide", "narrow") if size == "full" else ("only",)
    drawn = "".join(series_svg(picture, f"{name}-{kind}", kind) for kind in kinds)
    hint = "Left and right arrow move from point to point"
    return Markup(  # noqa: S704
        f'<div class="chart" id="{name}" tabindex="0" role="group" aria-label="{hint}">{drawn}'
        f'<script type="application/json" class="chart-data">{_island(picture)}</script>'
        '<output class="chart-tip" aria-live="polite" hidden=""></output></div>'
    )


def series_svg(picture: Picture, name: str, kind: str = "wide") -> str:
    """Return one drawing. `name` is used for its ids."""
    drawing = _Drawing(picture, kind)
    title, words = (escape(printable(some)) for some in (picture.title, picture.words))
    where = " ".join(f'data-{key}="{value:.10g}"' for key, value in drawing.edges().items())
    return render(
        drawing.spec(),
        lambda box: (
            f'<svg class="series {kind}" viewBox="{box}" role="img" aria-labelledby="{name}-t {name}-d" {where}>'
            f'<title id="{name}-t">{title}</title><desc id="{name}-d">{words}</desc>'
        ),
    ).replace("</svg>", '<g class="cross"></g></svg>')


def trend_svg(picture: Picture) -> Markup:
    """Return the band alone, small, with a dot at its end."""
    look = f'role="img" aria-label="{escape(printable(picture.words))}"'
    spec = _Drawing(_steady(picture), "trend").spec()
    return Markup(render(spec, lambda box: f'<svg class="trend" viewBox="{box}" {look}>'))  # noqa: S704


def _steady(picture: Picture) -> Picture:
    """Return the picture with the ends of its window at whole pixels, so that a page loaded again finds it drawn."""
    pixel_s = max(picture.until - picture.since, 1.0) / _SIZES["wide"][0]
    since, until = math.floor(picture.since / pixel_s) * pixel_s, math.ceil(picture.until / pixel_s) * pixel_s
    return replace(picture, since=since, until=until)


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis, without a few far outliers; from zero unless that would flatten the rest."""
    ordered = sorted(value for value in values if math.isfinite(value)) or [0.0, 1.0]
    count = len(ordered)
    if count >= 20:
        low, middle, high = (ordered[count * quarter // 4] for quarter in (1, 2, 3))
        reach = _FAR * max(high - low, 0.02 * abs(middle))
        kept = [value for value in ordered if low - reach <= value <= high + reach]
        if count - len(kept) <= 0.02 * count:
            ordered = kept
    low, high = ordered[0], ordered[-1]
    if 0 <= low < _NEAR_ZERO * high:
        low = 0.0
    if high <= low:
        spare = abs(high) * 0.1 or 1.0
        low, high = (low - spare if low else 0.0), high + spare
    room = (high - low) * _ROOM
    return (low if low == 0 else max(low - room, 0.0) if low > 0 else low - room), high + room


class _Drawing:
    """One picture at one size. Moments are milliseconds of the wall's clock."""

    def __init__(self, picture: Picture, kind: str) -> None:
        self.picture = picture
        self.trend, self.narrow = kind == "trend", kind != "wide"
        self.width, self.height = _SIZES[kind]
        lanes = 20 * bool(picture.changes) + 20 * bool(picture.events)
        self.low, self.high = value_range(_axis_values(picture))
        longest = max(len(f"{self.high:,.0f}"), 3 if self.high - self.low > 6 else 5)
        self.left, self.right = round(10 + _LETTER_PX * longest), self.width - (8 if self.narrow else 12)
        self.top, self.bottom = 8 if self.trend else 20 + lanes, self.height - 26
        self.since, self.until = self.ms(picture.since), max(self.ms(picture.until), self.ms(picture.since) + 1000)
        self.px = (self.until - self.since) / (self.right - self.left)  # milliseconds in a pixel
        self.up = (self.high - self.low) / (self.bottom - self.top)  # values in a pixel
        self.sheet = MarkSheet()

    def ms(self, at: float) -> float:
        return round(1000 * wall_s(at))

    def inside(self, at: float) -> bool:
        return self.picture.since <= at <= self.picture.until

    def edges(self) -> dict[str, float]:
        """Return where the plot lies in the drawing, for the script."""
        found = {name: getattr(self, name) for name in ("left", "right", "top", "bottom", "low", "high")}
        return {"since": self.since / 1000, "until": self.until / 1000, **found}

    def spec(self) -> Spec:
        scale = {"type": "utc", "domain": [self.since, self.until], "nice": False}
        x = {"field": "x", "type": "temporal", "title": None, "axis": self._time_axis(), "scale": scale}
        zero = {"condition": {"test": "datum.value == 0", "value": theme.STONE}, "value": theme.GRID}
        axis: Spec = {"format": ",f", "labelExpr": "replace(datum.label, '-', '−')", "gridColor": zero}
        axis |= {"labelFontSize": 11 if self.trend else 12, "tickCount": 2 if self.trend else 4 if self.narrow else 6}
        domain = {"domain": [self.low, self.high], "nice": False, "zero": False}
        y = {"field": "y", "type": "quantitative", "title": None, "axis": axis, "scale": domain}
        curves = [self._curve(track, x, y) for track in self.picture.tracks if track.band]
        for track in self.picture.tracks:
            self._dots(track)
            self._outliers(track)
        self._missed()
        self._failures()
        self._shifts()
        if not self.trend:
            self._axis_words()
            self._levels()
            self._flags()
        return {
            "autosize": {"type": "none"},
            "padding": {"left": self.left, "top": self.top, "right": self.width - self.right, "bottom": 26},
            "width": self.right - self.left,
            "height": self.bottom - self.top,
            "layer": [*self.sheet.ground(x, y), *curves, *self.sheet.marks(x, y)],
        }

    def _time_axis(self) -> Spec:
        days = (self.until - self.since) / 1000 / DAY_S
        if days < 6:
            strong = "utchours(datum.value) == 0 && utcminutes(datum.value) == 0"
            form = f"{strong} ? '%a %-d %b' : '%H:%M'"
        elif days < 120:
            strong, form = "utcdate(datum.value) == 1", "'%-d %b'"
        else:
            strong = "utcmonth(datum.value) == 0"
            form = f"datum.index == 0 || {strong} ? '%b %Y' : '%b'"
        weight, opacity = ({"condition": {"test": strong, "value": a}, "value": b} for a, b in ((600, 400), (1, 0)))
        words = {"labelExpr": f"utcFormat(datum.value, {form})", "labelFontSize": 11 if self.trend else 12}
        return {
            **words, "labelFontWeight": weight, "labelPadding": 4, "labelFlush": 24, "ticks": not self.trend,
            "tickColor": theme.STONE, "tickCount": 4 if self.narrow else 10, "grid": not self.trend,
            "gridDash": [2, 3], "gridOpacity": opacity,
        }  # fmt: skip

    def _axis_words(self) -> None:
        """The unit. An axis that does not begin at zero is broken and says so."""
        cut = "the axis does not begin at 0" if self.low > 0 else ""
        told = " · ".join(filter(None, (self.picture.unit, cut)))
        self.sheet.text(self.since, self.high + 11 * self.up, told, size=11)
        if cut:
            self.sheet.symbol(self.since, self.low, "M0-20l-5 3l10 4l-10 4l10 4l-5 3", theme.STONE, width=1.4)

    def _curve(self, track: Track, x: Spec, y: Spec) -> Spec:
        """A shade and a line, with a row for every four pixels at most and one without values where they break."""
        rows: list[Spec] = []
        for piece in _pieces(track):
            share = (piece[-1][0] - piece[0][0]) / max(self.picture.until - self.picture.since, 1.0)
            step = max(1, 4 * len(piece) // max(round(share * (self.right - self.left)), 2))
            for at, *values in piece if step == 1 else [*piece[:-1:step], piece[-1]]:
                middle, low, high = (min(max(value, self.low), self.high) for value in values)
                rows.append({"x": self.ms(at), "y": middle, "low": low, "high": high})
            rows.append({"x": rows[-1]["x"], "y": None, "low": None, "high": None})
        if self.trend:
            self.sheet.symbol(rows[-2]["x"], rows[-2]["y"], "circle", track.colour, fill=track.colour, size=38)
        shade = {"type": "area", "color": track.colour, "opacity": 0.16}
        mark = {**line(track.colour, width=2 if self.trend else 2.4), "strokeJoin": "round"}
        sides = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        as_given = {"value": None}
        drawn = [{"mark": shade, "encoding": {"x": x, **sides, "order": as_given}},
                 {"mark": mark, "encoding": {"x": x, "y": y, "order": as_given}}]  # fmt: skip
        return {"data": {"values": rows}, "layer": drawn}

    def _dots(self, track: Track) -> None:
        """All that are alike are one symbol: a thousand elements would make the page slow."""
        found = [point for point in track.points if self.low <= point.value <= self.high]
        size = (4.6 if len(found) < 250 else 3.6 if len(found) < 900 else 2.8) * (0.8 if self.narrow else 1)
        ink = (0.5 if len(found) < 400 else 0.34) * (1 if len(self.picture.tracks) == 1 else 0.6)
        form = ".0f" if len(found) > 600 else ".1f"
        places: dict[bool, set[str]] = {True: set(), False: set()}
        for point in found:
            x, y = (self.ms(point.at) - self.since) / self.px, (self.high - point.value) / self.up
            places[point.busy].add(f"M{x:{form}} {y:{form}}")
        r = size / 2
        ring = f"m{-r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {size:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-size:.1f} 0"
        for busy, end, look in ((False, "h0", {"width": round(size, 1), "opacity": round(ink, 2), "cap": "round"}),
                                (True, ring, {"width": 1.1, "opacity": 0.8})):  # fmt: skip
            if places[busy]:
                path = "".join(f"{place}{end}" for place in sorted(places[busy]))
                self.sheet.symbol(self.since, self.high, path, track.colour, **look)

    def _outliers(self, track: Track) -> None:
        """Small triangles at the edge for values beyond it, with their number."""
        above = [point for point in track.points if point.value > self.high]
        below = [point for point in track.points if point.value < self.low]
        for found, word, way, edge in ((above, "above", "up", self.high), (below, "below", "down", self.low)):
            values = [point.value for point in found] or [0.0]
            tip = f"{len(found)} {word} the axis: {min(values):,.4g} to {max(values):,.4g}"
            for one in found[:200]:
                fill = None if one.busy else track.colour
                self.sheet.symbol(self.ms(one.at), edge, f"triangle-{way}", track.colour, fill=fill, size=45, tip=tip)

    def _missed(self) -> None:
        """Neighbours that touch on the screen are one."""
        found: list[list[float]] = []
        for begin, end in sorted(self.picture.missed):
            start, stop = max(self.ms(begin), self.since), min(self.ms(end), self.until)
            if found and start - found[-1][1] < self.px:
                found[-1][1] = max(found[-1][1], stop)
            elif start <= self.until and stop >= self.since:
                found.append([start, max(stop, start + 1.5 * self.px)])
        for start, stop in found:
            self.sheet.rect(start, stop, self.low, self.high, theme.STONE, opacity=0.22)

    def _failures(self) -> None:
        """Ticks along the bottom; what falls on the same pixel is one."""
        inside = [self.ms(at) - self.since for at in self.picture.failed if self.inside(at)]
        for place in sorted({round(after / self.px) for after in inside})[:_MOST_MARKS]:
            x, tip = self.since + place * self.px, f"{len(self.picture.failed)} failed"
            self.sheet.rule(x, x, self.low, self.low + 9 * self.up, theme.ROSE, width=2, tip=tip)

    def _shifts(self) -> None:
        """A dashed line with its size on top. One whose label would cover the last one's has only the line."""
        free_from = -math.inf
        for one in sorted(self.picture.changes, key=lambda change: change.at):
            colour, label = change_colour(one), shift_label(one.ratio)
            tip = printable(describe_change(one).replace("-", "−"))
            start, stop = (min(max(self.ms(at), self.since), self.until) for at in one.between)
            if stop - start > 2 * self.px and not self.trend:
                self.sheet.rect(start, stop, self.low, self.high, colour, opacity=0.1)
            if not self.inside(one.at):
                continue
            x, wide = self.ms(one.at), 12 + _LETTER_PX * len(label)
            top = self.high + (0 if self.trend else self.top - 18) * self.up
            self.sheet.rule(x, x, self.low, top, colour, width=1.6, dash=[3, 3] if self.trend else [5, 4], tip=tip)
            left = min((x - self.since) / self.px - wide / 2, self.right - self.left - wide)
            if left > free_from and not self.trend:
                free_from = left + wide + 2
                self._sign(label, left, wide, colour, 10, tip)

    def _levels(self) -> None:
        """The medians on both sides of each change, as far as was measured: a rolling one is late to tell of it."""
        moments = [one.at for track in self.picture.tracks for one in (*track.points[:1], *track.points[-1:])]
        moments += [row[0] for track in self.picture.tracks for row in (*track.band[:1], *track.band[-1:])]
        changes = sorted((one for one in self.picture.changes if self.inside(one.at)), key=lambda one: one.at)
        edges = [min(moments, default=0.0), *(one.at for one in changes), max(moments, default=0.0)]
        for place, one in enumerate(changes):
            for side, median in enumerate((one.before, one.after)):
                begin, end = (self.ms(at) for at in edges[place + side : place + side + 2])
                level = min(max(median, self.low), self.high)
                self.sheet.rule(begin, end, level, level, change_colour(one), width=1.6, dash=[2, 3])

    def _flags(self) -> None:
        """Marks numbered as in the table, with their words where there is room; those too near each other are one."""
        groups: list[list[tuple[int, MonitorEvent]]] = []
        starts: list[float] = []
        inside = [one for one in self.picture.events if self.inside(one[1].at)]
        for place, event in sorted(inside, key=lambda one: one[1].at):
            x = (self.ms(event.at) - self.since) / self.px
            if groups and x - starts[-1] < _sign_text(groups[-1])[1] + 2:
                groups[-1].append((place, event))
            else:
                groups.append([(place, event)])
                starts.append(x)
        room, top = self.right - self.left, 29 if self.picture.changes else 10
        for group, start, end in zip(groups, starts, [*starts[1:], room], strict=False):
            (numbers, wide), at = _sign_text(group), self.since + start * self.px
            tip = printable("; ".join(f"{when(event.at)}: {event.text}" for _, event in group[:12]))
            self.sheet.rule(at, at, self.low, self.high + 6 * self.up, theme.PLUM, opacity=0.45)
            left = min(start, room - wide)
            self._sign(numbers, left, wide, theme.PLUM, top, tip)
            letters = int((end - left - wide - 12) / 6.4)
            if letters >= 9 and len(group) == 1:
                words = shortened(printable(group[0][1].text), min(letters, 42))
                x = self.since + (left + wide + 4) * self.px
                self.sheet.text(x, self.high + (self.top - top) * self.up, words)

    def _sign(self, words: str, left: float, wide: float, colour: str, top: float, tip: str) -> None:
        """Words on a rounded ground above the plot."""
        begin, end = (self.since + (left + side) * self.px for side in (8.5, wide - 8.5))
        y = self.high + (self.top - top) * self.up
        self.sheet.rule(begin, max(end, begin + 1), y, y, colour, width=17, cap="round", tip=tip)
        self.sheet.text((begin + end) / 2, y, words, theme.PAPER, weight=650, align="center")


def _sign_text(group: Sequence[tuple[int, MonitorEvent]]) -> tuple[str, int]:
    """Return the numbers of a group of events, and how wide their sign is."""
    first, last = group[0][0], group[-1][0]
    words = str(first) if first == last else f"{first}–{last}"
    return words, 14 + 7 * len(words)


def _axis_values(picture: Picture) -> list[float]:
    """Return the values that set the axis: without busy ones, unless there are no others."""
    free = [point.value for point in picture.points if not point.busy]
    edges = [edge for track in picture.tracks for one in track.band[:: 1 + len(track.band) // 400] for edge in one[2:]]
    return free + edges or [point.value for point in picture.points]


def _pieces(track: Track) -> Iterable[Sequence[Band]]:
    """Return the band in pieces: where nothing was measured for long, no line claims to know."""
    if not (band := track.band):
        return []
    strides = sorted(b[0] - a[0] for a, b in pairwise(band))
    longest = 6 * max(strides[len(strides) // 2], 1.0) if len(strides) > 1 else float("inf")
    moments = [row[0] for row in band]
    anew = {bisect_left(moments, step) for step in track.steps}
    cuts = [i for i in range(1, len(band)) if i in anew or moments[i] - moments[i - 1] > longest]
    return [band[a:b] for a, b in zip([0, *cuts], [*cuts, len(band)], strict=True)]


def _island(picture: Picture) -> str:
    """Seconds of the wall's clock after the first, so that they stay short; never a `<` that could end the element."""
    values = [abs(value) for value in _axis_values(picture)]
    digits = max(0, 4 - len(str(int(max(values, default=0.0)))))
    since = wall_s(picture.since)

    def after(at: float) -> int:
        return int(wall_s(at) - since)

    def edges(band: Sequence[Band]) -> list[list[float]]:
        return [[after(at), *(round(edge, digits) for edge in some)] for at, *some in band[:: 1 + len(band) // 400]]

    tracks = [
        {"name": track.name, "band": edges(track.band),
         "points": [[after(p.at), round(p.value, digits), int(p.busy)] for p in track.points]}
        for track in picture.tracks
    ]  # fmt: skip
    flags = [[after(event.at), event.text] for _, event in picture.events]
    document = {"since": since, "unit": picture.unit, "tracks": tracks, "flags": flags}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def local(at: float) -> datetime:
    """Return the wall's clock: what days and months are counted on."""
    return datetime.fromtimestamp(at).astimezone()


def wall_s(at: float) -> float:
    """Return what the wall's clock showed at `at`, in seconds as if it were in UTC: an axis of whole days."""
    return local(at).replace(tzinfo=UTC).timestamp()


def when(at: float, *, now: float | None = None) -> str:
    """ "Tue 3 Nov, 04:00"; with the year where that is not the year of `now`."""
    wall = local(at)
    year = "" if now is None or wall.year == local(now).year else f" {wall.year}"
    return f"{wall:%a} {wall.day} {wall:%b}{year}, {wall:%H:%M}"


def zone_name(at: float) -> str:
    """ "CET (UTC+01:00)", or only the difference where the zone has no name."""
    moment = local(at)
    name, offset = moment.tzname() or "", f"{moment:%z}"
    told = "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"
    return told if name in ("UTC", told) or not name.isalpha() else f"{name} ({told})"
