"""Charts become SVG: as an element for a page, or as a document of its own.

The renderer is Vega inside `vl_convert`; it reads no file and asks no server, as every chart carries its data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape

from skep.report import theme
from skep.report.charts import Spec
from skep.report.markup import Markup, figure, tag, text, trusted
from skep.units import printable

_VEGA_LITE = "6.4"
_OPENING = re.compile(r'<svg [^>]*viewBox="(?P<box>[^"]*)"[^>]*>')


def chart_figure(spec: Spec | None, title: str, caption: str) -> Markup:
    """A figure of a page; one without a chart says so."""
    if spec is None:
        return figure(tag("p", text("not measured"), class_="empty"), title, caption)
    return figure(trusted(picture(spec, title)), title, caption)


def picture(spec: Spec, label: str) -> str:
    """An `<svg>` element that takes the width it is given."""
    svg = _render({"width": 470, "height": 270, "autosize": {"type": "fit", "contains": "padding"}, **spec})
    return _reopened(svg, lambda box: f'<svg viewBox="{box}" {_role(label)}>')


def standalone(spec: Spec, label: str) -> str:
    """An SVG document with its own background, readable on a page of any colour."""

    def opening(box: str) -> str:
        width, height = (float(side) for side in box.split()[2:])
        size = f'width="{width:g}" height="{height:g}" viewBox="{box}"'
        ground = f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="10"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_role(label)}>'
            f"<style>{theme.night_rules('svg')}</style>"
            f'{ground} fill="{theme.PAPER}" stroke="{theme.GRID}"/>'
        )

    return _reopened(_render({"padding": {"left": 24, "top": 24, "bottom": 24, "right": 40}, **spec}), opening)


def _render(spec: Spec) -> str:
    import vl_convert

    return vl_convert.vegalite_to_svg({**spec, "config": theme.chart_config()}, vl_version=_VEGA_LITE)


def _reopened(svg: str, opening: Callable[[str], str]) -> str:
    """`svg` with another opening tag, made from its view box."""
    return _OPENING.sub(lambda found: opening(found["box"]), svg, count=1)


def _role(label: str) -> str:
    return f'role="img" aria-label="{escape(printable(label))}"'
