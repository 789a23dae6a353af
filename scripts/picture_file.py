"""SVG files for the documentation: what the scripts that draw them share."""

from __future__ import annotations

from skep.report import theme
from skep.report.charts import Spec
from skep.report.svg import picture_of


def standalone(spec: Spec, label: str) -> str:
    """Return an SVG document with its own background, readable on a page of any colour."""

    drawn = str(
        picture_of({"padding": {"left": 24, "top": 24, "bottom": 24, "right": 40}, **spec}, label)
    )
    head, _, inner = drawn.partition(">")
    box = head.partition('viewBox="')[2].partition('"')[0]
    width, height = (float(side) for side in box.split()[2:])
    size = f'xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}"'
    ground = f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="10"'
    ground += f' fill="{theme.PAPER}" stroke="{theme.GRID}"/>'
    return f"{head.replace('<svg', f'<svg {size}', 1)}><style>{theme.night_rules()}</style>{ground}{inner}"


def panel(spec: Spec, title: str, subtitle: str, width: int, height: int) -> Spec:
    size = {
        "title": {"text": title, "subtitle": subtitle, "frame": "group"},
        "width": width,
        "height": height,
    }
    return {key: value for key, value in spec.items() if key != "padding"} | size
