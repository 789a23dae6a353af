"""The page `Now`: replicas, slots, queues, speeds and what is watched; live where the browser runs scripts."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from skep.report.markup import Markup, join, tag, text, trusted
from skep.web.answers import csv_answer, json_answer
from skep.web.layout import downloads, page
from skep.web.live import Live, Stream
from skep.web.notes import note_form
from skep.web.now_parts import parts
from skep.web.site import Site
from skep.web.watched import Watched

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


def now_page(site: Site, document: dict[str, Any], watched: Watched) -> Response:
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
