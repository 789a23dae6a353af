"""The tables of the write-ups as plain rows, for Markdown and CSV: levels, contention, speedup, configurations.

A configuration that failed has its diagnosis in the cell where its figure would be. What is unknown is None: a dash in
Markdown, an empty field in CSV. A level that the client limited is shown with a note, and never ranked.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skep.bench.records import Energy, LevelSummary, SweepSummary
from skep.errors import UserError
from skep.stats.percentiles import Percentiles
from skep.units import UNKNOWN, known, number, percent, printable

Cell = str | int | float | None
Figure = Callable[[LevelSummary], Cell]


def _percentiles(name: str, of: Callable[[LevelSummary], Percentiles | None]) -> dict[str, Figure]:
    def one(which: str) -> Figure:
        return lambda level: None if (some := of(level)) is None else float(getattr(some, which))

    return {f"{name}_{which}_ms": one(which) for which in ("p50", "p95", "p99", "mean")}


def _energy(of: Callable[[Energy], Cell]) -> Figure:
    return lambda level: None if level.energy is None else of(level.energy)


def _interval(name: str, which: str) -> Figure:
    return lambda level: None if (some := getattr(level, name)) is None else float(getattr(some, which))


def _counts(counts: tuple[tuple[str, int], ...]) -> str:
    return ";".join(f"{name}={count}" for name, count in counts)


LEVEL_FIGURES: dict[str, Figure] = {
    "concurrency": lambda level: level.concurrency,
    "traffic": lambda level: level.traffic,
    "requests": lambda level: level.requests,
    "failed": lambda level: level.failed,
    "truncated": lambda level: level.truncated,
    "runs": lambda level: len(level.counted),
    "runs_left_out": lambda level: len(level.left_out),
    "wall_s": lambda level: level.wall_s,
    "output_tokens": lambda level: level.output_tokens,
    "effective_tok_s": lambda level: level.effective_tok_s,
    "effective_low_tok_s": lambda level: level.effective_low,
    "effective_high_tok_s": lambda level: level.effective_high,
    "effective_ci95_low_tok_s": _interval("effective_interval", "low"),
    "effective_ci95_high_tok_s": _interval("effective_interval", "high"),
    "plateau_tok_s": lambda level: level.plateau_tok_s,
    "task_tok_s": lambda level: level.task_tok_s,
    "task_with_ttft_tok_s": lambda level: level.task_tok_s_whole,
    "contention_pct": lambda level: level.contention_pct,
    "engine_tok_s": lambda level: level.engine_tok_s,
    **_percentiles("ttft", lambda level: level.ttft_ms),
    "ttft_median_ci95_low_ms": _interval("ttft_interval", "low"),
    "ttft_median_ci95_high_ms": _interval("ttft_interval", "high"),
    **_percentiles("tpot", lambda level: level.tpot_ms),
    "tpot_median_ci95_low_ms": _interval("tpot_interval", "low"),
    "tpot_median_ci95_high_ms": _interval("tpot_interval", "high"),
    **_percentiles("first_byte", lambda level: level.first_byte_ms),
    **_percentiles("gap", lambda level: level.gap_ms),
    **_percentiles("total", lambda level: level.total_ms),
    **_percentiles("queued", lambda level: level.queued_ms),
    "prompt_tokens_mean": lambda level: level.prompt_tokens,
    "output_tokens_mean": lambda level: level.output_tokens_each,
    "cached_prompt_share": lambda level: level.cached_prompt_share,
    "delivered_share": lambda level: level.delivered,
    "client_limited": lambda level: level.client_limited,
    "finish_reasons": lambda level: _counts(level.finish_reasons),
    "errors": lambda level: _counts(level.errors),
    "joules": _energy(lambda energy: energy.joules),
    "joules_per_token": _energy(lambda energy: energy.joules_per_token),
    "mean_w": _energy(lambda energy: energy.mean_w),
    "max_w": _energy(lambda energy: energy.max_w),
    "throttled": _energy(lambda energy: ";".join(energy.throttled)),
    "disagreements": lambda level: "; ".join(f"{one.clock.value}: {one.cause}" for one in level.clocks),
}


Entry = tuple[str, SweepSummary | str]  # label; what was measured, or why it was not

_LIMITED = "client-limited"
_FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Table:
    """`units` says how each column is read: "tok/s", "s", "x", "%", "+%" (with its sign), or "" for plain values."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    units: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def unit(self, column: int) -> str:
        return self.units[column] if column < len(self.units) else ""


def level_rows(summary: SweepSummary) -> Table:
    """Return every level and kind of traffic with all of its figures, under names that a program can use."""
    every = (*summary.levels, *summary.classes)
    rows = tuple(tuple(figure(level) for figure in LEVEL_FIGURES.values()) for level in every)
    return Table(f"levels of {summary.run_id}", tuple(LEVEL_FIGURES), rows)


def effective_table(entries: Sequence[Entry]) -> Table:
    """Config | C=1 | C=2 | ...: effective tok/s of each configuration at each level that any of them has."""
    levels = _all_levels(entries)
    columns = ("Config", *(tuple(f"C={c}" for c in levels) or ("Effective",)))
    rows = tuple((label, *_effective_cells(what, levels, len(columns) - 1)) for label, what in entries)
    return Table("Effective tok/s", columns, rows, ("", *["tok/s"] * (len(columns) - 1)), _limited_notes(entries))


