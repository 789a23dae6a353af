"""Writes docs/images/session-cliff.svg: turns a minute by the number of sessions, simulated, with
the measured ones of tests/data/session_cliff_h200.csv.
"""

from __future__ import annotations

import sys
from pathlib import Path

from picture_file import standalone

from skep.report import theme
from skep.report.charts import ChartCurve, curves_chart

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "planner")]
TITLE = "Turns a minute of all sessions, on a KV cache with room for eight"
SESSIONS = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32)


def main() -> None:
    from test_session_play import played, rows

    def simulated(ram_gib: float) -> list[tuple[int, float]]:
        levels = []
        for sessions in SESSIONS:
            row = {"sessions": sessions, "at_once": sessions, "ram_gib": ram_gib}
            levels.append((sessions, played(row).turns_per_min))
        return levels

    def measured(*, ram: bool) -> list[tuple[int, float]]:
        return [
            (int(row["sessions"]), row["turns_per_min"])
            for row in rows()
            if row["sessions"] == row["at_once"] and bool(row["ram_gib"]) is ram
        ]

    curves = [
        ChartCurve(simulated(0.0), theme.HONEY, "simulated"),
        ChartCurve(simulated(64.0), theme.SKY, "simulated, KV in RAM"),
        ChartCurve(measured(ram=False), theme.ROSE, "measured", (2, 3)),
        ChartCurve(measured(ram=True), theme.PLUM, "measured, KV in RAM", (2, 3)),
    ]
    chart = curves_chart(curves, "turns/min", height=250, labelled=True)
    assert chart is not None
    title = {
        "text": TITLE,
        "subtitle": ["An 8B on one H200, vLLM 0.24, 109,216 tokens of KV · one run each"],
        "fontSize": 18,
        "offset": 24,
    }
    (ROOT / "docs/images/session-cliff.svg").write_text(
        standalone({**chart, "title": title, "width": 620, "height": 250}, TITLE)
    )


if __name__ == "__main__":
    main()
