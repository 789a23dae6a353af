"""The frame of every page: head, navigation, main part, footer. Pages hand over their body as markup.

Nothing inline runs: scripts and style sheets are files of the package, and the headers forbid everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from html import escape

from starlette.responses import HTMLResponse, StreamingResponse

from skep import __version__
from skep.errors import SkepError
from skep.report import theme
from skep.report.markup import Markup, join, tag, text, trusted
from skep.report.ticks import zone_name
from skep.units import printable
from skep.web.assets import asset
from skep.web.context import Site

# Name, address, title, the key that goes there after `g`.
PAGES = (
    ("now", "/", "Now", "n"),
    ("history", "/history", "History", "h"),
    ("compare", "/compare", "Compare", "c"),
    ("runs", "/runs", "Runs", "r"),
    ("plan", "/plan", "Plan", "p"),
    ("tuning", "/tuning", "Tuning", "t"),
)
_MARK = (
    f'<svg viewBox="0 0 24 24" aria-hidden="true" fill="none" stroke="{theme.HONEY}" stroke-width="2"'
    ' stroke-linecap="round"><path d="M7.5 6.5h9M5.3 11h13.4M4 15.5h16M3.5 20h17M9.5 2.5h5"/>'
    f'<circle cx="12" cy="20" r="2.6" fill="{theme.HONEY}" stroke="none"/></svg>'
)


def page(
    site: Site,
    current: str,
    title: str,
    body: Markup,
    *,
    scripts: tuple[str, ...] = (),
    styles: tuple[str, ...] = (),
    lead: str = "",
    status: int = 200,
) -> HTMLResponse:
    """`current` is the name of one of PAGES, or "" for none. `scripts` and `styles` name files in `static/`."""
    main = tag(
        "main",
        tag("h1", text(title)),
        tag("p", text(lead), class_="lead") if lead else None,
        body,
        id="main",
        tabindex="-1",
    )
    frame = (
        tag("a", text("Skip to content"), href="#main", class_="skip"),
        _header(site, current),
        main,
        _footer(site),
        _help(),
    )
    attributes = {"lang": "en", "data_page": current}
    whole = tag("html", _head(title, ("keys.js", *scripts), ("skep.css", *styles)), tag("body", *frame), **attributes)
    return HTMLResponse(f"<!doctype html>\n{whole}\n", status_code=status)


def void(name: str, /, **attributes: str | None) -> Markup:
    """An element without content, such as `input`. `""` writes an attribute without value."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + (f'="{escape(printable(value))}"' if value else "")
        for key, value in attributes.items()
        if value is not None
    )
    return trusted(f"<{name}{written}>")


def head_row(names: Sequence[str], left: Sequence[str] = ()) -> Markup:
    """Return the header row of a table. Columns of words, named in `left`, are set to the left."""
    return tag("tr", *(tag("th", text(name), scope="col", class_="left" if name in left else None) for name in names))


def downloads(name: str, query: str = "") -> Markup:
    """Links to what is on screen as JSON and CSV, with the same query string."""
    end = f"?{query}" if query else ""
    links = join(
        tag("a", text(kind.upper()), href=f"/api/{name}.{kind}{end}", download=f"skep-{name}.{kind}")
        for kind in ("json", "csv")
    )
    return tag("p", text("This page as "), links, class_="downloads")


def _head(title: str, scripts: tuple[str, ...], styles: tuple[str, ...]) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", text(f"{title} · skep")),
        tag("link", rel="icon", type="image/svg+xml", href=asset("icon.svg")),
        *(tag("link", rel="stylesheet", href=asset(name)) for name in dict.fromkeys(styles)),
        *(tag("script", src=asset(name), defer="") for name in dict.fromkeys(scripts)),
    )


def _header(site: Site, current: str) -> Markup:
    links = join(
        tag("li", tag("a", text(title), href=address, aria_current="page" if name == current else None, data_key=key))
        for name, address, title, key in PAGES
    )
    home = tag("a", trusted(_MARK), tag("b", text("skep")), href="/", class_="mark", aria_label="skep, now")
    leave = (
        tag("form", tag("button", text("Log out"), class_="plain"), method="post", action="/logout", class_="leave")
        if site.guarded
        else None
    )
    return tag("header", home, tag("nav", tag("ul", links), aria_label="Pages"), leave, class_="top")


def _footer(site: Site) -> Markup:
    shown = " · read-only, public" if site.public else ""
    shown += f" · times in {zone_name(site.clock())}"
    keys = tag("span", text(" · press "), tag("kbd", text("?")), text(" for keys"), class_="hint")
    return tag("footer", text(f"skep {__version__}{shown}"), keys)


def _help() -> Markup:
    rows = [(f"g {key} or {place}", title) for place, (_, _, title, key) in enumerate(PAGES, 1)]
    rows += [("/", "first field of the page"), ("?", "this help"), ("Esc", "close it")]
    pairs = join(tag("div", tag("dt", tag("kbd", text(keys))), tag("dd", text(what))) for keys, what in rows)
    close = tag("form", tag("button", text("Close")), method="dialog")
    return tag("dialog", tag("h2", text("Keys"), id="keys-title"), tag("dl", pairs), close, id="keys",
               aria_labelledby="keys-title")  # fmt: skip


log = logging.getLogger("skep.web")
PLACE = trusted("<!--parts-->")  # of the parts, in the body handed to `page`


def streamed(site: Site, whole: HTMLResponse, parts: Iterator[Markup]) -> StreamingResponse:
    """`whole` has PLACE in it once. What goes wrong once the page has begun is told on it, in place of the rest."""
    before, _, after = bytes(whole.body).partition(PLACE.encode())

    def pieces() -> Iterator[bytes]:
        yield before
        try:
            for part in parts:
                yield part.encode()
        except SkepError as error:
            told = "this cannot be shown right now" if site.public else error.message
            yield _told(told)
        except Exception as error:  # the border of the process: the reader gets a whole page, the log the reason
            log.error("page.failed error=%r", error)
            yield _told("the rest of this page could not be made")
        yield after

    return StreamingResponse(pieces(), status_code=whole.status_code, media_type="text/html; charset=utf-8")


def _told(words: str) -> bytes:
    return tag("p", text(words), class_="banner incomplete", role="alert").encode()
