"""Charts become SVG for pages, by Vega inside `vl_convert`:
it reads no file and asks no server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from html import escape

from markupsafe import Markup

from skep.report import theme
from skep.report.charts import Spec
from skep.units import printable

_VEGA_LITE = "6.4"
_OPENING = re.compile(r'<svg [^>]*viewBox="(?P<box>[^"]*)"[^>]*>')
_TAG = re.compile(r"<[^<>]+>")
_NOISE = re.compile(
    r'^<path class="(?:back|fore)ground".*| '
    r'(?:font-family|class|pointer-events|aria-hidden)="[^"]*"'
    r'| (?:(?:fill-)?opacity|stroke-width)="1"| stroke-dasharray=""| text-anchor="start"| '
    r'font-weight="400"'
    r'| role="graphics-(?:object|symbol)" aria-roledescription="[^"]*container"'
)
_PLACES = re.compile(r' (?:d|transform)="[^"]*"')
_TIP = re.compile(
    r'<(path|line) aria-label="([^"]*)" role="graphics-symbol" '
    r'aria-roledescription="[^"]*"((?: [\w-]+="[^"]*")*)/>'
)


_alive = ContextVar("_alive", default=False)


@contextmanager
def alive() -> Iterator[None]:
    """Let pictures carry their specifications within the block, so that the dashboard's script can
    make charts of them.
    """
    before = _alive.set(True)
    try:
        yield
    finally:
        _alive.reset(before)


def picture(spec: Spec, label: str) -> Markup:
    """Return an `<svg>` element that takes the width it is given."""
    sized = {
        "width": 470,
        "height": 270,
        "autosize": {"type": "fit", "contains": "padding"},
        **spec,
    }
    drawn = picture_of(sized, label)
    if _alive.get():
        return chart([drawn], sized, label)
    return drawn


def picture_of(spec: Spec, label: str, style: str = "") -> Markup:
    drawn = _rendered(json.dumps({**spec, "config": theme.chart_config()}, allow_nan=False))
    opening = f'<svg class="{style}" ' if style else "<svg "
    role = f'role="img" aria-label="{escape(printable(label))}"'
    return Markup(  # noqa: S704
        _OPENING.sub(lambda tag: f'{opening}viewBox="{tag["box"]}" {role}>', drawn, count=1)
    )


def chart(drawn: Sequence[Markup], spec: Spec, label: str) -> Markup:
    """Return what is drawn of a specification, and itself: the dashboard's script puts a chart in
    their place.
    """
    whole = {**spec, "description": printable(label), "config": theme.chart_config()}
    if "datasets" in spec:  # of thousands of rows
        whole["datasets"] = {name: _packed(rows) for name, rows in spec["datasets"].items()}
    island = json.dumps(whole, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    script = f'<script type="application/json">{island}</script>'
    return Markup(f'<div class="chart">{"".join(drawn)}{script}</div>')  # noqa: S704


def _packed(rows: Sequence[Spec]) -> Spec:
    """Return rows as lists, and once what is the same in all of them; the script puts them
    together again.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    same = {
        name: rows[0][name]
        for name in names
        if all(row.get(name) == rows[0].get(name) for row in rows)
    }
    columns = [name for name in names if name not in same]
    return {
        "same": same,
        "columns": columns,
        "rows": [[row.get(name) for name in columns] for row in rows],
    }


@lru_cache(maxsize=64)
def _rendered(spec: str) -> str:
    """Return the drawn picture; tips become titles.

    Drawing takes tens of milliseconds, and a page that is loaded again mostly shows the same.
    """
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(spec, vl_version=_VEGA_LITE)
    drawn = _TAG.sub(lambda tag: _NOISE.sub("", tag[0]), drawn)
    drawn = _PLACES.sub(lambda attribute: re.sub(r"(\.\d\d)\d+", r"\1", attribute[0]), drawn)
    drawn = drawn.replace("<g ", f'<g font-family="{theme.FONT}" ', 1)
    return _TIP.sub(r"<\1\3><title>\2</title></\1>", drawn).replace("<title>undefined</title>", "")
