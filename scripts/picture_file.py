"""SVG files for the documentation: what the scripts that draw them share."""

from __future__ import annotations

from html import escape

from skep.report import theme
from skep.report.charts import Spec
from skep.report.svg import render
from skep.units import printable


def standalone(spec: Spec, label: str) -> str:
    """Return an SVG document with its own background, readable on a page of any colour."""

    def opening(box: str) -> str:
        width, height = (float(side) for side in box.split()[2:])
        size = f'width="{width:g}" height="{height:g}" viewBox="{box}"'
        ground = f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="10"'
        role = f'role="img" aria-label="{escape(printable(label))}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {role}><style>{theme.night_rules()}</style>'
        return f'{head}{ground} fill="{theme.PAPER}" stroke="{theme.GRID}"/>'

    return render({"padding": {"left": 24, "top": 24, "bottom": 24, "right": 40}, **spec}, opening)


def panel(spec: Spec, title: str, subtitle: str, width: int, height: int) -> Spec:
    size = {"title": {"text": title, "subtitle": subtitle, "frame": "group"}, "width": width, "height": height}
    return {key: value for key, value in spec.items() if key != "padding"} | size
