"""A page that is sent as it is made: its head and form at once, then each part when it is drawn.

A browser paints what it has, so a reader sees the page while the store is still being asked. Needs no script.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from starlette.responses import HTMLResponse, StreamingResponse

from skep.errors import SkepError
from skep.report.markup import Markup, tag, text, trusted
from skep.web.site import Site

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
