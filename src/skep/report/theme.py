"""The colours of pictures and pages, by day and by night, and the look of every chart.

A picture is drawn in the day colours, so any viewer shows it. `night_rules` turns each of them into its night
colour with CSS attribute selectors, which is why no two roles may share a value.
"""

from __future__ import annotations

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

# Runs beside each other, told apart by readers of any colour vision; each has its letter, dash and shape as well.
# The hues are those of Okabe and Ito, darkened where they would be faint on white.
SERIES = ("#0068a8", "#d55e00", "#00916a", "#b8588f", "#9c7a00", "#3aa0dc", "#2b2724", "#8a3b12")

NIGHT = {
    INK: "#f4f1ec",
    MUTED: "#aea69d",
    GRID: "#37322d",
    PAPER: "#1f1c19",
    HONEY: "#f4a93c",
    SKY: "#6db3f2",
    ROSE: "#e57882",
    MOSS: "#9ac77f",
    STONE: "#7d756d",
    PLUM: "#c39be0",
    PALE: "#2d4d6b",
    **dict(
        zip(
            SERIES,
            ("#4fa8e8", "#ff8a3d", "#2fc79a", "#e592c0", "#dcb93c", "#8fd0f7", "#e6e1da", "#d98a63"),
            strict=True,
        )
    ),
}

FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif"


ROLES = {
    "ink": INK,
    "muted": MUTED,
    "edge": GRID,
    "paper": PAPER,
    "honey": HONEY,
    "sky": SKY,
    "rose": ROSE,
    "moss": MOSS,
    "stone": STONE,
    "plum": PLUM,
    "pale": PALE,
    **{f"series-{place}": colour for place, colour in enumerate(SERIES, 1)},
}


def style_rules() -> str:
    """Return the colours as variables, by day and by night, the font, and the night colours of pictures."""
    day = _variables("#faf8f5", "#fdf3e3", {})
    night = _variables("#151311", "#302515", NIGHT)
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{night}}}}}"
    return f":root{{{day}--font:{FONT}}}{dark}{night_rules()}"


def _variables(ground: str, glow: str, colours: dict[str, str]) -> str:
    chosen = "".join(f"--{name}:{colours.get(day, day)};" for name, day in ROLES.items())
    return f"{chosen}--ground:{ground};--glow:{glow};"


def night_rules() -> str:
    """Return CSS for the elements of pictures; screens only, so that paper stays white."""
    rules = "".join(
        f'svg [{attribute}="{day}"]{{{attribute}:{night}}}'
        for day, night in NIGHT.items()
        for attribute in ("fill", "stroke")
    )
    return f"@media screen and (prefers-color-scheme:dark){{{rules}}}"


def chart_config() -> dict[str, Any]:
    return {
        "aria": False,
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": MUTED,
            "labelFontSize": 13,
            "labelPadding": 6,
            "titleColor": MUTED,
            "titleFontSize": 13,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "domain": False,
            "ticks": False,
            "gridColor": GRID,
        },
        "axisX": {"grid": False, "domain": True, "domainColor": STONE},
        "title": {
            "anchor": "start",
            "color": INK,
            "fontSize": 14,
            "fontWeight": 600,
            "offset": 16,
            "subtitleColor": MUTED,
            "subtitleFontSize": 12,
            "subtitlePadding": 5,
        },
        "text": {"color": INK, "fontSize": 13},
        "legend": {
            "labelColor": INK,
            "labelFontSize": 13,
            "symbolSize": 160,
            "symbolStrokeWidth": 0,
            "columnPadding": 18,
        },
    }
