"""Intervals of few repeats: Student's t against printed tables, ratios against simulation."""

from __future__ import annotations

from random import Random

import pytest

from skep.stats.percentiles import (
    mean_t_interval,
    paired_ratio_interval,
    runs_interval,
    t_quantile,
)
from skep.stats.versus import judge
from skep.units import Interval


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
    """No spread, no width."""
    assert mean_t_interval([5.0, 5.0]) == Interval(5.0, 5.0, 5.0)
    assert paired_ratio_interval([(3.0, 6.0)] * 3).estimate == pytest.approx(2)


def test_a_ratio_needs_two_pairs():
    """One run against one is still one run."""
    assert paired_ratio_interval([(1.0, 2.0)]) is None


def test_ratio_with_a_failed_repeat_is_refused():
    """A speed of zero is a failure to report, not a number to divide by."""
    with pytest.raises(ValueError, match="positive"):
        paired_ratio_interval([(0.0, 1.0), (1.0, 2.0)])


def test_pairs_cancel_what_both_share():
    """A machine that drifts by 10 % between pairs does not widen the ratio of the two beside each other."""
    rng = Random(8)
    pairs = []
    for _ in range(6):
        drift = rng.gauss(1, 0.1)
        pairs.append((100 * drift * rng.gauss(1, 0.005), 105 * drift * rng.gauss(1, 0.005)))
    paired = paired_ratio_interval(pairs)
    apart, _ = judge([a for a, _ in pairs], [b for _, b in pairs], higher_is_better=True)
    assert paired.low > 1
    assert apart.contains(1.0)
