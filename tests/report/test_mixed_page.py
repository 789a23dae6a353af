"""The report of the mixed workload, on the figures of a published write-up with its verdicts had
by execution.
"""

import pytest
from msgspec.structs import replace
from reading import plain

from skep.quality.mixed_figures import Advice, Axis, MixedLevel, MixedSummary, TaskFigures
from skep.report.mixed import mixed_page, tables_of
from skep.store.records import RunState
from skep.store.verdicts import Verdict, VerdictOutcome

NAMES = {1: "P1", 2: "P1+S1", 3: "P1+S1-S2", 5: "P1+S1-S4"}
TITLES = {"S1": "docstring", "S2": "tests", "S3": "bug find", "S4": "async"}
AXES = (
    "TTFT stability",
    "latency under load",
    "throughput",
    "side-task accuracy",
    "primary accuracy",
)

PRIMARY = ("primary_s", "primary_low_s", "primary_high_s")

# C, TTFT of turn 1 in ms, the turns in ms, total in s, tok/s of turn 1 and of all, and each side
# task's time in s. All passed.
GPT_OSS = (
    (1, 64, (844, 757, 1617), 3.2, 127, 127, ()),
    (2, 139, (2873, 3175, 1074), 7.1, 49, 108, (4.5,)),
    (3, 150, (3882, 2144, 1382), 7.4, 45, 143, (5.5, 5.8)),
    (5, 290, (6448, 973, 825), 8.2, 34, 177, (5.5, 6.8, 6.8, 2.7)),
)


def _turn(i, s, ttft, tok_s):
    return TaskFigures(f"P1.{i + 1}", "", 1, ttft, s, None, tok_s, passed=1, judged=1)


def _side(item, s):
    return TaskFigures(item, TITLES[item], 1, None, s, None, None, passed=1, judged=1)


def _level(c, ttft, turns, total, tok_s, aggregate, side):
    return MixedLevel(
        name=NAMES[c],
        concurrency=c,
        repeats=1,
        turns=tuple(
            _turn(i, ms / 1000, ttft if i == 0 else None, tok_s if i == 0 else None)
            for i, ms in enumerate(turns)
        ),
        side=tuple(_side(f"S{i + 1}", s) for i, s in enumerate(side)),
        wall_s=total,
        aggregate_tok_s=aggregate,
        seconds_per_task=total / (3 + len(side)),
        held_share={1: None, 5: 0.34}.get(c, 0.7),
        outcomes=(("passed", 3 + len(side)),),
        **dict.fromkeys(PRIMARY, total),
    )


def _summary(levels, values):
    axes = tuple(
        Axis(name, f"what {name} is", value, f"shown {value}")
        for name, value in zip(AXES, values, strict=True)
    )
    reasons = ("C=3: the conversation takes 2.31x of C=1 (7.4 s)", "C=5: 2.56x, more than 2.5x")
    return MixedSummary(
        "01GPT",
        "gpt-oss-20b",
        tuple(_level(*level) for level in levels),
        axes,
        Advice(3, "P1+S1-S2", reasons),
    )


GPT = _summary(GPT_OSS, (0.22, 0.39, 0.28, 1.0, 1.0))


@pytest.fixture(scope="module")
def mixed_run(run):
    return replace(run, id=GPT.run_id, kind="mixed", model=GPT.model)


@pytest.fixture(scope="module")
def single(mixed_run):
    return plain(mixed_page(mixed_run, GPT))


def _failed(summary):
    """Nothing was answered at any level."""
    levels = []
    bare = dict.fromkeys((*PRIMARY, "aggregate_tok_s", "seconds_per_task"))
    for level in summary.levels:
        turns = [
            replace(turn, ttft_ms=None, seconds=None, tok_s=None, passed=0, runs=0)
            for turn in level.turns
        ]
        side = [replace(task, seconds=None, passed=0) for task in level.side]
        levels.append(replace(level, turns=tuple(turns), side=tuple(side), **bare))
    axes = tuple(replace(axis, value=None, shown="") for axis in summary.axes)
    return replace(
        summary, levels=tuple(levels), axes=axes, advice=Advice(None, None, ("none passed",))
    )


def test_conversation_and_tasks_come_out_as_published(single):
    """TTFT with its rise against C = 1, times by turn, total,
    and each side task with its verdict.
    """
    assert "1 P1 64 ms 844" in single
    assert "5 P1+S1-S4 290 ms (+353 %) 6.4 s / 973 ms / 825 ms 8.2 s" in single
    assert "S2 tests – – 1/1 (5.8 s) 1/1 (6.8 s)" in single
    assert "TTFT stability 0.22 shown 0.22 what TTFT stability is" in single


def test_the_advice_leads_the_page_with_its_figures(single):
    assert (
        "beside a conversation: 2 side tasks within 2.5x. C=3: the conversation takes 2.31x "
        "of C=1 (7.4 s)"
    ) in single
    assert single.index("2 side tasks within") < single.index("TTFT of turn 1")


def test_answers_that_did_not_pass_are_listed_with_their_reason(mixed_run):
    verdicts = [
        Verdict(5, 1, 3000, "S3", VerdictOutcome.BROKEN, "SyntaxError in line 3"),
        Verdict(5, 0, 1000, "S1", VerdictOutcome.PASSED),
        Verdict(0, 0, 9000, "S4", VerdictOutcome.WRONG, "warm-up"),
    ]
    (table,) = [table for table in tables_of(GPT, verdicts) if "did not pass" in table.title]
    cells = [[column.cell(record) for column in table.columns] for record in table.records]
    assert cells == [["5", "S3", "2", "broken", "SyntaxError in line 3"]]
    assert "5 S3 2 broken SyntaxError in line 3" in plain(mixed_page(mixed_run, GPT, verdicts))


def test_picture_has_every_axis_with_its_value(mixed_run):
    page = plain(mixed_page(mixed_run, GPT))
    assert all(word in page for word in (*AXES, "0.22 shown 0.22"))


def test_a_run_in_which_all_failed_or_nothing_was_measured_is_drawn(mixed_run):
    run = replace(mixed_run, state=RunState.FAILED, error="boom")
    failed = _failed(GPT)
    text = plain(mixed_page(run, failed))
    for words in ("no level is recommended. none passed", "Incomplete", "boom", "not asked"):
        assert words in text
    assert "no level is recommended" in plain(mixed_page(mixed_run, replace(failed, levels=())))
