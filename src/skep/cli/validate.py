"""`skep calibrate validate`: compare the planner with a table of published measurements."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from skep.cli.output import note, print_json, print_table, progress_of
from skep.errors import UserError

if TYPE_CHECKING:
    from skep.planner.validation import ValidationReport


def validate(points: Path, as_json: bool) -> None:
    from skep.planner.validation import validate as compare

    rows = _rows(points)
    with progress_of("predicting", len(rows)) as tick:
        report = compare(rows, tick=tick)
    if as_json:
        print_json(document(report))
    else:
        _print(report, points.name)


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Read the table; rows are numbered as lines in an editor, the header is row 1."""
    from skep.cli.bench_common import text_of

    reader = csv.DictReader(io.StringIO(text_of(path)), restval="")
    try:
        rows = [
            (line, {k: v for k, v in row.items() if k and isinstance(v, str)}) for line, row in enumerate(reader, 2)
        ]
    except csv.Error as broken:
        raise UserError(f"`{path}` is not a CSV table: {broken}", hint="give a CSV file with a header line") from None
    missing = {"gpu", "model", "concurrency"} - set(reader.fieldnames or ())
    if missing:
        hint = "docs/accuracy.md names the columns of such a table"
        raise UserError(f"`{path}` has no column {', '.join(sorted(missing))}", hint=hint)
    return rows


def document(report: ValidationReport) -> dict[str, object]:
    """Return the report as JSON; errors are fractions."""
    overall = {name: asdict(spread) for name, spread in report.spreads().items()}
    whole = overall.pop("all")
    return {
        "rows": report.rows,
        "predicted": len(report.points),
        "median_ape": whole["median_ape"],
        "p90_ape": whole["p90_ape"],
        "covered_by_band": report.covered,
        "groups": overall,
        "sources": {name: asdict(spread) for name, spread in report.by_source().items()},
        "baselines": {
            formula: {name: asdict(spread) for name, spread in spreads.items()}
            for formula, spreads in report.baselines().items()
        },
        "unpredicted": [{"row": row, "why": why} for row, why in report.unpredicted],
        "points": [
            {
                "row": point.case.row,
                "metric": point.case.metric,
                "published": point.case.published,
                "predicted": round(point.predicted, 3),
                "low": round(point.low, 3),
                "high": round(point.high, 3),
                "source": point.case.source,
            }
            for point in report.points
        ],
    }


def _print(report: ValidationReport, name: str) -> None:
    predicted = f"{len(report.points)} of {report.rows} rows predicted"
    note(f"{name}: {predicted} with constants never fitted on their own source")
    groups = {**report.spreads(), **{f"source {name}": spread for name, spread in report.by_source().items()}}
    for formula, spreads in report.baselines().items():
        groups |= {f"{formula}, {group}": spread for group, spread in spreads.items()}
    rows = [(group, one.rows, _share(one.median_ape), _share(one.p90_ape)) for group, one in groups.items()]
    print_table(("ROWS OF", "N", "MEDIAN |ERROR|", "P90 |ERROR|"), rows, right=("N", "MEDIAN |ERROR|", "P90 |ERROR|"))
    if report.covered is not None:
        note(f"the 80 % band holds {report.covered:.0%} of the rows")
    missing = defaultdict[str, list[int]](list)
    for row, why in report.unpredicted:
        missing[why.split(":")[0]].append(row)
    for fact, without in sorted(missing.items(), key=lambda found: -len(found[1])):
        note(f"not predicted, {fact}: {len(without)} {'row' if len(without) == 1 else 'rows'} ({_ranges(without)})")


def _share(error: float | None) -> str:
    return "–" if error is None else f"{error:.1%}"


def _ranges(rows: list[int]) -> str:
    """[2, 3, 4, 9] → "2-4, 9"."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
