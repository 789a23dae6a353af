"""`skep top`: a live view of a running hive."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from skep.cli.liveview import BETWEEN, Line, Page, bar, sparkline
from skep.cli.options import ROOT, JsonOption, command, option
from skep.cli.output import note, number, print_json
from skep.errors import SkepError
from skep.paths import user_paths
from skep.report.columns import Column, record_lines, table_lines
from skep.supervisor.control import ReplicaStatus
from skep.supervisor.readings import HiveReadings
from skep.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from skep.supervisor.readings import HiveReadings


STYLES = {"up": "green", "ready": "green", "open": "bold red", "failed": "bold red", "backoff": "red"}
LEGEND = "█ active, ▒ releasing, · free slots; tok/s is about, over 10 s, – none yet"


def frame(readings: HiveReadings, page: Page, trouble: str | None = None) -> list[Line]:
    leave = "" if page.height is None else "; q leaves"
    tables = [*_totals(readings, page), *_queues(readings, page), [], *_replicas(readings, page)]
    return [*_head(readings, page, trouble), *tables, [], *page.wrapped(LEGEND + leave, "dim")]


def _head(readings: HiveReadings, page: Page, trouble: str | None) -> list[Line]:
    status, said = readings.status, [trouble] if trouble else []
    for row in status["rows"]:
        restarts = f", restarts {row['restarts']}" if row["kind"] == "gateway" else ""
        again = row["kind"] == "gateway" and row["restarts"]
        if row["kind"] in ("gateway", "cluster") and (row["state"] != "ready" or row["why"] or again):
            said.append(f"{row['kind']} {row['state']}{restarts}" + (f": {row['why']}" if row["why"] else ""))
    said += [] if readings.gateway else ["the gateway gives no figures"]
    up = "" if status.get("up_s") is None else f"  up {format_seconds(int(status['up_s']))}"
    phase = (status["phase"], STYLES.get(status["phase"], BETWEEN))
    title = [("skep  ", "bold"), (f"{status['url']}  ", ""), phase, (f"{up}  pid {status['pid']}", "")]
    return [title, *(line for text in said for line in page.wrapped(text, BETWEEN))]


def _totals(readings: HiveReadings, page: Page) -> list[Line]:
    gateway = readings.gateway
    now = f"{number(gateway.get('in_flight'), 0)} in flight, {number(gateway.get('queued'), 0)} queued"
    outcomes = ", ".join(f"{number(count, 0)} {name.replace('_', ' ')}" for name, count in readings.ended.items())
    speed = f"{'about ' if readings.tok_s else ''}{number(readings.tok_s)} tok/s  "
    known = [value for value in readings.speeds if value is not None]
    return [
        [("requests  ", "bold"), (f"{now}, {number(readings.requests_per_s)}/s ended", "")],
        [("so far    ", "bold"), (outcomes, "")],
        [("tokens    ", "bold"), (speed, ""), (sparkline(known, page.width - 10 - len(speed), 1), "cyan")],
    ]


def _queues(readings: HiveReadings, page: Page) -> list[Line]:
    queues: dict[str, dict[str, int]] = readings.gateway.get("queues", {})
    if not queues:
        return []
    titles = ["QUEUE", *(name.upper() for name in next(iter(queues.values()))), "LAST READINGS"]
    rows = [
        [model, *(f"{count:,}" for count in waiting.values()), sparkline(readings.queued_of[model], 60)]
        for model, waiting in queues.items()
    ]
    right = [name not in ("QUEUE", "LAST READINGS") for name in titles]
    head, *lines = table_lines(titles, rows, right, [0] * len(titles), page.width)
    return [[], [(head, "bold")], *([(line, "")] for line in lines)]


def _replicas(readings: HiveReadings, page: Page) -> list[Line]:
    """Return a table; why a replica is as it is stands below it."""
    columns: list[Column[ReplicaStatus]] = [
        Column("name", "REPLICA", lambda one: one.name, right=False),
        Column("node", "NODE", lambda one: one.node or None, right=False, rank=2, optional=True),
        Column("model", "MODEL", lambda one: one.model or None, right=False, rank=4),
        Column("state", "STATE", lambda one: one.state, right=False),
        Column("slots", "SLOTS", lambda one: slot_bar(one, max(8, page.width // 4)), right=False, rank=1),
        Column("active", "ACTIVE", lambda one: f"{number(one.active, 0)}/{one.slots}"),
        Column("tok_s", "TOK/S", lambda one: readings.tok_s_of(one.name), number),
        Column("restarts", "RESTARTS", lambda one: one.restarts, rank=3),
        Column("note", "NOTE", lambda one: one.mark, right=False),
    ]
    titles, *lines = record_lines(columns, readings.replicas, page.width)
    found: list[Line] = [[(titles, "bold")]]
    for shown, line in zip(readings.replicas, lines, strict=False):
        style = STYLES.get(shown.state, BETWEEN).replace("green", "")
        found += [[(line, style)], *page.wrapped(shown.why, style, "  ")]
    return [*found, *([(line, "dim")] for line in lines[len(readings.replicas) :])]


def slot_bar(shown: ReplicaStatus, most: int) -> str:
    """Draw active, releasing and free slots; nothing where the gateway does not know the replica."""
    active = min(shown.active or 0, shown.slots)
    releasing = min(shown.releasing, shown.slots - active)
    parts = (active, releasing, shown.slots - active - releasing)
    return "" if shown.active is None else bar("█▒·", parts, shown.slots, min(shown.slots, most))


ONCE_S = 1.0  # between the two readings of `--once` and `--json`
SHORTEST_S, ANSWER_S = 0.1, 3.0


@command(ROOT, "skep top --every 2s")
def top(
    every: Annotated[str, option("Time between two readings, at least 100ms.")] = "1s",
    once: Annotated[
        bool, option("Print one frame and exit; the default where stdout is no terminal.", "--once")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a running hive: slots, queues, tokens per second. Counts are since the gateway began; q leaves."""
    from rich.console import Console

    from skep.cli.liveview import Page, can_draw, drawn
    from skep.supervisor.readings import HiveReadings, read_status

    every_s, readings, paths = max(SHORTEST_S, parse_seconds(every)), HiveReadings(), user_paths(os.environ)

    def read() -> None:
        readings.take(read_status(paths, ANSWER_S), time.monotonic())

    read()
    if not (once or as_json) and can_draw(sys.stdout):
        with contextlib.suppress(KeyboardInterrupt):
            _watch(readings, read, every_s)
        return
    time.sleep(ONCE_S)
    read()
    if as_json:
        print_json({**readings.status, "rates": readings.rates()})
    else:
        console = Console(highlight=False)
        console.print(drawn(frame(readings, Page(console.width))))


def _watch(readings: HiveReadings, read: Callable[[], None], every_s: float) -> None:
    """Draw frames until q or the end of the hive. If the hive does not answer, keep the last figures."""
    from skep.cli.liveview import live_view
    from skep.supervisor.control import NotRunning

    trouble: str | None = None
    with live_view(lambda page: frame(readings, page, trouble), whole_screen=True) as pause:
        while not pause(every_s):
            try:
                read()
                trouble = None
            except NotRunning:
                break
            except SkepError as error:
                trouble = error.message
        else:
            return
    note("skep is down")
