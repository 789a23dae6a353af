"""Output of commands: data on stdout, narration on stderr, progress bars only on a terminal."""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from operator import itemgetter
from typing import Any, TypeVar

from msgspec import to_builtins

T = TypeVar("T")
_STAND_INS = {
    "–": "-",
    "█": "#",
    "▏": "|",
    "░": ":",
    "→": "->",
    "…": "...",
    "▒": "%",
    "·": ".",
    "━": "=",
    "╳": "x",
}
_STAND_INS |= {"−": "-", "×": "x", "─": "-", **dict(zip("▁▂▃▄▅▆▇", "_.:-=+*", strict=True))}


def print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2))  # noqa: T201


def picked(record: Any, names: str) -> dict[str, Any]:
    """Return some attributes of a record as JSON knows them."""
    return {name: to_builtins(getattr(record, name)) for name in names.split()}


def note(*lines: str) -> None:
    """Print lines of narration on stderr."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)  # noqa: T201


def print_list(
    items: Sequence[T],
    print_items: Callable[[Sequence[T]], None],
    document: Callable[[T], Any],
    *,
    as_json: bool,
    none_yet: str,
) -> None:
    """Print items as one JSON list or as a table, with a word instead of an empty one."""
    if as_json:
        print_json([document(item) for item in items])
    elif items:
        print_items(items)
    else:
        note(none_yet)


def print_table(columns: str, cells: Callable[[T], Sequence[Any]], items: Sequence[T]) -> None:
    """Print a table of the titles "name|>tok/s|started~2": right-aligned with a `>` in front, with
    a rank behind.
    """
    from skep.report.columns import Column, print_records

    described: list[Column[Any]] = []
    for place, column in enumerate(columns.split("|")):
        title, _, rank = column.removeprefix(">").partition("~")
        right = column.startswith(">")
        described.append(
            Column(title, title, itemgetter(place), str, rank=int(rank or 0), right=right)
        )
    print_records(described, [cells(item) for item in items])


def speak_plainly() -> None:
    """Replace bars and dashes by plain characters where the terminal's encoding lacks them."""

    def replace(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return "".join(
            _STAND_INS.get(letter, "?") for letter in error.object[error.start : error.end]
        ), error.end

    codecs.register_error("skep-plain", replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="skep-plain")


def day_and_time(at: float) -> str:
    """Return a moment on the clock of this machine, as lists show it."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


@contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar of bytes on a terminal; elsewhere, print a line for each quarter."""
    if not sys.stderr.isatty():
        last_quarter = -1

        def say(done: int, total: int | None) -> None:
            nonlocal last_quarter
            quarter = 4 * done // total if total else 0
            if quarter > last_quarter:
                last_quarter = quarter
                note(f"{label}: {25 * quarter} %" if total else f"{label} ...")

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=None)

    def show(done: int, total: int | None) -> None:
        """Show the bar from the first byte to the last, so that what follows can draw its own."""
        if not bar.finished:
            bar.start()
            bar.update(task, completed=done, total=total)
            if total is not None and done >= total:
                bar.stop()

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def count_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a line on stderr that counts: `3 of 12 formats planned`. Nothing is shown where nobody
    watches.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _all: None
        return
    with console.status("") as status:
        yield lambda done, total: status.update(f"{done} of {total} {label}")
