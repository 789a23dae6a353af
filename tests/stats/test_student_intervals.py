"""Intervals of few repeats: Student's t against printed tables, ratios against simulation."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.intervals import (
    mean_t_interval,
    paired_ratio_interval,
    ratio_of_means_interval,
    runs_interval,
    t_quantile,
)
from skep.units import Interval

speeds = st.lists(st.floats(min_value=1, max_value=1e5), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("confidence", "freedom", "printed"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 3, 3.1824),
        (0.95, 4, 2.7764),
        (0.95, 9, 2.2622),
        (0.95, 30, 2.0423),
        (0.95, 120, 1.9799),
        (0.95, 200, 1.9719),
        (0.90, 1, 6.3138),
        (0.90, 10, 1.8125),
        (0.99, 5, 4.0321),
        (0.99, 200, 2.6006),
        (0.50, 1, 1.0),
    ],
)
def test_t_is_what_the_tables_print(confidence, freedom, printed):
    """To the four places that tables have."""
    assert t_quantile(confidence, freedom) == pytest.approx(printed, abs=6e-5)


def test_t_shrinks_with_every_degree_of_freedom():
    """Fractions included, from the widest towards the normal distribution's 1.96."""
    found = [t_quantile(0.95, 1 + step / 4) for step in range(800)]
    assert found == sorted(found, reverse=True)
    assert found[-1] > 1.96


@pytest.mark.parametrize(("confidence", "freedom"), [(0.0, 3), (1.0, 3), (95, 3), (0.95, 0)])
def test_t_of_nonsense_is_refused(confidence, freedom):
    """95 is not 95 %, and no freedom is no spread."""
    with pytest.raises(ValueError, match=r"confidence|freedom"):
        t_quantile(confidence, freedom)


def test_mean_interval_of_a_worked_example():
    """Mean 12, deviation 2, three values: 4.3027 * 2 / sqrt(3) on either side."""
    found = mean_t_interval([10.0, 12.0, 14.0])
    assert found.estimate == 12
    assert found.high - found.estimate == pytest.approx(4.9683, abs=1e-4)
    assert found.estimate - found.low == pytest.approx(4.9683, abs=1e-4)


@pytest.mark.parametrize("values", [[], [3.0]])
def test_mean_of_one_repeat_has_no_interval(values):
    """None means unknown."""
    assert mean_t_interval(values) is None


@pytest.mark.parametrize("values", [[], [3.0], [113.0, 140.0]])
def test_runs_of_a_level_have_an_interval_from_three_on(values):
    """Of 113 and 140 tok/s Student makes -45 to 298: right, and of no use to anybody."""
    assert runs_interval(values) is None


def test_the_interval_of_a_speed_never_reaches_below_zero():
    assert mean_t_interval([1.0, 10.0, 100.0]).low < 0
    assert runs_interval([1.0, 10.0, 100.0]).low == 0
    assert runs_interval([10.0, 12.0, 14.0]) == mean_t_interval([10.0, 12.0, 14.0])


def test_equal_repeats_leave_a_point():
    """No spread, no width, in all three."""
    assert mean_t_interval([5.0, 5.0]) == Interval(5.0, 5.0, 5.0)
    assert ratio_of_means_interval([6.0] * 3, [3.0] * 2).half_width == 0
    assert paired_ratio_interval([(3.0, 6.0)] * 3).estimate == pytest.approx(2)


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0]), ([], [])])
def test_ratio_needs_two_repeats_of_each(a, b):
    """One run against many is still one run."""
    assert ratio_of_means_interval(b, a) is None
    assert paired_ratio_interval([(1.0, 2.0)]) is None


def test_ratio_with_a_failed_repeat_is_refused():
    """A speed of zero is a failure to report, not a number to divide by."""
    with pytest.raises(ValueError, match="positive"):
        ratio_of_means_interval([1.0, 2.0], [0.0, 1.0])


@settings(deadline=None)
@given(speeds, speeds)
def test_ratio_turned_round_is_its_inverse(a, b):
    """It must not matter which of the two is called A."""
    one, other = ratio_of_means_interval(b, a), ratio_of_means_interval(a, b)
    assert one.estimate == pytest.approx(1 / other.estimate)
    assert one.low <= one.estimate <= one.high
    if 1e-200 < one.low < 1e200:
        assert one.low == pytest.approx(1 / other.high)


@pytest.mark.parametrize(("of_a", "of_b"), [(3, 3), (5, 4), (10, 10)])
def test_ratio_interval_holds_the_truth_as_often_as_it_says(of_a, of_b):
    """Of 600 pairs of samples; 92.5 % allows for chance."""
    rng = Random(4)
    held = 0
    for _ in range(600):
        a = [rng.gauss(100, 3) for _ in range(of_a)]
        b = [rng.gauss(120, 3.6) for _ in range(of_b)]
        held += ratio_of_means_interval(b, a).contains(1.2)
    assert held >= 0.925 * 600


def test_pairs_cancel_what_both_share():
    """A machine that drifts by 10 % between pairs does not widen the ratio of the two beside each other."""
    rng = Random(8)
    pairs = []
    for _ in range(6):
        drift = rng.gauss(1, 0.1)
        pairs.append((100 * drift * rng.gauss(1, 0.005), 105 * drift * rng.gauss(1, 0.005)))
    paired = paired_ratio_interval(pairs)
    apart = ratio_of_means_interval([b for _, b in pairs], [a for a, _ in pairs])
    assert paired.low > 1
    assert apart.contains(1.0)
