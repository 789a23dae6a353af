"""Series over time as a chart: points, rolling median with its band, changes, events, what failed
and was missed.

`series_chart.json` says how each of them is drawn; here stands what. One specification becomes the
picture that a page carries and the chart that a browser makes of it. Times are told on the
machine's clock, so that days begin at midnight."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from skep.monitor.describe import describe_change
from skep.monitor.history import Band
from skep.monitor.records import MonitorEvent, SeriesChange, SeriesPoint
from skep.report import theme
from skep.report.charts import Spec
from skep.report.svg import chart, picture_of
from skep.units import number, printable

_FAR = 6.0  # middle halves beyond the middle: drawn at the edge, so that the rest can be seen
_NEAR_ZERO = 0.35  # a lowest value below this share of the highest: the axis begins at zero
_ROOM = 0.08  # above and below what is drawn
_LANE_PX = 20  # of the signs above the curves
_SIZES = {"wide": (1040, 380), "narrow": (344, 300), "trend": (320, 96)}
_TICKS = {"wide": (10, 6), "narrow": (4, 4), "trend": (4, 2)}  # of the axes of time and of values
_MOST_MARKS = 400  # failed probes that get a mark of their own
_MOST_DRAWN = (
    150  # points, and rows of a band, of a picture that does not move; its chart has more
)
_NEAR = 0.03  # of the window: events so near each other share a sign
_LABEL = 0.08  # of the window: a change nearer than that to the last one has its line alone


class Track(msgspec.Struct, frozen=True):
    """One line: `band` with a shade around it, `points` as dots beneath. At `steps` it begins
    anew.
    """

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
    events: Sequence[
        tuple[int, MonitorEvent]
    ] = ()  # with their numbers in the table beneath the picture
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
    def axis(self) -> tuple[float, float]:
        """Return the ends of the axis of values: without busy ones, unless there are no others."""
        free = [point.value for point in self.points if not point.busy]
        bands = [track.band[:: 1 + len(track.band) // 400] for track in self.tracks]
        edges = [edge for band in bands for row in band for edge in row[2:]]
        return value_range(free + edges or [point.value for point in self.points])

    @property
    def goes_beyond(self) -> bool:
        """Return whether a value lies outside the axis."""
        low, high = self.axis
        return any(not low <= point.value <= high for point in self.points)


def shift_label(ratio: float) -> str:
    """Return what fits above a line: "−4.1 %", "+12 %" or "2.3×"."""
    if ratio >= 2:
        return f"{number(ratio, digits=1)}×"
    size = 100 * (ratio - 1)
    return f"{'+' if size > 0 else ''}{number(size, digits=1)} %"


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis, without a few far outliers; from zero unless that would flatten
    the rest.
    """
    ordered = sorted(value for value in values if math.isfinite(value)) or [0.0, 1.0]
    if len(ordered) >= 20:
        ordered = _without_outliers(ordered)
    low = ordered[0]
    high = ordered[-1]
    if 0 <= low < _NEAR_ZERO * high:
        low = 0.0
    if high <= low:
        spare = abs(high) * 0.1 or 1.0
        low = low - spare if low else 0.0
        high = high + spare
    room = (high - low) * _ROOM
    if low > 0:
        low = max(low - room, 0.0)
    elif low < 0:
        low -= room
    return low, high + room


