"""The tables of the mixed workload: the conversation, the side tasks, throughput, and execution against keywords."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skep.report.figures import UNKNOWN, milliseconds, number, percent, seconds, shortened, times
from skep.report.levels import counted
from skep.report.markup import Markup, join, table, tag, text
from skep.report.mixed_charts import change, first_token_ms
from skep.report.subjects import Subject, verdict_word
from skep.verdicts import Axis, MixedLevel, SideFigures, TurnFigures, Verdict

_MOST_LISTED = 60
HELD = 0.95  # of the conversation's time: less is no load that was held

Cell = tuple[str, str | None]  # its text, its style
Row = tuple[str, Sequence[Cell]]


def primary_table(one: Subject) -> Markup:
    """The conversation at each level, and how much of its time the load beside it was whole."""
    places = range(max((len(level.turns) for level in one.levels), default=0))
    columns = ["level", "TTFT turn 1", *(f"turn {i + 1}" for i in places), "total", "fastest–slowest", "against C = 1"]
    columns += ["all side tasks in flight", "passed", "runs"]
    rows = [(str(level.concurrency), _primary(one, level, len(places))) for level in one.levels]
    return join([_table(f"Primary task of {one.look.name}", ("C", *columns), rows, left={"level"}), _held(one)])


def turn_table(one: Subject) -> Markup:
    """Every turn of every level."""
    columns = (
        "turn", "TTFT", "time", "tokens", "tok/s", "reasoning", "side requests beside it", "executed", "keywords",
        "runs",
    )  # fmt: skip
    rows = [(str(level.concurrency), _turn(turn)) for level in one.levels for turn in level.turns]
    return _table(f"Turns of {one.look.name}", ("C", *columns), rows, left={"turn"})


def side_table(one: Subject) -> Markup:
    """Verdict by execution and median time of each side task."""
    sides = {side.item: side.title for level in one.levels for side in level.side}
    rows = [
        (str(level.concurrency), [_side(_found(level, item)) for item in sides]) for level in one.levels if level.side
    ]
    if not rows:
        return tag("p", text("No side task ran beside the conversation."), class_="below")
    head = ("C", *(f"{item} {title}" for item, title in sides.items()))
    return _table(f"Side tasks of {one.look.name}", head, rows, left=set(head[1:]))


def throughput_table(one: Subject) -> Markup:
    columns = ("turn 1 tok/s", "aggregate tok/s", "time per passed task", "wall", "outcomes")
    rows: list[Row] = [
        (
            str(level.concurrency),
            [
                (number(level.turns[0].tok_s if level.turns else None), None),
                (number(level.aggregate_tok_s), None),
                (seconds(level.seconds_per_task), None),
                (seconds(level.wall_s), None),
                (counted(level.outcomes), "note"),
            ],
        )
        for level in one.levels
    ]
    return _table(f"Throughput of {one.look.name}", ("C", *columns), rows, left={"outcomes"})


def degradation_table(one: Subject) -> Markup:
    """TTFT, the conversation's time and the side tasks that passed, each against C = 1."""
    rows: list[Row] = [
        (str(level.concurrency), [(cell(level, one.alone), None) for cell in (_ttft, _total, _passed)])
        for level in one.levels
    ]
    return _table("Against C = 1", ("C", "TTFT of turn 1", "time of the conversation", "side tasks passed"), rows)


def ttft_table(subjects: Sequence[Subject]) -> Markup:
    """Of turn 1, with its change against C = 1."""
    return _beside("TTFT of turn 1", subjects, _ttft)


def total_table(subjects: Sequence[Subject]) -> Markup:
    return _beside("Time of the conversation", subjects, _total)


def pass_table(subjects: Sequence[Subject]) -> Markup:
    """Side tasks that passed by execution."""
    return _beside("Side tasks passed", subjects, _passed)


def axes_table(subjects: Sequence[Subject]) -> Markup:
    """What each spoke of the radar means, with each model's value and the figures behind it."""
    defined = {axis.name: axis.definition for one in subjects for axis in one.summary.axes}
    rows: list[Row] = []
    for name, definition in defined.items():
        cells: list[Cell] = []
        for one in subjects:
            axis = next((axis for axis in one.summary.axes if axis.name == name), None)
            cells.append((_axis(axis), "left"))
        rows.append((name, [*cells, (definition, "wide")]))
    head = ("axis", *_names(subjects, "value"), "what it is")
    return _table("Axes of the radar", head, rows, left=set(head))


