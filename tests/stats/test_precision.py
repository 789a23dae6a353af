"""Repeats until the interval is tight: when it ends, what it promises, and what it still expects."""

from __future__ import annotations

from random import Random

import pytest

from skep.stats.precision import Precision, PrecisionGoal


def fed(figures, **goal):
    precision = Precision(PrecisionGoal(**goal))
    for figure in figures:
        precision.feed(figure)
    return precision


def run_to_the_end(rng, noise):
    precision = Precision()
    while not precision.done:
        precision.feed(rng.gauss(100, 100 * noise))
    return precision


def test_a_level_ends_when_its_interval_is_tight():
    """Four repeats within 1 % are within 3 %."""
    precision = fed([100.0, 101.0, 100.5, 100.2])
    assert precision.enough
    assert precision.done
    assert precision.interval.contains(100.4)


def test_agreement_by_luck_does_not_end_a_level():
    """Three equal repeats are fewer than the fewest."""
    precision = fed([100.0, 100.0, 100.0])
    assert not precision.done
    assert precision.expected_more() == 1


def test_repeats_run_out():
    """A level as noisy as this is given up at the most, and does not claim to be precise."""
    precision = fed([100.0, 150.0] * 6)
    assert precision.done
    assert not precision.enough
    assert precision.expected_more() == 0


@pytest.mark.parametrize("figures", [[], [100.0]])
def test_what_one_repeat_needs_cannot_be_told(figures):
    """There is no spread to go by."""
    precision = fed(figures)
    assert precision.half_width is None
    assert precision.expected_more() is None


def test_expectation_grows_with_the_spread_and_stops_at_the_most():
    """2 % apart needs a few more, 40 % apart all there are."""
    assert fed([100.0, 101.0]).expected_more() == 2
    quiet = fed([99.0, 101.0, 102.0]).expected_more()
    wild = fed([80.0, 120.0, 100.0]).expected_more()
    assert 1 <= quiet < wild == 9


def test_figures_around_zero_are_never_precise():
    """A share of nothing is no measure."""
    precision = fed([-1.0, 1.0, -1.0, 1.0])
    assert not precision.enough
    assert precision.expected_more() == 8


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.06])
def test_the_interval_that_ends_a_level_still_holds_the_truth(noise):
    """Looking after each repeat costs some of the 95 %; of 800 levels at least 90 % with allowance for chance."""
    rng = Random(21)
    held = sum(run_to_the_end(rng, noise).interval.contains(100) for _ in range(800))
    assert held >= 0.905 * 800


@pytest.mark.parametrize("goal", [{"relative": 0}, {"fewest": 5, "most": 4}, {"fewest": 0}])
def test_a_goal_must_be_possible(goal):
    """Said at once, not after an hour."""
    with pytest.raises(ValueError, match=r"goal|repeats"):
        PrecisionGoal(**goal)


def test_state_reads_in_one_line():
    """For the log and the live view."""
    assert repr(fed([100.0])) == "<Precision 1/12 repeats, +- ? of 3 %>"
    assert repr(fed([100.0, 100.0])) == "<Precision 2/12 repeats, +- 0.0 % of 3 %>"
