"""The page `Now`: replicas, slots, queues, speeds and what is watched; live where the browser runs scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from skep.monitor.records import DAY_S, HOUR_S, Alert, SeriesPoint
from skep.monitor.status import SeriesStatus, TargetStatus
from skep.monitor.status import TargetState as Stands
from skep.report.markup import Markup, join, table, tag, text, trusted
from skep.report.ticks import when
from skep.units import UNKNOWN, milliseconds, moment, number
from skep.web.context import Site
from skep.web.history_query import in_words
from skep.web.layout import downloads, page
from skep.web.live import Live, Stream
from skep.web.notes import note_form
from skep.web.queries import MonitorSnapshot
from skep.web.responses import csv_answer, json_answer, marked

WIDTH, HEIGHT = 160.0, 36.0
_EDGE = 3.0  # room for the line's own width
MOST_DOTS = 64  # beyond it, slots are a bar


def sparkline(
    values: Sequence[float | None],
    label: str,
    *,
    places: Sequence[float] | None = None,
    gap: float = float("inf"),
    median: float | None = None,
    from_zero: bool = False,
) -> Markup | None:
    """None is a gap, and so is more than `gap` between two places; `median` is a dashed line.

    `places` are positions along the axis, evenly spaced if None.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    low = min([0.0] if from_zero else [*known, *([] if median is None else [median])])
    high = max([*known, *([] if median is None else [median])])
    flat = min(known) == max(known)
    along = list(range(len(values))) if places is None else list(places)
    start, width = along[0], (along[-1] - along[0]) or 1.0

    def x(place: float) -> float:
        return _EDGE + (WIDTH - 2 * _EDGE) * (place - start) / width

    def y(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5 if not from_zero else 0.0
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
    level = None if median is None else tag("path", d=f"M0 {y(median):.1f}H{WIDTH:g}", class_="level")
    return tag(
        "svg",
        level,
        tag("path", d="".join(line), class_="line"),
        tag("path", d=end, class_="end"),
        class_="spark",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def slot_picture(slots: int, active: int | None, releasing: int | None, most_dots: int = MOST_DOTS) -> Markup:
    """A dot a slot: full, half or hollow. Beyond `most_dots` a bar with the same parts."""
    if active is None:
        return tag("span", text("–"), class_="slots", title="the gateway does not know it")
    busy = min(active, slots)
    going = min(releasing or 0, slots - busy)
    parts = (("busy", busy), ("going", going), ("free", slots - busy - going))
    label = f"{busy} of {slots} slots busy" + (f", {going} releasing" if going else "")
    if slots <= most_dots:
        dots = join(tag("i", class_=f"dot {kind}") for kind, count in parts for _ in range(count))
        return tag("span", dots, class_="slots", role="img", aria_label=label)
    return tag("span", _bar(parts, slots), class_="slots bar", role="img", aria_label=label)


def _bar(parts: Sequence[tuple[str, int]], slots: int) -> Markup:
    cells, at = [], 0.0
    for kind, count in parts:
        width = 100 * count / slots
        if count:
            cells.append(tag("rect", x=f"{at:.2f}", y="0", width=f"{width:.2f}", height="8", class_=kind))
        at += width
    return tag("svg", *cells, viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")


Document = dict[str, Any]
_MOST_SHOWN = 5
_STATES = {"up": "good", "ready": "good", "open": "bad", "failed": "bad"}  # what is between has a colour of its own


def state_part(document: Document) -> Markup:
    """One line: whether a hive runs, since when, where; else how to start one."""
    hive, state = document.get("hive"), document.get("state")
    if not document:
        return _state("waiting", [text("reading the hive …")])
    if state == "down":
        return _state("down", [tag("strong", text("No hive is running")), text(" on this machine")])
    if state == "silent" or not hive:
        said = document["message"] or "the hive does not answer"
        return _state("silent", [tag("strong", text("Silent")), text(f" {said}")])
    words = [hive["phase"]]
    if hive["up_s"] is not None:
        words.append(f"for {_span(hive['up_s'])}")
    if hive["url"]:
        words.append(f"at {hive['url']}")
    told = [] if hive["gateway"] else [text(" · the gateway gives no figures")]
    if any(replica["simulated"] for replica in hive["replicas"]):
        told.append(tag("span", text("simulated"), class_="flag sky"))
    kind = "up" if hive["phase"] == "ready" else "between"
    return _state(kind, [tag("strong", text(words[0])), text(" " + " ".join(words[1:])), *told])


def alerts_part(site: Site, watched: MonitorSnapshot, now: float) -> Markup:
    if not watched.alerts:
        return tag("p", text("No open alerts"), class_="quiet") if watched.standings else Markup("")
    shown = [_alert(site, alert, now) for alert in watched.alerts[:_MOST_SHOWN]]
    left = len(watched.alerts) - len(shown)
    return join([*shown, *([tag("p", text(f"and {left} more"), class_="below")] if left else [])])


def cards_part(document: Document) -> Markup:
    hive, ttft = document.get("hive"), document.get("ttft")
    if not hive:
        return Markup("")
    history, slots, ended = hive["history"], hive["slots"], hive["ended"]
    speed = sparkline(history["tok_s"], "tokens per second over the last readings", from_zero=True)
    waiting = sparkline(history["queued"], "requests waiting over the last readings", from_zero=True)
    busy = f"{_count(slots['active'])} / {slots['total']}"
    going = f", {slots['releasing']} releasing" if slots["releasing"] else ""
    taken = None
    if slots["active"] is not None and slots["total"]:
        taken = slot_picture(slots["total"], slots["active"], slots["releasing"], most_dots=16)
    early = f"p95 {milliseconds(ttft['p95_ms'])} of {ttft['count']:,} in 5 min" if ttft else "no answers in 5 min"
    failed = [ended[kind] for kind in ("refused", "broken", "hung_up")]
    bad = "{} refused, {} broken, {} hung up".format(*(_count(count) for count in failed))
    pace = f"{number(hive['requests_per_s'])} /s · " if hive["requests_per_s"] is not None else ""
    return tag(
        "dl",
        _card("tok/s", number(hive["tok_s"]), _speed_note(hive), speed),
        _card("First token", milliseconds(ttft["median_ms"]) if ttft else UNKNOWN, early),
        _card("Slots busy", busy, f"{_count(hive['in_flight'])} under way{going}", taken),
        _card("Waiting", _count(hive["queued"]), "requests in the queue", waiting),
        _card("Answered", _count(ended["answered"]), f"{pace}{bad}"),
        class_="cards live",
    )


def _speed_note(hive: Document) -> str:
    if hive["tok_s"] is None and hive["in_flight"]:
        return "busy; no token has passed yet"
    return "about, over the last 10 s"


def replicas_part(document: Document) -> Markup:
    hive = document.get("hive")
    if not hive:
        return Markup("")
    head = tag("tr", *(_th(name, side) for name, side in (
        ("Replica", "left"), ("Slots", "left"), ("Busy", ""), ("tok/s", ""), ("State", "left"), ("Model", "left"),
        ("Restarts", ""),
    )))  # fmt: skip
    rows = [_replica(replica) for replica in hive["replicas"]]
    legend = tag(
        "p", *(part for kind, word in (("busy", "busy"), ("going", "releasing"), ("free", "free"))
               for part in (tag("i", class_=f"dot {kind}"), text(f" {word}  "))),
        class_="below legend-line", aria_hidden="true",
    )  # fmt: skip
    shown = table("Replicas", [head], rows) if rows else tag("p", text("no replica yet"), class_="quiet")
    return tag("section", tag("h2", text("Replicas")), shown, legend if rows else None)


def queues_part(document: Document) -> Markup:
    queues = (document.get("hive") or {}).get("queues") or []
    if not queues:
        return Markup("")
    classes = list(queues[0]["waiting"])
    head = tag("tr", _th("Queue", "left"), *(_th(name) for name in classes), _th("all"))
    rows = [
        tag(
            "tr",
            tag("th", text(queue["model"]), scope="row"),
            *(_td(f"{count:,}", "some" if count else "soft") for count in queue["waiting"].values()),
            _td(f"{sum(queue['waiting'].values()):,}"),
        )
        for queue in queues
    ]
    return tag("section", tag("h2", text("Waiting by class")), table("Requests that wait, by class", [head], rows))


def watched_part(watched: MonitorSnapshot, now: float) -> Markup:
    if watched.fault is not None:
        return tag("section", tag("h2", text("Watched")), tag("p", marked(watched.fault), class_="quiet"))
    if not watched.standings:
        return Markup("")
    pairs = zip(watched.standings, watched.lines, strict=True)
    body = tag("ul", *(_target(standing, line, now) for standing, line in pairs), class_="targets")
    how = "The newest probe of each target against its own week. The line: medians by the hour; dashed: of 7 days."
    return tag("section", tag("h2", text("Watched")), body, tag("p", text(how), class_="below"))


def lately_part(watched: MonitorSnapshot, now: float) -> Markup:
    """What happened in the last week, newest first."""
    if not watched.notes:
        return Markup("")
    rows = [
        tag(
            "li",
            tag("span", text(when(event.at, now=now)), class_="soft"),
            tag("span", text(event.text), *([text(f" · {event.target}")] if event.target else [])),
        )
        for event in watched.notes
    ]
    return tag("section", tag("h2", text("What happened lately")), tag("ul", *rows, class_="lately"))


def begin_part(site: Site, document: Document, watched: MonitorSnapshot) -> Markup:
    """What to do first, as long as there is something to do: a page of dashes would tell nothing."""
    rows = []
    if document.get("state") == "down":
        rows.append(("Serve models here", "skep up -d", "then replicas, slots, queues and speeds are shown here, live"))
    if watched.fault is None and not watched.standings:
        words = "then every hour is on the page History"
        rows.append(("Watch an endpoint", "skep monitor add NAME --url URL\nskep monitor run", words))
    if site.public or not rows:
        return Markup("")
    steps = [
        tag("li", tag("strong", text(what)), tag("pre", tag("code", text(how))), tag("span", text(then), class_="soft"))
        for what, how, then in rows
    ]
    plan = tag("p", text("Nothing needs to run for the page "), tag("a", text("Plan"), href="/plan"),
               text(": which layout fits which cards, and how fast it would be."), class_="below")  # fmt: skip
    title = "To begin" if not watched.standings else "Start a hive"
    return tag("section", tag("h2", text(title)), tag("ul", *steps, class_="begin"), plan)


def parts(site: Site, document: Document, watched: MonitorSnapshot) -> dict[str, str]:
    """By the name that the page has for each."""
    now = site.clock()
    return {
        "state": state_part(document),
        "alerts": alerts_part(site, watched, now),
        "cards": cards_part(document),
        "replicas": replicas_part(document),
        "queues": queues_part(document),
        "watched": watched_part(watched, now),
        "lately": lately_part(watched, now),
        "begin": begin_part(site, document, watched),
    }


def _state(kind: str, words: list[Markup]) -> Markup:
    return tag("p", tag("i", class_=f"lamp {kind}", aria_hidden="true"), *words, class_="state")


def _card(label: str, value: str, note: str, picture: Markup | None = None) -> Markup:
    return tag(
        "div",
        tag("dt", text(label)),
        tag("dd", text(value), class_="value"),
        tag("dd", picture, class_="picture") if picture else None,
        tag("dd", text(note), class_="note"),
        class_="card",
    )


def _alert(site: Site, alert: Alert, now: float) -> Markup:
    what = f"{alert.rule} · {alert.target}" if alert.target else str(alert.rule)
    said = [] if site.public else [text(" "), marked(alert.message)]
    since = tag("span", text(f" · open for {_ago(now, alert.opened_at)}"), class_="soft")
    return tag("p", tag("strong", text(what)), *said, since, class_="banner incomplete", role="note")


def _replica(replica: Document) -> Markup:
    model = [text(replica["model"])]
    if replica["simulated"]:
        model.append(tag("span", text("simulated"), class_="flag sky"))
    state = _STATES.get(replica["state"], "mid")
    why = tag("span", text(replica["why"]), class_="why") if replica["why"] else None
    return tag(
        "tr",
        tag("th", text(replica["name"]), scope="row"),
        tag("td", slot_picture(replica["slots"], replica["active"], replica["releasing"]), class_="left"),
        _td(f"{_count(replica['active'])}/{replica['slots']}"),
        _td(number(replica["tok_s"])),
        tag("td", tag("span", text(replica["state"]), class_=f"word {state}"), why, class_="left"),
        tag("td", *model, class_="left"),
        _td(_count(replica["restarts"])),
    )


def _target(standing: TargetStatus, line: tuple[SeriesPoint, ...], now: float) -> Markup:
    reading = standing.readings[0] if standing.readings else None
    name = standing.target.name
    unit = reading.key.metric.unit if reading else ""
    value = reading.latest.value if reading and reading.latest else None
    median = reading.week.median if reading and reading.week else None
    picture = sparkline(
        [point.value for point in line],
        f"{name} over 7 days, by the hour",
        places=[point.at for point in line],
        gap=max(2.5 * HOUR_S, 2.5 * standing.target.every_s),
        median=median,
    )
    link = "/history?" + urlencode({"target": name})
    probed = "never probed" if standing.last is None else f"probed {_ago(now, standing.last.ended_at)} ago"
    simulated = None
    if standing.last is not None and standing.last.simulated:
        simulated = tag("span", text("simulated"), class_="flag sky")
    state = "" if standing.state is Stands.OK else f"{standing.state} · "
    return tag(
        "li",
        tag("a", tag("strong", text(name)), simulated, href=link, class_="name"),
        tag("span", text(f"{state}{probed}"), class_=f"when {standing.state}"),
        tag("span", tag("b", text(number(value))), text(f" {unit}"), class_="figure"),
        tag("span", *_against(reading), class_="against"),
        tag("span", text("no figure yet" if reading is None else in_words(reading.key)), class_="kind"),
        picture or tag("span", text("too few hours for a line"), class_="spark empty"),
        class_="target",
    )


def _against(reading: SeriesStatus | None) -> list[Markup]:
    if reading is None or reading.week is None:
        return [text("no median yet")]
    against = f"7-day median {number(reading.week.median)}"
    if reading.ratio is None:
        return [text(against)]
    change = 100 * (reading.ratio - 1)
    worse = (change < 0) is reading.key.metric.more_is_better and abs(change) >= 0.05
    far = reading.week.mad and abs(reading.ratio - 1) * reading.week.median > 3 * 1.4826 * reading.week.mad
    kind = ("worse" if worse else "better") if far else "same"
    sign = "+" if change >= 0.05 else ""
    return [tag("b", text(f"{sign}{number(change, digits=1)} %"), class_=kind), text(f" · {against}")]


def _ago(now: float, then: float) -> str:
    """Never finer than it is redrawn."""
    passed = max(0.0, now - then)
    return moment(then) if passed > 14 * DAY_S else _span(passed) if passed >= 60 else "a minute"


def _span(seconds: float) -> str:
    """Two units at most: "42 s", "5 min", "3 h 12 min", "2 d 4 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"
    if hours:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{minutes} min"


def _count(value: float | None) -> str:
    return number(value, digits=0)


def _th(name: str, side: str = "") -> Markup:
    return tag("th", text(name), scope="col", class_=side or None)


def _td(value: str, kind: str = "") -> Markup:
    return tag("td", text(value), class_=kind or None)


PARTS = ("state", "alerts", "cards", "replicas", "queues", "watched", "lately", "begin")


def routes(site: Site, live: Live) -> list[BaseRoute]:
    async def show(_request: Request) -> Response:
        await live.fresh()
        return now_page(site, live.document, live.watched)

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


def now_page(site: Site, document: dict[str, Any], watched: MonitorSnapshot) -> Response:
    made = parts(site, document, watched)
    lamp = tag("p", text("not live"), id="live", class_="live-lamp", hidden="")
    said = tag("p", id="said", class_="unseen", role="status", aria_live="polite")
    pieces: list[Markup | None] = [
        lamp,
        said,
        *(tag("div", trusted(made[name]), data_part=name) for name in PARTS),
        note_form(site, names) if (names := [one.target.name for one in watched.standings]) else None,
        downloads("now"),
    ]
    return page(site, "now", "Now", join(piece for piece in pieces if piece), scripts=("live.js",))


def whole_document(site: Site, live: Live) -> dict[str, Any]:
    return {**live.document, **live.watched.document(site)}


def figure_rows(document: dict[str, Any]) -> list[tuple[str, str, str, Any]]:
    """Everything that is one number or one word, a row each."""
    hive = document.get("hive") or {}
    rows: list[tuple[str, str, str, Any]] = []

    def add(section: str, name: str, facts: dict[str, Any]) -> None:
        rows.extend(
            (section, name, figure, value)
            for figure, value in facts.items()
            if not isinstance(value, dict | list) and figure not in ("name", "target")
        )

    add("hive", "", {key: document.get(key) for key in ("at", "state", "message")} | hive)
    add("ended", "", hive.get("ended") or {})
    add("slots", "", hive.get("slots") or {})
    add("ttft", "", document.get("ttft") or {})
    for replica in hive.get("replicas") or ():
        add("replica", replica["name"], replica)
    for queue in hive.get("queues") or ():
        add("queue", queue["model"], queue["waiting"])
    for target in document.get("targets") or ():
        add("target", target["target"], target)
        for reading in target["readings"]:
            add("series", reading["series"], reading)
    for alert in document.get("alerts") or ():
        add("alert", alert["target"] or "", alert)
    for event in document.get("events") or ():
        add("event", event["target"] or "", event)
    return rows
