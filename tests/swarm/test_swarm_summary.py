"""A run's account, from what the journal has of it."""

import json

import pytest

from skep.report.schemas import schema_of
from skep.report.swarm import headline
from skep.store.database import open_store
from skep.swarm.records import Attempt, AttemptOutcome, Task, TaskEnding, TaskResult, Why
from skep.swarm.store import Recorded, SwarmSession, SwarmStore
from skep.swarm.summary import account_json, spans_of, story_of

BEGAN = 1_700_000_000.0
URL = "http://127.0.0.1:9999"


class Journal:
    """A real store, filled by hand. Times are seconds after the run began."""

    def __init__(self, store):
        self.swarm = SwarmStore(store)
        self.config = {}
        self.id = ""

    def begin(self, *names):
        tasks = [Task(name, ({"role": "user", "content": name},)) for name in names]
        fields = {"kind": "map", "name": "tasks.jsonl", "url": URL, "model": None, "config": self.config}
        self.id = self.swarm.begin(created_at=BEGAN, skep_version="0", tasks=tasks, **fields)

    def open(self, at, *, simulated=False):
        return self.swarm.open_session(
            self.id, at=BEGAN + at, agents=None, endpoint={"model": "small"}, simulated=simulated
        )

    def close(self, session, at, outcome="done"):
        self.swarm.close_session(self.id, session, at=BEGAN + at, outcome=outcome)

    def attempt(self, task, begin, end, *, result=True, session=1, **other):
        told = {"number": 1, "agent": 0, "why": Why.FIRST, "outcome": AttemptOutcome.DONE, "prompt_tokens": 100} | other
        told = {"output_tokens": 50, "first_token_at": None} | told
        one = Attempt(task, session, started_at=BEGAN + begin, ended_at=BEGAN + end, **told)
        ending = TaskEnding.DONE if one.outcome is AttemptOutcome.DONE else TaskEnding.FAILED
        known = (one.started_at, one.ended_at, one.prompt_tokens, one.output_tokens, one.finish_reason, one.replica)
        final = TaskResult(task, ending, "yes", None, one.error_kind, one.error, one.number, *known)
        self.swarm.record(self.id, [Recorded(one, final if result else None)])

    def fact(self, name, at, session=1, **fact):
        self.swarm.append_fact(self.id, session, name, BEGAN + at, fact)

    def account(self, now=1000.0, **other):
        return self.story(now, **other).account

    def story(self, now=1000.0, **other):
        return story_of(self.swarm, self.swarm.run(self.id), now=BEGAN + now, **other)


@pytest.fixture
def journal(tmp_path):
    with open_store(tmp_path / "s.sqlite3") as store:
        yield Journal(store)


def two_at_once(journal, **first):
    """Two tasks in two lanes, ten seconds each, one started a second after the other."""
    journal.begin("a", "b")
    journal.open(0)
    journal.attempt("a", 0, 10, **first)
    journal.attempt("b", 1, 11, agent=1)
    journal.close(1, 12)


def test_the_wall_ends_with_the_last_attempt_when_every_task_has_its_result(journal):
    two_at_once(journal)
    account = journal.account()
    assert account.wall_s == pytest.approx(11)
    assert account.effective_tok_s == pytest.approx(100 / 11)
    assert account.agents_mean == pytest.approx(20 / 11)
    assert account.agents_max == 2
    assert (account.tasks, account.done, account.failed, account.left) == (2, 2, 0, 0)


def test_pauses_between_sessions_count_neither_as_wall_nor_as_a_tasks_time(journal):
    journal.begin("a")
    journal.open(0)
    journal.attempt("a", 2, 5, result=False, outcome=AttemptOutcome.CANCELLED)
    journal.close(1, 5, "stopped")
    journal.open(3600)
    journal.attempt("a", 3601, 3605, session=2, number=2, why=Why.RESUMED)
    journal.close(2, 3606)
    account = journal.account()
    assert (account.wall_s, account.task_s.p50) == (pytest.approx(5 + 5), pytest.approx(4))
    assert (account.sessions, account.retried, account.wasted, account.wasted_output_tokens) == (2, 1, 1, 50)


def test_a_session_whose_process_vanished_ends_with_the_last_thing_it_wrote(journal):
    """Its writer is no more: nothing says when it was killed."""
    journal.begin("a", "b")
    journal.open(0)
    journal.attempt("a", 0, 4)
    journal.fact("limit", 6, limit=2, why="slots")
    (span,) = journal.story(now=50).spans
    assert span.alive
    assert span.seconds == pytest.approx(50)  # this process is its writer, and still there
    gone = SwarmSession(1, BEGAN, None, None, None, None, {}, False, alive=False)
    facts = journal.swarm.facts(journal.id)
    (span,) = spans_of([gone], journal.swarm.attempts(journal.id), facts, now=BEGAN + 50, finished=False)
    assert span.seconds == pytest.approx(6)


def test_nothing_begun_is_unknown_and_not_zero(journal):
    journal.begin("a")
    account = journal.account()
    assert (account.wall_s, account.effective_tok_s) == (None, None)
    assert "the run has not started" in headline(account)


def test_a_simulated_endpoint_and_tokens_that_nobody_told_are_said(journal):
    journal.begin("a", "b")
    journal.open(0, simulated=True)
    journal.attempt("a", 0, 2, output_tokens=None)
    journal.attempt("b", 0, 2)
    account = journal.account()
    assert account.simulated is True
    assert headline(account).endswith("simulated")
    assert (account.tokens_unknown, account.output_tokens) == (1, 50)


def test_downtime_is_told_from_word_to_word_and_ends_with_its_session(journal):
    journal.begin("a", "b")
    journal.open(0)
    journal.attempt("a", 0, 4)
    for at, up in ((5, False), (8, False), (9, True), (20, False)):
        journal.fact("endpoint", at, up=up, why=None if up else "refused")
    journal.close(1, 30, "failed")
    story = journal.story()
    assert [(round(one.started_at - BEGAN), round(one.ended_at - BEGAN)) for one in story.downs] == [(5, 9), (20, 30)]
    assert story.account.down_s == pytest.approx(14)
    assert story.account.wall_s == pytest.approx(30)


def test_errors_are_counted(journal):
    journal.begin("a", "b")
    journal.open(0)
    journal.attempt("a", 0, 2, result=False, outcome=AttemptOutcome.FAILED, error_kind="closed")
    journal.attempt("a", 3, 5, number=2, why=Why.RETRY, first_token_at=BEGAN + 4)
    journal.attempt("b", 0, 5, agent=1, outcome=AttemptOutcome.REJECTED, error_kind="schema")
    journal.close(1, 5)
    account = journal.account()
    assert dict(account.errors) == {"closed": 1, "schema": 1}
    assert account.ttft_s.p50 == pytest.approx(1)
    assert account.failed == 1


def test_the_document_is_plain_json_and_every_key_of_it_is_documented(journal):
    two_at_once(journal)
    document = account_json(journal.account())
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    text = json.dumps(schema_of("swarm show"))
    for key in document:
        assert f'"{key}"' in text or f"`{key}`" in text, key
