"""Writes docs/images/cliff.svg, the README's picture, from benchmarks/results/cliff.json."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from skep.report import theme
from skep.report.charts import ChartCurve, curves_chart, headed
from skep.report.svg import standalone

ROOT = Path(__file__).parent.parent
TITLE = "tok/s of all agents together, beyond the engines' four slots"
WAYS = {"nginx least_conn": (theme.STONE, "nginx least_conn", (7, 4)), "skep": (theme.HONEY, "skep", ())}


def main() -> None:
    results = json.loads((ROOT / "benchmarks/results/cliff.json").read_text(encoding="utf-8"))["fake"]["results"]
    curves = [
        ChartCurve(
            [(int(c), median(tok_s for tok_s, _ in rows)) for c, rows in results[way].items()], colour, end, dash
        )
        for way, (colour, end, dash) in WAYS.items()
    ]
    chart = curves_chart(curves, "tok/s", height=230, labelled=True)
    assert chart is not None
    facts = ("two RTX 3090s, Qwen3.6-27B, as published", "medians of 6 rounds")
    title = headed(TITLE, ["SIMULATED"], *facts)
    (ROOT / "docs/images/cliff.svg").write_text(
        standalone({**chart, "title": title, "width": 620, "height": 230}, TITLE)
    )


if __name__ == "__main__":
    main()
