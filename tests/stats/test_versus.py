"""The ratio of two medians: how often its interval is right, and what is said of it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.versus import Judgement, ratio_of_medians, slowness, versus


def draws(rng, level, many, cv=0.04):
    return [level * rng.gauss(1, cv) for _ in range(many)]


@pytest.mark.parametrize(("a", "b"), [(10, 10), (24, 168), (168, 168), (6, 100)])
def test_the_interval_holds_the_truth_in_about_95_of_100(a, b):
    rng = Random(f"{a} {b}")
    held = sum(ratio_of_medians(draws(rng, 50, a), draws(rng, 60, b)).contains(1.2) for _ in range(300))
    assert 0.91 * 300 <= held <= 0.995 * 300


def test_slow_noise_widens_the_interval():
    rng, last, values = Random(1), 0.0, []
    for _ in range(400):
        last = 0.6 * last + rng.gauss(0, 1)
        values.append(last)
    assert 1.6 < slowness([values]) < 2.4
    assert slowness([[rng.gauss(0, 1) for _ in range(400)]]) < 1.1


def test_better_knows_which_way_is_up():
    rng = Random(2)
    slow, quick = draws(rng, 50, 50), draws(rng, 55, 50)
    assert versus(slow, quick).judgement is Judgement.BETTER
    assert versus(slow, quick, more_is_better=False).judgement is Judgement.WORSE
    assert versus(slow, slow).judgement is Judgement.SAME


def test_a_difference_below_half_a_per_cent_is_none():
    assert versus([100.0] * 20, [100.4] * 20).judgement is Judgement.SAME
    assert versus([100.0] * 20, [100.6] * 20).judgement is Judgement.BETTER


def test_noise_is_that_of_the_less_steady_side():
    rng = Random(3)
    found = versus(draws(rng, 50, 100, 0.01), draws(rng, 50, 100, 0.3))
    assert 0.2 < found.noise < 0.4


@pytest.mark.parametrize(
    ("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0] * 5, [1.0] * 5), ([1.0] * 5, []), ([1.0] * 5, [-1.0] * 5)]
)
def test_too_few_values_or_a_level_of_zero_are_not_comparable(a, b):
    found = versus(a, b)
    assert found.ratio is None
    assert found.judgement is Judgement.UNKNOWN


def test_a_fall_to_zero_is_worse():
    found = versus([1.0] * 5, [0.0] * 5)
    assert (found.ratio.estimate, found.judgement) == (0.0, Judgement.WORSE)


numbers = st.lists(st.floats(min_value=0, max_value=1e9), max_size=80)


@settings(deadline=None, max_examples=60)
@given(numbers, numbers)
def test_an_interval_lies_around_its_estimate(a, b):
    found = versus(a, b)
    if found.ratio is not None:
        assert found.ratio.low <= found.ratio.estimate <= found.ratio.high
