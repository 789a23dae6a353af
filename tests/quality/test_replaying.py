"""Verdicts had again from what was stored."""

import asyncio
import json
from dataclasses import replace

import pytest

from skep.cli.replaying import run_judge_command
from skep.errors import UserError
from skep.quality.judging import Judge
from skep.quality.replaying import answers_of, replay
from skep.records import Request, RunState
from skep.store.database import open_store
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


def test_a_verdict_of_another_place_or_item_is_lost_and_nothing_is_confirmed():
    """Stored verdicts are counted, not answers: one that nothing was held against was not confirmed."""
    verdicts = [one.again for one in again(ROWS, []).answers]
    assert again(ROWS, verdicts).confirmed
    gone = [replace(verdicts[0], repeat=7), replace(verdicts[0], item="n9")]
    found = again(ROWS, [*verdicts, *gone])
    assert (found.agreeing, found.lost, found.confirmed) == (3, tuple(gone), False)


def test_a_verdict_of_other_rules_is_told_apart():
    verdicts = [one.again for one in again(ROWS, []).answers]
    verdicts[0] = replace(verdicts[0], checker="number/1")
    verdicts[1] = replace(verdicts[1], checker="")
    verdicts[2] = replace(verdicts[2], checker="number/99")
    found = again(ROWS, verdicts)
    assert [one.of_older_rules for one in found.of_other_rules] == [True, True, False]
    assert found.confirmed


@pytest.fixture
def judged(tmp_path, capsys):
    """A stored run, judged again by the command: its exit code and what was written."""

    def judge(*, state=RunState.DONE, items=ITEMS, rows=ROWS, verdicts=(), item=None, as_json=False):
        path = tmp_path / "store.db"
        said = {"model": "m", "url": "u", "fingerprint": "f", "config": {}, "host": {}, "engine": {}}
        with open_store(path) as store:
            run_id = store.begin_run(kind="quality", created_at=0.0, simulated=True, skep_version="0", **said)
            store.append_items(run_id, items)
            store.append_requests(run_id, rows)
            store.append_verdicts(run_id, verdicts)
            if state.is_final:
                store.end_run(run_id, 1.0, state.value)
            code = run_judge_command(path, run_id, item, as_json=as_json)
        written = capsys.readouterr()
        return code, written.out if as_json else written.err

    return judge


def stored(**changes):
    return [replace(one.again, **changes) for one in again(ROWS, []).answers]


def test_older_rules_are_named_with_how_many_agree(judged):
    verdicts = stored(checker="number/1")
    verdicts[1] = replace(verdicts[1], outcome=Outcome.PASSED)
    code, said = judged(verdicts=verdicts)
    assert "3 verdicts are of older rules (number/1): 2 agree, 1 differs" in said
    assert "what they were" not in said
    assert code == 1


def test_verdicts_without_an_item_or_an_answer_are_counted_and_fail(judged):
    code, said = judged(verdicts=stored(), items=ITEMS[:1])
    assert "2 of 2 verdicts are what they were" in said
    assert "1 stored verdict has no item any more" in said
    assert code == 1
    code, said = judged(verdicts=stored(), rows=ROWS[:1])
    assert "2 stored verdicts have no answer any more" in said
    assert code == 1
    code, said = judged(verdicts=stored(), items=(), as_json=True)
    document = json.loads(said)
    assert (code, document["lost"], document["answers"], document["verdicts"]) == (1, 3, 0, [])


def test_one_item_is_held_against_its_own_verdicts_only(judged):
    assert judged(verdicts=stored(), item="n1", items=ITEMS[:1])[0] == 0
    code, said = judged(verdicts=stored(), item="n2", items=ITEMS[:1])
    assert (code, said.strip()) == (1, "1 stored verdict has no item any more")


def test_a_run_still_under_way_is_told_as_that(judged):
    code, said = judged(state=RunState.RUNNING)
    assert "3 answers were not judged yet, as the run is still under way; now 2 of them pass" in said
    assert code == 1
    with pytest.raises(UserError, match="is still under way: no answer is stored yet"):
        judged(state=RunState.RUNNING, rows=())


def test_a_run_without_items_or_answers_is_told_as_that(judged):
    with pytest.raises(UserError, match="has 3 answers, but not the items they belong to"):
        judged(items=())
    with pytest.raises(UserError, match="has no answers") as told:
        judged(rows=ROWS[-1:], state=RunState.FAILED)
    assert "it ended as failed before its first request did" in told.value.hint
