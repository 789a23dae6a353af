"""`skep validate`: the planner held against a table of published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skep.cli.serve import JsonOption

if TYPE_CHECKING:
    from skep.planner.validation import Spread, ValidationReport


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: skep validate published_points.csv --json")(validate)


def validate(
    points: Annotated[
        Path, typer.Argument(metavar="POINTS.csv", help="One measurement a row; docs/accuracy.md names the columns.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Predict every row of a table and say how far off the planner is.

    A row is predicted with constants that were never fitted on its source. Rows that lack a fact are listed with it.
    """
    from skep.cli.output import print_json, progress_of
    from skep.planner.validation import validate as held_against

    rows = _rows(points)
    with progress_of("predicting", len(rows)) as tick:
        report = held_against(rows, tick=tick)
    if as_json:
        print_json(document(report))
    else:
        _print(report, points.name)


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Numbered as an editor shows the lines of a plain table: the header is row 1."""
    import csv
    import io

    from skep.cli.bench_common import text_of
    from skep.errors import UserError

    reader = csv.DictReader(io.StringIO(text_of(path)), restval="")
    try:
        rows = [(place, {k: v for k, v in row.items() if isinstance(k, str) and isinstance(v, str)})
                for place, row in enumerate(reader, 2)]  # fmt: skip
    except csv.Error as broken:
        raise UserError(f"`{path}` is not a table: {broken}", hint="a CSV file with a header line is wanted") from None
    missing = {"gpu", "model", "concurrency"} - set(reader.fieldnames or ())
    if missing:
        hint = "docs/accuracy.md names the columns of such a table"
        raise UserError(f"`{path}` has no column {', '.join(sorted(missing))}", hint=hint)
    return rows


def document(report: ValidationReport) -> dict[str, object]:
    """The report as JSON; errors are fractions."""
    from dataclasses import asdict

    overall = report.spreads()
    return {
        "rows": report.rows,
        "predicted": len(report.points),
        "median_ape": overall["all"].median_ape,
        "p90_ape": overall["all"].p90_ape,
        "covered_by_band": report.covered,
        "groups": {name: asdict(value) for name, value in overall.items() if name != "all"},
        "sources": {name: asdict(value) for name, value in report.by_source().items()},
        "baselines": {
            formula: {name: asdict(value) for name, value in found.items()}
            for formula, found in report.baselines().items()
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
    from collections import Counter

    from skep.cli.output import note, print_table

    predicted = f"{len(report.points)} of {report.rows} rows predicted"
    note(f"{name}: {predicted} with constants never fitted on their own source")
    named = [*report.spreads().items(), *((f"source {name}", value) for name, value in report.by_source().items())]
    for formula, found in report.baselines().items():
        named += [(f"{formula}, {group}", value) for group, value in found.items()]
    rows = [(group, *_cells(value)) for group, value in named]
    print_table(("ROWS OF", "N", "MEDIAN |ERROR|", "P90 |ERROR|"), rows, right=("N", "MEDIAN |ERROR|", "P90 |ERROR|"))
    if report.covered is not None:
        note(f"the 80 % band holds {report.covered:.0%} of the rows")
    missing = Counter(why.split(":")[0] for _, why in report.unpredicted)
    for fact, count in missing.most_common():
        where = _ranges([row for row, why in report.unpredicted if why.startswith(fact)])
        note(f"not predicted, {fact}: {count} {'row' if count == 1 else 'rows'} ({where})")


def _cells(value: Spread) -> tuple[str, str, str]:
    return str(value.rows), _share(value.median_ape), _share(value.p90_ape)


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
