"""Intervals: what they hold, how often, Student's t against printed tables, and what has none."""

from random import Random

import pytest

from skep.stats.percentiles import mean_t_interval, runs_interval, t_quantile
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


def test_mean_interval_of_a_worked_example():
    """Mean 12, deviation 2, three values: 4.3027 * 2 / sqrt(3) on either side."""
    found = mean_t_interval([10.0, 12.0, 14.0])
    assert found.estimate == 12
    assert found.high - found.estimate == pytest.approx(4.9683, abs=1e-4)
    assert found.estimate - found.low == pytest.approx(4.9683, abs=1e-4)


def test_the_interval_of_a_speed_never_reaches_below_zero():
    assert mean_t_interval([1.0, 10.0, 100.0]).low < 0
    assert runs_interval([1.0, 10.0, 100.0]).low == 0
    assert runs_interval([10.0, 12.0, 14.0]) == mean_t_interval([10.0, 12.0, 14.0])


def test_equal_repeats_leave_a_point():
    """No spread, no width."""
    assert mean_t_interval([5.0, 5.0]) == Interval(5.0, 5.0, 5.0)
    ratio, _ = judge([3.0] * 3, [6.0] * 3, higher_is_better=True, paired=True)
    assert (ratio.low, ratio.high) == (pytest.approx(2), pytest.approx(2))


def test_pairs_cancel_what_both_share():
    """A machine that drifts by 10 % between pairs does not widen the ratio of the two beside each other."""
    rng = Random(8)
    drifts = [rng.gauss(1, 0.1) for _ in range(6)]
    sides = [[speed * drift * rng.gauss(1, 0.005) for drift in drifts] for speed in (100, 105)]
    paired, apart = (judge(*sides, higher_is_better=True, paired=paired)[0] for paired in (True, False))
    assert paired.low > 1
    assert apart.contains(1.0)


def test_too_few_repeats_have_no_interval():
    """Of a level's runs from three on: of 113 and 140 tok/s Student makes -45 to 298, of no use to anybody."""
    assert (mean_t_interval([]), mean_t_interval([3.0]), runs_interval([113.0, 140.0])) == (None, None, None)