def _without_outliers(ordered: list[float]) -> list[float]:
    """Return the values near the middle ones; all of them where more than a few lie far away."""
    count = len(ordered)
    low, middle, high = (ordered[count * quarter // 4] for quarter in (1, 2, 3))
    reach = _FAR * max(high - low, 0.02 * abs(middle))
    near_values = [value for value in ordered if low - reach <= value <= high + reach]
    if count - len(near_values) <= 0.02 * count:
        return near_values
    return ordered


def series_chart(picture: Picture) -> Markup:
    """Return the pictures, for a desk and for a phone, and the specification that a browser makes
    a chart of.
    """
    drawn = [
        picture_of(series_spec(picture, size, still=True), picture.words, size)
        for size in ("wide", "narrow")
    ]
    return chart(drawn, series_spec(picture), picture.words)


def trend_svg(picture: Picture) -> Markup:
    """Return the band and the changes alone, small."""
    return picture_of(series_spec(picture, "trend", still=True), picture.words, "trend")


def series_spec(picture: Picture, size: str = "wide", *, still: bool = False) -> Spec:
    """Return the specification of a picture of that size.

    `still`: it does not move, so that fewer points are enough and none is pointed at.
    """
    spec: Spec = json.loads(theme.coloured("series_chart.json"))
    width, height = _SIZES[size]
    is_trend = size == "trend"
    picture = _steady(picture)
    low, high = picture.axis
    rows = _rows(picture, low, high, _MOST_DRAWN if still else 400)
    if still:
        points = rows["points"]
        stride = 1 + len(points) // _MOST_DRAWN
        rows["points"] = points[::stride]
    # Signs stand inside the plot, above the curves, so that they are cut off with the rest where a
    # reader zooms in.
    lanes_px = 0
    if not is_trend:
        lanes_px = _LANE_PX * (bool(picture.changes) + bool(picture.events))
    top = high + (high - low) * lanes_px / (height - lanes_px - 50)
    x = spec["encoding"]["x"]
    y = spec["encoding"]["y"]
    since = _ms(picture.since)
    until = max(_ms(picture.until), since + 1000)
    x["scale"]["domain"] = {"expr": f"[{since}, {until}]"}
    y["scale"]["domain"] = {"expr": f"[{low!r}, {top!r}]"}
    x["axis"]["tickCount"], y["axis"]["tickCount"] = _TICKS[size]
    spec["params"][0]["value"] = picture.unit
    if not is_trend:
        spec |= _axis_title(picture.unit, low)
    layers = _layers_of(spec, rows, size, still=still)
    names = dict.fromkeys(layer["data"]["name"] for layer in layers)
    return {
        **spec,
        "width": width,
        "height": height,
        "layer": layers,
        "datasets": {name: rows[name] for name in names},
    }


def _axis_title(unit: str, low: float) -> Spec:
    """Return the words above the axis of values: its unit, and whether it begins above 0."""
    words = [unit]
    if low > 0:
        words.append("the axis does not begin at 0")
    text = " · ".join(filter(None, words))
    if not text:
        return {}
    look = {"fontSize": 11, "fontWeight": 400, "color": theme.MUTED, "offset": 6}
    return {"title": {"text": text, **look}}


def _layers_of(
    spec: Spec, rows: Mapping[str, Sequence[Spec]], size: str, *, still: bool
) -> list[Spec]:
    """Return the layers that have rows; a still picture has none that only a pointer needs."""
    left_out: tuple[str, ...] = ()
    if size == "trend":
        left_out = ("points", "busy", "outliers", "sizes", "picked")
    elif still:
        left_out = ("picked",)
    layers = [
        layer
        for layer in spec["layer"]
        if rows[layer["data"]["name"]] and layer.get("name") not in left_out
    ]
    if still:
        for layer in layers:
            layer.pop("params", None)
    return layers


def _steady(picture: Picture) -> Picture:
    """Return the picture with the ends of its window at whole pixels, so that a page loaded again
    finds it drawn.
    """
    pixel_s = max(picture.until - picture.since, 1.0) / 1000
    since = math.floor(picture.since / pixel_s) * pixel_s
    until = math.ceil(picture.until / pixel_s) * pixel_s
    return replace(picture, since=since, until=until)


def _rows(picture: Picture, low: float, high: float, max_band_rows: int) -> dict[str, list[Spec]]:
    """Return the rows of each kind of mark, by the names of `series_chart.json`; of a band at most
    about `max_band_rows`.
    """
    bands = []
    points = []
    for place, track in enumerate(picture.tracks):
        band = _band_rows(track, place, low, high, max_band_rows)
        name = f"{track.name}: " if len(picture.tracks) > 1 else ""
        points += _point_rows(track, name, band)
        bands += band
    return {
        "missed": _missed(picture),
        "between": [_stretch(*change.between, _colour(change)) for change in picture.changes],
        "band": bands,
        "points": [row for row in points if low <= row["y"] <= high],
        "outliers": [*_outliers(points, "above", high), *_outliers(points, "below", low)],
        "failed": _failed(picture),
        "changes": _changes(picture),
        "events": _events(picture),
    }


def _missed(picture: Picture) -> list[Spec]:
    """Return the times that were missed, each long enough to be seen."""
    shortest_s = (picture.until - picture.since) / 600
    return [
        _stretch(begin, max(end, begin + shortest_s), theme.STONE) for begin, end in picture.missed
    ]


def _failed(picture: Picture) -> list[Spec]:
    """Return a mark for each failed probe of the window, up to as many as can be told apart."""
    moments = sorted(at for at in picture.failed if picture.since <= at <= picture.until)
    tip = f"{len(picture.failed)} failed"
    return [{"t": _ms(at), "colour": theme.ROSE, "tip": tip} for at in moments[:_MOST_MARKS]]


def _brief(value: float) -> float:
    """Return what can be seen of a value: a page carries thousands."""
    if abs(value) < 10_000:
        return float(f"{value:.4g}")
    return round(value)


def _stretch(begin: float, end: float, colour: str) -> Spec:
    return {"t": _ms(begin), "end": _ms(end), "colour": colour}


def _band_rows(
    track: Track,
    place: int,
    low: float,
    high: float,
    max_rows: int,
) -> list[Spec]:
    """Return the rows of a band in pieces: between two of them nothing was measured."""
    rows = []
    step = 1 + len(track.band) // max_rows
    for number_of_piece, piece in enumerate(_pieces(track)):
        for at, *values in [*piece[:-1:step], piece[-1]]:
            middle, lower, upper = (_brief(min(max(value, low), high)) for value in values)
            rows.append(
                {
                    "t": _ms(at),
                    "y": middle,
                    "low": lower,
                    "high": upper,
                    "piece": f"{place}-{number_of_piece}",
                    "colour": track.colour,
                }
            )
    return rows


def _point_rows(track: Track, name: str, band: Sequence[Spec]) -> list[Spec]:
    """Return the points with the rolling median at their time.

    Where a window is too long for points, its medians are pointed at.
    """
    look = {"colour": track.colour}
    if name:
        look["name"] = name
    if not track.points:
        return [{"t": row["t"], "y": row["y"], "unseen": True, **look} for row in band]
    moments = [row["t"] for row in band]
    rows: list[Spec] = []
    for point in track.points:
        row: Spec = {
            "t": _ms(point.at),
            "y": _brief(point.value),
            **look,
        }
        if point.busy:
            row["busy"] = True
        if band:
            place = min(bisect_left(moments, row["t"]), len(band) - 1)
            beside = band[place]
            row["middle"] = beside["y"]
            row["low"] = beside["low"]
            row["high"] = beside["high"]
        rows.append(row)
    return rows


def _outliers(points: Sequence[Spec], word: str, edge: float) -> list[Spec]:
    """Return small triangles at the edge of the axis for values beyond it, with their number."""
    if word == "above":
        beyond = [row for row in points if row["y"] > edge]
        shape = "triangle-up"
    else:
        beyond = [row for row in points if row["y"] < edge]
        shape = "triangle-down"
    values = [row["y"] for row in beyond] or [0.0]
    tip = f"{len(beyond)} {word} the axis: {min(values):,.4g} to {max(values):,.4g}"
    return [
        {
            "t": row["t"],
            "y": edge,
            "colour": row["colour"],
            "shape": shape,
            "tip": tip,
        }
        for row in beyond
    ]


def _changes(picture: Picture) -> list[Spec]:
    """Return dashed lines with the size of the change on top.

    One whose label would cover the last one's has only the line.
    """
    rows = []
    labelled = -math.inf
    for change in _within(picture, picture.changes):
        share = _share(picture, change.at)
        label = ""
        if share - labelled > _LABEL:
            label = shift_label(change.ratio)
            labelled = share
        rows.append(
            {
                "t": _ms(change.at),
                "align": _align(share),
                "colour": _colour(change),
                "label": label,
                "tip": printable(describe_change(change).replace("-", "−")),
            }
        )
    return rows


_NumberedEvent = tuple[int, MonitorEvent]


def _events(picture: Picture) -> list[Spec]:
    """Return signs numbered as in the table beneath; those too near each other are one."""
    lane = _LANE_PX if picture.changes else 0
    rows = []
    for group in _event_groups(picture):
        first, event = group[0]
        last, _ = group[-1]
        numbers = f"{first}" if first == last else f"{first}–{last}"
        tips = [f"{when(member.at)}: {member.text}" for _, member in group[:12]]
        at_the_end = _share(picture, event.at) > 1 - _NEAR
        rows.append(
            {
                "t": _ms(event.at),
                "align": "right" if at_the_end else "left",
                "lane": lane + 9,
                "top": lane + 1,
                "label": f"⚑ {numbers}",
                "tip": printable("\n".join(tips)),
                "colour": theme.PLUM,
            }
        )
    return rows


def _event_groups(picture: Picture) -> list[list[_NumberedEvent]]:
    """Return the events of the window; a group is as near to its first one as `_NEAR`."""
    groups: list[list[_NumberedEvent]] = []
    begin = -math.inf
    for number_in_table, event in picture.events:
        if picture.since <= event.at <= picture.until:
            share = _share(picture, event.at)
            if share - begin >= _NEAR:
                groups.append([])
                begin = share
            groups[-1].append((number_in_table, event))
    return groups


def _within(picture: Picture, changes: Iterable[SeriesChange]) -> list[SeriesChange]:
    return sorted(
        (change for change in changes if picture.since <= change.at <= picture.until),
        key=lambda change: change.at,
    )


def _share(picture: Picture, at: float) -> float:
    """Return where a moment lies on the axis of time: 0 at its begin, 1 at its end."""
    return (at - picture.since) / max(picture.until - picture.since, 1.0)


def _align(share: float) -> str:
    """Return how words stand beside their line, so that they are not cut off at the ends of the
    axis.
    """
    if share < 0.05:
        return "left"
    if share > 0.95:
        return "right"
    return "center"


def _colour(change: SeriesChange) -> str:
    return theme.ROSE if change.worse else theme.MOSS


def _pieces(track: Track) -> Iterable[Sequence[Band]]:
    """Return the band in pieces: where nothing was measured for long, no line claims to know."""
    if not (band := track.band):
        return []
    moments = [row[0] for row in band]
    strides = sorted(later - earlier for earlier, later in pairwise(moments))
    longest = math.inf
    if len(strides) > 1:
        median = strides[len(strides) // 2]
        longest = 6 * max(median, 1.0)
    begins = {bisect_left(moments, step) for step in track.steps}
    cuts = [0]
    for place in range(1, len(band)):
        is_gap = moments[place] - moments[place - 1] > longest
        if is_gap or place in begins:
            cuts.append(place)
    ends = [*cuts[1:], len(band)]
    return [band[begin:end] for begin, end in zip(cuts, ends, strict=True)]


def local(at: float) -> datetime:
    """Return the wall's clock: what days and months are counted on."""
    return datetime.fromtimestamp(at).astimezone()


def wall_s(at: float) -> float:
    """Return what the wall's clock showed at `at`, in seconds as if it were in UTC: an axis of
    whole days.
    """
    return local(at).replace(tzinfo=UTC).timestamp()


def _ms(at: float) -> int:
    return round(1000 * wall_s(at))


def when(at: float, *, now: float | None = None) -> str:
    """Return a moment as "Tue 3 Nov, 04:00"; with the year where that is not the year of `now`."""
    wall = local(at)
    if now is None or wall.year == local(now).year:
        year = ""
    else:
        year = f" {wall.year}"
    return f"{wall:%a} {wall.day} {wall:%b}{year}, {wall:%H:%M}"


def zone_name(at: float) -> str:
    """Return the zone as "CET (UTC+01:00)", or only the difference where it has no name."""
    moment = local(at)
    name = moment.tzname() or ""
    offset = f"{moment:%z}"
    if offset == "+0000":
        difference = "UTC"
    else:
        difference = f"UTC{offset[:3]}:{offset[3:5]}"
    if name in ("UTC", difference) or not name.isalpha():
        return difference
    return f"{name} ({difference})"
