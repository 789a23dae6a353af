"""From rows and verdicts to the figures of a mixed run, on rows made by hand."""

import pytest

from skep.quality.mixed_figures import (
    PRIMARY,
    SIDE,
    MixedLevel,
    TaskFigures,
    advice_of,
    mixed_summary,
)
from skep.store.records import LevelFact, Request
from skep.store.verdicts import Verdict, VerdictOutcome


def turn(number, start, end, *, level=1, repeat=0, tokens=100, first=0.1, **fields):
    """One of the three turns; its first token comes `first` seconds after it was sent."""
    defaults = {
        "first_token_s": start + first,
        "last_token_s": end,
        "output_tokens": tokens,
        "traffic": "primary",
    }
    defaults |= {"session": 0, "turn": number, "answer": "code", **fields}
    return Request(level, repeat, number, PRIMARY[number].id, start, end, **defaults)


def side(place, start, end, *, level=2, repeat=0, number=0, **fields):
    defaults = {
        "first_token_s": start + 0.2,
        "last_token_s": end,
        "output_tokens": 50,
        "traffic": "side",
    }
    defaults |= {"answer": "code", **fields}
    return Request(
        level, repeat, 1000 * place + number, SIDE[place - 1].id, start, end, **defaults
    )


def talk(level=1, repeat=0, at=0.0, seconds=1.0):
    return [
        turn(n, at + n * seconds, at + (n + 1) * seconds, level=level, repeat=repeat)
        for n in range(3)
    ]


def verdict(row, outcome=VerdictOutcome.PASSED):
    return Verdict(row.level, row.repeat, row.index, row.kind, outcome)


def summed(rows, verdicts=None, **fields):
    if verdicts is None:
        judged = [verdict(row) for row in rows]
    else:
        judged = verdicts
    return mixed_summary("r", "m", rows, judged, **{"simulated": False, **fields})


def level_of(rows, verdicts=None, concurrency=None):
    levels = summed(rows, verdicts).levels
    if concurrency is None:
        return levels[-1]
    return next(level for level in levels if level.concurrency == concurrency)


FAILED = {
    "error_kind": "http_500",
    "error": "no",
    "first_token_s": None,
    "last_token_s": None,
    "output_tokens": None,
}


# The conversation


def test_figures_of_a_turn_and_of_the_conversation_are_medians_over_repeats():
    """A request that failed has no time in them, and turns that an interruption cut off are no
    failures.
    """
    rows = [
        turn(0, 0.0, end, repeat=n, first=ttft)
        for n, (end, ttft) in enumerate([(1.0, 0.1), (3.0, 0.5), (2.0, 0.2)])
    ]
    figures = level_of(rows).turns[0]
    assert (figures.item, figures.runs, figures.seconds, figures.output_tokens) == (
        "P1.1",
        3,
        2.0,
        100,
    )
    assert (figures.ttft_ms, figures.tok_s) == pytest.approx((200, 100 / 1.8))
    rows = [
        row
        for n, seconds in enumerate((1.0, 3.0, 2.0))
        for row in talk(repeat=n, at=100.0 * n, seconds=seconds)
    ]
    figures = level_of(rows)
    assert (figures.primary_s, figures.primary_low_s, figures.primary_high_s) == (6.0, 3.0, 9.0)
    assert (figures.repeats, figures.name, figures.wall_s) == (3, "P1", 18.0)
    failed = level_of([*talk(), turn(0, 10.0, 900.0, repeat=1, **FAILED)])
    assert (failed.turns[0].seconds, failed.turns[0].runs, failed.primary_s) == (1.0, 2, 3.0)
    assert [turn.judged for turn in level_of([*talk(), turn(0, 10.0, 11.0, repeat=1)]).turns] == [
        2,
        1,
        1,
    ]


def test_turns_after_a_failed_one_were_not_asked_and_count_as_failed():
    rows = [*talk(), turn(0, 10.0, 11.0, repeat=1), turn(1, 11.0, 12.0, repeat=1, **FAILED)]
    level = level_of(rows, [*map(verdict, rows[:-1]), verdict(rows[-1], VerdictOutcome.FAILED)])
    assert [(turn.passed, turn.judged, turn.runs) for turn in level.turns] == [
        (2, 2, 2),
        (1, 2, 2),
        (1, 2, 1),
    ]
    assert dict(level.outcomes) == {"passed": 4, "failed": 1, "not asked": 1}


