"""Verdicts had again from what was stored."""

import asyncio
from dataclasses import replace

from skep.quality.judging import Judge
from skep.quality.replaying import answers_of, replay
from skep.records import Request
from skep.verdicts import Outcome, Verdict
from skep.workload.items import Checker, Item

ITEMS = [
    Item("n1", ({"role": "user", "content": "1?"},), Checker("number", {"answer": 1})),
    Item("n2", ({"role": "user", "content": "2?"},), Checker("number", {"answer": 2}), keywords=("two",)),
]


def row(level, index, kind, answer, **more):
    return Request(level, 0, index, kind, 0.0, 1.0, output_tokens=3, finish_reason="stop", answer=answer, **more)


ROWS = [row(1, 0, "n1", "It is 1"), row(1, 1, "n2", "It is 3"), row(4, 0, "n1", "It is 1"), row(0, 0, "fix", "warm")]


def again(rows, verdicts):
    return asyncio.run(replay(answers_of(rows, ITEMS), verdicts, Judge(None)))


def test_every_answer_is_judged_again_and_agrees_with_itself():
    first = again(ROWS, [])
    assert [one.again.outcome for one in first.answers] == [Outcome.PASSED, Outcome.WRONG, Outcome.PASSED]
    assert (first.unjudged, first.agreeing) == (3, 0)
    second = again(ROWS, [one.again for one in first.answers])
    assert (second.agreeing, second.differing, second.unjudged) == (3, (), 0)


def test_a_verdict_that_differs_is_named():
    verdicts = [one.again for one in again(ROWS, []).answers]
    verdicts[1] = replace(verdicts[1], outcome=Outcome.PASSED)
    found = again(ROWS, verdicts)
    (one,) = found.differing
    assert (one.stored.outcome, one.again.outcome, one.again.item) == (Outcome.PASSED, Outcome.WRONG, "n2")
    assert found.agreeing == 2


def test_what_a_search_for_words_found_is_compared_too():
    verdicts = [one.again for one in again(ROWS, []).answers]
    verdicts[1] = replace(verdicts[1], keywords=True)
    assert len(again(ROWS, verdicts).differing) == 1


def test_a_turn_is_judged_with_the_answers_before_it():
    talk = [row(2, turn, f"n{1 + turn % 2}", f"answer {turn}", session=0, turn=turn) for turn in range(3)]
    other = [row(2, 1000, "n1", "beside")]
    found = {one.row.index: one.earlier for one in answers_of([*reversed(talk), *other], ITEMS)}
    assert found == {0: (), 1: ("answer 0",), 2: ("answer 0", "answer 1"), 1000: ()}


def test_a_run_that_was_broken_off_has_answers_without_a_verdict():
    found = again(ROWS, [Verdict(1, 0, 0, "n1", Outcome.PASSED)])
    assert (found.agreeing, found.unjudged) == (1, 2)