def _axis(axis: Axis | None) -> str:
    if axis is None or axis.value is None:
        return "not measured"
    return " · ".join(filter(None, (number(axis.value, digits=2), axis.shown)))


def verdict_table(one: Subject) -> Markup:
    """How many answers passed by execution, and how many a search for words would have let pass."""
    rows: list[Row] = []
    for level in one.levels:
        for name, figures in (("conversation", level.turns), ("side tasks", level.side)):
            if figures:
                rows.append((str(level.concurrency), _counts(name, figures)))
    return _table(
        f"Execution against keywords, {one.look.name}",
        ("C", "answers of", "executed", "keywords", "difference"),
        rows,
        left={"answers of"},
    )


def disagreements(one: Subject, verdicts: Sequence[Verdict]) -> Markup:
    """Each answer that execution and keywords judge differently; counts where the single verdicts are not at hand."""
    differing = [
        found for found in verdicts if found.level and found.keywords is not None and found.keywords != found.passed
    ]
    if differing:
        return _listed(one, sorted(differing, key=lambda found: (found.level, found.repeat, found.index)))
    rows: list[Row] = []
    for level in one.levels:
        answers: list[TurnFigures | SideFigures] = [*level.turns, *level.side]
        for figures in answers:
            said = figures.keywords_passed
            if said is not None and figures.judged and said != figures.passed:
                cells = (figures.item, verdict_word(figures.passed, figures.judged), verdict_word(said, figures.judged))
                rows.append((str(level.concurrency), [(cell, "left") for cell in cells]))
    if not rows:
        return tag("p", text("Execution and keywords agree wherever both were had."), class_="below")
    head = ("C", "answer", "executed", "keywords")
    return _table(f"Disagreements, {one.look.name}", head, rows, left=set(head[1:]))


def _listed(one: Subject, differing: Sequence[Verdict]) -> Markup:
    rows: list[Row] = [
        (
            str(found.level),
            [
                (str(found.repeat + 1), None),
                (found.item, "left"),
                ("PASS" if found.passed else f"FAIL: {found.outcome.value}", "left up" if found.passed else "left bad"),
                ("PASS" if found.keywords else f"FAIL: no {', '.join(found.keywords_missing) or 'match'}", "left"),
                (found.detail or UNKNOWN, "wide"),
            ],
        )
        for found in differing[:_MOST_LISTED]
    ]
    head = ("C", "repeat", "answer", "executed", "keywords", "why")
    listed = _table(f"Disagreements, {one.look.name}", head, rows, left=set(head[2:]))
    left_out = len(differing) - len(rows)
    more = tag("p", text(f"{left_out} more are in the store."), class_="below") if left_out > 0 else None
    return join([listed, *([more] if more else [])])


def _primary(one: Subject, level: MixedLevel, turns: int) -> list[Cell]:
    times_of = [level.turns[i].seconds if i < len(level.turns) else None for i in range(turns)]
    spread = UNKNOWN
    if level.primary_low_s is not None and level.primary_high_s is not None and level.repeats > 1:
        spread = f"{seconds(level.primary_low_s)}–{seconds(level.primary_high_s)}"
    passed, judged = sum(turn.passed for turn in level.turns), sum(turn.judged for turn in level.turns)
    return [
        (level.name, "left"),
        (milliseconds(first_token_ms(level)), None),
        *((seconds(value), None) for value in times_of),
        (seconds(level.primary_s), None),
        (spread, "soft"),
        (times(_ratio(level, one.alone)), None),
        (percent(None if level.held_share is None else 100 * level.held_share), None),
        (_share(passed, judged), _style(passed, judged)),
        (str(level.repeats), "soft"),
    ]


def _held(one: Subject) -> Markup:
    """In words, where the largest load was not there all the time."""
    told = [(level, level.held_share) for level in one.levels if level.side and level.held_share is not None]
    if not told:
        return Markup("")
    level, share = told[-1]
    sentence = (
        f"At C = {level.concurrency} all side tasks were in flight {percent(100 * share)} of the conversation's time"
    )
    verdict = "." if share >= HELD else f": C = {level.concurrency} was not held, its figures flatter."
    return tag("p", text(f"{sentence}{verdict}"), class_="below")


