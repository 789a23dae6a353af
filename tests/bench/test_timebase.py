"""Clocks of several machines: the middle of the quickest round trip, and how far off it may be."""

from random import Random

import pytest

from skep.bench.timebase import FASTEST_DRIFT, HeldClock, Ping, Reading, moved, reading_of
from skep.records import Request


def pings(rng, number, ahead_s, at_s=100.0):
    """Ways there and back of very different lengths."""
    for _ in range(number):
        there, back = rng.expovariate(1000), rng.expovariate(300)
        yield Ping(at_s, at_s + there + ahead_s, at_s + there + back)
        at_s += there + back


def test_the_middle_of_the_quickest_round_trip_counts():
    found = reading_of([Ping(0.0, 10.9, 1.0), Ping(2.0, 12.05, 2.1), Ping(3.0, 13.7, 3.8)])
    assert (found.at_s, found.ahead_s, found.within_s) == pytest.approx((2.05, 10.0, 0.05))


@pytest.mark.parametrize("seed", range(50))
def test_the_truth_is_never_outside_of_what_is_said(seed):
    """However uneven the ways are: theirs was read between our two times."""
    found = reading_of([*pings(Random(seed), 12, 499.5)])
    assert abs(found.ahead_s - 499.5) <= found.within_s < 0.01


def test_a_look_at_a_busy_machine_does_not_replace_a_better_one():
    clock = HeldClock()
    for reading in (Reading(0.0, 5.0, 0.001), Reading(1.0, 5.02, 0.05), Reading(2.0, 5.0005, 0.0015)):
        clock.take(reading)
    assert [one.at_s for one in clock.readings] == [0.0, 2.0]


def test_an_old_look_is_worth_less_by_what_a_clock_may_drift():
    clock = HeldClock([Reading(0.0, 5.0, 0.001)])
    clock.take(Reading(100.0, 5.0, 0.05))
    assert clock.now.at_s == 100.0
    assert Reading(0.0, 5.0, 0.001).within_at(100.0) == pytest.approx(0.001 + 100 * FASTEST_DRIFT)


def test_what_a_clock_moved_within_a_run_is_part_of_the_error():
    clock = HeldClock([Reading(0.0, 5.0, 0.001), Reading(10.0, 5.004, 0.002), Reading(20.0, 5.005, 0.001)])
    assert clock.error_s(1.0, 20.0) == pytest.approx(0.002 + 0.004)
    assert clock.error_s(11.0, 20.0) == pytest.approx(0.002 + 0.001)


def test_without_a_look_at_the_end_the_error_grows_with_the_time():
    clock = HeldClock([Reading(0.0, 5.0, 0.001)])
    assert clock.error_s(1.0, 61.0) == pytest.approx(0.001 + 61 * FASTEST_DRIFT)


def test_a_drift_comes_with_how_well_it_is_known():
    clock = HeldClock([Reading(0.0, 5.0, 0.001), Reading(100.0, 5.01, 0.001)])
    assert clock.drift_ppm() == pytest.approx((100.0, 20.0))
    assert HeldClock([Reading(0.0, 5.0, 0.001), Reading(0.5, 5.01, 0.001)]).drift_ppm() is None


def test_a_row_is_moved_as_a_whole():
    row = Request(4, 1, 2, "fix", 1.0, 3.0, 1.5, 1.75, 2.5, arrivals_s=(1.75, 2.5), scheduled_s=0.5)
    later = moved(row, 10.0)
    assert (later.started_s, later.ended_s, later.first_byte_s, later.scheduled_s) == (11.0, 13.0, 11.5, 10.5)
    assert (later.first_token_s, later.last_token_s, later.arrivals_s) == (11.75, 12.5, (11.75, 12.5))
    assert later.ended_s - later.due_s == row.ended_s - row.due_s
    assert moved(row, 0.0) is row
    bare = moved(Request(1, 0, 0, "fix", 1.0, 2.0), 1.0)
    assert (bare.first_byte_s, bare.scheduled_s, bare.arrivals_s) == (None, None, ())
