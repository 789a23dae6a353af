"""A figure of a record is described once, as a `Column`: for terminals, pages, Markdown, CSV and
JSON.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar
from unicodedata import combining, east_asian_width

import msgspec
from msgspec.structs import replace

from skep.units import UNKNOWN, number, percent, printable, shortened

Record = TypeVar("Record")
GAP = "  "
SHORTEST_CELL = 12  # a cell that is cut keeps so many characters
LONG_CELL = 24  # words are cut to this before another column goes


def plain_text(value: Any) -> str:
    """Return a value as it is printed where its column says nothing else; what is unknown is an en
    dash.
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return str(value)


as_count = partial(number, digits=0)


def as_percent(share: float) -> str:
    return percent(100 * share)


def plural(count: int, noun: str) -> str:
    """Return "1 agent", or "4 agents"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


class Column(msgspec.Struct, Generic[Record], frozen=True):
    """One figure: `key` in JSON and CSV, `title` over tables, `text` prints its value, `unit`
    stands behind that.

    `rank`: in a narrow terminal the highest go first, 0 stays. `optional`: left out where no
    record has a value. On a page: `style`, the class of its cells, or a function of the record;
    `group`, the head over it and its neighbours with the unit in it, and its name below that;
    `html`, its cells where they are more than text."""

    key: str
    title: str
    value: Callable[[Record], Any]
    text: Callable[[Any], str] = plain_text
    unit: str = ""
    rank: int = 0
    right: bool = True
    optional: bool = False
    style: str | Callable[[Record], str] = ""
    group: tuple[str, str] | None = None
    html: Callable[[Record], Any] | None = None

    def figure(self, record: Record) -> str:
        value = self.value(record)
        if value is None:
            return UNKNOWN
        return self.text(value)

    def cell(self, record: Record) -> str:
        """Return the figure with its unit; words that stand in its place have none."""
        text = self.figure(record)
        if text == UNKNOWN or isinstance(self.value(record), str):
            return text
        return text + self.unit

    def page_cell(self, record: Record) -> str:
        """Return what a page shows, whose heads of groups hold the unit."""
        if self.html:
            markup: str = self.html(record)
            return markup
        if self.group:
            return self.figure(record)
        return self.cell(record)

    def page_style(self, record: Record) -> str:
        """Return the class of a cell; nothing is bad about none."""
        if callable(self.style):
            style = self.style(record)
        else:
            style = self.style
        if style == "strong" or (style == "bad" and not self.value(record)):
            return ""
        return style or ("" if self.right else "left")


def at(path: str) -> Callable[[Any], Any]:
    """Return what reads a part of a record, as `figure.low`: None where it, or what it is a part
    of, is unknown.
    """

    def read(record: Any) -> Any:
        for name in path.split("."):
            if record is not None:
                if isinstance(record, Mapping):
                    record = record.get(name)
                else:
                    record = getattr(record, name)
        return record

    return read


def plain_columns(paths: str) -> list[Column[Any]]:
    """Return columns for programs: each a path, with another key in front where it has one, as
    `low=figure.low`.
    """
    columns = []
    for word in paths.split():
        key, _, path = word.rpartition("=")
        columns.append(Column(key or path, "", at(path)))
    return columns


def chosen(columns: Iterable[Column[Record]], keys: str) -> list[Column[Record]]:
    """Return the columns of the keys, parted by blanks, in their order; `key~2` has the rank 2."""
    by_key = {column.key: column for column in columns}
    picked = []
    for word in keys.split():
        key, _, rank = word.partition("~")
        column = replace(by_key[key], rank=int(rank or 0))
        picked.append(column)
    return picked


def present(columns: Iterable[Column[Record]], records: Sequence[Record]) -> list[Column[Record]]:
    """Return the columns without the optional ones that are unknown of every record."""
    return [
        column
        for column in columns
        if not column.optional or any(column.cell(record) != UNKNOWN for record in records)
    ]


def document_of(columns: Sequence[Column[Record]], record: Record) -> dict[str, Any]:
    return {column.key: column.value(record) for column in columns}


def documents(
    columns: Sequence[Column[Record]], records: Iterable[Record]
) -> list[dict[str, Any]]:
    return [document_of(columns, record) for record in records]


def csv_table(columns: Sequence[Column[Record]], records: Iterable[Record]) -> str:
    """Return CSV with the keys as its head; what is unknown is an empty field."""
    head = [column.key for column in columns]
    rows = ([_csv_value(column.value(record)) for column in columns] for record in records)
    return csv_text(head, rows)


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return value


def csv_text(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue()


def markdown_table(columns: Sequence[Column[Record]], records: Sequence[Record]) -> str:
    columns = present(columns, records)
    titles = [column.title for column in columns]
    rules = ["---:" if column.right else "---" for column in columns]
    rows = ([markdown_cell(column.cell(record)) for column in columns] for record in records)
    lines = [titles, rules, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_cell(text: str) -> str:
    """Return the text on one line, with nothing in it that Markdown takes for the end of a cell or
    for HTML.
    """
    return (
        " ".join(printable(text).split())
        .replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("<", "&lt;")
    )


def print_records(columns: Sequence[Column[Record]], records: Sequence[Record]) -> None:
    """Print the table on stdout, in bold titles and fitted to its width where that is a
    terminal.
    """
    width = terminal_width()
    head, *lines = record_lines(columns, records, width)
    has_colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if width is not None and has_colours:
        head = f"\x1b[1m{head}\x1b[0m"
    print("\n".join([head, *lines]))  # noqa: T201


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is; None where it is none, and no line is
    broken.
    """
    if sys.stdout.isatty():
        return max(40, shutil.get_terminal_size().columns)
    return None


