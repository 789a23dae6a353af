"""What pages are made of: the templates, and the scripts, style sheets and pictures beside them.
What a template shows is escaped, except `Markup`. An address with the digest of a static file in
it may be kept for ever; one without is asked for again. The style sheet begins with the theme's
colours."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from skep import __version__, units
from skep.errors import EngineError, SkepError
from skep.monitor.describe import in_words
from skep.monitor.history import LONGEST_NOTE
from skep.monitor.records import DAY_S, SeriesMetric
from skep.report import theme
from skep.report.page import make_environment
from skep.report.series_chart import series_chart, when, zone_name
from skep.store.database import Store
from skep.web.context import Site

log = logging.getLogger("skep.web")
# Name, address, title, the key that goes there after `g`.
PAGES = (
    ("now", "/", "Now", "n"),
    ("chat", "/chat", "Chat", "a"),
    ("history", "/history", "History", "h"),
    ("compare", "/compare", "Compare", "c"),
    ("runs", "/runs", "Runs", "r"),
    ("sessions", "/sessions", "Sessions", "e"),
    ("swarm", "/swarm", "Swarm", "s"),
    ("plan", "/plan", "Plan", "p"),
    ("tuning", "/tuning", "Tuning", "t"),
)
PRIVATE_PAGES = ("chat", "sessions", "swarm")  # pages that the public does not have
ADMIN_PAGES = ("sessions",)  # pages that a client's key does not open
PARTS_MARK = "<!--parts-->"  # of the parts, in a page that is streamed
STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def environment() -> Environment:
    environment = make_environment("skep.web", "skep.report")
    environment.globals |= {
        "LONGEST_NOTE": LONGEST_NOTE,
        "PARTS_MARK": PARTS_MARK,
        "asset": asset,
        "in_words": in_words,
        "pages_of": pages_of,
        "series_chart": series_chart,
        "value_text": value_text,
        "vega_address": vega_address,
        "version": __version__,
        "zone_name": zone_name,
    }
    environment.filters |= {"ago": ago, "minute": minute, "span": span, "when": when}
    return environment


def pages_of(site: Site) -> list[tuple[str, str, str, str]]:
    """Return the pages that this dashboard leads to."""
    hidden: list[str] = []
    if site.public:
        hidden += PRIVATE_PAGES
    if site.client:
        hidden += ADMIN_PAGES
    if not site.can_compare():
        hidden.append("compare")
    return [entry for entry in PAGES if entry[0] not in hidden]


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(values)


def render_macro(template: str, macro: str, **values: Any) -> str:
    """Return what a macro without arguments of that file makes, where the values are its
    variables.
    """
    return str(getattr(environment().get_template(template).make_module(values), macro)())


def page(site: Site, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(render(template, site=site, status=status, **values), status_code=status)


def streamed(
    site: Site, whole: HTMLResponse, parts: Callable[[Store], Iterator[str]]
) -> StreamingResponse:
    """Send a page whose parts are made once its frame was sent; `whole` has PARTS_MARK in it once.

    The store is opened anew for the parts. What goes wrong then is told on the page, in place of
    the rest.
    """
    before, _, after = bytes(whole.body).partition(PARTS_MARK.encode())

    def pieces() -> Iterator[bytes]:
        yield before
        try:
            with site.store() as store:
                for part in parts(store):
                    yield part.encode()
        except SkepError as error:
            yield _alert("this cannot be shown right now" if site.hides_private else error.message)
        # The border of the process: the reader gets a whole page, the log the reason.
        except Exception as error:
            log.error("page.failed error=%r", error)
            yield _alert("the rest of this page could not be rendered")
        yield after

    return StreamingResponse(
        pieces(), status_code=whole.status_code, media_type="text/html; charset=utf-8"
    )


def value_text(metric: SeriesMetric, value: float | None) -> str:
    if metric is SeriesMetric.TTFT_MS:
        return units.milliseconds(value)
    return units.number(value)


def minute(unix_time: float) -> str:
    """Return a moment without its seconds: a list of runs needs none."""
    return units.moment(unix_time)[: len("2026-11-15 20:52")]


def ago(then: float, now: float) -> str:
    """Return how long ago it was; never finer than it is redrawn."""
    passed = max(0.0, now - then)
    if passed > 14 * DAY_S:
        return units.moment(then)
    return span(passed) if passed >= 60 else "a minute"


def span(seconds: float) -> str:
    if seconds >= 60:
        return units.format_seconds(round(seconds))
    return f"{seconds:.0f} s"


def _alert(words: str) -> bytes:
    return (
        Markup('<p class="banner incomplete" role="alert">{}</p>')
        .format(units.printable(words))
        .encode()
    )


class Asset(msgspec.Struct, frozen=True):
    body: bytes
    digest: str
    type: str


@cache
def assets() -> dict[str, Asset]:
    """Return the static files by name. Files of other kinds are not served."""
    assets_by_name: dict[str, Asset] = {}
    for file in sorted(STATIC.iterdir()):
        if (kind := _TYPES.get(file.suffix)) is not None:
            body = file.read_bytes()
            if file.name == "skep.css":
                body = f"{theme.style_rules()}\n".encode() + body
            assets_by_name[file.name] = Asset(body, hashlib.sha256(body).hexdigest()[:16], kind)
    return assets_by_name


def asset(name: str) -> str:
    return f"/static/{name}?v={assets()[name].digest}"


_MAKE_VEGA = """
import gzip, os, pathlib, sys, vl_convert
file = pathlib.Path(sys.argv[1])
part = file.with_suffix(f".{os.getpid()}")
part.write_bytes(gzip.compress(vl_convert.javascript_bundle().encode(), mtime=0))
part.replace(file)
"""


@cache
def vega_version() -> str:
    return version("vl-convert-python")


def vega_address() -> str:
    return f"/static/vega.js?v={vega_version()}"


class StaticFiles:
    """The files of `static/`; and `vega.js`: Vega, Vega-Lite and Vega-Embed as `vl_convert`
    carries them.

    Making one script of them takes seconds, in which `vl_convert` draws nothing: a process of its
    own does it, once for each version."""

    def __init__(self, folder: Path) -> None:
        self._vega = folder / f"vega-{vega_version()}.js.gz"
        self._making = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        name = request.path_params["name"]
        packed = dict[str, str]()
        file = assets().get(name)
        if name == "vega.js":
            file = Asset(await self.vega(), vega_version(), _TYPES[".js"])
            packed = {"content-encoding": "gzip"}
        if file is None:
            return PlainTextResponse("there is no such file\n", status_code=404)
        if request.query_params.get("v") == file.digest:
            cache_control = "public, max-age=31536000, immutable"
        else:
            cache_control = "no-cache"
        headers = {"etag": f'"{file.digest}"', "cache-control": cache_control, **packed}
        if f'"{file.digest}"' in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.type, headers=headers)

    async def vega(self) -> bytes:
        async with self._making:
            if not self._vega.exists():
                self._vega.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                argv = (sys.executable, "-c", _MAKE_VEGA, str(self._vega))
                child = await asyncio.create_subprocess_exec(*argv, stderr=DEVNULL)
                try:
                    await child.wait()
                finally:
                    if child.returncode is None:
                        child.kill()
                if child.returncode:
                    raise EngineError(
                        "the script of the charts could not be made",
                        hint="pages show pictures instead",
                    )
        return self._vega.read_bytes()
