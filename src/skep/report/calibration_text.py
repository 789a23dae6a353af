"""A calibration on a terminal, and how far off the planner is for a table of measurements."""

from __future__ import annotations

from collections import defaultdict

from skep.deploy.stored_calibration import fitted_now, levels_json, measured_of
from skep.planner.validation import Spread, ValidationReport
from skep.report.columns import Column, print_records
from skep.report.terminal import note, print_table
from skep.store.records import CalibrationRecord
from skep.units import number


def print_calibration(row: CalibrationRecord) -> None:
    fitted = fitted_now(row)
    print(f"{row.model} {row.quant}, {row.layout} on {row.rig}, {row.engine}: {fitted}")  # noqa: T201
    rows = [
        [
            level["concurrency"],
            level["runs"],
            number(level["task_tok_s"], digits=1),
            f"{100 * level['spread']:.1f} %",
            number(level["predicted_before"], digits=1),
            number(level["predicted_after"], digits=1),
            f"{100 * (level['predicted_after'] / level['task_tok_s'] - 1):+.1f} %",
            number(level["effective_tok_s"], digits=1),
            number(level["effective_after"], digits=1),
            "" if level["fitted"] else "not fitted",
        ]
        for level in levels_json(row, fitted)
    ]
    print_table(">C|>RUNS|>tok/s EACH|>±|>BEFORE|>AFTER|>OFF|>tok/s ALL|>AFTER ALL|", rows)
    if (prompts := measured_of(row.document).prompts) is None:
        return
    spread = 100 * prompts.ttft_s.half_width
    print(f"first token of {prompts.input_tokens:.0f} tokens: {1000 * prompts.ttft_s.estimate:.0f} ms ± {spread:.0f} %")  # noqa: T201


def print_validation(report: ValidationReport, name: str) -> None:
    note(f"{name}: {len(report.points)} of {report.rows} rows predicted")
    groups = {**report.spreads(), **{f"source {name}": spread for name, spread in report.by_source().items()}}
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
