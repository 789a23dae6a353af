"""The page `Now`: what the hive and the store say of the present, read once for all browsers,
streamed to each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from skep.errors import EngineError, SkepError
from skep.monitor.cold_start import ColdStart
from skep.monitor.describe import describe_probing
from skep.monitor.headline import SpeedHeadline, headlines_of
from skep.monitor.overview import cold_starts_of
from skep.monitor.records import HOUR_S, Alert, MonitorEvent, SeriesPoint, SpanKind
from skep.monitor.status import TargetStatus, alert_document, target_statuses
from skep.stats.percentiles import percentile
from skep.supervisor.control import NotRunning
from skep.supervisor.hive_status import HiveReadings, ReplicaStatus, Status, read_status
from skep.web.context import Site
from skep.web.history import labelled
from skep.web.layout import environment, page
from skep.web.responses import json_answer, json_text

WEEK_S = 7 * 24 * HOUR_S
TTFT_WINDOW_S = 300.0
_MOST_ROWS = 2000
READING = "reading the store …"
# Of an answer that came in one piece, the first byte says nothing of the first token.
_FIRST_BYTES = """
SELECT first_byte_s FROM gateway_requests
WHERE arrived_at >= ? AND streamed AND outcome = 'answered' AND first_byte_s IS NOT NULL
ORDER BY arrived_at DESC LIMIT ?
"""


class MonitorSnapshot(msgspec.Struct, frozen=True):
    standings: tuple[TargetStatus, ...] = ()
    headlines: tuple[SpeedHeadline, ...] = ()
    cold_starts: tuple[ColdStart, ...] = ()
    # For each target, the hourly medians of its first series in 7 days.
    lines: tuple[tuple[SeriesPoint, ...], ...] = ()
    alerts: tuple[Alert, ...] = ()
    notes: tuple[MonitorEvent, ...] = ()  # the newest events, newest first
    fault: str | None = READING  # why nothing is known; None: the store was read

    def document(self, site: Site) -> dict[str, Any]:
        """Return the snapshot as JSON has it.

        A public document has no addresses, and no words of others: an error may hold both.
        """
        targets = [standing.document() for standing in self.standings]
        for target in targets:
            target["model"] = None if target["model"] is None else site.label(target["model"])
            if site.hides_private:
                del target["url"], target["error"]
                target["alerts"] = [public_alert(alert) for alert in target["alerts"]]
            else:
                target["url"] = site.hide(target["url"])
        alerts = [alert_document(alert) for alert in self.alerts]
        events = [
            {"at": note.at, "kind": str(note.kind), "target": note.target, "text": note.text}
            for note in self.notes
        ]
        if site.hides_private:
            alert_documents = [public_alert(alert) for alert in alerts]
        else:
            alert_documents = alerts
        headlines = [headline.document() for headline in self.headlines]
        starts = [start.document() for start in self.cold_starts]
        return {
            "headlines": headlines,
            "cold_starts": starts,
            "targets": targets,
            "alerts": alert_documents,
            "events": events,
        }


def public_alert(alert: dict[str, Any]) -> dict[str, Any]:
    """Return the alert without its words, which may come from a server's answer."""
    return {key: value for key, value in alert.items() if key not in ("message", "closed_because")}


def read_monitor(site: Site, now: float) -> MonitorSnapshot:
    with site.series() as series:
        standings = tuple(target_statuses(series, now))
        keys = [standing.readings[0].key if standing.readings else None for standing in standings]
        spans = [
            series.spans(key, SpanKind.HOUR, now - WEEK_S, now) if key else () for key in keys
        ]
        return MonitorSnapshot(
            standings=standings,
            headlines=tuple(
                labelled(site, headline) for headline in headlines_of(series, standings, now)
            ),
            cold_starts=tuple(
                cold_starts_of(
                    series, (standing.target.name for standing in standings), now - WEEK_S, now
                )
            ),
            lines=tuple(
                tuple(SeriesPoint(hour.start, hour.median) for hour in span if hour.count)
                for span in spans
            ),
            alerts=tuple(series.alerts(open_only=True)),
            notes=tuple(series.events(now - WEEK_S, now)[:-6:-1]),
            fault=None,
        )


def read_ttft(site: Site, now: float) -> dict[str, float] | None:
    """Return median and p95 of the times to the first byte of streamed answers, to requests of
    the last minutes, as the gateway saw them; None where there were none, or it keeps no rows.
    """
    with site.store() as store:
        rows = store.read(_FIRST_BYTES, now - TTFT_WINDOW_S, _MOST_ROWS)
    ordered = sorted(1000 * float(row[0]) for row in rows)
    if not ordered:
        return None
    p50 = percentile(ordered, 50)
    p95 = percentile(ordered, 95)
    return {"median_ms": p50, "p95_ms": p95, "count": len(ordered), "window_s": TTFT_WINDOW_S}