def _turn(turn: TurnFigures) -> list[Cell]:
    said = UNKNOWN if turn.keywords_passed is None else _share(turn.keywords_passed, turn.judged)
    return [
        (turn.item, "left"),
        (milliseconds(turn.ttft_ms), None),
        (seconds(turn.seconds), None),
        (number(turn.output_tokens, digits=0), None),
        (number(turn.tok_s), None),
        (percent(None if turn.reasoning_share is None else 100 * turn.reasoning_share), None),
        (number(turn.overlap, digits=1), None),
        (_share(turn.passed, turn.judged) if turn.runs else "not asked", _style(turn.passed, turn.judged)),
        (said, "soft"),
        (str(turn.runs), "soft"),
    ]


def _found(level: MixedLevel, item: str) -> SideFigures | None:
    return next((side for side in level.side if side.item == item), None)


def _side(side: SideFigures | None) -> Cell:
    if side is None:
        return UNKNOWN, "left soft"
    style = _style(side.passed, side.judged)
    return f"{verdict_word(side.passed, side.judged)} ({seconds(side.seconds)})", f"left {style}" if style else "left"


def _counts(name: str, figures: Sequence[TurnFigures | SideFigures]) -> list[Cell]:
    passed, judged = sum(one.passed for one in figures), sum(one.judged for one in figures)
    told = [one for one in figures if one.keywords_passed is not None]
    by_words = sum(one.keywords_passed or 0 for one in told)
    of_words = sum(one.judged for one in told)
    apart = by_words - sum(one.passed for one in told)
    said = "none" if not apart else f"{'+' if apart > 0 else '−'}{abs(apart)}"
    return [
        (name, "left"),
        (_share(passed, judged), _style(passed, judged)),
        (_share(by_words, of_words) if told else UNKNOWN, None),
        (said if told else UNKNOWN, "soft" if not apart else "bad"),
    ]


def _ttft(level: MixedLevel, alone: MixedLevel | None) -> str:
    value = first_token_ms(level)
    grown = change(value, first_token_ms(alone)) if alone is not None and level is not alone else None
    return milliseconds(value) + (f" ({grown})" if grown else "")


def _total(level: MixedLevel, alone: MixedLevel | None) -> str:
    ratio = _ratio(level, alone) if level is not alone else None
    return seconds(level.primary_s) + (f" ({times(ratio)})" if ratio is not None else "")


def _passed(level: MixedLevel, _: MixedLevel | None) -> str:
    return _share(sum(side.passed for side in level.side), sum(side.judged for side in level.side))


def _beside(title: str, subjects: Sequence[Subject], cell: Callable[[MixedLevel, MixedLevel | None], str]) -> Markup:
    """One row a level, one column a model."""
    rows: list[Row] = []
    for c in sorted({level.concurrency for one in subjects for level in one.levels}):
        cells: list[Cell] = []
        for one in subjects:
            level = next((level for level in one.levels if level.concurrency == c), None)
            cells.append((UNKNOWN if level is None else cell(level, one.alone), None))
        rows.append((str(c), cells))
    return _table(title, ("C", *_names(subjects, title)), rows)


def _names(subjects: Sequence[Subject], alone: str) -> list[str]:
    return [alone] if len(subjects) == 1 else [f"{one.look.letter}  {shortened(one.look.name, 28)}" for one in subjects]


def _ratio(level: MixedLevel, alone: MixedLevel | None) -> float | None:
    base = None if alone is None else alone.primary_s
    return level.primary_s / base if level.primary_s is not None and base else None


def _share(passed: int, judged: int) -> str:
    return f"{passed}/{judged}" if judged else UNKNOWN


def _style(passed: int, judged: int) -> str | None:
    return None if not judged else "up" if passed == judged else "bad" if not passed else None


def _table(title: str, head: Sequence[str], rows: Sequence[Row], left: set[str] | None = None) -> Markup:
    names = tag(
        "tr", *(tag("th", text(name), scope="col", class_="left" if left and name in left else None) for name in head)
    )
    body = [
        tag(
            "tr", tag("th", text(first), scope="row"), *(tag("td", text(words), class_=style) for words, style in cells)
        )
        for first, cells in rows
    ]
    return table(title, [names], body)
