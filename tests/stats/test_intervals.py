"""Intervals: what they hold, how often, Student's t against printed tables, and what has none."""

import random
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.percentiles import (
    mean_t_interval,
    paired_ratio_interval,
    ratio_of_medians_interval,
    runs_interval,
    t_quantile,
)
from skep.stats.versus import judge
from skep.units import Interval

positive = st.lists(st.floats(min_value=0.5, max_value=1e6), min_size=2, max_size=12)
quick = partial(settings, max_examples=40, deadline=None)


def rng() -> random.Random:
    return random.Random(11)


@quick()
@given(positive, positive, st.randoms(use_true_random=False))
def test_interval_ignores_the_order_of_the_values(above, below, shuffler):
    """The same measurements and the same seed give the same interval."""
    shuffled = above.copy()
    shuffler.shuffle(shuffled)
    found = ratio_of_medians_interval(above, below, rng=rng(), resamples=50)
    assert ratio_of_medians_interval(shuffled, below, rng=rng(), resamples=50) == found


def test_interval_holds_the_truth_about_as_often_as_it_claims():
    """Of 100 pairs of samples, some 95 intervals contain the ratio; 85 allows for chance and small samples."""
    source = random.Random(5)
    held = 0
    for _ in range(100):
        above, below = ([source.gauss(mean, 10) for _ in range(30)] for mean in (100, 200))
        held += ratio_of_medians_interval(above, below, rng=source, resamples=200).contains(0.5)
    assert held >= 85


@quick()
@given(positive, positive)
def test_ratio_lies_between_the_extreme_quotients(above, below):
    """The smallest over the largest, and the largest over the smallest, bound every resample."""
    found = ratio_of_medians_interval(above, below, rng=rng(), resamples=30)
    assert found is not None
    assert min(above) / max(below) * (1 - 1e-9) <= found.low
    assert found.high <= max(above) / min(below) * (1 + 1e-9)


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
    assert paired_ratio_interval([(3.0, 6.0)] * 3).estimate == pytest.approx(2)


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


def test_what_has_no_ratio_of_medians_is_refused():
    """A speed of zero is a failure to report."""
    with pytest.raises(ValueError, match="denominator 0"):
        ratio_of_medians_interval([1.0, 2.0], [0.0, 1.0], rng=rng())


def test_a_pair_with_a_failed_repeat_is_refused():
    with pytest.raises(ValueError, match="positive"):
        paired_ratio_interval([(0.0, 1.0), (1.0, 2.0)])


@pytest.mark.parametrize(
    "found",
    [
        *[ratio_of_medians_interval(*sides, rng=rng()) for sides in (([1.0, 2.0], [1.0]), ([1.0], [1.0, 2.0]))],
        mean_t_interval([]),
        mean_t_interval([3.0]),
        runs_interval([113.0, 140.0]),
        paired_ratio_interval([(1.0, 2.0)]),
    ],
)
def test_too_few_repeats_have_no_interval(found):
    """Of a level's runs from three on: of 113 and 140 tok/s Student makes -45 to 298, of no use to anybody."""
    assert found is None
