"""How many at once: what the gateway tells, what a silent endpoint shows, and what refusals do to
both.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.swarm.concurrency import (
    FIRST_LEVEL,
    HIGHEST_LEVEL,
    ConcurrencyLimit,
    ConcurrencySample,
    ConcurrencySearch,
    EndpointSlots,
    Phase,
    backlog_of,
)


class Server:
    """Decodes at most `slots` at once; `rate(n)` tokens a second come out of n."""

    def __init__(self, rate, slots=10_000, first_s=0.1):
        self.rate = rate
        self.slots = slots
        self.first_s = first_s
        self.now = 0.0
        self.tokens = 0.0
        self.level = 0
        self.since = 0.0

    def drive(self, decider, seconds, limit=None, waiting=1000):
        for _ in range(round(seconds / 0.1)):
            level = limit() if limit else decider.level
            if level != self.level:
                self.level = level
                self.since = self.now
            busy = min(self.level, self.slots)
            self.now += 0.1
            self.tokens += 0.1 * self.rate(busy)
            if self.now - self.since >= self.first_s:
                streaming = busy
            else:
                streaming = min(busy, 1)
            decider.look(
                ConcurrencySample(
                    self.now, int(self.tokens), self.level, streaming, waiting, None, self.first_s
                )
            )


@pytest.mark.parametrize(
    ("slots", "cap", "limit", "why"),
    [
        (
            EndpointSlots(16, is_gateway=True),
            None,
            16 + backlog_of(16),
            "16 slots and 4 in the queue",
        ),
        (EndpointSlots(16, is_gateway=True), 5, 5, "as many as --concurrency allows"),
        (EndpointSlots(), 2, 2, "as many as --concurrency allows"),
        (EndpointSlots(4), None, 4 + backlog_of(4), "holding the best level found"),
    ],
    ids=[
        "a gateway",
        "fewer asked for",
        "an endpoint that tells nothing",
        "a server that tells its slots",
    ],
)
def test_the_slots_of_an_endpoint_are_used_and_a_few_wait(slots, cap, limit, why):
    allowed = ConcurrencyLimit(slots, cap=cap)
    assert (allowed.limit, allowed.why) == (limit, why)


def test_a_model_that_is_not_loaded_is_woken_by_one():
    allowed = ConcurrencyLimit(EndpointSlots(0, is_gateway=True))
    assert allowed.limit == 1
    allowed.update_slots(EndpointSlots(8, is_gateway=True))
    assert allowed.limit == 8 + backlog_of(8)


def test_a_refusal_makes_it_fewer_and_time_makes_it_more():
    allowed = ConcurrencyLimit(EndpointSlots(16, is_gateway=True))
    allowed.refused(10.0, 20, None)
    assert allowed.limit == 16
    allowed.refused(10.1, 19, None)
    assert allowed.limit == 16, "refusals so close together have one cause"
    allowed.refused(12.0, 16, None)
    assert allowed.limit == 12
    for step in range(200):
        allowed.look(ConcurrencySample(12.0 + step / 10, 0, 12, 12, 5))
    assert allowed.limit == 20


def test_nothing_is_sent_before_a_retry_after_has_passed_unless_the_endpoint_is_back():
    allowed = ConcurrencyLimit(EndpointSlots(4, is_gateway=True))
    allowed.refused(0.0, 1, 7.0)
    assert allowed.may_start(6.9, 0) == 0
    assert allowed.may_start(6.9, 1) == 1, "one that has ended may be followed"
    assert allowed.may_start(7.0, 0) == 1
    allowed.refused(8.0, 4, 60.0)
    allowed.forgive()
    assert allowed.may_start(9.0, 0) == 6


@pytest.mark.parametrize(
    ("rate", "slots", "seconds", "waiting", "levels"),
    [
        (lambda busy: 20.0 * busy, 50, 4.0, 1000, range(50, HIGHEST_LEVEL + 1)),
        (lambda busy: 800.0 * min(busy, 16) / 16, 10_000, 9.0, 1000, (16,)),
        (lambda busy: 100.0 * busy if busy <= 8 else 500.0, 10_000, 9.0, 1000, (8,)),
        (lambda busy: 100.0 * busy, 10_000, 9.0, 0, (FIRST_LEVEL,)),
    ],
    ids=[
        "found within seconds",
        "stays where more brings no more",
        "turns back beyond a cliff",
        "none wait",
    ],
)
def test_the_level_of_a_silent_endpoint_is_searched(rate, slots, seconds, waiting, levels):
    """Fifty tasks of ten seconds: by the time the first could have ended, the level is found."""
    search = ConcurrencySearch()
    Server(rate, slots=slots).drive(search, seconds, waiting=waiting)
    assert search.level in levels


def test_a_step_up_is_tried_again_and_kept():
    search = ConcurrencySearch()
    server = Server(lambda busy: 100.0 * min(busy, 8))
    server.drive(search, 9.0)
    assert (search.level, search.phase) == (8, Phase.HOLD)
    server.rate = lambda busy: 100.0 * min(busy, 40)
    server.drive(search, 120.0)
    assert search.level in range(20, HIGHEST_LEVEL + 1)


def test_a_server_that_answers_in_one_piece_is_waited_for():
    search = ConcurrencySearch()
    for step in range(100):
        search.look(ConcurrencySample(step / 10, 0, search.level, 0, 50))
    assert search.level == FIRST_LEVEL


def test_refusals_bound_the_climb():
    allowed = ConcurrencyLimit(EndpointSlots())
    server = Server(lambda busy: 100.0 * busy)
    for _ in range(600):
        server.drive(allowed, 0.1, limit=lambda: allowed.limit)
        if allowed.limit > 10:
            allowed.refused(server.now, allowed.limit, None)
    assert 4 <= allowed.limit <= 14


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("look"), st.integers(0, 300), st.integers(0, 300), st.integers(0, 5000)
            ),
            st.tuples(
                st.just("refused"),
                st.integers(1, 300),
                st.sampled_from([None, 0.0, 5.0]),
                st.none(),
            ),
            st.tuples(
                st.just("told"), st.sampled_from([None, 0, 3, 64]), st.booleans(), st.none()
            ),
        ),
        max_size=80,
    ),
    st.sampled_from([None, 1, 7]),
)
def test_the_limit_is_always_between_one_and_what_is_allowed(events, cap):
    allowed = ConcurrencyLimit(EndpointSlots(), cap)
    now = 0.0
    tokens = 0
    for kind, first, second, third in events:
        now += 0.3
        if kind == "look":
            tokens += third
            allowed.look(ConcurrencySample(now, tokens, first, min(first, second), 10))
        elif kind == "refused":
            allowed.refused(now, first, second)
        else:
            allowed.update_slots(EndpointSlots(first, is_gateway=second))
        assert 1 <= allowed.limit <= (cap or HIGHEST_LEVEL)
        assert allowed.why
