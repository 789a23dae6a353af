"""The journal of the swarm: every task has one result, whichever process writes it, whatever its
text, and however the run ends.
"""

import msgspec
import pytest

from skep.errors import StoreError, UserError
from skep.store.database import open_store
from skep.swarm.records import (
    Attempt,
    AttemptOutcome,
    Counts,
    SwarmRunState,
    Task,
    TaskEnding,
    TaskResult,
    Why,
)
from skep.swarm.runner import pending_tasks
from skep.swarm.store import Recorded, SwarmStore

AT = 1_794_752_553.25  # 2026-11-15 14:22:33 UTC
RUN = {
    "kind": "map",
    "created_at": AT,
    "name": "things.jsonl",
    "url": "http://127.0.0.1:8000/v1",
    "model": None,
    "config": {"tries": 4},
    "skep_version": "0.1.0",
}
TABLES = (
    "runs",
    "tasks",
    "results",
    "attempts",
    "steps",
    "sessions",
    "session_ends",
    "facts",
    "cancels",
)


@pytest.fixture
def swarm(store):
    return SwarmStore(store)


def task(name: str, **changes) -> Task:
    return Task(name, ({"role": "user", "content": f"About {name}"},), **changes)


def begin(swarm: SwarmStore, *names: str, **changes) -> str:
    tasks = changes.pop("tasks", [task(name) for name in names])
    return swarm.begin(**(RUN | changes), tasks=tasks)


def work(swarm: SwarmStore, run_id: str, at: float = AT + 1, **changes) -> int:
    return swarm.open_session(
        run_id, **({"at": at, "agents": None, "endpoint": {}, "simulated": False} | changes)
    )


def attempt(name: str, outcome: AttemptOutcome = AttemptOutcome.DONE, **changes) -> Attempt:
    values = {
        "session": 1,
        "number": 1,
        "agent": 0,
        "why": Why.FIRST,
        "started_at": AT + 1,
        "ended_at": AT + 2,
    }
    return Attempt(task=name, outcome=outcome, **values | changes)


def result(name: str, answer: str | None = "yes", **changes) -> TaskResult:
    values = {
        "ending": TaskEnding.DONE,
        "value": None,
        "error_kind": None,
        "error": None,
        "tries": 1,
        "started_at": AT + 1,
        "ended_at": AT + 2,
        "prompt_tokens": 20,
        "output_tokens": 3,
        "finish_reason": "stop",
        "replica": "r0",
    }
    return TaskResult(task=name, answer=answer, **values | changes)


def done(*names: str) -> list[Recorded]:
    return [Recorded(attempt(name), result(name)) for name in names]


def test_run_is_there_with_all_its_tasks(swarm):
    """What went in comes out, in the order of the input,
    the order of a schema's fields included.
    """
    schema = {
        "type": "object",
        "properties": {"why": {}, "answer": {}},
        "additionalProperties": False,
    }
    checker = {"kind": "contains", "all": ["x"]}
    rich = task(
        "b",
        max_tokens=7,
        temperature=0.0,
        schema=schema,
        checker=checker,
        extra={"top_p": 1},
        stage=2,
    )
    run_id = begin(swarm, tasks=[task("c"), rich, task("a")])
    assert run_id.startswith("20261115-142233-")
    assert swarm.tasks(run_id) == [task("c"), rich, task("a")]
    assert list(swarm.task(run_id, "b").schema["properties"]) == ["why", "answer"]
    run = swarm.run("last")
    assert (run.id, run.state, run.counts, run.sessions) == (
        run_id,
        SwarmRunState.STOPPED,
        Counts(3, 0, 0),
        0,
    )
    assert (run.simulated, run.ended_at, run.error, run.config) == (None, None, None, {"tries": 4})


