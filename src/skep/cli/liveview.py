"""What a terminal shows while a run goes on: the levels so far, and a line on what happens at this moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

from skep.bench.sweep import SweepProgress
from skep.cli.output import note, number
from skep.stats.percentiles import runs_interval
from skep.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

P = TypeVar("P")
BAR = 24


@contextmanager
def progress_view(lines: Callable[[P], None], picture: Callable[[P], RenderableType]) -> Iterator[Callable[[P], None]]:
    """A picture that redraws itself on a terminal; lines elsewhere."""
    if not sys.stderr.isatty():
        yield lines
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
        yield lambda progress: live.update(picture(progress))


def live_view() -> AbstractContextManager[Callable[[SweepProgress], None]]:
    """Return the levels so far and what happens now; a line for each run of a level where there is no terminal."""
    return progress_view(level_lines(), picture)


def level_lines() -> Callable[[SweepProgress], None]:
    said: set[tuple[int, int]] = set()

    def show(progress: SweepProgress) -> None:
        key = (progress.level, progress.repeat)
        if key not in said:
            said.add(key)
            how_many = f"{progress.total} requests" if progress.total else "for a time"
            note(f"{where(progress)}: {how_many}{left(progress)}")
        elif progress.ended and progress.figures.get(progress.level):
            speed = progress.figures[progress.level][-1]
            failed = f", {progress.failed} failed so far" if progress.failed else ""
            note(f"{where(progress)}: {number(speed)} tok/s{failed}")

    return show


def picture(progress: SweepProgress) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("C", "runs", "eff tok/s", "95 %"):
        table.add_column(name, justify="right")
    for level, figures in sorted(progress.figures.items()):
        interval = runs_interval(figures)
        spread = "–" if interval is None else f"± {100 * interval.upper_width:.1f} %"
        mean = sum(figures) / len(figures)
        table.add_row(str(level), str(len(figures)), number(mean), spread)
    lines: list[RenderableType] = [table] if progress.figures else []
    return Group(*lines, Text(now_line(progress)))


def now_line(progress: SweepProgress) -> str:
    filled = min(BAR, round(BAR * progress.done / progress.total)) if progress.total else 0
    total = f"/{progress.total}" if progress.total else ""
    speed = f" · {number(progress.tok_s)} tok/s now" if progress.tok_s else ""
    return (
        f"{where(progress)}  {'━' * filled}{'─' * (BAR - filled)}  {progress.done}{total} requests{speed}"
        f" · {progress.in_flight} in flight · {progress.failed} failed{left(progress)}"
    )


def where(progress: SweepProgress) -> str:
    if progress.level == 0:
        return "warming up"
    return f"{progress.label or f'C={progress.level}'} run {progress.repeat + 1}"


def left(progress: SweepProgress) -> str:
    if progress.left_s is None or not progress.level:
        return ""
    runs = round(progress.runs_left)
    plural = "s" if runs > 1 else ""
    return f" · about {format_seconds(progress.left_s)} left, {runs} more run{plural} at most" if runs else ""
