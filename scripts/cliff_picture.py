"""Writes docs/images/cliff.svg, the README's picture, from benchmarks/results/cliff.json."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from picture_file import standalone

from skep.report import theme
from skep.report.charts import ChartCurve, curves_chart

ROOT = Path(__file__).parent.parent
TITLE = "tok/s of all agents together, beyond the engines' four slots"
WAYS = {
    "nginx least_conn": (theme.STONE, "nginx least_conn", (7, 4)),
    "skep": (theme.HONEY, "skep", ()),
}


def main() -> None:
    results = json.loads((ROOT / "benchmarks/results/cliff.json").read_text(encoding="utf-8"))[
        "fake"
    ]["results"]
    curves = [
        ChartCurve(
            [(int(c), median(tok_s for tok_s, _ in rows)) for c, rows in results[way].items()],
            colour,
            end,
            dash,
        )
        for way, (colour, end, dash) in WAYS.items()
    ]
    chart = curves_chart(curves, "tok/s", height=230, labelled=True)
    assert chart is not None
    title = {
        "text": TITLE,
        "subtitle": ["SIMULATED · two RTX 3090s, Qwen3.6-27B, as published · medians of 6 rounds"],
        "fontSize": 18,
        "offset": 24,
        "subtitleColor": theme.ROSE,
        "subtitleFontWeight": 600,
    }
    (ROOT / "docs/images/cliff.svg").write_text(
        standalone({**chart, "title": title, "width": 620, "height": 230}, TITLE)
    )


if __name__ == "__main__":
    main()
