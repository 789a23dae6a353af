"""The frame of every report page: head, style sheet and mark. A page refers to no other file."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from skep.report import theme
from skep.report.markup import Markup, join, optional_section, tag, text, trusted

# Scripts, fonts and requests are forbidden to the page itself, whatever a model name may hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_MARK = (
    '<svg viewBox="0 0 24 24" aria-hidden="true" fill="none" stroke="{0}" stroke-width="2" stroke-linecap="round">'
    '<path d="M7.5 6.5h9M5.3 11h13.4M4 15.5h16M3.5 20h17M9.5 2.5h5"/>'
    '<circle cx="12" cy="20" r="2.6" fill="{0}" stroke="none"/></svg>'
)


def document(title: str, *body: Markup) -> str:
    sheet = (files("skep.report") / "style.css").read_text(encoding="utf-8").replace("FONT", theme.FONT)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", text(title)),
        tag("link", rel="icon", href="data:,"),
        tag("style", trusted(f"{theme.style_rules()}\n{sheet}")),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def mark(what: str) -> Markup:
    return tag("p", trusted(_MARK.format(theme.HONEY)), join([tag("b", text("skep")), text(what)]), class_="mark")


Part = Markup | tuple[str, str, Markup | None] | None  # anchor, title and body make a section where there is a body


def report_page(
    kind: str, title: str, name: str, top: Iterable[Markup | None], parts: Iterable[Part], footer: str
) -> str:
    """Return a report: `top` stands below its title, `parts` follow."""
    header = tag("header", mark(kind), tag("h1", text(title)), *top)
    shown = (optional_section(*part) if isinstance(part, tuple) else part for part in parts)
    return document(f"{title}: skep {name}", header, tag("main", *shown), tag("footer", text(footer)))