def record_lines(
    columns: Sequence[Column[Record]],
    records: Sequence[Record],
    width: int | None = None,
) -> list[str]:
    """Return the lines of a table.

    In a given width, columns of a rank go first, then the widest cells are cut.
    """
    columns = present(columns, records)
    cells = [
        [column.title, *(printable(column.cell(record)) for record in records)]
        for column in columns
    ]
    widths = [max(map(text_width, texts)) for texts in cells]
    places = list(range(len(columns)))
    if width is not None:
        places = _places_that_fit(columns, widths, width)
        widths = _cut_widths(columns, widths, places, width)
    padded_columns = [
        [padded(text, widths[place], columns[place].right) for text in cells[place]]
        for place in places
    ]
    lines = [GAP.join(texts).rstrip() for texts in zip(*padded_columns, strict=True)]
    left_out = [column.title for n, column in enumerate(columns) if n not in places]
    named = ", ".join(filter(None, left_out))
    if named and width is not None:
        lines.append(shortened(f"(not shown at this width: {named})", width))
    return lines


def _places_that_fit(
    columns: Sequence[Column[Record]],
    widths: Sequence[int],
    width: int,
) -> list[int]:
    """Return the places of the columns that stay: the highest rank goes first, rank 0 never."""
    least_widths = [
        size if column.right else min(size, LONG_CELL)
        for size, column in zip(widths, columns, strict=True)
    ]
    places = list(range(len(columns)))
    while _line_width(least_widths, places) > width:
        ranked = [place for place in places if columns[place].rank > 0]
        if not ranked:
            break
        places.remove(max(ranked, key=lambda place: (columns[place].rank, place)))
    return places


def _cut_widths(
    columns: Sequence[Column[Record]],
    widths: Sequence[int],
    places: Sequence[int],
    width: int,
) -> list[int]:
    """Return the widths with the widest columns of words made narrower, until the line fits."""
    cut = list(widths)
    of_words = [place for place in places if not columns[place].right]
    while of_words and _line_width(cut, places) > width:
        widest = max(of_words, key=cut.__getitem__)
        if cut[widest] <= SHORTEST_CELL:
            break
        cut[widest] -= 1
    return cut


def _line_width(widths: Sequence[int], places: Sequence[int]) -> int:
    texts = sum(widths[place] for place in places)
    gaps = len(GAP) * (len(places) - 1)
    return texts + gaps


def text_width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_letter_width, text))


def _letter_width(letter: str) -> int:
    if combining(letter):
        return 0
    if east_asian_width(letter) in "WF":
        return 2
    return 1


def padded(text: str, width: int, right: bool = False) -> str:
    """Return the text in that width.

    Too long a name is cut in its middle, as names differ at their ends.
    """
    if text_width(text) > width:
        end = "" if " " in text else text[-4:]
        while text and text_width(text) + len(end) >= width:
            text = text[:-1]
        text += f"…{end}"
    blank = " " * (width - text_width(text))
    if right:
        return blank + text
    return text + blank
