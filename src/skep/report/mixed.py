"""The report of the mixed workload: its tables and one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import to_builtins

from skep.quality.mixed_compare import MixedSide
from skep.quality.mixed_figures import (
    MOST_SLOWDOWN,
    QUICK_SLOWDOWN,
    Axis,
    MixedLevel,
    MixedSummary,
    TaskFigures,
)
from skep.report.columns import Column, csv_table, plain_columns
from skep.report.comparison import series_of
from skep.report.mixed_pictures import MixedSeries, mixed_pictures
from skep.report.sweep import run_report
from skep.report.sweep_text import counted
from skep.report.tables import Table, json_text
from skep.report.terminal import picked
from skep.store.records import StoredRun
from skep.store.verdicts import Verdict
from skep.units import UNKNOWN, milliseconds, number, percent, seconds, shortened, times

MOST_FAILURES = 20  # answers that are listed one by one
_DETAIL = 120  # characters of the reason of one
LevelAndAlone = tuple[MixedLevel, MixedLevel | None]  # a level, and C=1 of the same run


def _level(
    title: str, text: Callable[[MixedLevel], str], rank: int = 0, *, right: bool = True
) -> Column[LevelAndAlone]:
    return Column(title, title, lambda pair: text(pair[0]), rank=rank, right=right)


_CONVERSATION: tuple[Column[LevelAndAlone], ...] = (
    _level("C", lambda level: str(level.concurrency)),
    _level("level", lambda level: level.name, 3, right=False),
    Column("ttft", "TTFT of turn 1", lambda pair: milliseconds(pair[0].ttft_ms) + _change(*pair)),
    _level("turns", lambda level: " / ".join(seconds(turn.seconds) for turn in level.turns), 2),
    _level("total", lambda level: seconds(level.primary_s)),
    _level(
        "fastest–slowest",
        lambda level: f"{seconds(level.primary_low_s)}–{seconds(level.primary_high_s)}",
        1,
    ),
    Column("slowdown", "of C=1", lambda pair: times(pair[0].slowdown(pair[1]))),
    _level(
        "tokens",
        lambda level: number(
            sum(turn.output_tokens or 0 for turn in level.turns) or None, digits=0
        ),
        4,
    ),
)
_WORK: tuple[Column[LevelAndAlone], ...] = (
    _level("C", lambda level: str(level.concurrency)),
    _level("turn 1 tok/s", lambda level: number(level.tok_s), 1),
    _level("aggregate tok/s", lambda level: number(level.aggregate_tok_s)),
    _level("passed tasks/min", lambda level: number(level.passed_per_minute), 3),
    _level("passed tok/s", lambda level: number(level.passed_tok_s), 3),
    _level("time per passed task", lambda level: seconds(level.seconds_per_task), 2),
    _level(
        "all side tasks in flight",
        lambda level: percent(100 * (level.held_share or 0) if level.side else None),
        4,
    ),
    _level("turns passed", lambda level: share_passed(level.turns)),
    _level("side tasks passed", lambda level: share_passed(level.side)),
    _level("outcomes", lambda level: counted(level.outcomes), 2, right=False),
)
_AXES: tuple[Column[Axis], ...] = (
    Column("name", "axis", lambda axis: axis.name, right=False),
    Column("value", "0 to 1", lambda axis: axis.value, partial(number, digits=2)),
    Column("shown", "figures", lambda axis: axis.shown, right=False),
    Column("definition", "meaning", lambda axis: axis.definition, rank=1, right=False),
)
FIGURES: dict[str, Column[LevelAndAlone]] = {
    column.key: column for column in (*_CONVERSATION, *_WORK)
}
_FAILED: tuple[Column[Verdict], ...] = (
    Column("level", "C", lambda verdict: verdict.level),
    Column("item", "task", lambda verdict: verdict.item, right=False),
    Column("repeat", "repeat", lambda verdict: verdict.repeat + 1),
    Column("outcome", "outcome", lambda verdict: verdict.outcome.value, right=False),
    Column(
        "detail",
        "why",
        lambda verdict: verdict.detail,
        lambda detail: shortened(detail, _DETAIL),
        right=False,
    ),
)


def tables_of(summary: MixedSummary, verdicts: Sequence[Verdict]) -> list[Table]:
    """Return the tables of a run, with one row a level, task, axis or failed answer."""
    levels: list[LevelAndAlone] = [(level, summary.alone) for level in summary.levels]
    return [
        Table("conversation", _CONVERSATION, levels),
        Table("work", _WORK, levels),
        _tasks(summary),
        Table("axes", _AXES, summary.axes),
        *failed_tables(verdicts),
    ]


def failed_tables(
    verdicts: Sequence[Verdict], title: str = "answers that did not pass"
) -> list[Table]:
    """Return one table; none where all passed."""
    failed = [verdict for verdict in verdicts if verdict.level and not verdict.passed]
    if not failed:
        return []
    notes: tuple[str, ...] = ()
    if len(failed) > MOST_FAILURES:
        notes = (f"{len(failed) - MOST_FAILURES} more; `skep runs export` lists all",)
    return [Table(title, _FAILED, failed[:MOST_FAILURES], notes)]


def _tasks(summary: MixedSummary) -> Table:
    """Return one column a level: passed of judged, and the median time."""

    def at(c: int) -> Column[dict[int, TaskFigures]]:
        return Column(
            f"C={c}", f"C={c}", lambda by_level: task_words(by_level.get(c)), right=False
        )

    def title(by_level: dict[int, TaskFigures]) -> str:
        part = next(iter(by_level.values()))
        return f"{part.item} {part.title}"

    tasks: dict[str, dict[int, TaskFigures]] = {}
    for level in summary.levels:
        for part in level.tasks:
            tasks.setdefault(part.item, {})[level.concurrency] = part
    columns = [
        Column("task", "task", title, right=False),
        *(at(level.concurrency) for level in summary.levels),
    ]
    return Table(
        "tasks: passed when executed, time", columns, [tasks[item] for item in sorted(tasks)]
    )


def side_tasks_at(
    runs: Sequence[MixedSeries], concurrency: int
) -> dict[str, list[TaskFigures | None]]:
    """Return the side tasks of that level by name, with the figures of each run."""
    levels = [
        next((level for level in run.levels if level.concurrency == concurrency), None)
        for run in runs
    ]
    by_run = [
        {f"{task.item} {task.title}": task for task in level.side} if level else {}
        for level in levels
    ]
    names = sorted({name for tasks in by_run for name in tasks})
    return {name: [tasks.get(name) for tasks in by_run] for name in names}


def task_words(task: TaskFigures | None) -> str:
    """Return how many of its answers passed, and how long it took."""
    if task is None:
        return UNKNOWN
    if not task.runs:
        return "not asked"
    return f"{share_passed([task])} ({seconds(task.seconds)})"


def share_passed(parts: Sequence[TaskFigures]) -> str:
    passed = sum(part.passed for part in parts)
    judged = sum(part.judged for part in parts)
    return f"{passed}/{judged}" if judged else UNKNOWN


def _change(level: MixedLevel, alone: MixedLevel | None) -> str:
    """Return how the TTFT of turn 1 differs from C=1: " (+41 %)"."""
    value = level.ttft_ms
    base = None if alone is None else alone.ttft_ms
    if value is None or not base or level is alone:
        return ""
    return f" ({100 * (value / base - 1):+z.0f} %)"


_TASK_ROWS = plain_columns(
    "concurrency=level.concurrency level=level.name item=task.item title=task.title "
    "requests=task.runs "
    "ttft_ms=task.ttft_ms seconds=task.seconds output_tokens=task.output_tokens "
    "tok_s=task.tok_s passed=task.passed "
    "judged=task.judged"
)


def mixed_text(side: MixedSide, form: str) -> str:
    """Return a run for a README, a spreadsheet or a program; the last has every answer with its
    verdict.
    """
    run = side.run
    summary = side.summary
    if form == "json":
        return json_text({"run": run.id, **to_builtins(summary), "answers": answers_of(side)})
    if form == "csv":
        return csv_table(
            _TASK_ROWS,
            [{"level": level, "task": task} for level in summary.levels for task in level.tasks],
        )
    origin = (
        f"{'SIMULATED. ' if run.simulated else ''}{run.model}, run {run.id}, skep "
        f"{run.skep_version}.\n"
    )
    advice = "".join(f"- {reason}\n" for reason in summary.advice.reasons)
    tables = [table.markdown() for table in tables_of(summary, side.verdicts)]
    return "\n".join([origin, f"Advice: {spot_words(summary)}.\n", advice, *tables])


def answers_of(side: MixedSide) -> list[dict[str, Any]]:
    """Return each request that was measured: what was asked, what was answered, and what became of
    it.
    """
    verdicts = {
        (verdict.level, verdict.repeat, verdict.index): verdict for verdict in side.verdicts
    }
    answers = []
    for row in side.rows:
        if row.level:
            verdict = verdicts.get((row.level, row.repeat, row.index))
            record = picked(
                row, "level repeat kind turn prompt_tokens output_tokens error_kind finish_reason"
            )
            record["seconds"] = row.ended_s - row.started_s
            record["outcome"] = None if verdict is None else verdict.outcome.value
            record["detail"] = None if verdict is None else verdict.detail
            answers.append({**record, **picked(row, "prompt answer reasoning")})
    return answers


def spot_words(summary: MixedSummary) -> str:
    advice = summary.advice
    if advice.concurrency is None:
        return "no level is recommended"
    quick = advice.quick_side_tasks
    limits = []
    if quick is not None:
        limits.append(f"{side_tasks_words(quick)} within {QUICK_SLOWDOWN}x of its time alone")
    if quick is None or advice.concurrency - 1 > quick:
        limits.append(f"{side_tasks_words(advice.concurrency - 1)} within {MOST_SLOWDOWN}x")
    words = f"beside a conversation: {', '.join(limits)}"
    batch = advice.batch_side_tasks
    if batch is not None:
        words += f"; for batch work: {side_tasks_words(batch)} (C={batch + 1})"
    return words


def side_tasks_words(count: int) -> str:
    if count == 0:
        return "no side task"
    if count == 1:
        return "1 side task"
    return f"{count} side tasks"


def mixed_page(run: StoredRun, summary: MixedSummary, verdicts: Sequence[Verdict] = ()) -> str:
    """Return one HTML document. `verdicts`: to list the answers that did not pass."""
    series = series_of([(run, summary)])
    highest_concurrency = max((level.concurrency for level in summary.levels), default=0)
    return run_report(
        "mixed_page.html",
        run,
        "mixed workload",
        "mixed",
        terms_kind="mixed",
        summary=summary,
        spot_words=spot_words(summary),
        tables=tables_of(summary, verdicts),
        drawn=mixed_pictures(series, side_tasks_at(series, highest_concurrency)),
    )