def test_the_first_result_of_a_task_stays(swarm):
    """A straggler's second attempt may end in the same moment; a result that was reported does not
    change.
    """
    run_id = begin(swarm, "a", "b")
    first = result("a", "first")
    assert swarm.record(run_id, [Recorded(attempt("a"), first)]) == [first]
    late = Recorded(attempt("a", AttemptOutcome.SUPERSEDED, number=2), result("a", "second"))
    assert swarm.record(run_id, [late, *done("b"), *done("b")]) == [result("b")]
    assert [result.answer for result in swarm.results(run_id)] == ["first", "yes"]
    assert [attempt.number for attempt in swarm.attempts(run_id, "a")] == [1, 2]
    assert swarm.run(run_id).counts == Counts(2, 2, 0)


def test_pending_tasks_have_the_tries_that_count(swarm):
    """An attempt that was cancelled, or that another one overtook, says nothing of the task."""
    run_id = begin(swarm, "a", "b", "c")
    outcomes = (
        AttemptOutcome.FAILED,
        AttemptOutcome.CANCELLED,
        AttemptOutcome.REJECTED,
        AttemptOutcome.SUPERSEDED,
    )
    attempts = [
        attempt("c", outcome, number=number, started_at=AT + 9 - number, error_kind="timeout")
        for number, outcome in enumerate(outcomes, start=1)
    ]
    swarm.record(run_id, [*done("b"), *map(Recorded, attempts)])
    untried, tried = pending_tasks(swarm, run_id)
    assert (untried.task, untried.tries, untried.first_at) == (task("a"), 0, None)
    assert (tried.task, tried.tries, tried.first_at, tried.attempts) == (task("c"), 2, AT + 5, 4)
    assert [attempt.number for attempt in swarm.attempts(run_id, "c")] == [4, 3, 2, 1]


def test_a_task_id_given_twice_or_unknown_is_refused_with_the_whole_batch(swarm):
    with pytest.raises(StoreError, match="does not take this row"):
        begin(swarm, "a", "b", "a")
    assert swarm.runs() == []
    run_id = begin(swarm, "a")
    with pytest.raises(StoreError, match="has no task `z`"):
        swarm.record(run_id, [*done("a"), *done("z")])
    with pytest.raises(StoreError, match="has no task `a`"):
        swarm.record("nowhere", done("a"))
    assert swarm.run(run_id).counts == Counts(1, 0, 0)
    assert swarm.record(run_id, []) == []


@pytest.mark.parametrize(
    "odd", ["half \ud83d of a pair", "nul \0 in it", "\ud83d\ude00", "\x1b[31m\r\n\u2028", "é" * 9]
)
def test_odd_text_does_not_lose_a_result(swarm, odd):
    """Halves of a character that belong together are joined, a lone half is replaced, and all other
    text is kept exactly.
    """
    stored_text = {
        "half \ud83d of a pair": "half \ufffd of a pair",
        "\ud83d\ude00": "\U0001f600",
    }.get(odd, odd)
    run_id = begin(swarm, tasks=[task(odd), task("b")], name=odd, model=odd, config={"goal": odd})
    assert [task.id for task in swarm.tasks(run_id)] == [stored_text, "b"]
    row = Recorded(attempt(odd, error=odd, answer=odd), result(odd, odd, value=[odd], error=odd))
    (recorded,) = swarm.record(run_id, [row])
    stored = swarm.result(run_id, odd)
    assert recorded == stored
    assert (stored.task, stored.answer, stored.error) == (stored_text, stored_text, stored_text)
    assert stored.value in ([odd], [stored_text])  # JSON has a way to write a lone half
    assert (swarm.task(run_id, odd).id, swarm.run(run_id).name) == (stored_text, stored_text)
    assert [task.id for task in swarm.pending(run_id)] == ["b"]


def test_odd_figures_do_not_lose_a_result(swarm):
    """Python reads NaN as JSON, and an endpoint may say any number of tokens: what has no place is
    not known.
    """
    run_id = begin(swarm, "a", "b")
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    odd = result("a", value={"x": float("nan"), "y": [float("inf"), 1.5]}, prompt_tokens=2**70)
    recorded = swarm.record(run_id, [Recorded(attempt("a", status=10**30), odd)])
    recorded += swarm.record(run_id, [Recorded(None, result("b", "[[[[", value=nested))])
    finite, deep = swarm.results(run_id)
    assert recorded == [finite, deep]
    assert (finite.value, finite.prompt_tokens) == ({"x": None, "y": [None, 1.5]}, None)
    assert (deep.answer, deep.value) == ("[[[[", None)


