"""The circuit breaker of one replica, event by event."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skep.gateway.replica_table import BAD_ANSWERS, BAD_CHECKS, FIRST_OPEN_S, LONGEST_OPEN_S, Breaker


def opened(now=0.0):
    breaker = Breaker(now)
    breaker.failed(now)
    return breaker


def test_one_request_without_an_answer_opens_it():
    breaker = opened()
    assert breaker.state(0.0) == "open"
    assert not breaker.allows(FIRST_OPEN_S - 0.01)
    assert breaker.state(FIRST_OPEN_S) == "half-open"
    assert breaker.allows(FIRST_OPEN_S)


def test_half_open_lets_one_request_through_and_its_answer_closes_it():
    breaker = opened()
    breaker.granted("a")
    assert not breaker.allows(1.0)
    breaker.answered(1.0)
    assert breaker.state(1.0) == "closed"
    breaker.failed(2.0)
    assert breaker.open_until == 2.0 + FIRST_OPEN_S


def test_a_trial_that_leaves_without_a_verdict_makes_way_for_the_next():
    breaker = opened()
    breaker.granted("a")
    breaker.ended("b")
    assert not breaker.allows(1.0)
    breaker.ended("a")
    assert breaker.allows(1.0)


def test_a_replica_that_dies_with_many_requests_has_failed_once():
    """Ten requests failed at the same moment, and the replica was passed over for 15 s though it was back after one."""
    breaker = Breaker(0.0)
    for _ in range(10):
        breaker.failed(5.0)
    assert breaker.open_until == 5.0 + FIRST_OPEN_S


def test_a_late_failure_of_another_request_does_not_let_a_second_trial_in():
    """The trial is still under way at the replica, whatever happened to those before it."""
    breaker = opened()
    breaker.granted("trial")
    breaker.failed(1.0)
    assert breaker.state(100.0) == "half-open"
    assert not breaker.allows(100.0)
    breaker.ended("trial")
    assert breaker.allows(100.0)


def test_each_opening_is_longer_than_the_last_up_to_the_longest():
    breaker, now, lasted = Breaker(0.0), 0.0, []
    for _ in range(8):
        breaker.failed(now)
        lasted.append(breaker.open_until - now)
        now = breaker.open_until
    assert lasted == [0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_OPEN_S, LONGEST_OPEN_S, LONGEST_OPEN_S]


def test_complaints_open_it_only_if_there_are_several_in_a_row():
    breaker = Breaker(0.0)
    for _ in range(BAD_ANSWERS - 1):
        breaker.bad_answer(1.0)
    breaker.answered(1.0)
    for _ in range(BAD_ANSWERS - 1):
        breaker.bad_answer(1.0)
    assert breaker.state(1.0) == "closed"
    breaker.bad_answer(1.0)
    assert breaker.state(1.0) == "open"
    assert breaker.heard_at == 1.0


def test_a_complaint_fails_the_trial_at_once():
    breaker = opened()
    breaker.granted("a")
    breaker.bad_answer(1.0)
    assert breaker.state(1.0) == "open"


def test_a_healthy_check_closes_only_what_is_half_open():
    """A server whose health page works answers no requests for all that: the time of an opening is kept."""
    breaker = opened()
    breaker.checked(ok=True, now=0.1)
    assert breaker.state(0.1) == "open"
    breaker.checked(ok=True, now=1.0)
    assert breaker.state(1.0) == "closed"
    breaker.failed(2.0)
    assert breaker.open_until == 2.0 + 2 * FIRST_OPEN_S, "only an answer makes it forget"


def test_checks_that_fail_in_a_row_open_it():
    breaker = Breaker(0.0)
    for ok in (False, False, True, False, False):
        breaker.checked(ok, 1.0)
    assert breaker.state(1.0) == "closed"
    breaker.checked(ok=False, now=1.0)
    assert breaker.state(1.0) == "open"
    assert breaker.heard_at == 1.0
    assert BAD_CHECKS == 3


def test_it_says_how_it_stands():
    assert repr(Breaker(0.0)) == "<Breaker closed>"
    assert repr(opened(3.0)) == "<Breaker open until 3.5>"


class Life(RuleBasedStateMachine):
    """Any order of events, as admission may bring them: requests are granted where allowed, and each ends once."""

    def __init__(self):
        super().__init__()
        self.now = 100.0
        self.breaker = Breaker(self.now)
        self.under_way = []
        self.granted_half_open = set()
        self.requests = 0
        self.openings = []  # since the last answer

    def observe(self, event):
        before = self.breaker.open_until
        event()
        after = self.breaker.open_until
        if after is not None and after != before:
            assert before is None or before <= self.now, "an open one is not opened again"
            self.openings.append(after - self.now)
        if after is None and before is not None:
            self.granted_half_open.clear()

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 1.0, 5.0, 20.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.breaker.allows(self.now))
    @rule()
    def grant(self):
        self.requests += 1
        request = f"r{self.requests}"
        if self.breaker.state(self.now) == "half-open":
            assert not self.granted_half_open, "two trials"
            self.granted_half_open.add(request)
        self.breaker.granted(request)
        self.under_way.append(request)

    def end(self, data):
        request = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.breaker.ended(request)
        self.granted_half_open.discard(request)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def fails(self, data):
        self.observe(lambda: self.breaker.failed(self.now))
        self.end(data)
        assert self.breaker.state(self.now) == "open"

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), leaves=st.booleans())
    def complains(self, data, leaves):
        was_closed = self.breaker.open_until is None
        self.observe(lambda: self.breaker.bad_answer(self.now))
        assert was_closed or self.breaker.state(self.now) == "open"
        if leaves:
            self.end(data)

    @precondition(lambda self: self.under_way)
    @rule()
    def answers(self):
        self.observe(lambda: self.breaker.answered(self.now))
        assert self.breaker.state(self.now) == "closed"
        assert self.breaker.allows(self.now)
        self.openings.clear()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def leaves(self, data):
        self.end(data)

    @rule(ok=st.booleans())
    def checked(self, ok):
        before = self.breaker.state(self.now)
        self.observe(lambda: self.breaker.checked(ok, self.now))
        after = self.breaker.state(self.now)
        if ok:
            assert after == ("closed" if before == "half-open" else before)
        else:
            assert after in (before, "open")

    @invariant()
    def openings_grow_to_the_longest(self):
        assert all(opening <= LONGEST_OPEN_S + 1e-9 for opening in self.openings)
        for before, after in zip(self.openings, self.openings[1:], strict=False):
            assert abs(after - min(LONGEST_OPEN_S, 2 * before)) < 1e-9

    @invariant()
    def a_replica_without_requests_is_tried_again_in_the_end(self):
        if not self.under_way:
            assert self.breaker.allows(self.now + LONGEST_OPEN_S)


Life.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
