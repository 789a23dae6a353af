"""The colours of pictures and pages, by day and by night, and the look of every chart.

A picture is drawn in the day colours, so any viewer shows it. `night_rules` turns each of them
into its night colour with CSS attribute selectors, which is why no two roles may share a value.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

INK = "#1c1917"
MUTED = "#6b645e"
GRID = "#e9e5e0"
PAPER = "#fffefc"
HONEY = "#c26a06"
SKY = "#1f6fb5"
ROSE = "#b8434f"
MOSS = "#4d7c3a"
STONE = "#a39b93"
PLUM = "#7d4f9e"
PALE = "#bcd6ee"  # SKY, faint: waiting, where streaming is SKY

# Runs beside each other, told apart by readers of any colour vision; each has its letter, dash and
# shape as well. The hues are those of Okabe and Ito, darkened where they would be faint on white.
SERIES = ("#0068a8", "#d55e00", "#00916a", "#b8588f", "#9c7a00", "#3aa0dc", "#2b2724", "#8a3b12")
_SERIES_NIGHT = (
    "#4fa8e8",
    "#ff8a3d",
    "#2fc79a",
    "#e592c0",
    "#dcb93c",
    "#8fd0f7",
    "#e6e1da",
    "#d98a63",
)
# The name of its CSS variable, by day, by night.
_COLOURS = (
    ("ink", INK, "#f4f1ec"),
    ("muted", MUTED, "#aea69d"),
    ("edge", GRID, "#37322d"),
    ("paper", PAPER, "#1f1c19"),
    ("honey", HONEY, "#f4a93c"),
    ("sky", SKY, "#6db3f2"),
    ("rose", ROSE, "#e57882"),
    ("moss", MOSS, "#9ac77f"),
    ("stone", STONE, "#7d756d"),
    ("plum", PLUM, "#c39be0"),
    ("pale", PALE, "#2d4d6b"),
    *(
        (f"series-{n}", day, night)
        for n, (day, night) in enumerate(zip(SERIES, _SERIES_NIGHT, strict=True), 1)
    ),
)
NIGHT = {day: night for _, day, night in _COLOURS}
FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif"


def style_rules() -> str:
    """Return the colours as variables, by day and by night, the font, and the night colours of
    pictures.
    """
    day = "".join(f"--{name}:{colour};" for name, colour, _ in _COLOURS)
    night = "".join(f"--{name}:{colour};" for name, _, colour in _COLOURS)
    dark = (
        "@media screen and "
        f"(prefers-color-scheme:dark){{:root{{{night}--ground:#151311;--glow:#302515;}}}}"
    )
    return f":root{{{day}--ground:#faf8f5;--glow:#fdf3e3;--font:{FONT}}}{dark}{night_rules()}"


def night_rules() -> str:
    """Return CSS for the elements of pictures; screens only, so that paper stays white."""
    looks = [
        (attribute, *colours) for colours in NIGHT.items() for attribute in ("fill", "stroke")
    ]
    rules = "".join(
        f'svg [{attribute}="{day}"]{{{attribute}:{night}}}' for attribute, day, night in looks
    )
    return f"@media screen and (prefers-color-scheme:dark){{{rules}}}"


@cache
def coloured(name: str) -> str:
    """Return a JSON file of this package, in which colours and the font are named; its other names
    are left.
    """
    text = Template((files("skep.report") / name).read_text(encoding="utf-8"))
    return text.safe_substitute({name: day for name, day, _ in _COLOURS}, font=FONT)


@cache
def chart_config() -> dict[str, Any]:
    """Return Vega-Lite's configuration."""
    config: dict[str, Any] = json.loads(coloured("chart_config.json"))
    return config
