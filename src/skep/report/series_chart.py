"""Series over time as a picture: points, rolling median with its band, changes, events, what failed and was missed.

Times are told on the machine's clock, so that days begin at midnight. A picture of a page is drawn twice, for a desk
and for a phone; the style sheet shows the one that fits.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
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
from skep.report.charts import Spec, apart
from skep.report.svg import render
from skep.units import number, printable, shortened

_FAR = 6.0  # middle halves beyond the middle: drawn at the edge, so that the rest can be seen
_NEAR_ZERO = 0.35  # a lowest value below this share of the highest: the axis begins at zero
_ROOM = 0.08  # above and below what is drawn
_SIZES = {"wide": (1040, 380), "narrow": (344, 300), "only": (344, 190), "trend": (320, 96)}
_LEFT, _RIGHT, _BOTTOM = 52, 12, 26  # around the plot
_SIGN_PX = 30  # between the signs of two events; nearer ones share theirs
_SIZE_PX = 50  # between the sizes of two changes; of nearer ones the later is told


COLOUR: Spec = {"field": "colour", "type": "nominal", "scale": None}  # as the row says


def layer(rows: Sequence[Spec], mark: Spec, text: str | Spec | None = None, **encoding: Spec) -> Spec:
    """Return one layer. The `tip` of a row is what a reader sees when the pointer rests on its mark."""
    if text is not None:
        encoding["text"] = {"field": text} if isinstance(text, str) else text
    if any("tip" in row for row in rows):
        mark, encoding = {**mark, "aria": True}, {**encoding, "description": {"field": "tip"}}
    return {"data": {"values": list(rows)}, "mark": mark, "encoding": encoding}


def line(color: str, *, width: float) -> Spec:
    return {"type": "line", "color": color, "strokeWidth": width, "strokeCap": "round"}


def label(align: str, *, dx: int = 0, dy: int = 0, weight: int = 400, color: str = theme.INK) -> Spec:
    place = {"type": "text", "align": align, "baseline": "middle", "dx": dx, "dy": dy}
    return {**place, "fontWeight": weight, "color": color}


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
    """Return one drawing. `name` is used for its ids; where its plot lies is told to the script."""
    spec = series_spec(picture, kind)
    top, (low, high) = spec["padding"]["top"], value_range(_axis_values(picture))
    edges = {"since": wall_s(picture.since), "until": wall_s(picture.until), "low": low, "high": high, "top": top,
             "left": _LEFT, "right": _LEFT + spec["width"], "bottom": top + spec["height"]}  # fmt: skip
    title, words = (escape(printable(some)) for some in (picture.title, picture.words))
    where = " ".join(f'data-{key}="{value:.10g}"' for key, value in edges.items())
    return render(
        spec,
        lambda box: (
            f'<svg class="series {kind}" viewBox="{box}" role="img" aria-labelledby="{name}-t {name}-d" {where}>'
            f'<title id="{name}-t">{title}</title><desc id="{name}-d">{words}</desc>'
        ),
    ).replace("</svg>", '<g class="cross"></g></svg>')


def trend_svg(picture: Picture) -> Markup:
    """Return the band alone, small, with a dot at its end."""
    look = f'role="img" aria-label="{escape(printable(picture.words))}"'
    spec = series_spec(_steady(picture), "trend")
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


def series_spec(picture: Picture, kind: str = "wide") -> Spec:
    """Return the drawing in Vega-Lite's terms: of a `wide` or a `narrow` page, of a card (`only`), or a `trend`."""
    (width, height), is_trend = _SIZES[kind], kind == "trend"
    lanes = 8 if is_trend else 20 + 20 * bool(picture.changes) + 20 * bool(picture.events)
    width, height = width - _LEFT - _RIGHT, height - lanes - _BOTTOM
    low, high = value_range(_axis_values(picture))
    x = _time_axis(picture, kind)
    zero = {"condition": {"test": "datum.value == 0", "value": theme.STONE}, "value": theme.GRID}
    axis: Spec = {"format": ",f", "labelExpr": "replace(datum.label, '-', '−')", "gridColor": zero}
    axis |= {"labelFontSize": 11 if is_trend else 12, "tickCount": 2 if is_trend else 4 if width < 500 else 6}
    scale = {"domain": [low, high], "nice": False, "zero": False, "clamp": True}
    y = {"field": "y", "type": "quantitative", "title": None, "axis": axis, "scale": scale}
    changes = sorted((one for one in picture.changes if _inside(picture, one.at)), key=lambda one: one.at)
    layers = [
        *_missed(picture, x, width),
        *_shifts(changes, x, 0 if is_trend else lanes, (picture.until - picture.since) / width),
    ]
    for track in picture.tracks:
        layers += [*_curve(track, x, y, width, is_trend=is_trend), *_dots(track, x, y, (low, high))]
    layers += _failures(picture, x, height)
    if not is_trend:
        layers += [*_levels(picture, changes, x, y), *_flags(picture, x, width)]
        corner = {"x": {"value": 0}, "y": {"value": 0}}
        told = " · ".join(filter(None, (picture.unit, "the axis does not begin at 0" if low > 0 else "")))
        layers.append(
            layer([{}], {**label("left", dy=-11, color=theme.MUTED), "fontSize": 11}, {"value": told}, **corner)
        )
    return {
        "autosize": {"type": "none"},
        "padding": {"left": _LEFT, "top": lanes, "right": _RIGHT, "bottom": _BOTTOM},
        "width": width,
        "height": height,
        "layer": layers,
    }


