"""The live view under `up`, `top`, bench, swarm and tune: a page that is drawn again and again, by
rich.live.

A frame is a function from the page, which is its size, to lines. It is asked whenever it is drawn,
so that a terminal may change its size. Where there is no terminal, what would be shown is printed
as plain lines now and then."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import fmean
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import msgspec

from skep.report.columns import Column, record_lines
from skep.report.terminal import note
from skep.stats.percentiles import runs_interval
from skep.units import format_seconds, number

if TYPE_CHECKING:
    from rich.text import Text

    from skep.bench.session import SessionProgress

P = TypeVar("P")
REFRESH_PER_S = 4
FEWEST_LINES = 10
BAR_CHARS = 24
UP = b"\x1b[A"
DOWN = b"\x1b[B"
MIDDLING_COLOUR = "yellow"  # neither good nor bad

Line = list[tuple[str, str]]  # (text, style)


class Page(msgspec.Struct, frozen=True):
    """The place that a frame is drawn in. `height` None: as many lines as it takes."""

    width: int = 80
    height: int | None = None

    def wrapped(self, text: str, style: str, indent: str = "") -> list[Line]:
        parts = wrap(
            cleaned(text), max(20, self.width - len(indent)), max_lines=3, placeholder=" …"
        )
        return [[(indent + part, style)] for part in parts]


Frame = Callable[[Page], list[Line]]


def can_draw(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextlib.contextmanager
def live_view(frame: Frame, *, whole_screen: bool = False) -> Iterator[Callable[[float], bool]]:
    """Draw a frame while the block runs: below what is printed on stderr, or on the whole screen
    of stdout.

    Gives a pause, which draws anew and ends early, with True, when q is pressed; arrows move what
    has no place on the screen. The terminal is left as it was, and one that went away is no reason
    to stop working."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=not whole_screen, highlight=False)
    first = 0

    def page() -> Text:
        nonlocal first
        if whole_screen:
            height = console.height
        else:
            height = max(FEWEST_LINES, console.height) - 1
        lines = frame(Page(console.width, height))
        first = max(0, min(first, len(lines) - height))
        if below := max(0, len(lines) - first - height):
            if whole_screen:
                remedy = "arrow down, or a taller window"
            else:
                remedy = "a taller window"
            lines = [
                *lines[first : first + height - 1],
                [(f"{below + 1} more lines: {remedy}", MIDDLING_COLOUR)],
            ]
        return drawn(lines[-height:])

    def pause(seconds: float) -> bool:
        nonlocal first
        live.refresh()
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            for descriptor in select.select(watched, [], [], left_s)[0]:
                pressed = os.read(descriptor, 64)
                if not pressed or b"q" in pressed.lower():
                    return True
                first += pressed.count(DOWN) - pressed.count(UP)
                live.refresh()
        return False

    live = Live(
        get_renderable=page,
        console=console,
        screen=whole_screen,
        auto_refresh=not whole_screen,
        refresh_per_second=REFRESH_PER_S,
        transient=True,
        redirect_stdout=False,  # data stays data
    )
    with _keys(whole_screen) as watched:
        with contextlib.suppress(OSError):
            live.start()
        try:
            yield pause
        finally:
            with contextlib.suppress(OSError):
                live.stop()


@contextlib.contextmanager
def _keys(read_keys: bool) -> Iterator[list[int]]:
    """Give the descriptors on which keys are heard one by one."""
    if read_keys and sys.stdin.isatty():
        watched = [sys.stdin.fileno()]
    else:
        watched = []
    before = [termios.tcgetattr(descriptor) for descriptor in watched]
    try:
        if read_keys:
            # Ctrl-Z would leave the shell on our screen.
            signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        for descriptor in watched:
            tty.setcbreak(descriptor)
        yield watched
    finally:
        for descriptor, mode in zip(watched, before, strict=True):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)


@contextlib.contextmanager
def progress_view(
    print_lines: Callable[[P], None], frame: Callable[[P, Page], list[Line]]
) -> Iterator[Callable[[P], None]]:
    """Give a function that is told how far the work is: the newest is drawn."""
    if not can_draw(sys.stderr):
        yield print_lines
        return
    newest: list[P] = []

    def take(progress: P) -> None:
        newest[:] = [progress]

    with live_view(lambda page: frame(newest[-1], page) if newest else []):
        yield take


def drawn(lines: list[Line]) -> Text:
    from rich.text import Text

    parts: list[Any] = [
        Text.assemble(*((cleaned(text), style) for text, style in line)) for line in lines
    ]
    return Text("\n", no_wrap=True, overflow="crop").join(parts)