def test_a_level_is_not_quick_because_its_turns_failed():
    """A turn that fails at once makes the conversation short; such a conversation has no time."""
    failed = [
        turn(0, 50.0, 50.1, level=2),
        turn(1, 50.1, 50.2, level=2),
        turn(2, 50.2, 50.21, level=2, **FAILED),
    ]
    short = [turn(0, 60.0, 60.01, level=2, repeat=1, **FAILED)]
    rows = [*talk(), *failed, *short, side(1, 50.0, 50.3), side(1, 60.0, 60.3, repeat=1)]
    summary = summed(
        rows,
        [verdict(row, VerdictOutcome.PASSED if row.ok else VerdictOutcome.FAILED) for row in rows],
    )
    assert summary.levels[1].primary_s is None
    assert summary.axes[1].value is None
    assert summary.advice.concurrency == 1
    assert "C=2: the conversation was never finished" in summary.advice.reasons[-1]


def test_without_verdicts_nothing_is_said_about_what_passed():
    summary = summed(talk(), [], incomplete="interrupted")
    level = summary.levels[0]
    assert [(turn.passed, turn.judged) for turn in level.turns] == [(0, 0)] * 3
    assert (level.seconds_per_task, level.outcomes, summary.incomplete) == (
        None,
        (),
        "interrupted",
    )
    assert summary.axes[4].value is None
    assert summary.advice.concurrency is None


# Beside it


def test_the_held_share_is_of_time_in_turns_with_all_side_tasks_in_flight():
    rows = [*talk(level=3), side(1, 0.0, 2.0, level=3), side(2, 0.5, 1.25, level=3)]
    assert level_of(rows).held_share == pytest.approx(0.75 / 3)
    again = [side(1, 0.0, 1.0), side(1, 1.0, 2.0, number=1), side(1, 2.25, 4.0, number=2)]
    level = level_of([*talk(level=2), *again])
    assert level.held_share == pytest.approx(2.75 / 3)
    assert (level.side[0].runs, level.side[0].seconds) == (3, 1.0)
    assert level.wall_s == 4.0  # the last one is waited for


# Together


def test_aggregate_speed_is_all_tokens_over_wall_time_without_the_warm_up():
    rows = [*talk(level=2), side(1, 0.0, 5.0), turn(0, 0.0, 9.0, level=0)]
    assert [level.concurrency for level in summed(rows).levels] == [2]
    assert level_of(rows).aggregate_tok_s == pytest.approx(350 / 5)
    assert [(task.item, task.runs) for task in level_of(talk(level=5)).side] == [
        (f"S{n}", 0) for n in (1, 2, 3, 4)
    ]


def test_time_per_finished_task_counts_only_answers_that_passed():
    rows = [*talk(level=2), side(1, 0.0, 4.0)]
    verdicts = [
        verdict(row, VerdictOutcome.WRONG if row.kind == "P1.3" else VerdictOutcome.PASSED)
        for row in rows
    ]
    assert level_of(rows, verdicts).seconds_per_task == pytest.approx(4.0 / 3)
    assert (
        level_of(rows, [verdict(row, VerdictOutcome.TRUNCATED) for row in rows]).seconds_per_task
        is None
    )


# The axes


def loaded(slower=2.0):
    """C=1 and C=5, the latter `slower` times as slow."""
    alone = [turn(n, n * 1.0, n + 1.0, tokens=100) for n in range(3)]
    full = [
        turn(n, 50 + n * slower, 50 + (n + 1) * slower, level=5, first=0.4, tokens=100)
        for n in range(3)
    ]
    return [*alone, *full, *(side(place, 50.0, 50.5, level=5) for place in (1, 2, 3, 4))]


def test_each_axis_is_between_0_and_1_and_says_how_it_is_made():
    axes = summed(loaded()).axes
    values = {axis.name: axis.value for axis in axes}
    assert values == {
        "TTFT stability": pytest.approx(0.25),
        "latency under load": pytest.approx(0.5),
        "throughput": pytest.approx((500 / 6) / (5 * 100)),
        "side-task accuracy": 1.0,
        "primary accuracy": 1.0,
        "memory left free": None,
    }
    assert all(axis.definition and axis.shown for axis in axes)


def test_memory_left_free_is_the_share_that_the_gpus_in_use_do_not_hold():
    held = {"used_bytes": 18 * 2**30, "total_bytes": 24 * 2**30, "gpus": 1, "source": "nvidia-smi"}
    summary = summed(
        loaded(), facts=[LevelFact(5, 0, "energy", {}), LevelFact(5, 0, "memory", held)]
    )
    assert (summary.axes[5].value, summary.axes[5].shown) == (0.25, "18.0 GiB of 24.0 GiB in use")
    assert summary.memory.gpus == 1


