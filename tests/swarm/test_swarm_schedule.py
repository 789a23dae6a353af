"""Which task next, which again, which failed: decided without a clock."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.swarm.records import (
    AttemptOutcome,
    AttemptResult,
    Recorded,
    SwarmRunOptions,
    Task,
    TaskEnding,
    Why,
)
from skep.swarm.schedule import (
    SILENT_S,
    Cancel,
    GiveUp,
    Pending,
    ProbeEndpoint,
    Start,
    TaskSchedule,
)
from skep.wire.openai import ErrorKind, classify_error, wait_s

GOOD = AttemptResult(answer="yes", output_tokens=10, status=200)
BROKEN = AttemptResult(error_kind="closed", error="closed the connection")
AWAY = AttemptResult(error_kind="connect", error="cannot be reached")
REFUSED = AttemptResult(error_kind="http_429", error="too many", status=429, retry_after_s=3.0)
SLOW = AttemptResult(error_kind="timeout", error="no complete answer")
WRONG = AttemptResult(answer="no", error_kind="rejected", error="`a` is missing", status=200)
BAD = AttemptResult(error_kind="http_400", error="too long", status=400)


def task(name):
    return Task(name, ({"role": "user", "content": name},))


def schedule(*tasks, **fields):
    pending = [Pending(task(name)) for name in tasks]
    order = SwarmRunOptions(**{"deadline_s": 60.0, **fields})
    return TaskSchedule(pending, order, session=1, epoch=1000.0, rng=Random(1))


def starts(actions):
    return [action for action in actions if isinstance(action, Start)]


def result(actions):
    return next(
        (
            action.result
            for action in actions
            if isinstance(action, Recorded) and action.result is not None
        ),
        None,
    )


def test_tasks_go_out_in_order_and_one_that_ends_makes_room_for_one():
    plan = schedule(*"abcd")
    sent = starts(plan.step(0.0, 3))
    assert [start.task.id for start in sent] == ["a", "b", "c"]
    assert not plan.step(1.0, 3)
    done = result(plan.ended(sent[1].lease, GOOD, 5.0))
    assert (done.task, done.ending, done.answer, done.tries) == ("b", TaskEnding.DONE, "yes", 1)
    assert (done.started_at, done.ended_at) == (1000.0, 1005.0)
    (last,) = starts(plan.step(5.0, 3))
    assert (last.task.id, last.agent) == ("d", sent[1].agent)


def test_what_is_the_endpoints_fault_costs_no_try():
    plan = schedule("a", tries=1)
    now = 0.0
    done = None
    for attempt_result in (AWAY, REFUSED, REFUSED, AWAY, GOOD):
        assert done is None
        while not (sent := starts(plan.step(now, 1))):
            now += 0.5
            plan.probed(None, now)
        done = result(plan.ended(sent[0].lease, attempt_result, now))
    assert (done.ending, done.tries) == (TaskEnding.DONE, 1)


def test_a_refusal_is_waited_out_as_long_as_was_asked():
    plan = schedule("a")
    (first,) = starts(plan.step(0.0, 1))
    plan.ended(first.lease, REFUSED, 1.0)
    assert not starts(plan.step(3.9, 1))
    assert plan.wake_at >= 4.0
    assert starts(plan.step(6.0, 1))


def test_an_endpoint_that_is_away_gets_one_probe_at_a_time_until_answers_flow():
    plan = schedule(*"abcdef")
    for start in starts(plan.step(0.0, 4)):
        plan.ended(start.lease, AWAY, 1.0)
    assert plan.step(1.0, 4) == [ProbeEndpoint()]
    assert plan.step(1.1, 4) == []
    plan.probed("refused", 2.0)
    assert plan.step(2.1, 4) == []
    assert plan.step(2.3, 4) == [ProbeEndpoint()]
    plan.probed(None, 2.4)
    (first,) = starts(plan.step(5.0, 4))  # one first, after so many errors
    assert len(starts(plan.step(5.1, 4, {first.lease: 3}))) == 3


def test_an_endpoint_that_only_refuses_is_given_up_but_not_while_it_answers():
    plan = schedule("a", "b", deadline_s=60.0)
    first, second = starts(plan.step(0.0, 2))
    plan.ended(first.lease, REFUSED, 1.0)
    assert not any(isinstance(action, GiveUp) for action in plan.step(100.0, 2, {second.lease: 5}))
    plan.ended(second.lease, REFUSED, 101.0)
    assert any(isinstance(action, GiveUp) for action in plan.step(102.0, 2))


def test_a_host_that_vanishes_without_a_word_is_noticed():
    plan = schedule("a", "b")
    first, second = starts(plan.step(0.0, 2))
    heard = {first.lease: 5, second.lease: 5}
    plan.step(1.0, 2, heard)
    assert plan.step(1.0 + SILENT_S, 2, heard) == [ProbeEndpoint()]
    dropped = plan.probed("did not answer within 10 s", 41.0)
    assert {action.lease for action in dropped if isinstance(action, Cancel)} == {
        first.lease,
        second.lease,
    }
    assert not plan.leases


def test_stopping_writes_down_what_was_under_way():
    plan = schedule("a", "b", "c")
    sent = starts(plan.step(0.0, 2))
    actions = plan.stop(1.0)
    assert [action.attempt.outcome for action in actions if isinstance(action, Recorded)] == [
        AttemptOutcome.CANCELLED
    ] * 2
    assert plan.ended(sent[0].lease, GOOD, 2.0) == []
    assert not plan.is_over


def test_earlier_sessions_are_counted():
    pending = Pending(task("a"), attempts=3, tries=3, first_at=500.0)
    plan = TaskSchedule(
        [pending], SwarmRunOptions(tries=4), session=2, epoch=1000.0, rng=Random(1)
    )
    (first,) = starts(plan.step(0.0, 1))
    assert (first.number, first.why) == (4, Why.RESUMED)
    done = result(plan.ended(first.lease, SLOW, 1.0))
    assert (done.ending, done.tries, done.started_at) == (TaskEnding.FAILED, 4, 500.0)


@pytest.mark.parametrize(
    ("expected", "kinds"),
    [
        (ErrorKind.AWAY, ["connect"]),
        (ErrorKind.BROKEN, ["closed", "cut", "engine_error", "http_500", "http_502", "http_404"]),
        (ErrorKind.REFUSED, ["http_503", "http_429"]),
        (ErrorKind.FINAL, ["http_400", "http_413"]),
        (ErrorKind.KEY, ["http_401"]),
        (ErrorKind.TRY, ["timeout", "garbage", "rejected"]),
    ],
)
def test_every_error_has_its_kind(expected, kinds):
    statuses = [int(kind[5:]) if kind.startswith("http_") else 200 for kind in kinds]
    assert {
        classify_error(kind, status) for kind, status in zip(kinds, statuses, strict=True)
    } == {expected}
    assert classify_error(None, 200) is None


@settings(max_examples=40)
@given(
    st.sampled_from(list(ErrorKind)),
    st.integers(1, 1000),
    st.sampled_from([None, 0.0, 20.0]),
    st.integers(),
)
def test_waits_are_bounded_and_never_shorter_than_asked(error, times, retry_after_s, seed):
    wait = wait_s(error, times, Random(seed), retry_after_s)
    assert 0 <= wait <= 50
    if retry_after_s is not None and error is not ErrorKind.TRY:
        assert wait >= retry_after_s


ENDS = st.sampled_from([GOOD, GOOD, BROKEN, AWAY, REFUSED, SLOW, WRONG, BAD])


class Play:
    """A schedule that is played against an endpoint; each task may have one result."""

    def __init__(self, names):
        self.plan = schedule(*names, deadline_s=1e12, tries=3)
        self.now = 0.0
        self.results = {}

    def take(self, actions):
        for action in actions:
            if isinstance(action, Start):
                assert action.task.id not in self.results
            if isinstance(action, Recorded) and action.result is not None:
                assert action.result.task not in self.results
                self.results[action.result.task] = action.result

    def step(self, attempt_result, limit, is_probed, place):
        plan = self.plan
        self.now += 3.0
        before = len(plan.leases)
        self.take(plan.step(self.now, limit, dict.fromkeys(plan.leases, place % 2)))
        assert len(plan.leases) <= max(limit, before)
        assert len({lease.agent for lease in plan.leases.values()}) == len(plan.leases)
        if is_probed:
            self.take(plan.probed(None if place % 3 else "away", self.now))
        if plan.leases:
            lease_id = list(plan.leases)[place % len(plan.leases)]
            self.take(plan.ended(lease_id, attempt_result, self.now))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 12),
    st.lists(st.tuples(ENDS, st.integers(1, 5), st.booleans(), st.integers(0, 9)), max_size=200),
)
def test_every_task_ends_once_and_never_are_too_many_under_way(number, events):
    """Whatever happens: one result each, none sent after it, and in the end all have one."""
    names = [f"t{place}" for place in range(number)]
    play = Play(names)
    for event in events:
        play.step(*event)
    for _ in range(40 * number):
        play.step(GOOD, 4, True, 1)
    assert sorted(play.results) == sorted(names)
    assert play.plan.is_over


def breaks_of(poison, restarts):
    """Twenty at once at an endpoint that breaks when it is given poison, and so often besides; who
    failed.
    """
    plan = schedule(*(f"t{n}" for n in range(20)), deadline_s=1e9)
    endings = {}
    now = 0.0
    while not plan.is_over:
        now += 1.0
        if ProbeEndpoint() in plan.step(now, 20):
            plan.probed(None, now)
            plan.step(now, 20)
        leases = list(plan.leases.values())
        breaks = restarts > 0 or any(lease.task.id in poison for lease in leases)
        restarts -= bool(leases)
        for lease in leases:
            ended = result(plan.ended(lease.lease, BROKEN if breaks else GOOD, now))
            if ended is not None:
                endings[ended.task] = ended.ending
    return {name for name, ending in endings.items() if ending is TaskEnding.FAILED}


@pytest.mark.parametrize(
    ("poison", "restarts"),
    [(set(), 1), (set(), 3), (set(), 6), ({"t7"}, 0), ({"t7", "t15"}, 0), ({"t0", "t1", "t2"}, 0)],
)
def test_restarts_of_the_endpoint_cost_no_task_its_tries_and_what_breaks_it_is_found(
    poison, restarts
):
    assert breaks_of(poison, restarts) == poison
