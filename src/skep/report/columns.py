"""Columns: what a figure of a record is called, how it is printed, and tables of them in every form.

A figure is described once, as a `Column`; a terminal, a page, Markdown, CSV and JSON get their tables from here.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Generic, TypeVar
from unicodedata import combining, east_asian_width

from skep.report.markup import Markup, table, tag, text
from skep.units import UNKNOWN, number, printable, shortened

Record = TypeVar("Record")
GAP = "  "
SHORTEST_CELL = 12  # a cell that is cut keeps so many characters
LONG_CELL = 24  # words are cut to this before another column goes


def plain_text(value: Any) -> str:
    """Return a value as it is printed where its column says nothing else; what is unknown is an en dash."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Column(Generic[Record]):
    """One figure: `key` in JSON and CSV, `title` over tables, `text` prints its value, `unit` stands behind that.

    `rank`: where the terminal is narrow the columns of the highest rank go first; those of rank 0 stay.
    `optional`: left out where no record has a value.
    On a page: `style`, the class of its cells, or a function of the record; `group`, the head over it and its
    neighbours with the unit in it, and its name below that; `html`, its cells where they are more than text.
    """

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
    html: Callable[[Record], Markup] | None = None

    def figure(self, record: Record) -> str:
        value = self.value(record)
        return UNKNOWN if value is None else self.text(value)

    def cell(self, record: Record) -> str:
        """Return the figure with its unit; words that stand in its place have none."""
        shown = self.figure(record)
        return shown if shown == UNKNOWN or isinstance(self.value(record), str) else shown + self.unit


def chosen(columns: Iterable[Column[Record]], keys: str) -> list[Column[Record]]:
    """Return the columns of the keys, parted by blanks, in their order; `key~2` has the rank 2."""
    by_key = {one.key: one for one in columns}
    named = [key.partition("~") for key in keys.split()]
    return [replace(by_key[key], rank=int(rank or 0)) for key, _, rank in named]


def present(columns: Iterable[Column[Record]], records: Sequence[Record]) -> list[Column[Record]]:
    """Return the columns without the optional ones that are unknown of every record."""
    return [one for one in columns if not one.optional or any(one.cell(record) != UNKNOWN for record in records)]


