"""`skep validate`: the planner held against a table of published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skep.cli.serve import JsonOption

if TYPE_CHECKING:
    from skep.planner.validation import Report, Spread


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: skep validate published_points.csv --json")(validate)


def validate(
    points: Annotated[
        Path, typer.Argument(metavar="POINTS.csv", help="One measurement a row; docs/accuracy.md names the columns.")
    ],
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Fit each curve to its own C=1 row first; predict the others.")
    ] = False,
    in_sample: Annotated[
        bool, typer.Option("--in-sample", help="With the shipped constants also for sources they were fitted on.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.svg", help="Draw published against predicted.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict every row of a table and say how far off the planner is.

    A row is predicted with constants that were never fitted on its source. Rows that lack a fact are listed with it.
    """
    from skep.cli.output import print_json, progress_of
    from skep.errors import UserError
    from skep.planner.constants import honest_constants, published_constants
    from skep.planner.validation import validate as held_against

    if picture is not None and (picture.is_dir() or not picture.parent.is_dir()):
        raise UserError(f"--picture `{picture}` cannot be written", hint="name a file in a folder that is there")
    rows = _rows(points)
    with progress_of("predicting", len(rows)) as tick:
        report = held_against(
            rows,
            calibrated=calibrated,
            constants_for=(lambda _source: published_constants()) if in_sample else honest_constants,
            tick=tick,
        )
    if picture is not None:
        _draw(report, points.name, picture)
    if as_json:
        print_json(document(report))
    else:
        _print(report, points.name, in_sample=in_sample)


def _draw(report: Report, name: str, path: Path) -> None:
    from skep.cli.output import note
    from skep.errors import UserError
    from skep.report.accuracy import accuracy_picture

    error = report.overall.median_ape
    if error is None:
        raise UserError(f"no row of `{name}` was predicted: nothing to draw", hint="leave --picture out to see why")
    subtitle = f"{len(report.points)} of {report.rows} rows of {name}; median |error| {error:.0%}; shaded: within 20 %"
    drawn = accuracy_picture(report.points, "Predicted against published", subtitle)
    assert drawn is not None
    path.write_text(drawn, encoding="utf-8")
    note(f"wrote {path}")


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Numbered as an editor shows the lines of a plain table: the header is row 1."""
    import csv
    import io

    from skep.cli.benching import text_of
    from skep.errors import UserError

    reader = csv.DictReader(io.StringIO(text_of(path)), restval="")
    try:
        rows = [(place, {k: v for k, v in row.items() if isinstance(k, str) and isinstance(v, str)})
                for place, row in enumerate(reader, 2)]  # fmt: skip
    except csv.Error as broken:
        raise UserError(f"`{path}` is not a table: {broken}", hint="a CSV file with a header line is wanted") from None
    known = {"gpu", "model", "concurrency"} & set(reader.fieldnames or ())
    if len(known) < 3:
        missing = ", ".join(sorted({"gpu", "model", "concurrency"} - known))
        raise UserError(f"`{path}` has no column {missing}", hint="docs/accuracy.md names the columns of such a table")
    return rows


def document(report: Report) -> dict[str, Any]:
    """The report as JSON; errors are fractions."""
    overall = report.overall
    return {
        "rows": report.rows,
        "predicted": len(report.points),
        "median_ape": overall.median_ape,
        "p90_ape": overall.p90_ape,
        "covered_by_band": report.covered,
        "calibrated": report.calibrated,
        "calibrated_with": list(report.calibrated_with),
        "groups": {name: _spread(group) for name, group in report.groups().items()},
        "baselines": {
            name: {group: _spread(value) for group, value in groups.items()}
            for name, groups in report.baselines().items()
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


def _spread(group: Spread) -> dict[str, float | int | None]:
    return {"rows": group.rows, "median_ape": group.median_ape, "p90_ape": group.p90_ape}


def _print(report: Report, name: str, *, in_sample: bool) -> None:
    from collections import Counter

    from skep.catalog.fitted import fitted_on
    from skep.cli.output import note, print_table

    about = fitted_on()
    how = "with the shipped constants" if in_sample else "with constants never fitted on their own source"
    after = ", after fitting each curve to its own C=1 row" if report.calibrated else ""
    note(f"{name}: {len(report.points)} of {report.rows} rows predicted {how}{after}")
    note(f"constants fitted on {about['rows']} rows of {about['sources']} sources")
    rows = [("all", *_cells(report.overall)), *((group, *_cells(value)) for group, value in report.groups().items())]
    for formula, groups in report.baselines().items():
        rows += [(f"{formula}, {group}", *_cells(value)) for group, value in groups.items()]
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
