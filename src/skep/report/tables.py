"""Runs as plain rows for Markdown, CSV and JSON: the levels of a run, its requests, a comparison.

What is unknown is None: a dash in Markdown, an empty field in CSV.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import to_builtins

from skep.bench.compare import loss
from skep.bench.metrics import Comparison, SweepSummary, tpot_ms
from skep.bench.stored_run import TIMED_KINDS
from skep.errors import Regression
from skep.report.columns import (
    Column,
    csv_table,
    csv_text,
    markdown_cell,
    markdown_table,
    print_records,
)
from skep.report.sweep_text import (
    LEVEL_COLUMNS,
    left_out_sentences,
    level_columns,
    speedup_sentences,
)
from skep.report.terminal import note, picked
from skep.stats.versus import Judgement
from skep.store.records import Request, StoredRun
from skep.store.verdicts import Verdict
from skep.units import known, number


def levels_text(run: StoredRun, summary: SweepSummary, form: str) -> str:
    if form == "json":
        return json_text({"run": run.id, "model": run.model, **to_builtins(summary)})
    if form == "csv":
        return level_rows(summary).csv()
    origin = (
        f"{'SIMULATED. ' if run.simulated else ''}{run.model}, run {run.id}, skep "
        f"{run.skep_version}.\n"
    )
    return f"{origin}\n{_readable(run, summary).markdown()}"


def _readable(run: StoredRun, summary: SweepSummary) -> Table:
    """Return the level table of a README: what fits beside each other."""
    from skep.report.sweep import level_name, name_column

    figures = level_columns(
        "effective_tok_s spread plateau_tok_s task_tok_s contention_pct ttft_p50_ms "
        "ttft_p95_ms tpot_p50_ms counted "
        "requests failed"
    )
    timed = run.kind in TIMED_KINDS
    if timed:
        first = [name_column(run)]
    else:
        first = level_columns("concurrency")
    notes = left_out_sentences(summary.levels, partial(level_name, run))
    notes += speedup_sentences(summary.speedups) if summary.speedups is not None else []
    return Table("Levels", [*first, *figures], summary.levels, tuple(notes))


TEXTS = ("prompt", "answer", "reasoning")


def requests_text(
    rows: Sequence[Request], verdicts: Sequence[Verdict], form: str, *, with_texts: bool = False
) -> str:
    by_request = {(verdict.level, verdict.repeat, verdict.index): verdict for verdict in verdicts}
    records = [_record(row, with_texts=with_texts) for row in rows]
    if by_request:
        verdict_of_row = (by_request.get((row.level, row.repeat, row.index)) for row in rows)
        records = [
            {**record, **_verdict(verdict)}
            for record, verdict in zip(records, verdict_of_row, strict=True)
        ]
    if form == "json":
        return json_text(records)
    no_request = _record(Request(0, 0, 0, "", 0.0, 0.0), with_texts=with_texts)
    names = [*no_request, *(_verdict(None) if by_request else ())]
    return csv_text(names, (record.values() for record in records))


def _record(row: Request, *, with_texts: bool) -> dict[str, Any]:
    """Return a request as a program reads it, without its arrivals, which are long; they are in
    the store.
    """
    left_out = ("arrivals_s", "engine", *TEXTS)
    plain = {key: value for key, value in to_builtins(row).items() if key not in left_out}
    engine = {f"engine_{key}": value for key, value in to_builtins(row.engine).items()}
    if with_texts:
        texts = {name: getattr(row, name) for name in TEXTS}
    else:
        texts = {}
    return {**plain, **engine, "tpot_ms": tpot_ms(row), "events": len(row.arrivals_s), **texts}


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    names = "item outcome detail checker"
    if verdict is None:
        return dict.fromkeys(names.split())
    return picked(verdict, names)


def json_text(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


NamedSummary = tuple[str, SweepSummary]


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


def print_tables(tables: Sequence[Table]) -> None:
    """Print each below its title; notes go to stderr."""
    for table in tables:
        print(f"\n{table.title}")  # noqa: T201
        print_records(table.columns, table.records)
        note(*table.notes)


def level_rows(summary: SweepSummary) -> Table:
    """Return every level with all of its figures, under names that a program can use."""
    return Table(f"levels of {summary.run_id}", LEVEL_COLUMNS, summary.levels)


def effective_columns(runs: Sequence[NamedSummary]) -> list[Column[NamedSummary]]:
    """Return the columns Run | C=1 | C=2 | ...: effective tok/s of each run at each level that any
    of them has.
    """
    levels = sorted({level.concurrency for _, summary in runs for level in summary.levels})
    name: Column[NamedSummary] = Column("run", "Config", lambda run: run[0], right=False)
    return [name, *(Column(f"c{c}", f"C={c}", partial(_effective_at, c), _cell) for c in levels)]


def _effective_at(concurrency: int, run: NamedSummary) -> str | float | None:
    """Return a figure, the reason why there is none, or None where that level was not measured."""
    level = next((level for level in run[1].levels if level.concurrency == concurrency), None)
    if level is None or known(level.effective_tok_s):
        if level is None:
            return None
        return level.effective_tok_s
    return ": ".join(
        filter(None, ("failed", ", ".join(f"{count} {kind}" for kind, count in level.errors)))
    )


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return number(value)


SHOWN_METRICS = {
    "effective tok/s": "tok/s",
    "TTFT p50": "TTFT p50",
    "TTFT p95": "TTFT p95",
    "TPOT p50": "TPOT p50",
}
_RANKS = {"TTFT p50": 1, "TPOT p50": 2, "TTFT p95": 3}  # in a narrow terminal the last goes first
JUDGEMENT_MARKS = {
    Judgement.BETTER: "better",
    Judgement.WORSE: "worse",
    Judgement.SAME: "=",
    Judgement.UNKNOWN: "?",
}


class CompareResult(msgspec.Struct, frozen=True):
    """A comparison with its verdict.

    `worse`: the regressions, beyond `allowed`; `worse_words`: those of no level.
    """

    comparisons: Sequence[Comparison]
    worse: Sequence[Comparison]
    allowed: float
    worse_words: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if self.worse or self.worse_words:
            return "regression"
        judged = any(
            comparison.judgement is not Judgement.UNKNOWN for comparison in self.comparisons
        )
        if judged:
            return "no regression"
        return "not comparable"

    @property
    def exit_code(self) -> int:
        if self.verdict == "regression":
            return Regression.exit_code
        return 0

    @property
    def words(self) -> str:
        beyond = f"{100 * self.allowed:g} %"
        match self.verdict:
            case "regression":
                losses = [
                    f"{self.figure_name(comparison)} ({100 * loss(comparison):.1f} % worse)"
                    for comparison in self.worse[:3]
                ]
                losses = [*self.worse_words, *losses]
                if len(self.worse) > 3:
                    losses.append(f"and {len(self.worse) - 3} more")
                return f"REGRESSION: B is worse than A by more than {beyond}: {', '.join(losses)}"
            case "no regression":
                return f"no regression beyond {beyond} is shown"
            case _:
                return "no verdict: no figure of the two runs can be compared"

    def document(self, a: str, b: str) -> dict[str, Any]:
        """Return what `--json` prints; `a` and `b` are the ids of the runs."""
        return {
            "a": a,
            "b": b,
            "threshold": self.allowed,
            "comparisons": to_builtins(self.comparisons),
            "regressions": len(self.worse) + len(self.worse_words),
            "verdict": self.verdict,
            "verdict_in_words": self.words,
        }

    def remarks(self) -> list[str]:
        """Return why a single `worse` is no regression, what the table has no room for, and what
        was not compared.
        """
        regressions = {(comparison.concurrency, comparison.metric) for comparison in self.worse}
        beyond = f"more than {100 * self.allowed:g} %, at 95 % over all"
        remarks = []
        for comparison in self.comparisons:
            name = self.figure_name(comparison)
            is_worse = comparison.judgement is Judgement.WORSE
            is_judged = is_worse or comparison.judgement is Judgement.BETTER
            if is_judged and comparison.metric not in self.shown():
                remarks.append(f"{name}, B / A: {ratio_cell(comparison)}")
            if is_worse and (comparison.concurrency, comparison.metric) not in regressions:
                remarks.append(
                    f"{name} is {100 * loss(comparison):.1f} % worse: no regression, "
                    f"which is {beyond} {len(self.comparisons)} figures"
                )
        return [*remarks, *self._not_compared()]

    def figure_name(self, comparison: Comparison) -> str:
        return f"{comparison.metric} at {self.level_name(comparison.concurrency)}"

    def level_name(self, level: int) -> str:
        return f"C={level}"

    def shown(self) -> Collection[str]:
        """Return the figures that the table has room for."""
        return SHOWN_METRICS

    def _not_compared(self) -> list[str]:
        """Return each reason once, with the levels that could not be judged for it."""
        reasons = dict.fromkeys(
            comparison.why
            for comparison in self.comparisons
            if comparison.judgement is Judgement.UNKNOWN and comparison.why
        )
        remarks = []
        for why in reasons:
            concerned = (comparison for comparison in self.comparisons if comparison.why == why)
            levels = dict.fromkeys(
                self.level_name(comparison.concurrency) for comparison in concerned
            )
            remarks.append(f"{' and '.join(levels)} not compared: {why}")
        return remarks


class ModelChoice(CompareResult, frozen=True):
    """A comparison of two models: no figure alone is a regression.

    `better`: A or B; None: neither is shown to be.
    """

    better: str | None = None
    sentence: str = ""

    @property
    def verdict(self) -> str:
        judged = any(
            comparison.judgement is not Judgement.UNKNOWN for comparison in self.comparisons
        )
        if self.better == "A":
            return "regression"
        if judged or self.better:
            return "no regression"
        return "not comparable"

    @property
    def words(self) -> str:
        return self.sentence


def group_by_level(comparisons: Sequence[Comparison]) -> list[dict[str, Comparison]]:
    levels: dict[int, dict[str, Comparison]] = {}
    for comparison in comparisons:
        levels.setdefault(comparison.concurrency, {})[comparison.metric] = comparison
    return list(levels.values())


def comparison_columns() -> list[Column[dict[str, Comparison]]]:
    def ratio(metric: str, title: str) -> Column[dict[str, Comparison]]:
        rank = _RANKS.get(metric, 0)
        return Column(
            metric, f"{title} B/A", lambda of: ratio_cell(of[metric]), rank=rank, right=False
        )

    speed = "effective tok/s"
    return [
        Column("concurrency", "C", lambda of: of[speed].concurrency),
        Column("a", "A tok/s", lambda of: of[speed].a),
        Column("b", "B tok/s", lambda of: of[speed].b),
        *(ratio(metric, title) for metric, title in SHOWN_METRICS.items()),
    ]


def ratio_cell(comparison: Comparison) -> str:
    if comparison.ratio is None:
        return JUDGEMENT_MARKS[comparison.judgement]
    ratio = comparison.ratio
    mark = JUDGEMENT_MARKS[comparison.judgement]
    return f"{ratio.estimate:.2f} ({ratio.low:.2f}..{ratio.high:.2f}) {mark}"
