"""Runs as plain rows for Markdown, CSV and JSON: the tables of write-ups, the levels of a run, its requests.

A configuration that failed has its diagnosis in the cell where its figure would be. What is unknown is None: a dash in
Markdown, an empty field in CSV. A level that the client limited is shown with a note, and never ranked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from skep.bench.compare import loss
from skep.bench.matrix import MatrixResult
from skep.bench.metrics import Comparison, LevelSummary, SweepSummary, tpot_ms
from skep.bench.stored_run import TIMED
from skep.report.columns import Column, csv_table, csv_text, markdown_cell, markdown_table
from skep.report.sweep_text import LEVEL_COLUMNS, left_out_sentences, level_columns
from skep.report.terminal import picked
from skep.stats.versus import Judgement
from skep.store.records import Request, StoredRun
from skep.store.verdicts import Verdict
from skep.units import known, number, percent


def levels_text(run: StoredRun, summary: SweepSummary, form: str) -> str:
    if form == "json":
        return _json({"run": run.id, "model": run.model, **to_builtins(summary)})
    if form == "csv":
        return level_rows(summary).csv()
    entries: list[tuple[str, SweepSummary | str]] = [(run.model, summary)]
    tables = [_readable(run, summary)]
    if run.kind not in TIMED:
        tables.append(contention_table(entries))
    if summary.speedups is not None:
        tables.append(speedup_table(entries))
    origin = f"{'SIMULATED. ' if run.simulated else ''}{run.model}, run {run.id}, skep {run.skep_version}.\n"
    return "\n".join([origin, *(table.markdown() for table in tables)])


def _readable(run: StoredRun, summary: SweepSummary) -> Table:
    """Return the level table of a README: what fits beside each other. Classes of traffic follow the whole."""
    from skep.report.sweep import level_name, name_column

    figures = level_columns(
        "effective_tok_s spread plateau_tok_s task_tok_s contention_pct ttft_p50_ms ttft_p95_ms tpot_p50_ms counted "
        "requests failed"
    )
    timed = run.kind in TIMED
    first = [name_column(run, "load")] if timed else level_columns("concurrency")
    levels = (*summary.levels, *(summary.classes if timed else ()))
    return Table("Levels", [*first, *figures], levels, tuple(left_out_sentences(levels, partial(level_name, run))))


def requests_text(rows: list[Request], verdicts: list[Verdict], form: str) -> str:
    known = {(one.level, one.repeat, one.index): one for one in verdicts}
    records = [_record(row) for row in rows]
    if known:
        found = (known.get((row.level, row.repeat, row.index)) for row in rows)
        records = [{**record, **_verdict(one)} for record, one in zip(records, found, strict=True)]
    if form == "json":
        return _json(records)
    names = [*_record(Request(0, 0, 0, "", 0.0, 0.0)), *(_verdict(None) if known else ())]
    return csv_text(names, (record.values() for record in records))


def _record(row: Request) -> dict[str, Any]:
    """Without the texts and the arrivals, which are long; they are in the store."""
    left_out = ("arrivals_s", "prompt", "answer", "reasoning", "engine")
    plain = {key: value for key, value in to_builtins(row).items() if key not in left_out}
    engine = {f"engine_{key}": value for key, value in to_builtins(row.engine).items()}
    return {**plain, **engine, "tpot_ms": tpot_ms(row), "events": len(row.arrivals_s)}


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    names = "item outcome detail keywords checker"
    return dict.fromkeys(names.split()) if verdict is None else picked(verdict, names)


def _json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


Cell = str | float | None
Entry = tuple[str, SweepSummary | str]  # label; what was measured, or why it was not
_LIMITED, _FAILED = "client-limited", "failed"


class Table(msgspec.Struct, frozen=True):
    """Records and their columns, with remarks that stand below it."""

    title: str
    columns: Sequence[Column[Any]]
    records: Sequence[Any]
    notes: tuple[str, ...] = ()

    def csv(self) -> str:
        return csv_table(self.columns, self.records)

    def markdown(self) -> str:
        """Return a heading, the table, and its notes as a list."""
        notes = "".join(f"- {markdown_cell(note)}\n" for note in self.notes)
        body = markdown_table(self.columns, self.records)
        return f"### {markdown_cell(self.title)}\n\n{body}" + (f"\n{notes}" if notes else "")


_TEXTS: dict[str, Callable[[float], str]] = {
    " tok/s": number,
    " s": partial(number, digits=1),
    "x": partial(number, digits=2),
    "%": percent,
    "+%": lambda value: ("+" if round(value) > 0 else "") + percent(value),
}


def _column(title: str, unit: str, value: Callable[[Any], Cell], *, named: bool = False) -> Column[Any]:
    """Return a column of figures or words. `named`: the unit stands above the table; "+%" is with its sign."""

    def text(cell: str | float) -> str:
        return cell if isinstance(cell, str) else _TEXTS[unit](cell)

    key = f"{title} ({unit.strip(' +')})"
    return Column(key, title, value, text, unit="" if named or unit.endswith("%") else unit)


_CONFIG: Column[Entry] = Column("Config", "Config", lambda entry: entry[0], right=False)


def level_rows(summary: SweepSummary) -> Table:
    """Return every level and kind of traffic with all of its figures, under names that a program can use."""
    return Table(f"levels of {summary.run_id}", LEVEL_COLUMNS, (*summary.levels, *summary.classes))


def _measured(read: Callable[[SweepSummary], Cell], otherwise: str | None = _FAILED) -> Callable[[Entry], Cell]:
    """Return what reads a cell. Of what was not measured it is `otherwise`; None: the reason."""
    return lambda entry: (otherwise or entry[1]) if isinstance(entry[1], str) else read(entry[1])


def _figure(name: str, concurrency: int | None) -> Callable[[SweepSummary], Cell]:
    def read(what: SweepSummary) -> Cell:
        figure: float | None = getattr(_levels(what).get(concurrency), name, None)
        return figure if known(figure) else None

    return read


def effective_table(entries: Sequence[Entry]) -> Table:
    """Config | C=1 | C=2 | ...: effective tok/s of each configuration at each level that any of them has."""
    columns = [_CONFIG]
    for c in _all_levels(entries) or (None,):
        reason = _FAILED if len(columns) > 1 else None
        title = f"C={c}" if c else "Effective"
        columns.append(_column(title, " tok/s", _measured(partial(_effective_at, concurrency=c), reason), named=True))
    return Table("Effective tok/s", columns, entries, _limited_notes(entries))


def contention_table(entries: Sequence[Entry]) -> Table:
    """Config | C=1 per-task | C=N per-task | Contention."""
    n = _shared_level_of(entries)
    columns = [
        _CONFIG,
        _column("C=1 per-task", " tok/s", _measured(_figure("task_tok_s", 1), None)),
        _column(f"C={n or 'N'} per-task", " tok/s", _measured(_figure("task_tok_s", n))),
        _column("Contention", "%", _measured(_figure("contention_pct", n))),
    ]
    return Table("Contention", columns, entries, _limited_notes(entries, n))


def speedup_table(entries: Sequence[Entry]) -> Table:
    """Config | Serial | Swarm (C=N) | Speedup by wall | by tokens | both without tasks cut at the token limit."""
    sizes = {c for _, what in entries if not isinstance(what, str) for c in _swarm_size(what)}
    swarm = f"Swarm (C={next(iter(sizes))})" if len(sizes) == 1 else "Swarm"

    def form(title: str, name: str, rank: int = 0) -> Column[Any]:
        return replace(_column(title, "x", _measured(lambda what: getattr(what.speedups, name, None))), rank=rank)

    columns = [
        _CONFIG,
        _column("Serial", " s", _measured(attrgetter("serial_wall_s"), None)),
        _column(swarm, " s", _measured(attrgetter("swarm_wall_s"))),
        form("Speedup by wall", "by_wall"),
        form("by tokens", "by_tokens"),
        form("by wall, without truncated", "by_wall_whole", 1),
        form("by tokens, without truncated", "by_tokens_whole", 2),
    ]
    notes = [note for label, what in entries for note in _speedup_notes(label, what, several=len(sizes) > 1)]
    return Table("Serial against swarm", columns, entries, tuple(notes))


def advantage_table(entries: Sequence[Entry]) -> Table:
    """C | A eff. | B eff. | B advantage | ...: each of the others against the first."""
    (first, base), *others = entries
    columns = [Column[int]("C", "C", int), _column(f"{first} eff.", " tok/s", partial(_effective_at, base))]
    for label, what in others:
        columns.append(_column(f"{label} eff.", " tok/s", partial(_effective_at, what)))
        columns.append(_column(f"{label} advantage", "x", partial(_ratio, base, what)))
    return Table(f"Against {first}", columns, _all_levels(entries), _limited_notes(entries))


def baseline_table(entries: Sequence[Entry], baseline: str) -> Table:
    """Config | eff. at C=N | against the baseline, in per cent of it."""
    n, base = _shared_level_of(entries), dict(entries)[baseline]

    def change(entry: Entry) -> Cell:
        ratio = _ratio(base, entry[1], n)
        return "baseline" if entry[0] == baseline else 100 * (ratio - 1) if isinstance(ratio, float) else ratio

    effective = _column(f"C={n or 'N'} effective", " tok/s", lambda entry: _effective_at(entry[1], n))
    columns = [_CONFIG, effective, _column(f"vs {baseline}", "+%", change)]
    return Table(f"Against {baseline}", columns, entries, _limited_notes(entries, n))


def _levels(what: SweepSummary | str) -> dict[int | None, LevelSummary]:
    return {} if isinstance(what, str) else {level.concurrency: level for level in what.levels}


def _all_levels(entries: Sequence[Entry]) -> list[int]:
    return sorted({level.concurrency for _, what in entries for level in _levels(what).values()})


def _shared_level_of(entries: Sequence[Entry]) -> int | None:
    """Return the largest level that all configurations have; the largest of any where they share none above one."""
    measured = [{level.concurrency for level in what.levels} for _, what in entries if not isinstance(what, str)]
    shared = set.intersection(*measured) if measured else set()
    return max(shared) if max(shared, default=0) > 1 else max(_all_levels(entries), default=None)


def _effective_at(what: SweepSummary | str, concurrency: int | None) -> Cell:
    """Return a figure, the reason why there is none, or None where that level was not measured."""
    if isinstance(what, str):
        return what
    if (level := _levels(what).get(concurrency)) is None:
        return None
    if known(level.effective_tok_s):
        return level.effective_tok_s
    kinds = ", ".join(f"{count} {kind}" for kind, count in level.errors)
    return f"{_FAILED}: {kinds}" if kinds else _FAILED


def _ratio(base: SweepSummary | str, what: SweepSummary | str, concurrency: int | None) -> float | str | None:
    """Return what over base; words where one of them failed or the client was the limit."""
    of_base, of_what = _effective_at(base, concurrency), _effective_at(what, concurrency)
    if isinstance(of_base, str) or isinstance(of_what, str):
        return _FAILED
    if of_base is None or of_what is None or not of_base:
        return None
    return _LIMITED if _is_limited(base, concurrency) or _is_limited(what, concurrency) else of_what / of_base


def _is_limited(what: SweepSummary | str, concurrency: int | None) -> bool:
    return (level := _levels(what).get(concurrency)) is not None and level.client_limited


def _limited_notes(entries: Sequence[Entry], at: int | None = None) -> tuple[str, ...]:
    limited = (
        (label, [str(c) for c, one in _levels(what).items() if one.client_limited and at in (None, c)])
        for label, what in entries
    )
    story = "{}: the client was the limit at C={}; read it as a lower bound"
    return tuple(story.format(label, ", ".join(where)) for label, where in limited if where)


def _swarm_size(what: SweepSummary) -> list[int]:
    return [level.concurrency for level in what.levels[-1:] if level.concurrency > 1]


def _speedup_notes(label: str, what: SweepSummary | str, *, several: bool) -> list[str]:
    if isinstance(what, str):
        return []
    notes = [f"{label}: swarm of {c}" for c in _swarm_size(what) if several]
    forms = what.speedups
    if forms and (forms.truncated_serial or forms.truncated_swarm):
        cut = f"{forms.truncated_serial} serial and {forms.truncated_swarm} swarm answers"
        notes.append(f"{label}: {cut} were cut at the token limit")
    if forms and _is_limited(what, forms.concurrency):
        notes.append(f"{label}: the client was the limit of the swarm; read its speedup as a lower bound")
    return notes


def matrix_tables(cells: Sequence[MatrixResult], baseline: str | None) -> list[Table]:
    entries: list[Entry] = [(cell.config.name, cell.summary or cell.diagnosis or "not measured") for cell in cells]
    first = baseline or cells[0].config.name
    ordered = sorted(entries, key=lambda entry: entry[0] != first)
    tables = [effective_table(entries), contention_table(entries)]
    if any(cell.summary is not None and cell.summary.speedups is not None for cell in cells):
        tables.append(speedup_table(entries))
    if len(entries) > 1:
        tables += [baseline_table(entries, first), advantage_table(ordered)]
    return tables


SHOWN = {"effective tok/s": "tok/s", "TTFT p50": "TTFT p50", "TTFT p95": "TTFT p95", "TPOT p50": "TPOT p50"}
_RANKS = {"TTFT p50": 1, "TPOT p50": 2, "TTFT p95": 3}  # in a narrow terminal the last goes first
MARKS = {Judgement.BETTER: "better", Judgement.WORSE: "worse", Judgement.SAME: "=", Judgement.UNKNOWN: "?"}


class CompareResult(msgspec.Struct, frozen=True):
    """A comparison with its verdict. `worse`: the regressions, beyond `allowed`."""

    found: Sequence[Comparison]
    worse: Sequence[Comparison]
    allowed: float

    @property
    def verdict(self) -> str:
        if self.worse:
            return "regression"
        judged = any(one.judgement is not Judgement.UNKNOWN for one in self.found)
        return "no regression" if judged else "not comparable"

    @property
    def words(self) -> str:
        beyond = f"{100 * self.allowed:g} %"
        match self.verdict:
            case "regression":
                told = [f"{_figure_name(one)} ({100 * loss(one):.1f} % worse)" for one in self.worse[:3]]
                more = [f"and {len(self.worse) - 3} more"] if len(self.worse) > 3 else []
                return f"REGRESSION: B is worse than A by more than {beyond}: {', '.join([*told, *more])}"
            case "no regression":
                return f"no regression beyond {beyond} is shown"
            case _:
                return "no verdict: no figure of the two runs can be compared"

    def remarks(self) -> list[str]:
        """Return why a single `worse` is no regression, what the table has no room for, and what was not compared."""
        counted = {(one.concurrency, one.metric) for one in self.worse}
        found = []
        for one in self.found:
            if one.judgement in (Judgement.BETTER, Judgement.WORSE) and one.metric not in SHOWN:
                found.append(f"{_figure_name(one)}, B / A: {_ratio_cell(one)}")
            if one.judgement is Judgement.WORSE and (one.concurrency, one.metric) not in counted:
                found.append(self._no_regression(one))
        for why in dict.fromkeys(one.why for one in self.found if one.judgement is Judgement.UNKNOWN and one.why):
            levels = dict.fromkeys(f"C={one.concurrency}" for one in self.found if one.why == why)
            found.append(f"{' and '.join(levels)} not compared: {why}")
        return found

    def _no_regression(self, one: Comparison) -> str:
        size, beyond = f"{100 * loss(one):.1f} %", f"{100 * self.allowed:g} %"
        if loss(one) <= self.allowed:
            return f"{_figure_name(one)} is {size} worse, within the threshold of {beyond}"
        return (
            f"{_figure_name(one)} alone is {size} worse, which is no regression: of unchanged figures, one in "
            f"twenty looks better or worse by chance, so it must hold at 95 % over all {len(self.found)} figures; "
            "more runs decide"
        )


def group_by_level(found: Sequence[Comparison]) -> list[dict[str, Comparison]]:
    levels: dict[int, dict[str, Comparison]] = {}
    for one in found:
        levels.setdefault(one.concurrency, {})[one.metric] = one
    return list(levels.values())


def comparison_columns() -> list[Column[dict[str, Comparison]]]:
    def ratio(metric: str, title: str) -> Column[dict[str, Comparison]]:
        rank = _RANKS.get(metric, 0)
        return Column(metric, f"{title} B/A", lambda of: _ratio_cell(of[metric]), rank=rank, right=False)

    speed = "effective tok/s"
    return [
        Column("concurrency", "C", lambda of: of[speed].concurrency),
        Column("a", "A tok/s", lambda of: of[speed].a),
        Column("b", "B tok/s", lambda of: of[speed].b),
        *(ratio(metric, title) for metric, title in SHOWN.items()),
    ]


def _ratio_cell(one: Comparison) -> str:
    if one.ratio is None:
        return MARKS[one.judgement]
    return f"{one.ratio.estimate:.2f} ({one.ratio.low:.2f}..{one.ratio.high:.2f}) {MARKS[one.judgement]}"


def _figure_name(one: Comparison) -> str:
    return f"{one.metric} at C={one.concurrency}"