@pytest.fixture
def two_sessions(swarm):
    """The id of a run whose first session failed, and whose second one did the rest."""
    run_id = begin(swarm, "a", "b")
    first = work(swarm, run_id, simulated=True)
    swarm.record(run_id, done("a"))
    swarm.close_session(run_id, first, at=AT + 3, outcome="failed", error="endpoint went away")
    second = work(swarm, run_id, at=AT + 10, agents=8, endpoint={"slots": 4})
    swarm.record(run_id, done("b"))
    swarm.close_session(run_id, second, at=AT + 12, outcome="done")
    assert (first, second) == (1, 2)
    return run_id


def test_a_run_is_running_while_a_session_is_open_and_stopped_when_it_fails(swarm):
    run_id = begin(swarm, "a", "b")
    first = work(swarm, run_id, simulated=True)
    assert swarm.run(run_id).state is SwarmRunState.RUNNING
    swarm.record(run_id, done("a"))
    swarm.close_session(run_id, first, at=AT + 3, outcome="failed", error="endpoint went away")
    run = swarm.run(run_id)
    assert (run.state, run.error) == (SwarmRunState.STOPPED, "endpoint went away")
    assert run.ended_at == AT + 3
    work(swarm, run_id, at=AT + 10, agents=8, endpoint={"slots": 4})
    run = swarm.run(run_id)
    assert (run.state, run.ended_at) == (SwarmRunState.RUNNING, None)


def test_run_is_done_when_its_last_session_says_so_and_nothing_is_left(swarm, two_sessions):
    run = swarm.run(two_sessions)
    assert (run.state, run.error) == (SwarmRunState.DONE, None)
    assert (run.sessions, run.counts.left) == (2, 0)
    assert run.simulated is True  # a part of it was


def test_each_session_of_a_run_has_its_own_end(swarm, two_sessions):
    first, second = swarm.session_rows(two_sessions)
    assert (first.outcome, first.alive) == ("failed", False)
    assert (first.simulated, first.agents) == (True, None)
    assert (second.outcome, second.ended_at) == ("done", AT + 12)
    assert (second.agents, second.endpoint) == (8, {"slots": 4})


def test_a_run_that_is_done_is_cancelled_only_once_it_has_tasks_again(swarm, two_sessions):
    swarm.set_cancelled(two_sessions, AT + 13)
    assert swarm.run(two_sessions).state is SwarmRunState.DONE
    assert swarm.add_tasks(two_sessions, [task("c", stage=1)]) == 1
    assert swarm.run(two_sessions).state is SwarmRunState.CANCELLED


@pytest.mark.parametrize("later", [60.0, 0.0, -3600.0], ids=["later", "at once", "clock set back"])
def test_cancelling_is_seen_by_the_session_it_was_meant_for(swarm, later):
    """The next one begins afresh: a cancelled run can be resumed.

    What came first is told by order, not by a clock.
    """
    run_id = begin(swarm, "a")
    session = work(swarm, run_id)
    before = swarm.newest_cancel(run_id)
    assert swarm.newest_cancel(run_id) == before
    swarm.set_cancelled(run_id, AT + 1 + later)
    assert swarm.newest_cancel(run_id) > before
    assert swarm.run(run_id).state is SwarmRunState.RUNNING
    swarm.close_session(run_id, session, at=AT + 3, outcome="stopped")
    assert swarm.run(run_id).state is SwarmRunState.CANCELLED
    for wished_before, state in ((None, SwarmRunState.STOPPED), (before, SwarmRunState.CANCELLED)):
        # It came between wish and session.
        meant = {} if wished_before is None else {"after_cancel": wished_before}
        session = work(swarm, run_id, at=AT + 1 + 2 * later, **meant)
        swarm.close_session(run_id, session, at=AT + 10, outcome="stopped")
        assert swarm.run(run_id).state is state
    with pytest.raises(StoreError, match=run_id):  # it ended once
        swarm.close_session(run_id, session, at=AT + 11, outcome="done")