def test_with_one_level_or_none_the_axes_of_load_are_unknown():
    assert [axis.value for axis in summed(talk()).axes] == [None] * 6
    summary = summed([])
    assert (summary.levels, summary.advice.concurrency) == ((), None)
    assert all(axis.value is None for axis in summary.axes)
    assert summed(loaded(slower=0.5)).axes[1].value == 1.0, (
        "what gets faster under load is no better than 1"
    )


def test_tokens_of_answers_that_passed_are_told_over_wall_time():
    rows = [*talk(level=2), side(1, 0.0, 4.0)]
    verdicts = [
        verdict(row, VerdictOutcome.WRONG if row.kind == "P1.3" else VerdictOutcome.PASSED)
        for row in rows
    ]
    assert level_of(rows, verdicts).passed_tok_s == pytest.approx(250 / 4)
    assert level_of(rows, []).passed_tok_s is None


# The advice


def given(concurrency, primary_s, wall_s=None, *, passed=3, tok_s=None):
    """A level with one repeat: `passed` of its turns, and all its side tasks."""
    turns = [
        TaskFigures(f"P1.{n}", "", 1, 100.0, 1.0, 100, 50.0, int(n <= passed), 1)
        for n in (1, 2, 3)
    ]
    beside = [
        TaskFigures(f"S{n}", "", 1, 100.0, 1.0, 50, 50.0, int(passed > 0), 1)
        for n in range(1, concurrency)
    ]
    finished = sum(task.passed for task in (*turns, *beside))
    wall = wall_s or primary_s or 1.0
    return MixedLevel(
        f"level {concurrency}",
        concurrency,
        1,
        tuple(turns),
        tuple(beside),
        primary_s,
        primary_s,
        primary_s,
        wall,
        100.0,
        wall / finished if finished else None,
        None,
        passed_tok_s=tok_s,
    )


# Published for an RTX 4090: total time of the conversation, and tok/s of all together; every
# answer was right.
PUBLISHED = {
    "gpt-oss-20b": [
        given(c, s, tok_s=rate)
        for c, s, rate in ((1, 3.2, 127), (2, 7.1, 108), (3, 7.4, 143), (5, 8.2, 177))
    ],
    "qwen3-coder-30b": [
        given(c, s, tok_s=rate)
        for c, s, rate in ((1, 2.2, 80), (2, 4.4, 88), (3, 3.7, 105), (5, 6.3, 137))
    ],
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_published_figures_give_the_published_choice(model):
    """Three slots as the default, five for batch work; but no side task leaves the conversation as
    quick as alone.
    """
    advice = advice_of(PUBLISHED[model])
    assert (advice.concurrency, advice.batch_side_tasks, advice.quick_side_tasks) == (3, 4, 0)


def test_a_conversation_is_quick_within_half_as_much_time_again():
    levels = [given(1, 2.0), given(2, 2.2), given(3, 3.0), given(5, 3.1)]
    assert advice_of(levels).quick_side_tasks == 2
    assert advice_of([given(1, 2.0), given(3, 2.1, passed=0)]).quick_side_tasks == 0, (
        "none of them passes"
    )
    assert advice_of(levels).batch_side_tasks is None, "no tokens are known"


def test_the_reasons_carry_the_figures_and_what_more_would_cost():
    reasons = advice_of(PUBLISHED["qwen3-coder-30b"]).reasons
    assert reasons[2] == (
        "C=3: the conversation takes 1.68x of C=1; 81.1 passed tasks a minute; 105 tok/s in "
        "answers that passed"
    )
    assert reasons[3].endswith(
        "; 66.7 passed tasks a minute; 137 tok/s in answers that passed; "
        "not advised: more than 2.5x of C=1, no more finished than at C=3"
    )


def test_there_is_no_advice_without_a_conversation_at_c_1_or_answers_that_passed():
    """As of the smallest models: by speed alone any level would look good."""
    assert "C=1 was not measured" in advice_of([given(3, 2.0)]).reasons[0]
    assert advice_of([]).concurrency is None
    assert advice_of([given(1, None), given(2, 2.0)]).concurrency is None
    assert advice_of([given(1, 1.0), given(2, None)]).concurrency == 1
    advice = advice_of([given(1, 1.0, passed=0), given(3, 1.1, passed=0)])
    reason = "none of 8 answers passed, at any level: no level does this work"
    assert (advice.concurrency, advice.reasons) == (None, (reason,))
