"""Notes: an event on the axis, written down by whoever changed something. The only thing the dashboard writes."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from skep.errors import UserError
from skep.monitor.records import EventKind, MonitorEvent
from skep.monitor.store import SeriesStore
from skep.store.database import open_store
from skep.units import printable
from skep.web.context import Site
from skep.web.layout import LONGEST_NOTE
from skep.web.responses import form_of, way_back


def routes(site: Site) -> list[BaseRoute]:
    if not site.writable:
        return []

    async def write(request: Request) -> Response:
        form = await form_of(request)
        await asyncio.to_thread(write_note, site, form.get("text", ""), form.get("target", ""))
        return RedirectResponse(way_back(form.get("next")), 303)

    return [Route("/notes", write, methods=["POST"])]


def write_note(site: Site, note: str, target: str) -> None:
    """Of one target, or of all where none is named. The moment is now."""
    words = " ".join(printable(note).split())
    if not words:
        raise UserError("the note is empty", hint="say what was changed, such as: NVLink bridges removed")
    if len(words) > LONGEST_NOTE:
        raise UserError(f"the note has {len(words)} characters, {LONGEST_NOTE} is the most", hint="shorten it")
    with open_store(site.paths.store) as store:
        series = SeriesStore(store)
        if target:
            series.target(target)  # raises for an unknown one
        series.append_event(MonitorEvent(site.clock(), EventKind.NOTE, words, target or None))
