"""How many at once: what the gateway tells, what a silent endpoint shows, and what refusals do to both."""

from hypothesis import given, settings
from hypothesis import strategies as st

from skep.swarm.concurrency import (
    FIRST,
    MOST,
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
        self.rate, self.slots, self.first_s = rate, slots, first_s
        self.now, self.tokens, self.level, self.since = 0.0, 0.0, 0, 0.0

    def drive(self, decider, seconds, limit=None, waiting=1000):
        for _ in range(round(seconds / 0.1)):
            wanted = limit() if limit else decider.level
            if wanted != self.level:
                self.level, self.since = wanted, self.now
            busy = min(self.level, self.slots)
            self.now += 0.1
            self.tokens += 0.1 * self.rate(busy)
            streaming = busy if self.now - self.since >= self.first_s else min(busy, 1)
            decider.look(
                ConcurrencySample(self.now, int(self.tokens), self.level, streaming, waiting, None, self.first_s)
            )


def test_the_slots_of_a_gateway_are_used_and_a_few_wait():
    pace = ConcurrencyLimit(EndpointSlots(16, is_gateway=True))
    assert pace.limit == 16 + backlog_of(16) == 20
    assert pace.why == "16 slots and 4 in the queue"


def test_never_more_than_asked_for():
    assert ConcurrencyLimit(EndpointSlots(16, is_gateway=True), cap=5).limit == 5
    assert ConcurrencyLimit(EndpointSlots(), cap=2).limit == 2
    assert ConcurrencyLimit(EndpointSlots(16, is_gateway=True), cap=5).why == "as many as --agents allows"


def test_a_model_that_sleeps_is_woken_by_one():
    pace = ConcurrencyLimit(EndpointSlots(0, is_gateway=True))
    assert pace.limit == 1
    pace.told(EndpointSlots(8, is_gateway=True))
    assert pace.limit == 8 + backlog_of(8)


def test_a_queue_that_others_fill_gets_only_one_of_ours():
    pace = ConcurrencyLimit(EndpointSlots(8, is_gateway=True))
    for _ in range(20):
        pace.answered(queued_ms=6000, took_s=7.0)
    assert pace.limit == 9


def test_our_own_backlog_is_not_taken_for_others():
    pace = ConcurrencyLimit(EndpointSlots(8, is_gateway=True))
    for _ in range(20):
        pace.answered(queued_ms=250, took_s=1.25)
    assert pace.limit == 8 + backlog_of(8)


def test_a_refusal_makes_it_fewer_and_time_makes_it_more():
    pace = ConcurrencyLimit(EndpointSlots(16, is_gateway=True))
    pace.refused(10.0, 20, None)
    assert pace.limit == 16
    pace.refused(10.1, 19, None)
    assert pace.limit == 16, "refusals so close together have one cause"
    pace.refused(12.0, 16, None)
    assert pace.limit == 12
    for step in range(200):
        pace.look(ConcurrencySample(12.0 + step / 10, 0, 12, 12, 5))
    assert pace.limit == 20


def test_nothing_is_sent_before_the_time_that_was_asked_for():
    pace = ConcurrencyLimit(EndpointSlots(4, is_gateway=True))
    pace.refused(0.0, 1, 7.0)
    assert pace.may_start(6.9, 0) == 0
    assert pace.may_start(6.9, 1) == 1, "one that has ended may be followed"
    assert pace.may_start(7.0, 0) == 1


def test_what_is_past_is_forgiven_when_the_endpoint_comes_back():
    pace = ConcurrencyLimit(EndpointSlots(4, is_gateway=True))
    pace.refused(0.0, 4, 60.0)
    pace.forgive()
    assert pace.may_start(1.0, 0) == 6


def test_a_silent_endpoint_is_climbed_within_seconds():
    """Fifty tasks of ten seconds: by the time the first could have ended, the level is found."""
    climb = ConcurrencySearch()
    Server(lambda busy: 20.0 * busy, slots=50).drive(climb, 4.0)
    assert climb.level >= 50


def test_the_level_stays_where_more_brings_no_more():
    climb = ConcurrencySearch()
    Server(lambda busy: 800.0 * min(busy, 16) / 16).drive(climb, 9.0)
    assert climb.phase is Phase.HOLD
    assert climb.level == 16


def test_beyond_a_cliff_it_turns_back():
    climb = ConcurrencySearch()
    Server(lambda busy: 100.0 * busy if busy <= 8 else 500.0).drive(climb, 9.0)
    assert climb.level == 8


def test_a_step_up_is_tried_again_and_kept_if_it_pays():
    climb = ConcurrencySearch()
    server = Server(lambda busy: 100.0 * min(busy, 8))
    server.drive(climb, 9.0)
    assert climb.level == 8
    server.rate = lambda busy: 100.0 * min(busy, 40)
    server.drive(climb, 120.0)
    assert climb.level >= 20


def test_a_step_down_is_kept_if_it_costs_nothing():
    climb = ConcurrencySearch()
    server = Server(lambda busy: 100.0 * min(busy, 32))
    server.drive(climb, 9.0)
    assert climb.level == 32
    server.rate = lambda busy: 100.0 * min(busy, 8)
    server.drive(climb, 60.0)
    assert climb.level < 32


def test_slots_that_a_server_tells_are_where_it_begins():
    pace = ConcurrencyLimit(EndpointSlots(4))
    assert pace.limit == 4 + backlog_of(4)


def test_nothing_is_learned_at_the_end_when_no_more_wait():
    climb = ConcurrencySearch()
    Server(lambda busy: 100.0 * busy).drive(climb, 9.0, waiting=0)
    assert climb.level == FIRST


def test_a_server_that_answers_in_one_piece_is_waited_for():
    climb = ConcurrencySearch()
    for step in range(100):
        climb.look(ConcurrencySample(step / 10, 0, climb.level, 0, 50))
    assert climb.level == FIRST


def test_refusals_bound_the_climb():
    pace = ConcurrencyLimit(EndpointSlots())
    server = Server(lambda busy: 100.0 * busy)
    for _ in range(600):
        server.drive(pace, 0.1, limit=lambda: pace.limit)
        if pace.limit > 10:
            pace.refused(server.now, pace.limit, None)
    assert 4 <= pace.limit <= 14


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("look"), st.integers(0, 300), st.integers(0, 300), st.integers(0, 5000)),
            st.tuples(st.just("refused"), st.integers(1, 300), st.sampled_from([None, 0.0, 5.0]), st.none()),
            st.tuples(st.just("told"), st.sampled_from([None, 0, 3, 64]), st.booleans(), st.none()),
        ),
        max_size=80,
    ),
    st.sampled_from([None, 1, 7]),
)
def test_the_limit_is_always_between_one_and_what_is_allowed(events, cap):
    pace, now, tokens = ConcurrencyLimit(EndpointSlots(), cap), 0.0, 0
    for kind, first, second, third in events:
        now += 0.3
        if kind == "look":
            tokens += third
            pace.look(ConcurrencySample(now, tokens, first, min(first, second), 10))
        elif kind == "refused":
            pace.refused(now, first, second)
        else:
            pace.told(EndpointSlots(first, is_gateway=second))
        assert 1 <= pace.limit <= (cap or MOST)
        assert pace.why