def documents(columns: Sequence[Column[Record]], records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the records as JSON documents."""
    return [{one.key: one.value(record) for one in columns} for record in records]


def csv_table(columns: Sequence[Column[Record]], records: Iterable[Record]) -> str:
    """Return CSV with the keys as its head; what is unknown is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([one.key for one in columns])
    writer.writerows([[_csv_cell(one.value(record)) for one in columns] for record in records])
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value


def markdown_table(columns: Sequence[Column[Record]], records: Sequence[Record]) -> str:
    """Return the table in Markdown."""
    columns = present(columns, records)
    lines = [[one.title for one in columns], ["---:" if one.right else "---" for one in columns]]
    lines += [[markdown_cell(one.cell(record)) for one in columns] for record in records]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_cell(text: str) -> str:
    """Return the text on one line, with nothing in it that Markdown takes for the end of a cell or for HTML."""
    one_line = " ".join(printable(text).split())
    return one_line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def html_table(
    caption: str, columns: Sequence[Column[Record]], records: Sequence[Record], *, best: Sequence[int] = ()
) -> Markup:
    """Return the table for a page; the first column names the row."""
    columns = present(columns, records)
    rows = [
        tag(
            "tr",
            tag("th", _html_cell(columns[0], record), scope="row"),
            *(tag("td", _html_cell(one, record), class_=_style(one, record)) for one in columns[1:]),
            class_="best" if place in best else None,
        )
        for place, record in enumerate(records)
    ]
    return table(caption, _html_head(columns), rows)


def _html_head(columns: Sequence[Column[Record]]) -> list[Markup]:
    """Return one row; two where columns are grouped, and then the unit stands over them."""
    if not any(one.group for one in columns):
        return [tag("tr", *(tag("th", text(one.title), scope="col", class_=_left(one)) for one in columns))]
    above: list[Markup] = []
    for group, some in groupby(columns, key=lambda one: one.group and f"{one.group[0]}{one.unit and f',{one.unit}'}"):
        if group is None:
            above += [tag("th", text(one.title), rowspan="2", scope="col", class_="left") for one in some]
        else:
            above.append(tag("th", text(group), colspan=str(len(list(some))), scope="colgroup"))
    below = (tag("th", text(one.group[1]), scope="col", class_=_left(one)) for one in columns if one.group)
    return [tag("tr", *above, class_="group"), tag("tr", *below)]


def _html_cell(one: Column[Record], record: Record) -> Markup:
    if one.html is not None:
        return one.html(record)
    shown = text(one.figure(record) if one.group else one.cell(record))
    return tag("b", shown) if one.style == "strong" else shown


def _style(one: Column[Record], record: Record) -> str | None:
    """Return the class of a cell; nothing is bad about none."""
    style = one.style(record) if callable(one.style) else one.style
    if style == "strong" or (style == "bad" and not one.value(record)):
        return None
    return style or (None if one.right else "left")


def _left(one: Column[Record]) -> str | None:
    return None if one.right else "left"


def print_records(columns: Sequence[Column[Record]], records: Sequence[Record]) -> None:
    """Print the table on stdout; on a terminal it fits its width."""
    print_cells(*_cells(columns, records))


def record_lines(columns: Sequence[Column[Record]], records: Sequence[Record], width: int | None = None) -> list[str]:
    """Return the lines of the table, within a given width."""
    return table_lines(*_cells(columns, records), width)


def _cells(
    columns: Sequence[Column[Record]], records: Sequence[Record]
) -> tuple[list[str], list[list[str]], list[bool], list[int]]:
    columns = present(columns, records)
    cells = [[one.cell(record) for one in columns] for record in records]
    return [one.title for one in columns], cells, [one.right for one in columns], [one.rank for one in columns]


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is; None where it is none, and no line is broken."""
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def print_cells(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], ranks: Sequence[int]
) -> None:
    """Print a table on stdout, in bold titles and fitted to its width where that is a terminal."""
    width = terminal_width()
    head, *lines = table_lines(titles, rows, right, ranks, width)
    bold = width is not None and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print("\n".join([f"\x1b[1m{head}\x1b[0m" if bold else head, *lines]))  # noqa: T201


def table_lines(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[bool],
    ranks: Sequence[int],
    width: int | None = None,
) -> list[str]:
    """Return the lines of a table. In a given width, columns of a rank go first, then the widest cells are cut."""
    table = [list(titles), *([printable(cell) for cell in row] for row in rows)]
    kept = list(range(len(titles)))
    widths = [max(map(text_width, column)) for column in zip(*table, strict=True)]
    least = [size if at_right else min(size, LONG_CELL) for size, at_right in zip(widths, right, strict=True)]
    while width is not None and _line_width(least, kept) > width:
        ranked = [place for place in kept if ranks[place] > 0]
        if not ranked:
            break
        kept.remove(max(ranked, key=lambda place: (ranks[place], place)))
    left_out = [title for place, title in enumerate(titles) if title and place not in kept]
    while width is not None and _line_width(widths, kept) > width:
        widest = max((place for place in kept if not right[place]), key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= SHORTEST_CELL:
            break
        widths[widest] -= 1
    lines = [GAP.join(padded(row[n], widths[n], right[n]) for n in kept).rstrip() for row in table]
    if left_out and width is not None:
        lines.append(shortened(f"(not shown at this width: {', '.join(left_out)})", width))
    return lines


def text_width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def _line_width(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[place] for place in kept) + len(GAP) * (len(kept) - 1)


def padded(text: str, width: int, right: bool = False) -> str:
    """Return the text in that width. Too long a name is cut in its middle, as names differ at their ends."""
    if text_width(text) > width:
        end = "" if " " in text else text[-4:]
        while text and text_width(text) + len(end) >= width:
            text = text[:-1]
        text += f"…{end}"
    blank = " " * (width - text_width(text))
    return blank + text if right else text + blank


def split_titles(columns: str | Sequence[str]) -> tuple[list[str], list[bool], list[int]]:
    """Return titles, which are right-aligned (a `>` in front) and ranks (`~2` behind) of "name|>tok/s|started~2"."""
    titles, right, ranks = [], [], []
    for column in columns.split("|") if isinstance(columns, str) else columns:
        title, _, rank = column.partition("~")
        titles.append(title.removeprefix(">"))
        right.append(title.startswith(">"))
        ranks.append(int(rank or 0))
    return titles, right, ranks
