"""HTML from small functions. Text becomes `Markup` only by being escaped, so mypy finds what was not."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import NewType

from skep.units import printable

Markup = NewType("Markup", str)

_VOID = frozenset({"meta", "link", "br", "hr"})


def text(value: object) -> Markup:
    return Markup(escape(printable(str(value))))


def trusted(markup: str) -> Markup:
    """For markup that skep itself wrote: pictures and style sheets."""
    return Markup(markup)


def join(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def tag(name: str, /, *children: Markup | None, **attributes: str | None) -> Markup:
    """`class_` and `aria_label` become `class` and `aria-label`; what is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{''.join(child for child in children if child)}</{name}>")


def card(value: str, label: str, note: str) -> Markup:
    return tag(
        "div",
        tag("dt", text(label)),
        tag("dd", text(value), class_="value"),
        tag("dd", text(note), class_="note"),
        class_="card",
    )


def card_list(*cards: tuple[str, str, str]) -> Markup:
    """Return the key figures of a page: value, label and note of each."""
    return tag("dl", *(card(*one) for one in cards), class_="cards")


def figure(picture: Markup, title: str, caption: str) -> Markup:
    heading = tag("figcaption", tag("strong", text(title)), tag("span", text(caption)))
    return tag("figure", heading, picture)


def wide_figure(picture: Markup, title: str, caption: str) -> Markup:
    """Over the whole page; on a small screen the picture is scrolled rather than shrunk to nothing."""
    heading = tag("figcaption", tag("strong", text(title)), tag("span", text(caption)))
    return tag("figure", heading, tag("div", picture, class_="roll", tabindex="0"), class_="wide")


def banner(kind: str, title: str, body: str) -> Markup:
    return tag("p", tag("strong", text(title)), text(f" {body}"), class_=f"banner {kind}", role="note")


def section(anchor: str, title: str, *children: Markup | None) -> Markup:
    return tag("section", tag("h2", text(title), id=anchor), *children, aria_labelledby=anchor)


def optional_section(anchor: str, title: str, body: Markup | None) -> Markup | None:
    return section(anchor, title, body) if body else None


def term_list(kind: str) -> Markup:
    """Return what each figure of this kind of report means, from `terms.toml`."""
    terms = tomllib.loads((files("skep.report") / "terms.toml").read_text(encoding="utf-8"))[kind]
    entries = (tag("div", tag("dt", text(name)), tag("dd", text(meaning))) for name, meaning in terms.items())
    return tag("dl", join(entries), class_="terms")


def definitions(title: str, facts: Iterable[tuple[str, str]]) -> Markup:
    pairs = join(tag("div", tag("dt", text(name)), tag("dd", text(value))) for name, value in facts)
    return tag("div", tag("h3", text(title)), tag("dl", pairs), class_="facts")


def table(caption: str, head: Iterable[Markup], rows: Iterable[Markup]) -> Markup:
    return tag(
        "div",
        tag("table", tag("caption", text(caption)), tag("thead", *head), tag("tbody", *rows)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


Column = str | tuple[str, str]  # its name, and the style of its cells
Cell = object  # what is shown as text; with a style of its own: a pair


def text_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    *,
    inner: Mapping[str, str] | None = None,
    best: Sequence[int] = (),
) -> Markup:
    """Return a table of texts; the first column names the row. `inner`: by column, the tag around its texts."""
    named = [(one, None) if isinstance(one, str) else one for one in columns]
    names = [
        tag("th", text(name), scope="col", class_="left" if style and style.split()[0] in _AT_LEFT else None)
        for name, style in named
    ]
    body = []
    for place, row in enumerate(rows):
        cells: list[Markup] = []
        for (name, usual), cell in zip(named, row, strict=True):
            value, style = cell if isinstance(cell, tuple) else (cell, usual)
            wrapped = tag(inner[name], text(value)) if inner and name in inner else text(value)
            cells.append(tag("td", wrapped, class_=style) if cells else tag("th", wrapped, scope="row"))
        body.append(tag("tr", *cells, class_="best" if place in best else None))
    return table(caption, [tag("tr", *names)], body)


_AT_LEFT = ("left", "wide", "note")
