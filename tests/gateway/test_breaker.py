"""The circuit breaker of one replica, event by event."""

from skep.gateway.replica_table import FIRST_OPEN_S, LONGEST_OPEN_S, Breaker


def opened(now=0.0):
    breaker = Breaker(now)
    breaker.failed(now)
    return breaker


def test_half_open_lets_one_request_through_and_its_answer_closes_it():
    breaker = opened()
    assert (breaker.state(0.0), breaker.allows(FIRST_OPEN_S - 0.01)) == ("open", False)
    assert (breaker.state(FIRST_OPEN_S), breaker.allows(FIRST_OPEN_S)) == ("half-open", True)
    breaker.trial = "a"
    assert not breaker.allows(1.0)
    breaker.answered(1.0)
    assert breaker.state(1.0) == "closed"
    breaker.failed(2.0)
    assert breaker.open_until == 2.0 + FIRST_OPEN_S


def test_there_is_one_trial_at_a_time_and_one_without_a_verdict_makes_way():
    """A late failure of a request sent before says nothing of the trial,
    which is still under way.
    """
    breaker = opened()
    breaker.trial = "a"
    breaker.ended("b")
    assert not breaker.allows(1.0)
    breaker.failed(1.0)
    assert (breaker.state(100.0), breaker.allows(100.0)) == ("half-open", False)
    breaker.ended("a")
    assert breaker.allows(100.0)


def test_each_opening_is_longer_than_the_last_up_to_the_longest():
    """Ten requests that fail at the same moment are one failure: the replica was once passed over
    for 15 s.
    """
    breaker = Breaker(0.0)
    now = 5.0
    lasted = []
    for _ in range(8):
        for _ in range(10):
            breaker.failed(now)
        lasted.append(breaker.open_until - now)
        now = breaker.open_until
    assert lasted == [0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_OPEN_S, LONGEST_OPEN_S, LONGEST_OPEN_S]


def test_a_healthy_check_closes_only_what_is_half_open():
    """A server whose health page works answers no requests for all that: the time of an opening is
    kept.
    """
    breaker = opened()
    breaker.checked(ok=True, now=0.1)
    assert breaker.state(0.1) == "open"
    breaker.checked(ok=True, now=1.0)
    assert breaker.state(1.0) == "closed"
    breaker.failed(2.0)
    assert breaker.open_until == 2.0 + 2 * FIRST_OPEN_S, "only an answer makes it forget"


def checked(ok):
    return lambda breaker, now: breaker.checked(ok, now)


def test_complaints_and_failed_checks_open_it_only_if_there_are_three_in_a_row():
    for bad, good in (
        (Breaker.bad_answer, Breaker.answered),
        (checked(ok=False), checked(ok=True)),
    ):
        breaker = Breaker(0.0)
        for event in (bad, bad, good, bad, bad):
            event(breaker, 1.0)
        assert breaker.state(1.0) == "closed"
        bad(breaker, 1.0)
        assert (breaker.state(1.0), breaker.heard_at) == ("open", 1.0)
