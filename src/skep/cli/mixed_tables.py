"""A mixed run on a terminal: the tables of one model after the other, then the models side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import wrap

from skep.cli.output import note, number, print_table
from skep.quality.mixed_advice import other_length, per_minute, tasks_of
from skep.quality.mixed_axes import turn_1_ttft_ms
from skep.units import format_seconds
from skep.verdicts import Axis, MixedLevel, MixedSummary, SideFigures, TurnFigures, Verdict
from skep.workload.coding_tasks import SIDE, SIDE_TITLES

MOST_FAILURES = 12  # shown one by one
DETAIL = 70  # characters of one
WIDTH = 108  # of what is told in words
OTHERWISE_LONG = "*"  # a factor of times whose answers are not as long as those at C=1

Columns = Sequence[tuple[str, Callable[[MixedLevel], str]]]


def print_mixed(summaries: Sequence[MixedSummary], verdicts: Mapping[str, Sequence[Verdict]]) -> None:
    for summary in summaries:
        _heading(f"{summary.model}, side tasks {summary.form}, run {summary.run_id}", first=summary is summaries[0])
        _print_one(summary, verdicts.get(summary.run_id, ()))
    if len(summaries) > 1:
        _print_side_by_side(summaries)


def _print_one(summary: MixedSummary, verdicts: Sequence[Verdict]) -> None:
    levels = summary.levels
    print_primary(levels)
    _heading("turns 1 / 2 / 3")
    print_turns(levels)
    if any(level.side for level in levels):
        _heading("side tasks: passed when executed, time")
        print_sides(levels)
    _heading("throughput")
    print_throughput(levels)
    _heading("verdicts: executed, beside what a search for keywords says (words)")
    print_verdicts(levels)
    if any(not verdict.passed for verdict in verdicts):
        _heading("answers that did not pass")
        print_failures(verdicts)
    _heading("axes")
    print_axes(summary.axes)
    _heading("advice")
    print_advice(summary)
    if summary.simulated:
        note("SIMULATED: no model ran, these figures are a prediction")
    if summary.incomplete:
        note(f"incomplete: {summary.incomplete}")


def print_primary(levels: Sequence[MixedLevel]) -> None:
    """Times of the conversation, and below them what must be known to read them."""
    solo = _solo(levels)
    columns: Columns = [
        ("C", lambda level: str(level.concurrency)),
        ("level", lambda level: level.name),
        ("turn 1 TTFT", lambda level: degradation(turn_1_ttft_ms(level), turn_1_ttft_ms(solo))),
        ("turn 1", lambda level: _turn_cell(level, 0)),
        ("turn 2", lambda level: _turn_cell(level, 1)),
        ("turn 3", lambda level: _turn_cell(level, 2)),
        ("total", lambda level: _seconds(level.primary_s)),
        ("fastest to slowest", _spread),
        ("of C=1", lambda level: _times(level, solo)),
    ]
    _print_levels(columns, levels, left=("level",))
    _print_lines(_lengths(levels))
    _print_lines(
        f"C={level.concurrency}: turn {place} was not asked {_not_asked(turn)}x, as one before it had failed"
        for level in levels
        for place, turn in enumerate(level.turns, start=1)
        if _not_asked(turn)
    )


def print_turns(levels: Sequence[MixedLevel]) -> None:
    columns: Columns = [
        ("C", lambda level: str(level.concurrency)),
        ("tokens", lambda level: _joined(level.turns, lambda turn: number(turn.output_tokens, 0))),
        ("reasoning", lambda level: _joined(level.turns, lambda turn: _percent(turn.reasoning_share))),
        ("side requests beside", lambda level: _joined(level.turns, lambda turn: number(turn.overlap))),
        ("repeats", lambda level: str(level.repeats)),
    ]
    _print_levels(columns, levels)


def print_sides(levels: Sequence[MixedLevel]) -> None:
    asked = [item.id for item in SIDE if any(part.item == item.id for level in levels for part in level.side)]
    rows = []
    for level in levels:
        known = {part.item: part for part in level.side}
        if known:
            rows.append([str(level.concurrency), *(_side_cell(known.get(item)) for item in asked)])
    print_table(("C", *(f"{item} {SIDE_TITLES[item]}" for item in asked)), rows, right=("C",))


def print_throughput(levels: Sequence[MixedLevel]) -> None:
    columns: Columns = [
        ("C", lambda level: str(level.concurrency)),
        ("turn 1 tok/s", lambda level: number(level.turns[0].tok_s if level.turns else None)),
        ("aggregate tok/s", lambda level: number(level.aggregate_tok_s)),
        ("finished tasks/min", lambda level: number(per_minute(level))),
        ("time per task", lambda level: _seconds(level.seconds_per_task)),
        ("all side tasks in flight", lambda level: _percent(level.held_share)),
        ("wall", lambda level: format_seconds(level.wall_s)),
    ]
    _print_levels(columns, levels)


def print_verdicts(levels: Sequence[MixedLevel]) -> None:
    """One row a task: how often it passed at each level, and how often its keywords were there; then all outcomes."""
    tasks = {part.item: None for level in levels for part in tasks_of(level)}
    rows = []
    for item in tasks:
        cells = []
        for level in levels:
            part = next((one for one in tasks_of(level) if one.item == item), None)
            cells.append("–" if part is None or not part.judged else _verdict_cell(part))
        rows.append([item, *cells])
    print_table(("task", *(f"C={level.concurrency}" for level in levels)), rows)
    _print_lines(f"C={level.concurrency}: {_outcomes(level)}" for level in levels)


def print_failures(verdicts: Sequence[Verdict]) -> None:
    failed = [verdict for verdict in verdicts if not verdict.passed]
    rows = [
        (str(one.level), one.item, str(one.repeat + 1), one.outcome.value, _words(one), one.detail[:DETAIL])
        for one in failed[:MOST_FAILURES]
    ]
    print_table(("C", "task", "repeat", "outcome", "keywords", "why"), rows, right=("C", "repeat"))
    if len(failed) > MOST_FAILURES:
        note(f"{len(failed) - MOST_FAILURES} more; --json shows them all")


def print_axes(axes: Sequence[Axis]) -> None:
    rows = [(axis.name, number(axis.value, 2), axis.shown) for axis in axes]
    print_table(("axis", "0 to 1", "figures"), rows, right=("0 to 1",))
    for axis in axes:
        head, *more = wrap(f"{axis.name}: {axis.definition}", WIDTH)
        _print_lines([head, *(f"  {line}" for line in more)])


def print_advice(summary: MixedSummary) -> None:
    advice = summary.advice
    best = "no level is recommended" if advice.concurrency is None else f"{advice.concurrency} at once ({advice.level})"
    print(best)  # noqa: T201
    _print_lines(advice.reasons)


def _print_side_by_side(summaries: Sequence[MixedSummary]) -> None:
    """As the tables of one model, a column for each."""
    _heading("side by side")
    tables: list[tuple[str, Callable[[MixedLevel, MixedLevel | None], str]]] = [
        ("turn 1 TTFT", lambda level, solo: degradation(turn_1_ttft_ms(level), turn_1_ttft_ms(solo))),
        ("total time", _total),
        ("turn 1 tok/s", lambda level, _: number(level.turns[0].tok_s if level.turns else None)),
        ("aggregate tok/s", lambda level, _: number(level.aggregate_tok_s)),
        ("side tasks passed", lambda level, _: _rate(level.side)),
        ("turns passed", lambda level, _: _rate(level.turns)),
    ]
    rows = []
    for title, cell in tables:
        for concurrency in sorted({level.concurrency for summary in summaries for level in summary.levels}):
            cells = []
            for summary in summaries:
                level = next((one for one in summary.levels if one.concurrency == concurrency), None)
                cells.append("–" if level is None else cell(level, _solo(summary.levels)))
            rows.append([title, str(concurrency), *cells])
    for place, axis in enumerate(summaries[0].axes):
        rows.append([f"axis: {axis.name}", "", *(number(summary.axes[place].value, 2) for summary in summaries)])
    rows.append(["advice", "", *(_choice(summary) for summary in summaries)])
    models = [summary.model for summary in summaries]
    print_table(("", "C", *models), rows, right=("C", *models))
    _print_lines(f"{summary.model}, {line}" for summary in summaries for line in _lengths(summary.levels))


def _choice(summary: MixedSummary) -> str:
    return "none" if summary.advice.concurrency is None else f"C={summary.advice.concurrency}"


def degradation(value_ms: float | None, alone_ms: float | None) -> str:
    """ "139 ms (+117 %)"."""
    if value_ms is None:
        return "–"
    shown = f"{value_ms:,.0f} ms"
    if not alone_ms or value_ms == alone_ms:
        return shown
    return f"{shown} ({100 * (value_ms / alone_ms - 1):+.0f} %)"


def _heading(text: str, *, first: bool = False) -> None:
    print(text if first else f"\n{text}")  # noqa: T201


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"  {line}")  # noqa: T201


def _print_levels(columns: Columns, levels: Sequence[MixedLevel], *, left: Sequence[str] = ()) -> None:
    titles = [title for title, _ in columns]
    right = [title for title in titles if title not in left]
    print_table(titles, [[cell(level) for _, cell in columns] for level in levels], right=right)


def _solo(levels: Sequence[MixedLevel]) -> MixedLevel | None:
    return next((level for level in levels if level.concurrency == 1), None)


def _turn_cell(level: MixedLevel, place: int) -> str:
    turn = level.turns[place]
    return "not asked" if not turn.runs and _not_asked(turn) else _seconds(turn.seconds)


def _not_asked(part: TurnFigures | SideFigures) -> int:
    """They are judged as failed, without a request. A turn that an interruption has cut off is not among them."""
    return max(0, part.judged - part.runs)


def _side_cell(part: SideFigures | None) -> str:
    if part is None:
        return "–"
    return f"{_count(part)} ({_seconds(part.seconds)})"


def _verdict_cell(part: TurnFigures | SideFigures) -> str:
    """Of the keywords, those that were asked: a turn that was not has no words."""
    words = "" if part.keywords_passed is None else f", words {part.keywords_passed}/{part.runs}"
    return f"{_count(part)}{words}"


def _count(part: TurnFigures | SideFigures) -> str:
    """In words as well: PASS where all did."""
    if not part.judged:
        return "not judged"
    word = "PASS" if part.passed == part.judged else "FAIL" if not part.passed else "part"
    return f"{word} {part.passed}/{part.judged}"


def _outcomes(level: MixedLevel) -> str:
    return ", ".join(f"{count} {name}" for name, count in level.outcomes) or "–"


def _rate(parts: Sequence[TurnFigures] | Sequence[SideFigures]) -> str:
    passed, judged = sum(part.passed for part in parts), sum(part.judged for part in parts)
    return f"{passed}/{judged} ({100 * passed / judged:.0f} %)" if judged else "–"


def _words(verdict: Verdict) -> str:
    if verdict.keywords is None:
        return "–"
    return "all" if verdict.keywords else f"{len(verdict.keywords_missing)} missing"


def _total(level: MixedLevel, solo: MixedLevel | None) -> str:
    times = _times(level, solo)
    return _seconds(level.primary_s) + (f" ({times})" if times != "–" else "")


def _spread(level: MixedLevel) -> str:
    if level.primary_low_s is None or level.primary_high_s is None or level.repeats < 2:
        return "–"
    return f"{_seconds(level.primary_low_s)} to {_seconds(level.primary_high_s)}"


def _times(level: MixedLevel, solo: MixedLevel | None) -> str:
    if level.primary_s is None or solo is None or not solo.primary_s:
        return "–"
    return f"{level.primary_s / solo.primary_s:.1f}x" + (OTHERWISE_LONG if other_length(level, solo) else "")


def _lengths(levels: Sequence[MixedLevel]) -> list[str]:
    """What the star means: "C=5: 0.5x* of C=1 for 103 tokens instead of 184"."""
    solo = _solo(levels)
    return [
        f"C={level.concurrency}: {times} of C=1 {other_length(level, solo)}"
        for level in levels
        if (times := _times(level, solo)).endswith(OTHERWISE_LONG)
    ]


def _seconds(value: float | None) -> str:
    return "–" if value is None else format_seconds(value)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _joined(turns: Sequence[TurnFigures], cell: Callable[[TurnFigures], str]) -> str:
    return " / ".join(cell(turn) for turn in turns)