def cleaned(text: str) -> str:
    """Return the text without control characters, which engines may write."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def bar_cells(parts: Sequence[int], total: int, width: int) -> list[int]:
    """Return the cells of a bar for each part: only a part of zero has none, and together they
    fill it.
    """
    cells = [max(min(part, 1), round(width * part / max(1, total))) for part in parts]
    while (over := sum(cells) - width) != 0:
        cells[cells.index(max(cells))] -= 1 if over > 0 else -1
    return cells


def sparkline(values: Iterable[float], room: int, digits: int = 0) -> str:
    """Draw the newest values and say their maximum. Whatever is above zero is drawn above zero."""
    newest = list(values)[-max(1, room - 20) :]
    maximum = max(newest, default=0.0)
    heights = (0 if value <= 0 else max(1, round(7 * value / maximum)) for value in newest)
    return "".join("▁▂▃▄▅▆▇█"[height] for height in heights) + f"  max {maximum:,.{digits}f}"


def progress_bar(done: int, total: int | None) -> str:
    filled = min(BAR_CHARS, round(BAR_CHARS * done / total)) if total else 0
    return "━" * filled + "─" * (BAR_CHARS - filled)


LINE_EVERY_S = 10.0  # at least, while a part of a run lasts


class LevelLines:
    """Prints a line when a part of a run begins, one every ten seconds, and its figure when it has
    ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: set[str] = set()
        self._last_line_s = float("-inf")

    def __call__(self, progress: SessionProgress) -> None:
        part = where(progress)
        if part not in self._begun:
            self._begun.add(part)
            self._say(f"{part}: {_how_many(progress)}{_left(progress)}")
        elif progress.ended and progress.figures.get(progress.level):
            figure = number(progress.figures[progress.level][-1], digits=1)
            self._say(f"{part}: {figure} tok/s{_failed_so_far(progress)}")
        elif self._clock() - self._last_line_s >= LINE_EVERY_S:
            if progress.tok_s:
                speed = f", {number(progress.tok_s, digits=1)} tok/s now"
            else:
                speed = ""
            if progress.total:
                done = f"{progress.done:,} of {_how_many(progress)} done"
            else:
                done = f"{progress.done:,} done"
            self._say(
                f"{part}: {done}, {progress.in_flight} in flight{speed}{_failed_so_far(progress)}"
            )

    def _say(self, line: str) -> None:
        self._last_line_s = self._clock()
        note(line)


def _failed_so_far(progress: SessionProgress) -> str:
    if progress.failed:
        return f", {progress.failed} failed so far"
    return ""


_RUNNING: tuple[Column[tuple[int, Sequence[float]]], ...] = (
    Column("concurrency", "C", lambda row: row[0]),
    Column("runs", "runs", lambda row: len(row[1])),
    Column("effective_tok_s", "eff tok/s", lambda row: fmean(row[1]), partial(number, digits=1)),
    Column(
        "spread",
        "95 %",
        lambda row: runs_interval(row[1]),
        lambda interval: f"± {100 * interval.upper_width:.1f} %",
    ),
)


def level_frame(progress: SessionProgress, _page: Page) -> list[Line]:
    if progress.figures:
        table = record_lines(_RUNNING, sorted(progress.figures.items()))
    else:
        table = []
    return [[(line, "")] for line in (*table, now_line(progress))]


def now_line(progress: SessionProgress) -> str:
    if progress.total:
        many = f"{progress.done:,}/{progress.total:,}"
    else:
        many = f"{progress.done:,}"
    line = f"{where(progress)}  {progress_bar(progress.done, progress.total)}  {many}"
    if progress.stage == "judging":
        return f"{line} answers"
    if progress.tok_s:
        speed = f" · {number(progress.tok_s, digits=1)} tok/s now"
    else:
        speed = ""
    return (
        f"{line} requests{speed} · {progress.in_flight} in flight · {progress.failed} "
        f"failed{_left(progress)}"
    )


def where(progress: SessionProgress) -> str:
    """Return which part of a run is under way; those of a judged run have a stage."""
    if not progress.level:
        return progress.stage
    if progress.stage == "judging":
        return f"C={progress.level}: judging"
    if progress.stage == "asking":
        if progress.label in ("base", "again", "load"):
            turns = " and C=1 in turns"
        else:
            turns = f", {progress.label}"
        return f"C={progress.level}{turns}"
    return f"{progress.label or f'C={progress.level}'} run {progress.repeat + 1}"


def _how_many(progress: SessionProgress) -> str:
    if progress.total:
        noun = "answer" if progress.stage == "judging" else "request"
        return f"{progress.total:,} {noun}{'' if progress.total == 1 else 's'}"
    if progress.stage == "asking":
        return "until the conversation ends"
    return "for a time"


def _left(progress: SessionProgress) -> str:
    runs = round(progress.runs_left)
    if progress.left_s is None or not progress.level or not (runs or progress.stage == "asking"):
        return ""
    if runs:
        rest = f", {runs} more run{'s' if runs > 1 else ''} at most"
    else:
        rest = " of this level"
    return f" · about {format_seconds(progress.left_s)} left{rest}"
