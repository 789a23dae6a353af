"""What is shown while a swarm works: a picture that redraws itself on a terminal, a line now and then elsewhere.

`frame` and `Ticker` know no clock, terminal or process; `live_view` does.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from skep.cli.output import note
from skep.cli.top import BETWEEN, Line, Page
from skep.swarm.progress import Lane, Progress
from skep.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

REFRESH_PER_S = 4
BAR, LANE_BAR, LONGEST_TASK = 40, 24, 32
EVERY_S, MOST_S = 5.0, 60.0  # between two lines elsewhere: the longer a run takes, the rarer
NEWS_AT_ONCE = 5
NEWS_SHOWN = 3
FEWEST_LINES = 10
UNICODE_BAR, ASCII_BAR = "━╳─", "=x-"  # done, set aside, left


@contextlib.contextmanager
def live_view(
    title: str, deadline_s: float | None = None, *, plain: bool = False
) -> Iterator[Callable[[Progress], None]]:
    """Shows what it is told. A terminal that went away is no reason to stop working. `plain`: lines in any case."""
    if plain or not sys.stderr.isatty():
        yield _line_writer(deadline_s)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    if console.is_dumb_terminal:
        yield _line_writer(deadline_s)
        return
    newest: list[Progress] = []

    def drawn() -> Text:
        return _text(frame(newest[-1], _page(console), title, deadline_s) if newest else [])

    def take(progress: Progress) -> None:
        newest[:] = [progress]

    live = Live(
        get_renderable=drawn,
        console=console,
        refresh_per_second=REFRESH_PER_S,
        transient=True,
        redirect_stdout=False,  # data stays data
    )
    with contextlib.suppress(OSError):
        live.start()
    try:
        yield take
    finally:
        with contextlib.suppress(OSError):
            live.stop()


def frame(progress: Progress, page: Page, title: str, deadline_s: float | None = None) -> list[Line]:
    """Agents that find no place on the page are counted."""
    lines = [[(title, "bold")], *_totals(progress, page), *_trouble(progress, page, deadline_s)]
    news = [line for text in progress.last[-NEWS_SHOWN:] for line in page.wrapped(text, BETWEEN)[:2]]
    room = None if page.height is None else page.height - len(lines) - len(news) - 3
    lanes = sorted(progress.lanes, key=lambda lane: lane.agent)
    shown = lanes if room is None or len(lanes) <= room else lanes[: max(0, room - 1)]
    if shown:
        lines += [[], *_lanes(shown, page)]
    if len(shown) < len(lanes):
        lines.append([(f"{len(lanes) - len(shown)} more at work: a taller window shows them", "dim")])
    lines += [[], *news] if news else []
    return [[(page.clean(text), style) for text, style in line] for line in lines]


def _totals(progress: Progress, page: Page) -> list[Line]:
    left = progress.total - progress.done - progress.failed
    counts = f"{progress.done:,} done, {progress.failed:,} set aside, {left:,} left of {progress.total:,}"
    wide = max(10, min(BAR, page.width - len(counts) - 4))
    glyphs = UNICODE_BAR if page.clean(UNICODE_BAR) == UNICODE_BAR else ASCII_BAR
    cells = bar_cells(progress.done, progress.failed, progress.total, wide)
    bar: Line = [(glyphs[i] * cells[i], ("green", "bold red", "dim")[i]) for i in range(3)]
    retried = f", {progress.retried:,} tried again" if progress.retried else ""
    speed = f"{page.figure(progress.tok_s)} tok/s, {progress.output_tokens:,} tokens{retried}"
    eta = "" if progress.left_s is None else f", about {format_seconds(progress.left_s)} left"
    time = f"{format_seconds(progress.elapsed_s)} so far{eta}"
    why = f": {progress.limit_why}" if progress.limit_why else ""
    return [
        [*bar, (f"  {counts}", "")],
        [("speed   ", "bold"), (speed, "")],
        [("time    ", "bold"), (time, "")],
        [("agents  ", "bold"), (f"{progress.in_flight} at work, {progress.limit} allowed{why}", "")],
    ]


def bar_cells(done: int, failed: int, total: int, most: int) -> list[int]:
    """Cells for done, set aside and left: only a part of zero has none, and a bar is full when nothing is left."""
    parts = (done, failed, total - done - failed)
    cells = [max(min(part, 1), round(most * part / max(1, total))) for part in parts]
    while (over := sum(cells) - most) != 0:
        cells[cells.index(max(cells))] -= 1 if over > 0 else -1
    return cells


def _trouble(progress: Progress, page: Page, deadline_s: float | None) -> list[Line]:
    return page.wrapped(_down_words(progress, deadline_s), "bold red") if progress.down_s is not None else []


def _down_words(progress: Progress, deadline_s: float | None) -> str:
    assert progress.down_s is not None
    why = f" ({progress.down_why})" if progress.down_why else ""
    end = "" if deadline_s is None else f"; gives up in {format_seconds(max(0.0, deadline_s - progress.down_s))}"
    since = "does not answer" if progress.down_s < 1 else f"has not answered for {format_seconds(progress.down_s)}"
    return f"the endpoint {since}{why}: asking again{end}"


def _lanes(lanes: list[Lane], page: Page) -> list[Line]:
    names = min(LONGEST_TASK, max(len(lane.task) for lane in lanes), max(8, page.width - 40))
    longest_s = max(1.0, *(lane.since_s for lane in lanes))
    room = max(4, min(LANE_BAR, page.width - names - 28))
    rows: list[Line] = [[(f"AGENT  {'TASK':<{max(4, names)}}  {'FOR':>11}", "bold")]]
    for lane in lanes:
        bar = page.slots[0] * max(1, round(room * lane.since_s / longest_s))
        name = page.row([page.clean(lane.task)], [max(4, names)])
        again = f"  try {lane.number}" if lane.number > 1 else ""
        style = "green" if lane.reads else "dim"  # grey until its first token
        rows.append([(f"{lane.agent:>5}  {name}  {format_seconds(lane.since_s):>11}  ", ""), (bar, style), (again, "")])
    return rows


class Ticker:
    """Which lines to write where nobody watches: events at once, how it stands every few seconds, and no flood."""

    def __init__(self, deadline_s: float | None = None) -> None:
        self._deadline_s = deadline_s
        self._due_s = 0.0
        self._news: tuple[str, ...] = ()
        self._said, self._unsaid = 0, 0
        self._down_due_s: float | None = None
        self._down_said_s = 0.0

    def take(self, progress: Progress) -> list[str]:
        lines = [*self._down(progress), *self._new(progress)]
        if progress.elapsed_s >= self._due_s and progress.down_s is None:
            if self._unsaid:
                lines.append(f"and {self._unsaid} more of that kind: `skep swarm show` has them")
            self._said, self._unsaid = 0, 0
            self._due_s = progress.elapsed_s + min(MOST_S, max(EVERY_S, progress.elapsed_s / 10))
            lines.append(standing(progress))
        return lines

    def _down(self, progress: Progress) -> list[str]:
        if progress.down_s is None:
            back = [f"the endpoint answers again after {format_seconds(self._down_said_s)}"] if self._down_due_s else []
            self._down_due_s = None
            return back
        self._down_said_s = progress.down_s
        if self._down_due_s is not None and progress.down_s < self._down_due_s:
            return []
        self._down_due_s = progress.down_s + min(MOST_S, max(EVERY_S, progress.down_s))
        return [_down_words(progress, self._deadline_s)]

    def _new(self, progress: Progress) -> list[str]:
        fresh = list(after(self._news, progress.last))
        self._news = progress.last
        told = fresh[: max(0, NEWS_AT_ONCE - self._said)]
        self._said += len(told)
        self._unsaid += len(fresh) - len(told)
        return told


def after(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """What was added to a list of the newest: behind the longest end of `before` that `now` begins with."""
    for kept in range(min(len(before), len(now)), 0, -1):
        if before[-kept:] == now[:kept]:
            return now[kept:]
    return now


def standing(progress: Progress) -> str:
    ended = progress.done + progress.failed
    failed = f", {progress.failed} set aside" if progress.failed else ""
    speed = "" if progress.tok_s is None else f", {progress.tok_s:,.1f} tok/s"
    eta = (
        "" if progress.left_s is None or ended == progress.total else f", about {format_seconds(progress.left_s)} left"
    )
    most = min(progress.limit, max(progress.in_flight, progress.total - ended))  # there are no more tasks than that
    agents = f"{progress.in_flight} of {most} agents at work"
    return f"{ended}/{progress.total} after {format_seconds(progress.elapsed_s)}{failed}, {agents}{speed}{eta}"


def _line_writer(deadline_s: float | None) -> Callable[[Progress], None]:
    ticker, page = Ticker(deadline_s), Page(width=sys.maxsize, encoding=sys.stderr.encoding or "utf-8")

    def take(progress: Progress) -> None:
        for line in ticker.take(progress):
            with contextlib.suppress(OSError):  # nobody reads on: the work is worth more than the story of it
                note(page.clean(line))

    return take


def _page(console: Console) -> Page:
    return Page(console.width, max(FEWEST_LINES, console.height) - 1, console.encoding)


def _text(lines: list[Line]) -> Text:
    from rich.text import Text

    return Text("\n", no_wrap=True, overflow="crop").join([Text.assemble(*line) for line in lines])
