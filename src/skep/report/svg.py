"""Charts become SVG, for a page or as a document, by Vega inside `vl_convert`: it reads no file and asks no server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
    r'^<path class="(?:back|fore)ground".*| (?:font-family|class|pointer-events|aria-hidden)="[^"]*"'
    r'| (?:(?:fill-)?opacity|stroke-width)="1"| stroke-dasharray=""| text-anchor="start"| font-weight="400"'
    r'| role="graphics-(?:object|symbol)" aria-roledescription="[^"]*container"'
)
_PLACES = re.compile(r' (?:d|transform)="[^"]*"')
_TIP = re.compile(
    r'<(path|line) aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[^"]*"((?: [\w-]+="[^"]*")*)/>'
)


def picture(spec: Spec, label: str) -> Markup:
    """Return an `<svg>` element that takes the width it is given."""
    sized = {"width": 470, "height": 270, "autosize": {"type": "fit", "contains": "padding"}, **spec}
    return Markup(render(sized, lambda box: f'<svg viewBox="{box}" {_role(label)}>'))  # noqa: S704


def standalone(spec: Spec, label: str) -> str:
    """Return an SVG document with its own background, readable on a page of any colour."""

    def opening(box: str) -> str:
        width, height = (float(side) for side in box.split()[2:])
        size = f'width="{width:g}" height="{height:g}" viewBox="{box}"'
        ground = f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="10"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_role(label)}><style>{theme.night_rules()}</style>'
        return f'{head}{ground} fill="{theme.PAPER}" stroke="{theme.GRID}"/>'

    return render({"padding": {"left": 24, "top": 24, "bottom": 24, "right": 40}, **spec}, opening)


def render(spec: Spec, opening: Callable[[str], str]) -> str:
    """Return the SVG of `spec`; `opening` makes its first tag from its view box."""
    drawn = _rendered(json.dumps({**spec, "config": theme.chart_config()}, allow_nan=False))
    return _OPENING.sub(lambda found: opening(found["box"]), drawn, count=1)


@lru_cache(maxsize=64)
def _rendered(spec: str) -> str:
    """Drawing takes tens of milliseconds; a page that is loaded again mostly shows the same. Tips become titles."""
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(spec, vl_version=_VEGA_LITE)
    drawn = _TAG.sub(lambda found: _NOISE.sub("", found[0]), drawn)
    drawn = _PLACES.sub(lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), drawn)
    drawn = drawn.replace("<g ", f'<g font-family="{theme.FONT}" ', 1)
    return _TIP.sub(r"<\1\3><title>\2</title></\1>", drawn).replace("<title>undefined</title>", "")


def _role(label: str) -> str:
    return f'role="img" aria-label="{escape(printable(label))}"'
