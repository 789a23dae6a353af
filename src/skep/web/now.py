"""The page `Now`: replicas, slots, queues, speeds and what is watched; live where the browser runs scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from skep.monitor.records import HOUR_S, SeriesPoint
from skep.monitor.status import SeriesStatus, TargetStatus
from skep.stats.rolling import WindowStats
from skep.units import number
from skep.web.context import Site
from skep.web.history_data import in_words
from skep.web.layout import environment, page
from skep.web.live import Live, MonitorSnapshot, Stream
from skep.web.responses import csv_answer, json_answer

WIDTH, HEIGHT = 160.0, 36.0
_EDGE = 3.0  # room for the line's own width


def sparkline(
    values: Sequence[float | None], label: str, *, places: Sequence[float] | None = None, gap: float = float("inf"),
    median: float | None = None, from_zero: bool = False,
) -> Markup | None:  # fmt: skip
    """None is a gap, and so is more than `gap` between two `places` along the axis; `median` is a dashed line."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    shown = [*known, *([] if median is None else [median])]
    low, high, flat = 0.0 if from_zero else min(shown), max(shown), min(known) == max(known)
    along = list(range(len(values))) if places is None else list(places)
    start, width = along[0], (along[-1] - along[0]) or 1.0

    def x(place: float) -> float:
        return _EDGE + (WIDTH - 2 * _EDGE) * (place - start) / width

    def y(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.0 if from_zero else 0.5
        share = 0.5 if from_zero and flat and value else share  # along the upper edge it would look like a frame
        return HEIGHT - _EDGE - (HEIGHT - 2 * _EDGE) * share

    line: list[str] = []
    drawn: float | None = None  # where the pen is
    for place, value in zip(along, values, strict=True):
        if value is not None:
            pen = "L" if drawn is not None and place - drawn <= gap else "M"
            line.append(f"{pen}{x(place):.1f} {y(value):.1f}")
        drawn = None if value is None else place
    last = max(i for i, value in enumerate(values) if value is not None)
    end = f"M{x(along[last]):.1f} {y(values[last] or 0.0):.1f}h0"
    level = "" if median is None else f'<path d="M0 {y(median):.1f}H{WIDTH:g}" class="level"/>'
    paths = f'{level}<path d="{"".join(line)}" class="line"/><path d="{end}" class="end"/>'
    svg = '<svg class="spark" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    return Markup(svg).format(WIDTH, HEIGHT, label, Markup(paths))  # noqa: S704


PARTS = ("state", "alerts", "cards", "replicas", "queues", "watched", "lately", "begin")


def parts(site: Site, document: dict[str, Any], watched: MonitorSnapshot) -> dict[str, str]:
    """By the name that the page has for each."""
    values = {"site": site, "document": document, "monitor": watched, "now": site.clock(), "in_words": in_words}
    drawn = {"sparkline": sparkline, "week_line": week_line, "against": against}
    made = environment().get_template("now_parts.html").make_module(values | drawn)
    return {name: str(getattr(made, name)()) for name in PARTS}


def week_line(standing: TargetStatus, line: Sequence[SeriesPoint], week: WindowStats | None) -> Markup | None:
    return sparkline(
        [point.value for point in line],
        f"{standing.target.name} over 7 days, by the hour",
        places=[point.at for point in line],
        gap=max(2.5 * HOUR_S, 2.5 * standing.target.every_s),
        median=week.median if week else None,
    )


def against(reading: SeriesStatus) -> tuple[str, str]:
    """Return how far the newest value is from the week's median, and whether that is better, worse or the same."""
    assert reading.ratio is not None
    assert reading.week is not None
    change = 100 * (reading.ratio - 1)
    worse = (change < 0) is reading.key.metric.more_is_better and abs(change) >= 0.05
    far = reading.week.mad and abs(reading.ratio - 1) * reading.week.median > 3 * 1.4826 * reading.week.mad
    sign = "+" if change >= 0.05 else ""
    return f"{sign}{number(change, digits=1)} %", ("worse" if worse else "better") if far else "same"


def routes(site: Site, live: Live) -> list[BaseRoute]:
    async def show(_request: Request) -> Response:
        await live.fresh()
        targets = [one.target.name for one in live.watched.standings]
        return page(site, "now.html", parts=parts(site, live.document, live.watched), targets=targets)

    async def as_json(_request: Request) -> Response:
        await live.fresh()
        return json_answer(whole_document(site, live))

    async def as_csv(_request: Request) -> Response:
        await live.fresh()
        return csv_answer("now", ("section", "name", "figure", "value"), figure_rows(whole_document(site, live)))

    return [
        Route("/", show),
        Route("/api/now.json", as_json),
        Route("/api/now.csv", as_csv),
        Route("/live", Stream(live, lambda document, watched: parts(site, document, watched)), methods=["GET"]),
    ]


def whole_document(site: Site, live: Live) -> dict[str, Any]:
    return {**live.document, **live.watched.document(site)}


def figure_rows(document: dict[str, Any]) -> list[tuple[str, str, str, Any]]:
    """Everything that is one number or one word, a row each."""
    hive, targets = document.get("hive") or {}, document.get("targets") or ()
    whole = {key: document.get(key) for key in ("at", "state", "message")} | hive
    sections = [
        ("hive", "", whole),
        ("ended", "", hive.get("ended") or {}),
        ("slots", "", hive.get("slots") or {}),
        ("ttft", "", document.get("ttft") or {}),
        *(("replica", one["name"], one) for one in hive.get("replicas") or ()),
        *(("queue", one["model"], one["waiting"]) for one in hive.get("queues") or ()),
    ]
    for target in targets:
        sections.append(("target", target["target"], target))
        sections += [("series", reading["series"], reading) for reading in target["readings"]]
    for kind in ("alert", "event"):
        sections += [(kind, one["target"] or "", one) for one in document.get(f"{kind}s") or ()]
    return [
        (section, name, figure, value)
        for section, name, facts in sections
        for figure, value in facts.items()
        if not isinstance(value, dict | list) and figure not in ("name", "target")
    ]
