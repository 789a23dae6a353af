"""Runs of the mixed workload beside each other: tables with a column a model, what they come to,
and one page.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import to_builtins

from skep.bench.metrics import Comparison
from skep.quality.mixed_compare import (
    CONVERSATION,
    ONE_REPEAT,
    TTFT,
    MixedComparison,
    MixedSide,
    compare_mixed,
)
from skep.quality.mixed_figures import (
    MOST_SLOWDOWN,
    QUICK_SLOWDOWN,
    Advice,
    Axis,
    MixedLevel,
    TaskFigures,
)
from skep.report.columns import Column, plain_text
from skep.report.comparison import comparison_heading, series_of, unlike_banners
from skep.report.mixed import FIGURES, failed_tables, share_passed, side_tasks_at, task_words
from skep.report.mixed_pictures import MixedSeries, mixed_pictures
from skep.report.page import render
from skep.report.tables import CompareResult, ModelChoice, Table, print_tables, ratio_cell
from skep.report.terminal import note
from skep.stats.versus import Judgement
from skep.units import UNKNOWN, format_bytes, known, number

# Each figure of a level that has a table: its title, which of a comparison has too, and the key of
# its column.
_LEVEL_TABLES = (
    (TTFT, "ttft"),
    (CONVERSATION, "total"),
    ("turn 1 tok/s", "turn 1 tok/s"),
    ("aggregate tok/s", "aggregate tok/s"),
    ("turns passed", "turns passed"),
    ("side tasks passed", "side tasks passed"),
    ("passed tasks a minute", "passed tasks/min"),
    ("tok/s in answers that passed", "passed tok/s"),
    ("tokens of the conversation", "tokens"),
)


class FigureRow(msgspec.Struct, frozen=True):
    """One row of a table with a column a run. `compared`: B against A, where it is judged."""

    title: str
    cells: tuple[str, ...]
    compared: Comparison | None = None


def mixed_series(sides: Sequence[MixedSide]) -> tuple[MixedSeries, ...]:
    return series_of([(side.run, side.summary) for side in sides])


def comparison_tables(
    runs: Sequence[MixedSeries], compared: MixedComparison | None
) -> list[Table]:
    """Return one table a figure, with a row a level; then side tasks at full load, axes and
    advice.
    """
    if compared is not None:
        judged = {
            (comparison.metric, comparison.concurrency): comparison
            for comparison in compared.found
        }
    else:
        judged = {}
    levels = sorted({level.concurrency for run in runs for level in run.levels})
    tables = []
    for title, key in _LEVEL_TABLES:
        rows = [
            FigureRow(str(c), _level_cells(runs, key, c), judged.get((title, c))) for c in levels
        ]
        if any(cell != UNKNOWN for row in rows for cell in row.cells):
            tables.append(_table(title, "C", runs, rows))
    return [
        _models_table(runs),
        *tables,
        *_task_tables(runs),
        _axes_table(runs),
        _advice_table(runs),
    ]


def _models_table(runs: Sequence[MixedSeries]) -> Table:
    """Return what was asked: as the endpoint told, and as the driver told of the memory."""
    facts = [_model_facts(run) for run in runs]
    rows = [FigureRow(name, tuple(of[name] for of in facts)) for name in facts[0]]
    return _table(
        "models", "", runs, [row for row in rows if any(cell != UNKNOWN for cell in row.cells)]
    )


def _model_facts(run: MixedSeries) -> dict[str, str]:
    engine = run.run.engine
    return {
        "engine": plain_text(engine.get("engine") or engine.get("server")),
        "slots": plain_text(engine.get("slots")),
        "context": plain_text(engine.get("context")),
        "GPU memory in use": _memory_words(run),
        "repeats of a level": plain_text(run.run.config.get("repeats")),
    }


def _memory_words(run: MixedSeries) -> str:
    memory = run.summary.memory
    if memory is None:
        return UNKNOWN
    cards = f" of {memory.gpus} GPUs" if memory.gpus > 1 else ""
    return f"{format_bytes(memory.used_bytes)} of {format_bytes(memory.total_bytes)}{cards}"


def _table(
    title: str, first: str, runs: Sequence[MixedSeries], rows: Sequence[FigureRow]
) -> Table:
    columns: list[Column[FigureRow]] = [Column("row", first, lambda row: row.title, right=False)]
    columns += [
        Column(run.letter, f"{run.letter} {run.name}", partial(_cell_at, place), right=False)
        for place, run in enumerate(runs)
    ]
    if any(row.compared for row in rows):
        columns.append(Column("ratio", "B / A", _ratio, right=False))
    return Table(title, columns, rows)


def _cell_at(place: int, row: FigureRow) -> str:
    return row.cells[place]


def _ratio(row: FigureRow) -> str | None:
    if row.compared is None:
        return None
    return ratio_cell(row.compared)


def _level_cells(runs: Sequence[MixedSeries], key: str, concurrency: int) -> tuple[str, ...]:
    column = FIGURES[key]
    levels = ((run, _level_at(run, concurrency)) for run in runs)
    return tuple(
        UNKNOWN if level is None else column.cell((level, run.summary.alone))
        for run, level in levels
    )


def _level_at(run: MixedSeries, concurrency: int) -> MixedLevel | None:
    return next((level for level in run.levels if level.concurrency == concurrency), None)


def full_load(runs: Sequence[MixedSeries]) -> int | None:
    """Return the highest C that all runs have, with side tasks; None: they share none."""
    shared = set.intersection(*({level.concurrency for level in run.levels} for run in runs))
    return max((c for c in shared if c > 1), default=None)


def _task_tables(runs: Sequence[MixedSeries]) -> list[Table]:
    concurrency = full_load(runs)
    if concurrency is None:
        return []
    rows = [
        FigureRow(name, tuple(task_words(task) for task in tasks))
        for name, tasks in side_tasks_at(runs, concurrency).items()
    ]
    return [_table(f"side tasks at C={concurrency}: passed, time", "task", runs, rows)]


def _axes_table(runs: Sequence[MixedSeries]) -> Table:
    names = list(dict.fromkeys(axis.name for run in runs for axis in run.summary.axes))
    return _table(
        "axes, from 0 to 1",
        "axis",
        runs,
        [FigureRow(name, _axis_cells(runs, name)) for name in names],
    )


def _axis_cells(runs: Sequence[MixedSeries], name: str) -> tuple[str, ...]:
    by_name = ({axis.name: _axis_words(axis) for axis in run.summary.axes} for run in runs)
    return tuple(words.get(name, UNKNOWN) for words in by_name)


def _axis_words(axis: Axis) -> str:
    if axis.value is None:
        return axis.shown
    return f"{number(axis.value, digits=2)} ({axis.shown})"


def _advice_table(runs: Sequence[MixedSeries]) -> Table:
    numbers = [_advised(run.summary.advice) for run in runs]
    rows = [FigureRow(name, tuple(of[name] for of in numbers)) for name in numbers[0]]
    return _table("advice: most side tasks", "", runs, rows)


def _advised(advice: Advice) -> dict[str, str]:
    if advice.concurrency is None:
        balanced = None
    else:
        balanced = advice.concurrency - 1
    return {
        f"beside a conversation, within {QUICK_SLOWDOWN}x of its time alone": plain_text(
            advice.quick_side_tasks
        ),
        f"beside a conversation, within {MOST_SLOWDOWN}x": plain_text(balanced),
        "for batch work": plain_text(advice.batch_side_tasks),
    }


class JudgedMixed(msgspec.Struct, frozen=True):
    """B against A, with what is said of it and the verdict."""

    a: MixedSide
    b: MixedSide
    compared: MixedComparison
    sentences: Sequence[str]
    outcome: CompareResult

    def document(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        mixed = {
            "runs": [self.a.summary, self.b.summary],
            "answers": self.compared.answers,
            "better": self.compared.better,
            "sentences": self.sentences,
        }
        return {**self.outcome.document(self.a.run.id, self.b.run.id), "mixed": to_builtins(mixed)}


def judged_comparison(a: MixedSide, b: MixedSide, allowed: float = 0.05) -> JudgedMixed:
    """Return the comparison with its verdict.

    Between two models no figure alone is a regression; of one model measured twice, each may be.
    """
    compared = compare_mixed(a, b, allowed)
    sentences = comparison_sentences(mixed_series((a, b)), compared)
    verdict = verdict_sentence(compared)
    if a.run.model != b.run.model:
        choice = ModelChoice(compared.found, (), allowed, (), compared.better, verdict)
        return JudgedMixed(a, b, compared, sentences, choice)
    outcome = CompareResult(compared.found, compared.worse, allowed, worse_answers(compared))
    return JudgedMixed(a, b, compared, [*sentences, verdict], outcome)


def print_comparison(sides: Sequence[MixedSide], judged: JudgedMixed | None) -> None:
    """Print the tables of two or more runs; of two, what they come to and the verdict."""
    runs = mixed_series(sides)
    compared = None
    head = "medians over repeats"
    if judged is not None:
        compared = judged.compared
        head += "; B / A with its 95 % interval; = not distinguishable, ? not comparable"
    note(head)
    for run in runs:
        print(f"{run.letter}  {run.name}, run {run.run.id}")  # noqa: T201
    print_tables(comparison_tables(runs, compared))
    if judged is not None:
        note(*why_not_judged(judged.compared))
        print("\n" + "\n".join([*judged.sentences, judged.outcome.words]))  # noqa: T201


def mixed_comparison_page(sides: Sequence[MixedSide]) -> str:
    """Return one HTML document of two to eight runs; of two, B is judged against A."""
    runs = mixed_series(sides)
    compared = None
    verdict = ""
    sentences: list[str] = []
    if len(sides) == 2:
        compared = compare_mixed(sides[0], sides[1])
        if compared.found:
            verdict = verdict_sentence(compared)
            sentences = [*comparison_sentences(runs, compared), *why_not_judged(compared)]
    concurrency = full_load(runs)
    side_tasks: dict[str, list[TaskFigures | None]] = {}
    if concurrency is not None:
        side_tasks = side_tasks_at(runs, concurrency)
    limited = {run.letter: sorted(side.limited) for run, side in zip(runs, sides, strict=True)}
    failed = [
        table
        for run, side in zip(runs, sides, strict=True)
        for table in failed_tables(side.verdicts, f"answers of {run.letter} that did not pass")
    ]
    return render(
        "mixed_comparison_page.html",
        kind="mixed workload, side by side",
        name="mixed comparison",
        title=comparison_heading(runs),
        verdict=verdict,
        sentences=sentences,
        told=unlike_banners(runs, limited),
        runs=runs,
        drawn=mixed_pictures(runs, side_tasks),
        tables=[*comparison_tables(runs, compared), *failed],
        footer=" · ".join(f"{run.letter}: run {run.run.id}" for run in runs),
    )


# What the tables come to


def comparison_sentences(runs: Sequence[MixedSeries], compared: MixedComparison) -> list[str]:
    """Return what is to be said of B against A: the conversation, the first token under load,
    right answers.
    """
    a, b = runs
    memory = [
        f"{_memory_words(run)} ({run.letter})" for run in runs if run.summary.memory is not None
    ]
    return [
        *_unfinished_sentences(compared),
        *_conversation_sentences(compared),
        *_steadiness(a, b),
        *([f"GPU memory in use: {', '.join(memory)}"] if len(memory) == len(runs) else []),
        _answers_sentence(a, b, compared),
    ]


def verdict_sentence(compared: MixedComparison) -> str:
    """Return which of the two does this work better.

    Speed counts only where right answers are not fewer.
    """
    if compared.none_passed:
        return "neither does this work: none of their answers passed"
    better = compared.better
    if better is None:
        return _no_verdict_words(compared)
    faster = _faster_levels(compared)
    loser = "A" if better == "B" else "B"
    reasons = []
    if compared.answers_judgement in _ANSWERS_WORDS:
        reasons.append("it has more right answers")
    if never := compared.unfinished["AB".index(loser)]:
        levels = ", ".join(map(str, never))
        reasons.append(f"{loser} never finished the conversation at C={levels}")
    if faster[better]:
        reasons.append(f"its conversation is faster at {_levels_of(faster[better])}")
    sentence = f"better for this work: {better}, as {' and '.join(reasons)}"
    if faster[loser]:
        sentence += f", though {loser} is faster at {_levels_of(faster[loser])}"
    return sentence


def _faster_levels(compared: MixedComparison) -> dict[str, list[Comparison]]:
    """Return the levels at which the conversation of A is faster, and those of B."""
    return {
        "A": compared.judged(CONVERSATION, Judgement.WORSE),
        "B": compared.judged(CONVERSATION, Judgement.BETTER),
    }


def _no_verdict_words(compared: MixedComparison) -> str:
    """Return why neither of the two is called better."""
    if all(compared.unfinished):
        return (
            "no verdict: each of the two leaves conversations unfinished that the other one "
            "finishes"
        )
    faster = _faster_levels(compared)
    if all(faster.values()):
        words = " and ".join(
            f"{name} is faster at {_levels_of(levels)}" for name, levels in faster.items()
        )
        return f"neither is better at every level: {words}"
    if compared.judged(CONVERSATION, Judgement.SAME):
        return "not distinguishable: neither is shown to be faster or to have more right answers"
    return "no verdict: no figure of the conversation can be compared"


_ANSWERS_WORDS = {Judgement.WORSE: "B has fewer", Judgement.BETTER: "B has more"}


def why_not_judged(compared: MixedComparison) -> list[str]:
    """Return each reason once, with the levels that it holds for."""
    unknown = [
        comparison
        for comparison in compared.found
        if comparison.judgement is Judgement.UNKNOWN and comparison.why
    ]
    whys = dict.fromkeys(comparison.why for comparison in unknown)
    return [f"{' and '.join(_levels_with(unknown, why))} not judged: {why}" for why in whys]


def worse_answers(compared: MixedComparison) -> tuple[str, ...]:
    """Return the words of a regression of answers: unfinished conversations, fewer right ones;
    often none.
    """
    _, never = compared.unfinished
    if never:
        levels = ", ".join(map(str, never))
        unfinished: tuple[str, ...] = (f"conversations that are never finished at C={levels}",)
    else:
        unfinished = ()
    answers = compared.answers
    if answers is None or compared.answers_judgement is not Judgement.WORSE:
        return unfinished
    return (
        *unfinished,
        f"right answers ({100 * answers.rate:.0f} % instead of {100 * answers.base_rate:.0f} %)",
    )


def _levels_with(comparisons: Sequence[Comparison], why: str) -> list[str]:
    return list(
        dict.fromkeys(
            f"C={comparison.concurrency}" for comparison in comparisons if comparison.why == why
        )
    )


def _levels_of(comparisons: Sequence[Comparison]) -> str:
    return f"C={', '.join(str(comparison.concurrency) for comparison in comparisons)}"


def _unfinished_sentences(compared: MixedComparison) -> list[str]:
    sides = zip("AB", compared.unfinished, strict=True)
    return [
        f"{name} never finished the conversation at C={', '.join(map(str, levels))}"
        for name, levels in sides
        if levels
    ]


def _conversation_sentences(compared: MixedComparison) -> list[str]:
    """Return at which levels the conversation is faster, slower or not distinguishable.

    Where there are too few repeats to judge, the medians are compared, and the sentence says so.
    """
    differing = (
        compared.judged(CONVERSATION, judgement)
        for judgement in (Judgement.BETTER, Judgement.WORSE)
    )
    sentences = [
        f"conversation: B takes {_change_words(levels)} at {_levels_of(levels)}"
        for levels in differing
        if levels
    ]
    if same := compared.judged(CONVERSATION, Judgement.SAME):
        sentences.append(f"conversation: not distinguishable at {_levels_of(same)}")
    bare = [
        comparison
        for comparison in compared.judged(CONVERSATION, Judgement.UNKNOWN)
        if comparison.why == ONE_REPEAT
    ]
    if bare:
        sentences.append(
            f"conversation: B took {_change_words(bare)} at {_levels_of(bare)}, in too few "
            "repeats to judge"
        )
    return sentences


def _change_words(levels: Sequence[Comparison]) -> str:
    """Return "24 to 43 % less time", of the medians."""
    changes = [
        100 * (level.b / level.a - 1) for level in levels if level.a and level.b is not None
    ]
    ends = [min(changes), max(changes)]
    if ends[0] < 0 < ends[1]:
        return (
            f"from {number(-ends[0], digits=0)} % less to {number(ends[1], digits=0)} % more time"
        )
    sizes = dict.fromkeys(number(size, digits=0) for size in sorted(map(abs, ends)))
    return f"{' to '.join(sizes)} % {'less' if ends[0] < 0 else 'more'} time"


def _steadiness(a: MixedSeries, b: MixedSeries) -> list[str]:
    """Return what full load does to the first token of each."""
    concurrency = full_load((a, b))
    slowdowns = []
    for run in (a, b):
        if concurrency is None:
            full = None
        else:
            full = _level_at(run, concurrency)
        alone = run.summary.alone
        if full is not None and alone is not None and alone.ttft_ms and known(full.ttft_ms):
            slowdowns.append(
                f"{number((full.ttft_ms or 0.0) / alone.ttft_ms)}x of C=1 ({run.letter})"
            )
    if len(slowdowns) == 2:
        return [f"{TTFT} at C={concurrency}: {', '.join(slowdowns)}"]
    return []


def _answers_sentence(a: MixedSeries, b: MixedSeries, compared: MixedComparison) -> str:
    if compared.answers is None:
        return "right answers: not judged in both"
    shares = ", ".join(f"{_passed(run)} ({run.letter})" for run in (a, b))
    undecided = "no difference is shown; so few answers show only a collapse"
    return f"right answers: {shares}: {_ANSWERS_WORDS.get(compared.answers_judgement, undecided)}"


def _passed(run: MixedSeries) -> str:
    return share_passed([task for level in run.levels for task in level.tasks]).replace(
        "/", " of "
    )