def _ms(at: float) -> float:
    return round(1000 * wall_s(at))


def _inside(picture: Picture, at: float) -> bool:
    return picture.since <= at <= picture.until


def _time_axis(picture: Picture, kind: str) -> Spec:
    """Days begin at midnight of the wall's clock; where days, months or years begin, the grid and the label say so."""
    days, is_trend = (picture.until - picture.since) / DAY_S, kind == "trend"
    if days < 6:
        strong = "utchours(datum.value) == 0 && utcminutes(datum.value) == 0"
        form = f"{strong} ? '%a %-d %b' : '%H:%M'"
    elif days < 120:
        strong, form = "utcdate(datum.value) == 1", "'%-d %b'"
    else:
        strong = "utcmonth(datum.value) == 0"
        form = f"datum.index == 0 || {strong} ? '%b %Y' : '%b'"
    weight, opacity = ({"condition": {"test": strong, "value": a}, "value": b} for a, b in ((600, 400), (1, 0)))
    axis = {
        "labelExpr": f"utcFormat(datum.value, {form})", "labelFontSize": 11 if is_trend else 12, "labelPadding": 4,
        "labelFontWeight": weight, "labelFlush": 24, "ticks": not is_trend, "tickColor": theme.STONE,
        "tickCount": 10 if kind == "wide" else 4, "grid": not is_trend, "gridDash": [2, 3], "gridOpacity": opacity,
    }  # fmt: skip
    scale = {"type": "utc", "domain": [_ms(picture.since), max(_ms(picture.until), _ms(picture.since) + 1000)]}
    return {"field": "x", "type": "temporal", "title": None, "axis": axis, "scale": scale}


