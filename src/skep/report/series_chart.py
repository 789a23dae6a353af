"""Series over time as a chart: points, rolling median with its band, changes, events, what failed
and was missed.

`series_chart.json` says how each of them is drawn; here stands what. One specification becomes the
picture that a page carries and the chart that a browser makes of it. Times are told on the
machine's clock, so that days begin at midnight."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
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
        """The ends of the axis of values: without busy ones, unless there are no others."""
        free = [point.value for point in self.points if not point.busy]
        bands = [track.band[:: 1 + len(track.band) // 400] for track in self.tracks]
        edges = [edge for band in bands for row in band for edge in row[2:]]
        return value_range(free + edges or [point.value for point in self.points])

    @property
    def goes_beyond(self) -> bool:
        """Whether a value lies outside the axis."""
        low, high = self.axis
        return any(not low <= point.value <= high for point in self.points)


def shift_label(ratio: float) -> str:
    """ "−4.1 %", "+12 %" or "2.3×": what fits above a line."""
    if ratio >= 2:
        return f"{number(ratio, digits=1)}×"
    size = 100 * (ratio - 1)
    return f"{'+' if size > 0 else ''}{number(size, digits=1)} %"


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis, without a few far outliers; from zero unless that would flatten
    the rest.
    """
    ordered = sorted(value for value in values if math.isfinite(value)) or [0.0, 1.0]
    count = len(ordered)
    if count >= 20:
        low, middle, high = (ordered[count * quarter // 4] for quarter in (1, 2, 3))
        reach = _FAR * max(high - low, 0.02 * abs(middle))
        kept = [value for value in ordered if low - reach <= value <= high + reach]
        if count - len(kept) <= 0.02 * count:
            ordered = kept
    low = ordered[0]
    high = ordered[-1]
    if 0 <= low < _NEAR_ZERO * high:
        low = 0.0
    if high <= low:
        spare = abs(high) * 0.1 or 1.0
        low = low - spare if low else 0.0
        high = high + spare
    room = (high - low) * _ROOM
    return (low if low == 0 else max(low - room, 0.0) if low > 0 else low - room), high + room


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
    """`still`: for a picture that does not move, where fewer points are enough and none is pointed
    at.
    """
    spec: Spec = json.loads(theme.coloured("series_chart.json"))
    width, height = _SIZES[size]
    trend = size == "trend"
    narrow = size != "wide"
    picture = _steady(picture)
    low, high = picture.axis
    # Signs stand inside the plot, above the curves, so that they are cut off with the rest where a
    # reader zooms in.
    if trend:
        lanes = 0
    else:
        lanes = _LANE_PX * (bool(picture.changes) + bool(picture.events))
    rows = _rows(picture, low, high, _MOST_DRAWN if still else 400)
    if still:
        rows["points"] = rows["points"][:: 1 + len(rows["points"]) // _MOST_DRAWN]
    since = _ms(picture.since)
    x = spec["encoding"]["x"]
    y = spec["encoding"]["y"]
    x["scale"]["domain"] = {"expr": f"[{since}, {max(_ms(picture.until), since + 1000)}]"}
    y["scale"]["domain"] = {
        "expr": f"[{low!r}, {high + (high - low) * lanes / (height - lanes - 50)!r}]"
    }
    x["axis"]["tickCount"], y["axis"]["tickCount"] = (
        4 if narrow else 10,
        2 if trend else 4 if narrow else 6,
    )
    if trend:
        unwanted: tuple[str, ...] = ("points", "busy", "outliers", "sizes", "picked")
    elif still:
        unwanted = ("picked",)
    else:
        unwanted = ()
    layers = [
        one
        for one in spec["layer"]
        if rows[one["data"]["name"]] and one.get("name") not in unwanted
    ]
    for one in layers if still else ():
        one.pop("params", None)
    spec["params"][0]["value"] = picture.unit
    cut = "the axis does not begin at 0" if low > 0 else ""
    if words := "" if trend else " · ".join(filter(None, (picture.unit, cut))):
        spec["title"] = {
            "text": words,
            "fontSize": 11,
            "fontWeight": 400,
            "color": theme.MUTED,
            "offset": 6,
        }
    used = {name: rows[name] for name in dict.fromkeys(layer["data"]["name"] for layer in layers)}
    return {**spec, "width": width, "height": height, "layer": layers, "datasets": used}


def _steady(picture: Picture) -> Picture:
    """Return the picture with the ends of its window at whole pixels, so that a page loaded again
    finds it drawn.
    """
    pixel_s = max(picture.until - picture.since, 1.0) / 1000
    since = math.floor(picture.since / pixel_s) * pixel_s
    until = math.ceil(picture.until / pixel_s) * pixel_s
    return replace(picture, since=since, until=until)


def _rows(picture: Picture, low: float, high: float, most: int) -> dict[str, list[Spec]]:
    """Return the rows of each kind of mark, by the names of `series_chart.json`; of a band at most
    about `most`.
    """
    bands = []
    points = []
    for place, track in enumerate(picture.tracks):
        band = _band_rows(track, place, low, high, most)
        points += _point_rows(track, f"{track.name}: " if len(picture.tracks) > 1 else "", band)
        bands += band
    failed = sorted(at for at in picture.failed if picture.since <= at <= picture.until)
    told = f"{len(picture.failed)} failed"
    seen_s = (picture.until - picture.since) / 600  # nothing shorter can be seen
    return {
        "missed": [
            _stretch(begin, max(end, begin + seen_s), theme.STONE) for begin, end in picture.missed
        ],
        "between": [_stretch(*change.between, _colour(change)) for change in picture.changes],
        "band": bands,
        "points": [row for row in points if low <= row["y"] <= high],
        "outliers": [*_outliers(points, "above", high), *_outliers(points, "below", low)],
        "failed": [
            {"t": _ms(at), "colour": theme.ROSE, "tip": told} for at in failed[:_MOST_MARKS]
        ],
        "changes": _changes(picture),
        "events": _events(picture),
    }


def _brief(value: float) -> float:
    """Return what can be seen of a value: a page carries thousands."""
    if abs(value) < 10_000:
        return float(f"{value:.4g}")
    return round(value)


def _stretch(begin: float, end: float, colour: str) -> Spec:
    return {"t": _ms(begin), "end": _ms(end), "colour": colour}


def _band_rows(track: Track, place: int, low: float, high: float, most: int) -> list[Spec]:
    """Pieces between which nothing was measured are told apart."""
    rows = []
    step = 1 + len(track.band) // most
    for number_of_piece, piece in enumerate(_pieces(track)):
        for at, *values in [*piece[:-1:step], piece[-1]]:
            middle, lower, upper = (_brief(min(max(value, low), high)) for value in values)
            edges = {"y": middle, "low": lower, "high": upper}
            rows.append(
                {
                    "t": _ms(at),
                    **edges,
                    "piece": f"{place}-{number_of_piece}",
                    "colour": track.colour,
                }
            )
    return rows


def _point_rows(track: Track, name: str, band: Sequence[Spec]) -> list[Spec]:
    """With the rolling median at that time.

    Where a window is too long for points, its medians are pointed at.
    """
    look = {"colour": track.colour, **({"name": name} if name else {})}
    if not track.points:
        return [{"t": row["t"], "y": row["y"], "unseen": True, **look} for row in band]
    moments = [row["t"] for row in band]
    rows: list[Spec] = []
    for point in track.points:
        row: Spec = {"t": _ms(point.at), "y": _brief(point.value), **look}
        if point.busy:
            row["busy"] = True
        if band:
            beside = band[min(bisect_left(moments, row["t"]), len(band) - 1)]
            row |= {"middle": beside["y"], "low": beside["low"], "high": beside["high"]}
        rows.append(row)
    return rows


def _outliers(points: Sequence[Spec], word: str, edge: float) -> list[Spec]:
    """Small triangles at the edge of the axis for values beyond it, with their number."""
    beyond = [row for row in points if (row["y"] > edge if word == "above" else row["y"] < edge)]
    values = [row["y"] for row in beyond] or [0.0]
    tip = f"{len(beyond)} {word} the axis: {min(values):,.4g} to {max(values):,.4g}"
    shape = "triangle-up" if word == "above" else "triangle-down"
    return [
        {"t": row["t"], "y": edge, "colour": row["colour"], "shape": shape, "tip": tip}
        for row in beyond
    ]


def _changes(picture: Picture) -> list[Spec]:
    """A dashed line with its size on top.

    One whose label would cover the last one's has only the line.
    """
    rows = []
    labelled = -math.inf
    for one in _within(picture, picture.changes):
        share = _share(picture, one.at)
        if share - labelled > _LABEL:
            label = shift_label(one.ratio)
        else:
            label = ""
        labelled = share if label else labelled
        tip = printable(describe_change(one).replace("-", "−"))
        place = {"t": _ms(one.at), "align": _align(share)}
        rows.append({**place, "colour": _colour(one), "label": label, "tip": tip})
    return rows


def _events(picture: Picture) -> list[Spec]:
    """Signs numbered as in the table beneath; those too near each other are one."""
    groups: list[list[tuple[int, MonitorEvent]]] = []
    for number_of_event, event in picture.events:
        if picture.since <= event.at <= picture.until:
            if groups and _share(picture, event.at) - _share(picture, groups[-1][0][1].at) < _NEAR:
                groups[-1].append((number_of_event, event))
            else:
                groups.append([(number_of_event, event)])
    lane = _LANE_PX if picture.changes else 0
    rows = []
    for group in groups:
        (first, event), (last, _) = group[0], group[-1]
        tip = printable("\n".join(f"{when(one.at)}: {one.text}" for _, one in group[:12]))
        sign = {
            "label": f"⚑ {first}" if first == last else f"⚑ {first}–{last}",
            "tip": tip,
            "colour": theme.PLUM,
        }
        if _share(picture, event.at) > 1 - _NEAR:
            side = "right"
        else:
            side = "left"
        at = {"t": _ms(event.at), "align": side, "lane": lane + 9, "top": lane + 1}
        rows.append({**at, **sign})
    return rows


def _within(picture: Picture, changes: Iterable[SeriesChange]) -> list[SeriesChange]:
    return sorted(
        (change for change in changes if picture.since <= change.at <= picture.until),
        key=lambda one: one.at,
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
    return "right" if share > 0.95 else "center"


def _colour(change: SeriesChange) -> str:
    return theme.ROSE if change.worse else theme.MOSS


def _pieces(track: Track) -> Iterable[Sequence[Band]]:
    """Return the band in pieces: where nothing was measured for long, no line claims to know."""
    if not (band := track.band):
        return []
    strides = sorted(b[0] - a[0] for a, b in pairwise(band))
    if len(strides) > 1:
        longest = 6 * max(strides[len(strides) // 2], 1.0)
    else:
        longest = float("inf")
    moments = [row[0] for row in band]
    anew = {bisect_left(moments, step) for step in track.steps}
    cuts = [i for i in range(1, len(band)) if i in anew or moments[i] - moments[i - 1] > longest]
    return [band[a:b] for a, b in zip([0, *cuts], [*cuts, len(band)], strict=True)]


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
    """ "Tue 3 Nov, 04:00"; with the year where that is not the year of `now`."""
    wall = local(at)
    if now is None or wall.year == local(now).year:
        year = ""
    else:
        year = f" {wall.year}"
    return f"{wall:%a} {wall.day} {wall:%b}{year}, {wall:%H:%M}"


def zone_name(at: float) -> str:
    """ "CET (UTC+01:00)", or only the difference where the zone has no name."""
    moment = local(at)
    name = moment.tzname() or ""
    offset = f"{moment:%z}"
    if offset == "+0000":
        told = "UTC"
    else:
        told = f"UTC{offset[:3]}:{offset[3:5]}"
    if name in ("UTC", told) or not name.isalpha():
        return told
    return f"{name} ({told})"