def hive_document(readings: HiveReadings, site: Site) -> dict[str, Any] | None:
    """Return the deployment as JSON has it; None before the first reading.

    A public document names no address, process or reason.
    """
    status = readings.status
    gateway = readings.gateway
    if not status:
        return None
    queues = gateway.get("queues") or {}
    return {
        "phase": status["phase"],
        "url": None if site.hides_private else status["url"],
        "pid": None if site.hides_private else status["pid"],
        "up_s": status.get("up_s"),
        "gateway": bool(gateway),
        "in_flight": gateway.get("in_flight"),
        "queued": gateway.get("queued"),
        "tok_s": readings.tok_s,
        "requests_per_s": readings.requests_per_s,
        "ended": readings.ended,
        "slots": readings.slots(),
        "replicas": [
            _replica(readings, site, replica, number)
            for number, replica in enumerate(readings.replicas, 1)
        ],
        "queues": [
            {"model": site.label(model), "waiting": dict(waiting)}
            for model, waiting in queues.items()
        ],
        "history": {"tok_s": list(readings.speeds), "queued": list(readings.queued)},
    }


def _replica(
    readings: HiveReadings, site: Site, replica: ReplicaStatus, number: int
) -> dict[str, Any]:
    """Return a replica as JSON has it.

    In public it is named by its number: the name of a server elsewhere is made of its address.
    """
    return {
        "name": f"replica-{number}" if site.hides_private else replica.name,
        "model": site.label(replica.model or None),
        "state": replica.state,
        "slots": replica.slots,
        "active": replica.active,
        "releasing": replica.releasing if replica.active is not None else None,
        "tok_s": readings.tok_s_of(replica.name),
        "restarts": replica.restarts,
        "simulated": bool(replica.mark),
        "why": None if site.hides_private else replica.why or None,
    }


log = logging.getLogger("skep.web")
EVERY_S = 1.0
ANSWER_S = 2.0  # for the hive to say how it is
LINGER_S = 30.0  # the reader goes on so long after the last browser: most come back
TTFT_EVERY_S = 5.0
WATCHED_EVERY_S = 15.0
FIRST_PAINT_S = 0.15  # a page waits so long for a reading, and no longer
HEARTBEAT_S = 15.0
RETRY_MS = 2000
Parts = dict[str, str]
Render = Callable[[dict[str, Any], MonitorSnapshot], Parts]
StoreReading = TypeVar("StoreReading")