def contention_table(entries: Sequence[Entry], *, at: int | None = None) -> Table:
    """Config | C=1 per-task | C=N per-task | Contention."""
    n = _shared_level(entries) if at is None else at
    rows: list[tuple[Cell, ...]] = []
    for label, what in entries:
        if isinstance(what, str):
            rows.append((label, what, _FAILED, _FAILED))
            continue
        alone, many = _level(what, 1), _level(what, n)
        contention = many.contention_pct if many else None
        rows.append((label, _task(alone), _task(many), contention))
    columns = ("Config", "C=1 per-task", f"C={_or_n(n)} per-task", "Contention")
    return Table("Contention", columns, tuple(rows), ("", "tok/s", "tok/s", "%"), _limited_notes(entries, n))


def speedup_table(entries: Sequence[Entry]) -> Table:
    """Config | Serial | Swarm (C=N) | Speedup by wall | by tokens | both without tasks cut at the token limit."""
    sizes = {_swarm_size(what) for _, what in entries if not isinstance(what, str)} - {None}
    rows = tuple((label, *_speedup_cells(what)) for label, what in entries)
    swarm = f"Swarm (C={next(iter(sizes))})" if len(sizes) == 1 else "Swarm"
    columns = (
        "Config",
        "Serial",
        swarm,
        "Speedup by wall",
        "by tokens",
        "by wall, without truncated",
        "by tokens, without truncated",
    )
    notes = [note for label, what in entries for note in _speedup_notes(label, what, several=len(sizes) > 1)]
    return Table("Serial against swarm", columns, rows, ("", "s", "s", "x", "x", "x", "x"), tuple(notes))


def advantage_table(entries: Sequence[Entry]) -> Table:
    """C | A eff. | B eff. | B advantage | ...: each of the others against the first."""
    if len(entries) < 2:
        raise UserError("an advantage needs two configurations", hint="give the one to compare with first")
    (first, base), others = entries[0], entries[1:]
    levels = _all_levels(entries)
    rows = []
    for c in levels:
        row: list[Cell] = [c, _effective_at(base, c)]
        for _, what in others:
            row += [_effective_at(what, c), _ratio(base, what, c)]
        rows.append(tuple(row))
    columns = ["C", f"{first} eff."]
    for label, _ in others:
        columns += [f"{label} eff.", f"{label} advantage"]
    units = ("", "tok/s", *["tok/s", "x"] * len(others))
    return Table(f"Against {first}", tuple(columns), tuple(rows), units, _limited_notes(entries))


def baseline_table(entries: Sequence[Entry], *, baseline: str | None = None, at: int | None = None) -> Table:
    """Config | eff. at C=N | against the baseline, in per cent of it. The baseline is the first where none is named."""
    labels = [label for label, _ in entries]
    if baseline is not None and baseline not in labels:
        raise UserError(f"baseline `{baseline}` is not among the configurations", hint=f"one of {', '.join(labels)}")
    n = _shared_level(entries) if at is None else at
    name = baseline if baseline is not None else next(iter(labels), "baseline")
    base = next((what for label, what in entries if label == name), "")
    rows = []
    for label, what in entries:
        ratio = _ratio(base, what, n)
        change: Cell = 100 * (ratio - 1) if isinstance(ratio, float) else ratio
        rows.append((label, _effective_at(what, n), "baseline" if label == name else change))
    columns = ("Config", f"C={_or_n(n)} effective", f"vs {name}")
    return Table(f"Against {name}", columns, tuple(rows), ("", "tok/s", "+%"), _limited_notes(entries, n))


def shown(table: Table) -> list[list[str]]:
    """Return the rows as a reader meets them, rounded, with units but for one that the title names."""
    units = ["" if table.unit(i) in table.title.split() else table.unit(i) for i in range(len(table.columns))]
    return [[_shown(cell, unit) for cell, unit in zip(row, units, strict=True)] for row in table.rows]


def markdown(table: Table) -> str:
    """Return a heading, the table, and its notes as a list. Text that would break a row is escaped."""
    right = [any(isinstance(row[i], int | float) for row in table.rows) for i in range(len(table.columns))]
    lines = [
        _line(table.columns),
        _line(["---:" if is_number else "---" for is_number in right]),
        *(_line(row) for row in shown(table)),
    ]
    notes = [f"- {_escaped(note)}" for note in table.notes]
    return "\n".join([f"### {_escaped(table.title)}", "", *lines, *(["", *notes] if notes else []), ""])


