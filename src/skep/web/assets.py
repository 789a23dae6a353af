"""Scripts, style sheets and pictures of the package, read once; the style sheet begins with the theme's colours.

An address with the digest of a file in it may be kept for ever; one without is asked for again each time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from skep.report import theme

STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_ROLES = {
    "ink": theme.INK,
    "muted": theme.MUTED,
    "edge": theme.GRID,
    "paper": theme.PAPER,
    "honey": theme.HONEY,
    "sky": theme.SKY,
    "rose": theme.ROSE,
    "moss": theme.MOSS,
    "stone": theme.STONE,
    "plum": theme.PLUM,
    "pale": theme.PALE,
    **{f"series-{place}": colour for place, colour in enumerate(theme.SERIES, 1)},
}


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    digest: str
    type: str


@cache
def assets() -> dict[str, Asset]:
    """By name. Files of other kinds are not served."""
    found: dict[str, Asset] = {}
    for file in sorted(STATIC.iterdir()):
        if (kind := _TYPES.get(file.suffix)) is not None:
            body = file.read_bytes()
            if file.name == "skep.css":
                body = f"{theme_css()}\n".encode() + body
            found[file.name] = Asset(body, hashlib.sha256(body).hexdigest()[:16], kind)
    return found


def asset(name: str) -> str:
    """The address of a file of `static/`."""
    return f"/static/{name}?v={assets()[name].digest}"


def theme_css() -> str:
    """The roles of `skep.report.theme` as variables, by day and by night, and the night colours of pictures."""
    day = _variables("#faf8f5", "#fdf3e3", {})
    night = _variables("#151311", "#302515", theme.NIGHT)
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
    return f":root{{{day}--font:{theme.FONT}}}{dark}{theme.night_rules('svg')}"


def answer_static(request: Request) -> Response:
    found = assets().get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("there is no such file\n", status_code=404)
    for_ever = request.query_params.get("v") == found.digest
    headers = {
        "etag": f'"{found.digest}"',
        "cache-control": "public, max-age=31536000, immutable" if for_ever else "no-cache",
    }
    if f'"{found.digest}"' in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.type, headers=headers)


def _variables(ground: str, glow: str, colours: dict[str, str]) -> str:
    chosen = "".join(f"--{name}:{colours.get(day, day)};" for name, day in _ROLES.items())
    return f"{chosen}--ground:{ground};--glow:{glow};"
