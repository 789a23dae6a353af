"""`skep top`: a live view of a running hive.

`View` takes readings and draws frames; it knows no clock, socket or terminal. What is below `top` does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skep.cli.options import JsonOption, ask_hive, command, option
from skep.cli.output import note, number, print_json
from skep.errors import SkepError
from skep.stats.rates import WINDOW_S, Rate, TokenRates
from skep.supervisor.control import OUTCOMES, ReplicaStatus, Status, replicas_of, up_s
from skep.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

HISTORY = 60  # readings
REFRESH_PER_S, FEWEST_LINES = 4, 10
ONCE_S = 1.0  # between the two readings of `--once` and `--json`
SHORTEST_S, ANSWER_S = 0.1, 3.0
LONGEST_BAR, SHORTEST_BAR, SHORTEST_NAME = 40, 8, 8
AFTER_STATE = 5  # columns of a replica: slots, three figures, a note
STYLES = {"up": "green", "ready": "green", "open": "bold red", "failed": "bold red", "backoff": "red"}
BETWEEN = "yellow"  # half-open, draining, starting, warming, stopping

Line = list[tuple[str, str]]  # (text, style)

UNICODE = ("█▒·", "–", "…", "▁▂▃▄▅▆▇█")  # slots: active, releasing, free; unknown; cut off; heights
ASCII = ("#%.", "-", "~", "_.:-=+*#")


class Screen:
    """The page that a frame is drawn on: its size and the characters it can show."""

    def __init__(self, width: int = 80, height: int | None = None, encoding: str = "utf-8") -> None:
        self.width, self.height, self._encoding = width, height, encoding
        glyphs = UNICODE if self.clean("".join(UNICODE)) == "".join(UNICODE) else ASCII
        self.slots, self.unknown, self.ellipsis, self.sparks = glyphs

    def figure(self, value: float | None, digits: int = 1) -> str:
        return number(value, digits).replace("–", self.unknown)

    def row(self, cells: list[str], spaces: list[int], side: str = "<") -> str:
        """Too long a cell is cut in its middle: names differ at their ends."""
        fit = [c if len(c) <= n else c[: n - 5] + self.ellipsis + c[-4:] for c, n in zip(cells, spaces, strict=True)]
        return "  ".join(f"{cell:{side}{space}}" for cell, space in zip(fit, spaces, strict=True))

    def wrapped(self, text: str, style: str, indent: str = "") -> list[Line]:
        parts = wrap(text, max(20, self.width - len(indent)), max_lines=3, placeholder=f" {self.ellipsis}")
        return [[(indent + part, style)] for part in parts]

    def clean(self, text: str) -> str:
        """What engines write may hold control characters, and characters that the terminal lacks."""
        printable = "".join(letter if letter.isprintable() else " " for letter in text)
        return printable.encode(self._encoding, "replace").decode(self._encoding)


class Sparkline:
    """The last HISTORY values, drawn in as many cells as there are: a cell shows the largest of its values."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=HISTORY)
        self._taken = 0

    def take(self, value: float) -> None:
        self._values.append(value)
        self._taken += 1

    def line(self, room: int, sparks: str, digits: int = 0) -> str:
        """Return the sparkline and its maximum. Whatever is above zero is drawn above zero."""
        highest = max(self._values, default=0.0)
        label = f"  max {highest:,.{digits}f}"
        most = max(1, min(HISTORY, room - len(label)))
        share = -(-HISTORY // most)  # values of a cell: counted from the first ever, so that cells stay as they fill
        cells: dict[int, float] = {}
        for place, value in enumerate(self._values, self._taken - len(self._values)):
            cells[place // share] = max(cells.get(place // share, 0.0), value)
        levels = (0 if value <= 0 else max(1, round((len(sparks) - 1) * value / highest)) for value in cells.values())
        return "".join(sparks[level] for level in levels)[-most:] + label


def slot_cells(active: int, releasing: int, slots: int, most: int) -> list[int]:
    """Cells for active, releasing and free slots. Where they are fewer than slots, only a part of zero has none."""
    cells, active = min(slots, most), min(active, slots)
    releasing = min(releasing, slots - active)
    return bar_cells((active, releasing, slots - active - releasing), slots, cells)


def bar_cells(parts: Sequence[int], total: int, most: int) -> list[int]:
    """Cells of a bar for each part: only a part of zero has none, and together they fill it."""
    cells = [max(min(part, 1), round(most * part / max(1, total))) for part in parts]
    while (over := sum(cells) - most) != 0:
        cells[cells.index(max(cells))] -= 1 if over > 0 else -1
    return cells


class HiveView:
    """Everything read of one hive so far. `status` is the last reading."""

    def __init__(self) -> None:
        self.status: Status = {"rows": []}
        self._tokens, self._ended = TokenRates(), Rate()
        self._speeds = Sparkline()
        self._queues: dict[str, Sparkline] = {}

    def take(self, status: Status, now: float) -> None:
        self.status = status
        if not (gateway := status.get("gateway")):
            return
        busy = {replica.name: replica.active or 0 for replica in replicas_of(status)}
        self._tokens.take(gateway["tokens"], busy, now)
        self._ended.take(sum(gateway["ended"].values()), now)
        if (speed := self._tokens.total()) is not None:
            self._speeds.take(speed)
        for model, waiting in gateway["queues"].items():
            self._queues.setdefault(model, Sparkline()).take(sum(waiting.values()))

    def rates(self) -> dict[str, Any]:
        """None where nobody says."""
        if not self.status.get("gateway"):
            return {"tok_s": None, "requests_per_s": None, "replicas": {}}
        speeds = self._tokens.by_replica()
        return {"tok_s": self._tokens.total(), "requests_per_s": self._ended.per_s(), "replicas": speeds}

    def frame(self, page: Screen, trouble: str | None = None) -> list[Line]:
        """Replicas that find no place on the page are counted; a page without height has place for all."""
        titles, *blocks = self._replica_table(page)
        lines = [*self._head(page, trouble), *self._totals(page), *self._queue_table(page), [], *titles]
        leave = "" if page.height is None else "; q leaves"
        legend = "{} active, {} releasing, {} free".format(*page.slots)
        rates = self.rates()
        unknown = f"; {page.unknown} none yet" if None in (rates["tok_s"], *rates["replicas"].values()) else ""
        end: list[Line] = [[], [(f"{legend}; tok/s is about, over {WINDOW_S:g} s{unknown}{leave}", "dim")]]
        room = sys.maxsize if page.height is None else page.height - len(lines) - len(end)
        while blocks and len(blocks[0]) <= room - (len(blocks) > 1):
            room -= len(blocks[0])
            lines += blocks.pop(0)
        more = page.wrapped(f"{len(blocks)} more: make the window taller, or see `skep ps`", BETWEEN) if blocks else []
        return [[(page.clean(text), style) for text, style in line] for line in [*lines, *more, *end]]

    def _head(self, page: Screen, trouble: str | None) -> list[Line]:
        up = "" if self.status.get("up_s") is None else f"  up {format_seconds(int(self.status['up_s']))}"
        phase, said = self.status["phase"], [trouble] if trouble else []
        for row in self.status["rows"]:
            if row["kind"] == "gateway" and (row["state"] != "ready" or row["restarts"] or row["why"]):
                why = f": {row['why']}" if row["why"] else ""
                said.append(f"gateway {row['state']}, restarts {row['restarts']}{why}")
            elif row["kind"] == "cluster" and (row["state"] != "ready" or row["why"]):
                said.append(f"cluster {row['state']}" + (f": {row['why']}" if row["why"] else ""))
        if not self.status.get("gateway"):
            said.append("the gateway gives no figures")
        place, rest = f"{self.status['url']}  ", f"{up}  pid {self.status['pid']}"
        title: Line = [("skep  ", "bold"), (place, ""), (phase, STYLES.get(phase, BETWEEN)), (rest, "")]
        return [title, *(line for text in said for line in page.wrapped(text, BETWEEN))]

    def _totals(self, page: Screen) -> list[Line]:
        gateway, rates = self.status.get("gateway") or {}, self.rates()
        ended = {**dict.fromkeys(OUTCOMES, 0), **gateway["ended"]} if gateway else dict.fromkeys(OUTCOMES)
        outcomes = ", ".join(f"{page.figure(count, 0)} {name.replace('_', ' ')}" for name, count in ended.items())
        now = f"{page.figure(gateway.get('in_flight'), 0)} in flight, {page.figure(gateway.get('queued'), 0)} queued"
        about = "about " if rates["tok_s"] else ""
        speed = f"{about}{page.figure(rates['tok_s'])} tok/s  "
        history = self._speeds.line(page.width - 10 - len(speed), page.sparks, 1)
        return [
            [("requests  ", "bold"), (f"{now}, {page.figure(rates['requests_per_s'])}/s ended", "")],
            [("so far    ", "bold"), (outcomes, "")],
            [("tokens    ", "bold"), (speed, ""), (history, "cyan")],
        ]

    def _queue_table(self, page: Screen) -> list[Line]:
        queues: dict[str, dict[str, int]] = (self.status.get("gateway") or {}).get("queues", {})
        if not queues:
            return []
        cells = [[name.upper() for name in next(iter(queues.values()))]]
        cells += [[f"{count:,}" for count in waiting.values()] for waiting in queues.values()]
        spaces = [max(map(len, column)) for column in zip(*cells, strict=True)]
        room = page.width - sum(spaces) - 2 * len(spaces) - 2
        names = min(max(5, *map(len, queues)), max(SHORTEST_NAME, room - 20))
        titles, *counts = (page.row(row, spaces, ">") for row in cells)
        lines: list[Line] = [[], [(f"{'QUEUE':<{names}}  {titles}  LAST {HISTORY} READINGS", "bold")]]
        for (model, waiting), count in zip(queues.items(), counts, strict=True):
            spark = self._queues[model].line(room - names, page.sparks)
            style = BETWEEN if any(waiting.values()) else ""
            lines.append([(f"{page.row([model], [names])}  ", ""), (f"{count}  ", style), (spark, "cyan")])
        return lines

    def _replica_table(self, page: Screen) -> list[list[Line]]:
        """Return the titles, then the lines of each replica; with the nodes, where some stand elsewhere."""
        replicas, speeds = replicas_of(self.status), self.rates()["replicas"]
        cells = [["REPLICA", "NODE", "MODEL", "STATE", "SLOTS", "ACTIVE", "TOK/S", "RESTARTS", "NOTE"]]
        for replica in replicas:
            busy = f"{page.figure(replica.active, 0)}/{replica.slots}"
            counts = (busy, page.figure(speeds.get(replica.name)), page.figure(replica.restarts, 0))
            told = (replica.name, replica.node or page.unknown, replica.model or page.unknown, replica.state)
            cells.append([*told, "", *counts, replica.mark])
        if not any(replica.node for replica in replicas):
            cells = [[row[0], *row[2:]] for row in cells]
        spaces = [max(map(len, column)) for column in zip(*cells, strict=True)]
        bar = len(spaces) - AFTER_STATE
        spaces[bar] = max(5, min(LONGEST_BAR, max((replica.slots for replica in replicas), default=0)))
        for place, least in ((bar, SHORTEST_BAR), *((place, SHORTEST_NAME) for place in range(bar - 2, -1, -1))):
            excess = sum(spaces) + 2 * (len(spaces) - 1) - page.width
            spaces[place] = max(min(least, spaces[place]), spaces[place] - max(0, excess))
        counts_of = slice(bar + 1, bar + 4)
        titles = page.row(cells[0][: bar + 1], spaces[: bar + 1]), page.row(cells[0][counts_of], spaces[counts_of], ">")
        title: Line = [(f"{titles[0]}  {titles[1]}  NOTE", "bold")]
        return [[title], *(_block(page, *pair, spaces) for pair in zip(replicas, cells[1:], strict=True))]


def _block(page: Screen, replica: ReplicaStatus, cells: list[str], spaces: list[int]) -> list[Line]:
    """A note that has no room at the end of the line goes below it."""
    bar: Line = []
    place = len(spaces) - AFTER_STATE
    if replica.active is not None:
        parts = slot_cells(replica.active, replica.releasing, replica.slots, spaces[place])
        bar = [(page.slots[i] * part, ("green", "yellow", "dim")[i]) for i, part in enumerate(parts)]
    bar.append((" " * (spaces[place] - sum(len(text) for text, _ in bar)), ""))
    style = STYLES.get(replica.state, BETWEEN)
    counts_of = slice(place + 1, place + 4)
    names = page.row(cells[: place - 1], spaces[: place - 1])
    counts = page.row(cells[counts_of], spaces[counts_of], ">")
    whole = "; ".join(part for part in (replica.mark, replica.why) if part)
    left = page.width - sum(spaces[:-1]) - 2 * (len(spaces) - 1)
    beside, below = (whole, "") if len(whole) <= left else (replica.mark, replica.why)
    line = [(f"{names}  ", ""), (f"{replica.state:<{spaces[place - 1]}}  ", style), *bar, (f"  {counts}  {beside}", "")]
    return [line, *page.wrapped(below, style, "  ")]


def register(app: typer.Typer) -> None:
    command(app, "skep top --every 2s")(top)


def top(
    every: Annotated[str, option("Time between two readings, at least 100ms.")] = "1s",
    once: Annotated[
        bool, option("Print one frame and exit; the default where stdout is no terminal.", "--once")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a running hive: slots, queues, tokens per second. Counts are since the gateway began; q leaves."""
    from rich.console import Console

    every_s = max(SHORTEST_S, parse_seconds(every))
    console = Console(highlight=False)

    def read() -> Status:
        status = ask_hive({"op": "status"}, ANSWER_S)
        return {**status, "up_s": up_s(status["pid"])}

    if once or as_json or not sys.stdout.isatty() or console.is_dumb_terminal:
        _show_once(read, console, as_json=as_json)
    else:
        _watch(read, console, every_s)


def _show_once(read: Callable[[], Status], console: Console, *, as_json: bool) -> None:
    view = HiveView()
    view.take(read(), time.monotonic())
    time.sleep(ONCE_S)
    view.take(read(), time.monotonic())
    if as_json:
        print_json({**view.status, "rates": view.rates()})
    else:
        console.print(drawn(view.frame(Screen(console.width, None, console.encoding))))


def _watch(read: Callable[[], Status], console: Console, every_s: float) -> None:
    """Draw frames until q, Ctrl-C or the end of the hive. If the hive does not answer, keep the last frame."""
    from rich.live import Live

    from skep.supervisor.control import NotRunning

    view, trouble = HiveView(), None
    view.take(read(), time.monotonic())
    with contextlib.suppress(KeyboardInterrupt):
        with _keys() as pause, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                page = Screen(console.width, console.height, console.encoding)
                live.update(drawn(view.frame(page, trouble)), refresh=True)
                if pause(every_s):
                    return
                try:
                    status, trouble = read(), None
                except NotRunning:
                    break
                except SkepError as error:
                    trouble = error.message
                    continue
                view = view if status["pid"] == view.status["pid"] else HiveView()
                view.take(status, time.monotonic())
        note("skep is down")


def drawn(lines: list[Line]) -> Text:
    from rich.text import Text

    return Text("\n", no_wrap=True, overflow="crop").join([Text.assemble(*line) for line in lines])


@contextlib.contextmanager
def redrawn(console: Console, lines: Callable[[Screen], list[Line]]) -> Iterator[None]:
    """Draw a page again and again below what is printed. A terminal that went away is no reason to stop."""
    from rich.live import Live

    def page() -> Text:
        return drawn(lines(Screen(console.width, max(FEWEST_LINES, console.height) - 1, console.encoding)))

    live = Live(
        get_renderable=page,
        console=console,
        refresh_per_second=REFRESH_PER_S,
        transient=True,
        redirect_stdout=False,  # data stays data
    )
    with contextlib.suppress(OSError):
        live.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            live.stop()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Gives a pause that ends early, with True, when q is pressed. The terminal is left as it was."""
    watched = [sys.stdin.fileno()] if sys.stdin.isatty() else []
    before = [termios.tcgetattr(descriptor) for descriptor in watched]

    def pause(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            for descriptor in select.select(watched, [], [], left_s)[0]:
                pressed = os.read(descriptor, 64)
                if not pressed or b"q" in pressed.lower():
                    return True
        return False

    try:
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # Ctrl-Z would leave the shell on our screen
        for descriptor in watched:
            tty.setcbreak(descriptor)
        yield pause
    finally:
        for descriptor, mode in zip(watched, before, strict=True):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)
