"""A run's account, from what the journal has of it."""

import json

import pytest

from sample_swarm import BEGAN, attempt, made_story, result, run_of, session
from skep.report.schemas import schema_of
from skep.report.swarm import headline
from skep.swarm.records import AttemptOutcome, TaskEnding, Why
from skep.swarm.summary import account_json

TWO = (attempt("a", 0, 0, 10, output_tokens=50), attempt("b", 1, 1, 11, output_tokens=50))
DONE = (result("a", 0, 10, output_tokens=50), result("b", 1, 11, output_tokens=50))


def account_of(run, attempts, results=(), **fields):
    return made_story(run, attempts, results, **fields).account


def test_the_wall_ends_with_the_last_attempt_when_every_task_has_its_result():
    account = account_of(run_of(2, 2), TWO, DONE, sessions=[session(ended=BEGAN + 12)])
    assert account.wall_s == pytest.approx(11)
    assert account.effective_tok_s == pytest.approx(100 / 11)
    assert account.agents_mean == pytest.approx(20 / 11)
    assert account.agents_max == 2
    assert (account.tasks, account.done, account.failed, account.left) == (2, 2, 0, 0)


def test_pauses_between_sessions_count_neither_as_wall_nor_as_an_answers_time():
    broken_off = attempt("a", 0, 2, 5, outcome=AttemptOutcome.CANCELLED, output_tokens=50)
    again = attempt("a", 0, 3601, 3605, session=2, number=2, why=Why.RESUMED)
    sessions = [
        session(ended=BEGAN + 5, outcome="stopped"),
        session(2, BEGAN + 3600, BEGAN + 3606),
    ]
    account = account_of(
        run_of(1, 1), [broken_off, again], [result("a", 2, 3605)], sessions=sessions
    )
    assert (account.wall_s, account.task_s.p50) == (pytest.approx(5 + 5), pytest.approx(4))
    assert (account.sessions, account.retried, account.wasted, account.wasted_output_tokens) == (
        2,
        1,
        1,
        50,
    )


@pytest.mark.parametrize(("alive", "lasted"), [(True, 50), (False, 6)])
def test_a_session_whose_process_vanished_ends_with_the_last_thing_it_wrote(alive, lasted):
    """Its writer is no more: nothing says when it was killed."""
    facts = [(1, "endpoint", BEGAN + 6, {"up": True})]
    sessions = [session(alive=alive, outcome=None)]
    story = made_story(
        run_of(2, 1), [attempt(ended=4)], [], sessions=sessions, facts=facts, now=BEGAN + 50
    )
    assert story.spans[0].seconds == pytest.approx(lasted)


def test_nothing_begun_is_unknown_and_not_zero():
    account = account_of(run_of(1, 0, sessions=0), [], sessions=[session(ended=BEGAN)])
    assert account.effective_tok_s is None
    assert "0 of 1 task" in headline(account)


def test_a_simulated_endpoint_and_tokens_that_nobody_told_are_said():
    results = [result("a", output_tokens=None), result("b", output_tokens=50)]
    account = account_of(run_of(2, 2, simulated=True), TWO, results)
    assert account.simulated is True
    assert headline(account).endswith("simulated")
    assert (account.tokens_unknown, account.output_tokens) == (1, 50)


def test_downtime_is_told_from_word_to_word_and_ends_with_its_session():
    words = ((5, False), (8, False), (9, True), (20, False))
    facts = [
        (1, "endpoint", BEGAN + at, {"up": up, "why": None if up else "refused"})
        for at, up in words
    ]
    sessions = [session(ended=BEGAN + 30, outcome="failed")]
    story = made_story(run_of(2, 1), [attempt(ended=4)], [], sessions=sessions, facts=facts)
    assert [
        (round(down.started_at - BEGAN), round(down.ended_at - BEGAN)) for down in story.downs
    ] == [(5, 9), (20, 30)]
    assert (story.account.down_s, story.account.wall_s) == (pytest.approx(14), pytest.approx(30))


def test_errors_are_counted():
    attempts = [
        attempt("a", 0, 0, 2, outcome=AttemptOutcome.FAILED, error_kind="closed"),
        attempt("a", 0, 3, 5, number=2, why=Why.RETRY, first_token_at=BEGAN + 4),
        attempt("b", 1, 0, 5, outcome=AttemptOutcome.REJECTED, error_kind="schema"),
    ]
    account = account_of(
        run_of(2, 1, 1), attempts, [result("a"), result("b", ending=TaskEnding.FAILED)]
    )
    assert dict(account.errors) == {"closed": 1, "schema": 1}
    assert account.ttft_s.p50 == pytest.approx(1)


def test_the_document_is_plain_json_and_every_key_of_it_is_documented():
    document = account_json(account_of(run_of(2, 2), TWO, DONE))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    text = json.dumps(schema_of("swarm show"))
    assert [key for key in document if f'"{key}"' not in text and f"`{key}`" not in text] == []