def _curve(track: Track, x: Spec, y: Spec, width: int, *, is_trend: bool) -> list[Spec]:
    """Return a shade and a line, a row for every four pixels; where nothing was measured for long, both break."""
    if not (band := track.band):
        return []
    moments = [row[0] for row in band]
    strides = sorted(b - a for a, b in pairwise(moments))
    longest = 6 * max(strides[len(strides) // 2], 1.0) if len(strides) > 1 else math.inf
    anew = {bisect_left(moments, step) for step in track.steps}
    step, rows = max(1, 4 * len(band) // width), list[Spec]()
    for place, (at, middle, low, high) in enumerate(band):
        breaks = place and (place in anew or at - moments[place - 1] > longest)
        if breaks or place % step == 0 or place == len(band) - 1 or place + 1 in anew:
            rows += [{"x": rows[-1]["x"], "y": None, "low": None, "high": None}] if breaks else []
            rows.append({"x": _ms(at), "y": middle, "low": low, "high": high})
    as_given = {"x": x, "order": {"value": None}}
    mark = {**line(track.colour, width=2 if is_trend else 2.4), "strokeJoin": "round"}
    shade = {"type": "area", "color": track.colour, "opacity": 0.16}
    end = {"type": "point", "filled": True, "color": track.colour, "opacity": 1, "size": 38}
    layers = [layer(rows, shade, y={**y, "field": "low"}, y2={"field": "high"}, **as_given),
              layer(rows, mark, y=y, **as_given)]  # fmt: skip
    return [*layers, layer(rows[-1:], end, x=x, y=y)] if is_trend else layers


def _dots(track: Track, x: Spec, y: Spec, edges: tuple[float, float]) -> list[Spec]:
    """Return dots, hollow where other requests ran; values beyond the axis are triangles at its edge.

    The dots are one line of points that are not joined: a thousand elements would make the page slow.
    """
    low, high = edges
    rows = [{"x": _ms(one.at), "y": one.value, "busy": one.busy} for one in track.points]
    within = [row for row in rows if low <= row["y"] <= high]
    free = [row for row in within if not row["busy"]]
    size = 4.6 if len(free) < 250 else 3.6 if len(free) < 900 else 2.8
    apart = [part for row in free for part in (row, {"x": row["x"], "y": None})]
    dots = {**line(track.colour, width=size), "opacity": 0.5 if len(free) < 400 else 0.34}
    ring = {"type": "point", "color": track.colour, "size": 4 * size, "strokeWidth": 1.1, "opacity": 0.8}
    layers = [layer(apart, dots, x=x, y=y, order={"value": None})] if apart else []
    layers += [layer(busy, ring, x=x, y=y)] if (busy := [row for row in within if row["busy"]]) else []
    beyond = (("above", "up", [row for row in rows if row["y"] > high]),
              ("below", "down", [row for row in rows if row["y"] < low]))  # fmt: skip
    for word, way, found in beyond:
        values = [row["y"] for row in found] or [0.0]
        tip = f"{len(found)} {word} the axis: {min(values):,.4g} to {max(values):,.4g}"
        mark = {"type": "point", "shape": f"triangle-{way}", "color": track.colour, "size": 45, "opacity": 1}
        fill = {"condition": {"test": "datum.busy", "value": theme.PAPER}, "value": track.colour}
        layers += [layer([{**row, "tip": tip} for row in found[:200]], mark, x=x, y=y, fill=fill)] if found else []
    return layers


def _missed(picture: Picture, x: Spec, width: int) -> list[Spec]:
    """Return grey where no probe was made; neighbours that touch on the screen are one."""
    pixel_s = (picture.until - picture.since) / width
    found: list[list[float]] = []
    for begin, end in sorted(picture.missed):
        start, stop = max(begin, picture.since), min(end, picture.until)
        if found and start - found[-1][1] < pixel_s:
            found[-1][1] = max(found[-1][1], stop)
        elif start <= picture.until and stop >= picture.since:
            found.append([start, max(stop, start + 1.5 * pixel_s)])
    rows = [{"x": _ms(start), "x2": _ms(stop)} for start, stop in found]
    mark = {"type": "rect", "color": theme.STONE, "opacity": 0.22}
    return [layer(rows, mark, x=x, x2={"field": "x2"})] if rows else []


def _failures(picture: Picture, x: Spec, height: int) -> list[Spec]:
    """Return ticks along the bottom, at most 400: what falls on the same pixel is one."""
    step = (picture.until - picture.since) / 400
    places = {round(at / step) * step for at in picture.failed if _inside(picture, at)}
    rows = [{"x": _ms(at), "tip": f"{len(picture.failed)} failed"} for at in sorted(places)]
    sides = {"y": {"value": height}, "y2": {"value": height - 9}}
    return [layer(rows, {"type": "rule", "color": theme.ROSE, "strokeWidth": 2}, x=x, **sides)] if rows else []


def _shifts(changes: Sequence[SeriesChange], x: Spec, lanes: int, pixel_s: float) -> list[Spec]:
    """Return a dashed line at each change with its size on top, and a shade over when it may have come."""
    rows: list[Spec] = []
    for one in changes:
        start, stop = (_ms(at) for at in one.between)
        tip = printable(describe_change(one).replace("-", "−"))
        row = {"x": _ms(one.at), "from": start, "to": stop, "label": shift_label(one.ratio)}
        rows.append({**row, "tip": tip, "colour": _colour(one)})
    mark = {"type": "rule", "strokeWidth": 1.6, "strokeDash": [5, 4]}
    top: Spec = {"y": {"value": 18 - lanes if lanes else 0}, "y2": {"value": "height"}}
    lines = [layer(rows, mark, x=x, color=COLOUR, **top)] if rows else []
    if not lanes or not rows:
        return lines
    shade = {"type": "rect", "opacity": 0.1, "clip": True}
    shaded = layer(rows, shade, x={**x, "field": "from"}, x2={"field": "to"}, color=COLOUR)
    named = apart(rows, 1000 * _SIZE_PX * pixel_s, lambda row: row["x"])
    return [
        shaded,
        *lines,
        layer(named, label("center", weight=650), "label", x=x, y={"value": 10 - lanes}, color=COLOUR),
    ]


def _colour(change: SeriesChange) -> str:
    return theme.ROSE if change.worse else theme.MOSS


def _levels(picture: Picture, changes: Sequence[SeriesChange], x: Spec, y: Spec) -> list[Spec]:
    """Return the medians on both sides of each change, as far as was measured: a rolling one is late to tell of it."""
    moments = [one.at for one in picture.points] + [row[0] for track in picture.tracks for row in track.band]
    if not changes or not moments:
        return []
    edges = [min(moments), *(one.at for one in changes), max(moments)]
    rows = [
        {"x": _ms(begin), "x2": _ms(end), "y": median, "colour": _colour(one)}
        for place, one in enumerate(changes)
        for side, median in enumerate((one.before, one.after))
        for begin, end in [edges[place + side : place + side + 2]]
    ]
    mark = {"type": "rule", "strokeWidth": 1.6, "strokeDash": [2, 3]}
    return [layer(rows, mark, x=x, x2={"field": "x2"}, y=y, color=COLOUR)]


def _flags(picture: Picture, x: Spec, width: int) -> list[Spec]:
    """Return a line at each event with its number as in the table, and its words where there is room for them."""
    pixel_s = (picture.until - picture.since) / width
    groups: list[list[tuple[int, MonitorEvent]]] = []
    inside = [one for one in picture.events if _inside(picture, one[1].at)]
    for number_, event in sorted(inside, key=lambda one: one[1].at):
        if groups and event.at - groups[-1][0][1].at < _SIGN_PX * pixel_s:
            groups[-1].append((number_, event))
        else:
            groups.append([(number_, event)])
    if not groups:
        return []
    rows = []
    for group, after in zip(groups, [*groups[1:], None], strict=True):
        (first, event), (last, _) = group[0], group[-1]
        room = ((after[0][1].at if after else picture.until) - event.at) / pixel_s
        words = shortened(printable(event.text), min(int(room / 7) - 4, 42)) if len(group) == 1 and room > 100 else ""
        tip = printable("; ".join(f"{when(one.at)}: {one.text}" for _, one in group[:12]))
        sign = f"{first}" if first == last else f"{first}–{last}"
        rows.append({"x": _ms(event.at), "sign": sign, "label": words, "tip": tip})
    flag = {"type": "rule", "color": theme.PLUM, "opacity": 0.45}
    sign_look, words_look = label("left", weight=700, color=theme.PLUM), label("left", dx=24, color=theme.MUTED)
    lane = {"x": x, "y": {"value": -31}}
    return [layer(rows, flag, x=x, y={"value": -22}, y2={"value": "height"}),
            layer(rows, sign_look, "sign", **lane), layer(rows, words_look, "label", **lane)]  # fmt: skip


def _axis_values(picture: Picture) -> list[float]:
    """Return the values that set the axis: without busy ones, unless there are no others."""
    free = [point.value for point in picture.points if not point.busy]
    edges = [edge for track in picture.tracks for one in track.band[:: 1 + len(track.band) // 400] for edge in one[2:]]
    return free + edges or [point.value for point in picture.points]


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