class Live:
    """Reads hive and store, once for all browsers; `run` does so while somebody watches.

    Only `_read_or_why` and `_ask_hive` run in other threads than the event loop's.
    """

    def __init__(
        self,
        site: Site,
        *,
        read: Callable[[Site], Status] = lambda site: read_status(site.paths, ANSWER_S),
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        first_paint_s: float = FIRST_PAINT_S,
    ) -> None:
        self.document: dict[str, Any] = {}
        self.watched = MonitorSnapshot()
        self.site = site
        self._read_status = read
        self._every_s = every_s
        self._clock = clock
        self._first_paint_s = first_paint_s
        self._readings = HiveReadings()
        self._ttft: dict[str, float] | None = None
        self._ttft_at = self._watched_at = self._read_at = self._left_at = float("-inf")
        self._streams = 0
        self._demand = asyncio.Event()
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()  # one reading at a time: rates are between readings
        self.closing = False

    def for_view(self, site: Site) -> Live:
        """Return a reader of the same deployment, for a site that shows something else of it."""
        return Live(
            site,
            read=self._read_status,
            every_s=self._every_s,
            clock=self._clock,
            first_paint_s=self._first_paint_s,
        )

    async def run(self) -> None:
        while True:
            await self._demand.wait()
            began = self._clock()
            await self.read_once()
            await asyncio.sleep(max(0.0, began + self._every_s - self._clock()))
            if not self._streams and self._clock() - self._left_at > LINGER_S:
                self._demand.clear()
                self._readings.forget()  # rates over this pause would be rates of long ago
                self.document = {}  # it would be out of date

    async def fresh(self) -> dict[str, Any]:
        """Return a reading of the last seconds for a page, or whatever there is after a short
        wait.
        """
        stale = self._clock() - self._read_at > 2 * self._every_s
        self._left_at = self._clock()
        self._demand.set()
        if stale:
            await self.changed(self._first_paint_s)
        return self.document

    async def changed(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
            return True
        return False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._streams += 1
        self._demand.set()
        try:
            yield
        finally:
            self._streams -= 1
            self._left_at = self._clock()

    def close(self) -> None:
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        before = self._changed
        self._changed = asyncio.Event()
        before.set()

    async def read_once(self) -> None:
        """Ask the store first: it answers at once, and a hive that hangs must not hold back what
        it says.
        """
        async with self._reading:
            await self._read_store()
            status = await asyncio.to_thread(self._ask_hive)
            self._read_at = now = self._clock()
            try:
                self.document = self._document(status, now)
            # A hive of another version.
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                log.error("hive.unknown error=%r", error)
                self._readings.forget()
                self.document = self._document(
                    EngineError("this skep cannot read the status of the deployment"), now
                )
        self._wake()

    async def _read_store(self) -> None:
        """Read what is due. What cannot be read is empty until it is read again."""
        began = self._clock()
        if began - self._ttft_at >= TTFT_EVERY_S:
            ttft = await asyncio.to_thread(self._read_or_why, read_ttft)
            self._ttft = None if isinstance(ttft, str) else ttft
            self._ttft_at = began
        if began - self._watched_at >= WATCHED_EVERY_S:
            watched = await asyncio.to_thread(self._read_or_why, read_monitor)
            if isinstance(watched, str):
                self.watched = MonitorSnapshot(fault=watched)
            else:
                self.watched = watched
            if self.watched.fault is None:
                self._watched_at = began
            else:
                self._watched_at = float("-inf")

    def _read_or_why(self, read: Callable[[Site, float], StoreReading]) -> StoreReading | str:
        """Return what `read` reads from the store, or why that failed. Called in a thread of its
        own.
        """
        try:
            return read(self.site, self.site.clock())
        except SkepError as error:
            if not self.site.hides_private:
                return error.message
        except Exception as error:  # whatever it was, the dashboard goes on
            log.error("store.failed error=%r", error)
        return "the store cannot be read right now"

    def _ask_hive(self) -> Status | SkepError:
        """Return the status of the deployment, or why there is none. Called in a thread of its
        own.
        """
        try:
            return self._read_status(self.site)
        except SkepError as error:
            return error
        except Exception as error:  # whatever it was, the dashboard goes on
            log.error("hive.failed error=%r", error)
            return EngineError("the deployment cannot be reached", hint="look at `skep logs skep`")

    def _document(self, status: Status | SkepError, now: float) -> dict[str, Any]:
        document: dict[str, Any] = {
            "at": self.site.clock(),
            "state": "up",
            "message": None,
            "hint": None,
        }
        if isinstance(status, SkepError):
            is_down = isinstance(status, NotRunning)
            is_private_shown = not self.site.hides_private
            document |= {
                "state": "down" if is_down else "silent",
                "message": status.message if is_down or is_private_shown else None,
            }
            document["hint"] = status.hint if is_private_shown else None
            if is_down:
                self._readings.forget()
        else:
            self._readings.take(status, now)
        return {**document, "hive": hive_document(self._readings, self.site), "ttft": self._ttft}


class Stream:
    """`GET /live` as an ASGI application: server-sent events, each a JSON document with the
    `parts` that changed.
    """

    def __init__(self, live: Live, render: Render) -> None:
        self._live = live
        self._render = render
        self._rendered: tuple[object, Parts] = (None, {})  # once for all browsers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        kind = "text/event-stream"

        async def send_quietly(message: Message) -> None:
            with contextlib.suppress(OSError):  # the browser is gone
                await send(message)

        with self._live.watching():
            answer = Response(headers=headers, media_type=kind)
            if scope["method"] != "HEAD":
                answer = StreamingResponse(self._events(), headers=headers, media_type=kind)
            await answer(scope, receive, send_quietly)

    async def _events(self) -> AsyncIterator[str]:
        yield f"retry: {RETRY_MS}\n\n"
        sent: Parts = {}
        while not self._live.closing:
            if not await self._live.changed(HEARTBEAT_S):
                yield ": still here\n\n"
                continue
            document = self._live.document
            if self._rendered[0] is not document:
                self._rendered = (document, self._render(document, self._live.watched))
            parts = self._rendered[1]
            changed = {name: part for name, part in parts.items() if sent.get(name) != part}
            sent = parts
            yield f"data: {json_text({**document, 'parts': changed})}\n\n"


PARTS = (
    "state",
    "headline",
    "alerts",
    "cards",
    "replicas",
    "queues",
    "watched",
    "lately",
    "begin",
)


def parts(site: Site, document: dict[str, Any], watched: MonitorSnapshot) -> dict[str, str]:
    """Return the parts of the page, by the name that it has for each."""
    values = {"site": site, "document": document, "monitor": watched, "now": site.clock()}
    module = environment().get_template("now_parts.html").make_module(values)
    return {name: str(getattr(module, name)()) for name in PARTS}


def routes_of_now(site: Site, live: Live) -> list[Route]:
    async def show(_request: Request) -> Response:
        await live.fresh()
        targets = [standing.target for standing in live.watched.standings]
        names = [target.name for target in targets]
        probing = describe_probing(targets)
        return page(
            site,
            "now.html",
            parts=parts(site, live.document, live.watched),
            targets=names,
            probing=probing,
        )

    async def as_json(_request: Request) -> Response:
        return json_answer({**await live.fresh(), **live.watched.document(site)})

    return [
        Route("/", show),
        Route("/api/now.json", as_json),
        Route("/live", Stream(live, partial(parts, site)), methods=["GET"]),
    ]