def csv_text(table: Table) -> str:
    """Values in full; a unit stands in brackets behind the name of its column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    units = [table.unit(i).removeprefix("+") for i in range(len(table.columns))]
    writer.writerow(
        [f"{name} ({unit})" if unit else name for name, unit in zip(table.columns, units, strict=True)],
    )
    writer.writerows([["" if cell is None else _plain(cell) for cell in row] for row in table.rows])
    return out.getvalue()


def _level(summary: SweepSummary, concurrency: int | None) -> LevelSummary | None:
    return next((level for level in summary.levels if level.concurrency == concurrency), None)


def _all_levels(entries: Sequence[Entry]) -> list[int]:
    measured = [what for _, what in entries if not isinstance(what, str)]
    return sorted({level.concurrency for summary in measured for level in summary.levels})


def _shared_level(entries: Sequence[Entry]) -> int | None:
    """Return the largest level that all configurations have; the largest of any where they share none above one."""
    measured = [{level.concurrency for level in what.levels} for _, what in entries if not isinstance(what, str)]
    shared = set.intersection(*measured) if measured else set()
    if max(shared, default=0) > 1:
        return max(shared)
    return max((c for levels in measured for c in levels), default=None)


def _or_n(concurrency: int | None) -> str:
    return "N" if concurrency is None else str(concurrency)


def _effective_at(what: SweepSummary | str, concurrency: int | None) -> Cell:
    """Return a figure, the reason why there is none, or None where that level was not measured."""
    if isinstance(what, str):
        return what
    level = _level(what, concurrency)
    if level is None:
        return None
    if known(level.effective_tok_s):
        return level.effective_tok_s
    kinds = ", ".join(f"{count} {kind}" for kind, count in level.errors)
    return f"{_FAILED}: {kinds}" if kinds else _FAILED


def _effective_cells(what: SweepSummary | str, levels: Sequence[int], columns: int) -> list[Cell]:
    if isinstance(what, str):
        return [what, *[_FAILED] * (columns - 1)]
    return [_effective_at(what, c) for c in levels] or [None] * columns


def _task(level: LevelSummary | None) -> Cell:
    return level.task_tok_s if level is not None and known(level.task_tok_s) else None


def _ratio(base: SweepSummary | str, what: SweepSummary | str, concurrency: int | None) -> float | str | None:
    """Return what over base; words where one of them failed or the client was the limit."""
    of_base, of_what = _effective_at(base, concurrency), _effective_at(what, concurrency)
    if isinstance(of_base, str) or isinstance(of_what, str):
        return _FAILED
    if of_base is None or of_what is None or not of_base:
        return None
    if _is_limited(base, concurrency) or _is_limited(what, concurrency):
        return _LIMITED
    return of_what / of_base


def _is_limited(what: SweepSummary | str, concurrency: int | None) -> bool:
    level = None if isinstance(what, str) else _level(what, concurrency)
    return level is not None and level.client_limited


def _limited_notes(entries: Sequence[Entry], at: int | None = None) -> tuple[str, ...]:
    notes = []
    for label, what in entries:
        levels = () if isinstance(what, str) else what.levels
        where = [str(one.concurrency) for one in levels if one.client_limited and at in (None, one.concurrency)]
        if where:
            notes.append(f"{label}: the client was the limit at C={', '.join(where)}; read it as a lower bound")
    return tuple(notes)


def _swarm_size(what: SweepSummary) -> int | None:
    if what.speedups is not None:
        return what.speedups.concurrency
    largest = max((level.concurrency for level in what.levels), default=1)
    return largest if largest > 1 else None


def _speedup_cells(what: SweepSummary | str) -> tuple[Cell, ...]:
    if isinstance(what, str):
        return (what, *[_FAILED] * 5)
    forms = what.speedups
    if forms is None:
        return (what.serial_wall_s, what.swarm_wall_s, what.speedup, None, None, None)
    walls = forms.serial_wall_s, forms.swarm_wall_s
    return (*walls, forms.by_wall, forms.by_tokens, forms.by_wall_whole, forms.by_tokens_whole)


def _speedup_notes(label: str, what: SweepSummary | str, *, several: bool) -> list[str]:
    if isinstance(what, str):
        return []
    notes = [f"{label}: swarm of {_or_n(_swarm_size(what))}"] if several else []
    forms = what.speedups
    if forms is not None and (forms.truncated_serial or forms.truncated_swarm):
        cut = f"{forms.truncated_serial} serial and {forms.truncated_swarm} swarm answers"
        notes.append(f"{label}: {cut} were cut at the token limit")
    if forms is not None and _is_limited(what, forms.concurrency):
        notes.append(f"{label}: the client was the limit of the swarm; read its speedup as a lower bound")
    return notes


def _shown(cell: Cell, unit: str) -> str:
    if cell is None or isinstance(cell, str):
        return UNKNOWN if cell is None else cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    match unit:
        case "%":
            return percent(cell)
        case "+%":
            return ("+" if round(cell) > 0 else "") + percent(cell)
        case "x":
            return f"{number(cell, digits=2)}x"
        case "s":
            return f"{number(cell, digits=1)} s"
        case "tok/s":
            return f"{number(cell)} tok/s"
        case _:
            return str(cell) if isinstance(cell, int) else number(cell)


def _plain(cell: str | float) -> str | float:
    return str(cell).lower() if isinstance(cell, bool) else cell


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    """On one line, with nothing in it that Markdown takes for the end of a cell or for HTML."""
    one_line = " ".join(printable(text).split())
    return one_line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
