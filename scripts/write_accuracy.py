"""Writes the tables and the picture of docs/accuracy.md from the points in tests/data. `--check` only compares."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from skep.planner.validation import Report, Spread, validate
from skep.report.accuracy import accuracy_picture

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
POINTS = ROOT / "tests" / "data" / "published_points.csv"
BEGIN, END = "<!-- figures: scripts/write_accuracy.py -->", "<!-- end of figures -->"
_GROUPS = (
    "C=1", "C>1", "dense", "moe", "one card", "split", "tp", "replicas", "spec", "no spec",
    "closed loop", "open loop", "engine vllm",
    "engine llamacpp", "engine sglang", "engine trtllm", "gpu ampere", "gpu ada", "gpu blackwell", "gpu hopper",
    "gpu rdna4",
)  # fmt: skip


def tables(plain: Report, calibrated: Report) -> str:
    lines = ["| rows of | n | median | p90 |", "|---|---|---|---|", _line("**all**", plain.overall)]
    groups = plain.groups()
    lines += [_line(name, groups[name]) for name in _GROUPS if name in groups]
    for formula, found in plain.baselines().items():
        lines += [_line(f"*{formula}*, {name}", value) for name, value in found.items()]
    lines += [_line("calibrated by the C=1 row of the same curve, all", calibrated.overall)]
    lines += [_line(f"calibrated, {name}", value) for name, value in calibrated.groups().items() if name[0] == "C"]
    held = f"{plain.covered:.0%}" if plain.covered is not None else "none"
    counted = f"{len(plain.points)} of {plain.rows} rows are predicted; the 80 % band holds {held} of them."
    return "\n".join([counted, "", *lines])


def _line(name: str, value: Spread) -> str:
    return f"| {name} | {value.rows} | {value.median_ape or 0:.1%} | {value.p90_ape or 0:.1%} |"


def main() -> int:
    with POINTS.open(encoding="utf-8", newline="") as file:
        rows = list(enumerate(csv.DictReader(file), 2))
    plain = validate(rows)
    block = f"{BEGIN}\n{tables(plain, validate(rows, calibrated=True))}\n{END}"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    wanted = before + block + after
    if "--check" in sys.argv:
        return 0 if page == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    error = plain.overall.median_ape or 0.0
    subtitle = (
        f"{len(plain.points)} of {plain.rows} published rows, each with constants not fitted on its source; "
        f"median |error| {error:.0%}; shaded: within 20 %"
    )
    drawn = accuracy_picture(plain.points, "Predicted against published", subtitle)
    (ROOT / "docs" / "images" / "accuracy.svg").write_text(drawn or "", encoding="utf-8")
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
