"""`skep calibrate validate`: compare the planner with a table of published measurements."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from skep.cli.output import note, print_json

if TYPE_CHECKING:
    from skep.cli.liveview import Line, Page
    from skep.planner.validation import Spread, ValidationReport


def validate(points: Path, as_json: bool) -> None:
    from skep.cli.bench_common import text_of
    from skep.cli.liveview import progress_bar, progress_view
    from skep.planner.validation import read_rows
    from skep.planner.validation import validate as compare

    rows = read_rows(text_of(points), str(points))

    def bar(done: int, _page: Page) -> list[Line]:
        return [[(f"predicting  {progress_bar(done, len(rows))}  {done}/{len(rows)}", "")]]

    with progress_view(lambda _done: None, bar) as tick:
        report = compare(rows, tick=tick)
    if as_json:
        print_json(report.document())
    else:
        _print(report, points.name)


def _print(report: ValidationReport, name: str) -> None:
    from skep.report.columns import Column, print_records

    predicted = f"{len(report.points)} of {report.rows} rows predicted"
    note(f"{name}: {predicted} with constants never fitted on their own source")
    groups = {**report.spreads(), **{f"source {name}": spread for name, spread in report.by_source().items()}}
    for formula, spreads in report.baselines().items():
        groups |= {f"{formula}, {group}": spread for group, spread in spreads.items()}
    columns: list[Column[tuple[str, Spread]]] = [
        Column("group", "ROWS OF", lambda pair: pair[0], right=False),
        Column("rows", "N", lambda pair: pair[1].rows),
        Column("median_ape", "MEDIAN |ERROR|", lambda pair: pair[1].median_ape, "{:.1%}".format),
        Column("p90_ape", "P90 |ERROR|", lambda pair: pair[1].p90_ape, "{:.1%}".format),
    ]
    print_records(columns, list(groups.items()))
    if report.covered is not None:
        note(f"the 80 % band holds {report.covered:.0%} of the rows")
    missing = defaultdict[str, list[int]](list)
    for row, why in report.unpredicted:
        missing[why.split(":")[0]].append(row)
    for fact, without in sorted(missing.items(), key=lambda found: -len(found[1])):
        note(f"not predicted, {fact}: {len(without)} {'row' if len(without) == 1 else 'rows'} ({_ranges(without)})")


def _ranges(rows: list[int]) -> str:
    """[2, 3, 4, 9] → "2-4, 9"."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