def test_the_last_run_is_the_last_made_and_tasks_of_a_later_stage_are_added_once(
    swarm,
):
    first = begin(swarm, "a")
    second = begin(swarm, "b", created_at=AT - 3600)
    assert swarm.run("last").id == second
    assert [run.id for run in swarm.runs()] == [second, first]
    # A resumed run makes them again from the same results; their order is that of the first time.
    run_id = begin(swarm, "a")
    assert swarm.add_tasks(run_id, [task("b", stage=1), task("c", stage=1)]) == 2
    assert (
        swarm.add_tasks(run_id, [task("c", stage=1), task("d", stage=1), task("b", stage=1)]) == 1
    )
    assert swarm.add_tasks(run_id, []) == 0
    assert [task.id for task in swarm.tasks(run_id)] == ["a", "b", "c", "d"]


def full_run(swarm: SwarmStore) -> str:
    """Make a run with a row in every table, also in that of the steps, which old versions wrote."""
    run_id = begin(swarm, "a", "b")
    session = work(swarm, run_id)
    swarm.record(run_id, done("a"))
    with swarm._store.transaction(run_id) as connection:
        connection.execute(
            "INSERT INTO swarm_steps (task, run_id, idx, attempt, started_at, ended_at, "
            "kind, name, asked, answered) "
            "SELECT key, run_id, 0, 1, 0, 0, 'tool', '', '', '' FROM swarm_tasks WHERE "
            "run_id = ? AND id = 'a'",
            (run_id,),
        )
    swarm.append_fact(run_id, session, "limit", AT, {"agents": 4})
    swarm.set_cancelled(run_id, AT + 2)
    swarm.close_session(run_id, session, at=AT + 3, outcome="cancelled")
    return run_id


def test_deleting_takes_a_whole_run_and_no_other_and_none_that_is_worked_on(swarm, store):
    deleted = full_run(swarm)
    remaining = full_run(swarm)
    busy = begin(swarm, "a")
    session = work(swarm, busy)
    with pytest.raises(UserError, match=f"working on run `{busy}`"):
        swarm.delete([deleted, busy])
    assert len(swarm.runs()) == 3
    swarm.close_session(busy, session, at=AT + 3, outcome="stopped")
    assert swarm.delete([deleted, busy, "nowhere"]) == 2
    assert [run.id for run in swarm.runs()] == [remaining]
    for table in TABLES:
        key = "id" if table == "runs" else "run_id"
        assert {row[0] for row in store.read(f"SELECT {key} FROM swarm_{table}")} == {remaining}
    assert swarm.delete([]) == 0


def test_views_tell_the_same(swarm, store):
    run_id = full_run(swarm)
    (run,) = store.read(
        "SELECT run_id, outcome, tasks, done, failed, attempts, output_tokens, span_s FROM "
        "v_swarm_runs"
    )
    assert tuple(run) == (run_id, "cancelled", 2, 1, 0, 1, 3, 1.0)
    rows = store.read("SELECT task, ending, total_s FROM v_swarm_tasks")
    assert [tuple(row) for row in rows] == [("a", "done", 1.0), ("b", "no result", None)]
    (row,) = store.read("SELECT task, outcome, started_utc FROM v_swarm_attempts")
    assert tuple(row) == ("a", "done", "2026-11-15 14:22:34.250")


def test_a_file_of_schema_seven_opens_with_its_swarm_and_tasks_lose_their_tools(
    old_file,
):
    with open_store(old_file("7")) as store:
        swarm = SwarmStore(store)
        run = swarm.run("last")
        assert (run.id, run.state, run.counts) == (
            "20261115-142233-5a4a3a",
            SwarmRunState.CANCELLED,
            Counts(3, 1, 1),
        )
        assert [result.answer for result in swarm.results(run.id)] == ["An oak", "the Rhine"]
        assert [task.id for task in swarm.pending(run.id)] == ["hill"]
        assert len(swarm.facts(run.id)) == 1
    # Earlier versions stored which tools its agent might use.
    document = {**msgspec.to_builtins(task("a")), "tools": ["files"]}
    assert msgspec.convert(document, Task) == task("a")
