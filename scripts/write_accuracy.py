"""Write the table and the picture of docs/accuracy.md from the points in tests/data. `--check` only compares."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from accuracy_picture import accuracy_picture
from published_curves import curve_of, tuning_from

from skep.planner.constants import honest_constants
from skep.planner.validation import (
    PublishedCase,
    Spread,
    ValidationPoint,
    ValidationReport,
    predicted,
    spread,
    validate,
)

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
POINTS = ROOT / "tests" / "data" / "published_points.csv"
BEGIN, END = "<!-- figures: scripts/write_accuracy.py -->", "<!-- end of figures -->"
_GROUPS = {  # in the order of the table, with their titles
    "C=1": "C=1", "C>1": "C>1", "dense": "dense", "moe": "MoE", "one card": "one GPU", "split": "split by layer",
    "tp": "tensor parallel", "replicas": "replicas", "spec": "speculation", "no spec": "no speculation",
    "closed loop": "closed loop", "open loop": "open loop", "engine vllm": "vLLM", "engine llamacpp": "llama.cpp",
    "engine sglang": "SGLang", "engine trtllm": "TensorRT-LLM", "gpu ampere": "Ampere", "gpu ada": "Ada",
    "gpu blackwell": "Blackwell", "gpu hopper": "Hopper", "gpu rdna4": "RDNA 4",
}  # fmt: skip


def tables(plain: ValidationReport, calibrated: Sequence[ValidationPoint]) -> str:
    lines = ["| rows | n | median error | p90 |", "|---|---|---|---|", _line("**all**", plain.spreads()["all"])]
    groups = groups_of(plain.points)
    lines += [_line(title, groups[name]) for name, title in _GROUPS.items() if name in groups]
    for formula, found in plain.baselines().items():
        lines += [_line(f"*{formula}*, {name}", value) for name, value in found.items()]
    of_all = spread([point.error for point in calibrated])
    lines += [_line("calibrated by the curve's own C=1 row, all", of_all)]
    lines += [_line(f"calibrated, {name}", value) for name, value in groups_of(calibrated).items() if name[0] == "C"]
    held = f"{plain.covered:.0%}" if plain.covered is not None else "none"
    counted = f"The planner predicts {len(plain.points)} of {plain.rows} rows; the 80 % band holds {held} of them."
    return "\n".join([counted, "", *lines])


def groups_of(points: Sequence[ValidationPoint]) -> dict[str, Spread]:
    names: dict[str, list[float]] = {}
    for point in points:
        for name in _names(point.case):
            names.setdefault(name, []).append(point.error)
    return {name: spread(errors) for name, errors in sorted(names.items())}


def _names(case: PublishedCase) -> tuple[str, ...]:
    setup, layout = case.setup, case.setup.layout
    return (
        "C=1" if case.load.concurrency == 1 else "C>1",
        "moe" if setup.model.is_moe else "dense",
        "replicas" if layout.replicas > 1 else "tp" if layout.tp > 1 else "split" if case.split else "one card",
        "spec" if setup.spec is not None else "no spec",
        f"gpu {case.card.family}",
        f"engine {setup.engine}",
        "open loop" if case.load.rate_per_s is not None else "closed loop",
    )


def calibrated_points(plain: ValidationReport, curves: dict[int, tuple[str, ...]]) -> list[ValidationPoint]:
    """Scale every curve to its first row at C=1 and predict its other rows."""
    cases = [point.case for point in plain.points]
    firsts: dict[tuple[str, ...], PublishedCase] = {}
    for case in cases:
        if case.load.concurrency == 1:
            firsts.setdefault(curves[case.row], case)
    pairs = ((case, firsts.get(curves[case.row])) for case in cases)
    return [
        predicted(case, tuning_from(first, honest_constants(case.source)))
        for case, first in pairs
        if first is not None and first is not case
    ]


def _line(name: str, value: Spread) -> str:
    return f"| {name} | {value.rows} | {value.median_ape or 0:.1%} | {value.p90_ape or 0:.1%} |"


def main() -> int:
    with POINTS.open(encoding="utf-8", newline="") as file:
        rows = list(enumerate(csv.DictReader(file), 2))
    plain = validate(rows)
    calibrated = calibrated_points(plain, {row: curve_of(cells) for row, cells in rows})
    block = f"{BEGIN}\n{tables(plain, calibrated)}\n{END}"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    wanted = before + block + after
    if "--check" in sys.argv:
        return 0 if page == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    error = plain.spreads()["all"].median_ape or 0.0
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
