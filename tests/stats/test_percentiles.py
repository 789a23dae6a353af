"""Percentiles, spread, intervals: against hand-computed cases, printed tables and the standard
library.
"""

import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.percentiles import (
    Percentiles,
    coefficient_of_variation,
    mad,
    mean_t_interval,
    median,
    percentile,
    percentiles,
    rolling_median,
    runs_interval,
    t_quantile,
    window_stats,
)

numbers = st.floats(min_value=-1e12, max_value=1e12)
samples = st.lists(numbers, min_size=1, max_size=50)
ranks = st.floats(min_value=0, max_value=100)


@given(samples, ranks, ranks)
def test_percentile_grows_with_its_rank_within_the_sample(values, q, r):
    low, high = sorted((q, r))
    assert percentile(values, low) <= percentile(values, high)
    assert (percentile(values, 0), percentile(values, 100)) == (min(values), max(values))
    assert min(values) <= percentile(values, low)
    assert percentile(values, high) <= max(values)


@given(st.lists(numbers, min_size=2, max_size=50))
def test_ranks_agree_with_the_standard_library(values):
    """`statistics.quantiles` with the inclusive method is the same definition,
    written by others.
    """
    expected = statistics.quantiles(values, n=20, method="inclusive")
    got = [percentile(values, q) for q in range(5, 100, 5)]
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-3)
    assert median(values) == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-3)


def test_percentiles_take_any_iterable_once_and_of_nothing_are_unknown():
    """A single figure of nothing is refused."""
    assert percentiles(float(n) for n in range(101)) == Percentiles(
        p50=50, p95=95, p99=99, mean=50
    )
    assert percentiles([]) is None
    for function in (median, mad, lambda values: percentile(values, 50)):
        with pytest.raises(ValueError, match="at least one value"):
            function([])


@given(samples, st.floats(min_value=-1e6, max_value=1e6))
def test_mad_is_a_spread(values, shift):
    """Never negative, the same wherever the sample lies, and not that of an outlier."""
    assert mad(values) >= 0
    assert mad([value + shift for value in values]) == pytest.approx(
        mad(values), rel=1e-6, abs=1e-2
    )
    assert mad([1.0, 2.0, 3.0, 4.0, 1000.0]) == 1.0


@pytest.mark.parametrize(
    ("values", "cv"),
    [([1, 2, 3], 0.5), ([-1, -2, -3], 0.5), ([], None), ([3], None), ([-1, 1], None)],
)
def test_coefficient_of_variation_of_a_known_sample(values, cv):
    """One value has no spread, and a mean of zero no relative one."""
    assert coefficient_of_variation(values) == (None if cv is None else pytest.approx(cv))


values = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


def test_equal_values_have_no_spread_and_no_values_no_statistics():
    stats = window_stats([1.0] * 9)
    assert (stats.median, stats.mad, stats.cv, stats.low, stats.high) == (1.0, 0.0, 0.0, 1.0, 1.0)
    assert window_stats([]) is None
    stats_fields = msgspec.to_builtins(window_stats(range(101)))
    ranks = {"low": 0, "p05": 5, "p25": 25, "median": 50, "p75": 75, "p95": 95, "high": 100}
    assert {name: stats_fields[name] for name in ranks} == ranks


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(min_value=0, max_value=100), values), max_size=40),
    st.floats(1, 50),
)
def test_the_rolling_median_is_that_of_the_window_behind_each_point(points, width):
    """The window that is kept sorted while it moves says the same as sorting it anew each time."""
    points = sorted(points)
    medians = rolling_median(points, width)
    assert len(medians) == len(points)
    for place, (at, middle, low, high) in enumerate(medians):
        window = [value for when, value in points[: place + 1] if when > at - width]
        assert middle == percentile(window, 50)
        assert abs(low - percentile(window, 25)) <= 1e-6
        assert abs(high - percentile(window, 75)) <= 1e-6


PRINTED = {  # by confidence and degrees of freedom
    0.50: {1: 1.0},
    0.90: {1: 6.3138, 10: 1.8125},
    0.95: {
        1: 12.7062,
        2: 4.3027,
        3: 3.1824,
        4: 2.7764,
        9: 2.2622,
        30: 2.0423,
        120: 1.9799,
        200: 1.9719,
    },
    0.99: {5: 4.0321, 200: 2.6006},
}


def test_t_is_what_the_tables_print_and_shrinks_with_every_degree_of_freedom():
    """To the four places that tables have; fractions included, towards the normal distribution's
    1.96.
    """
    for confidence, row in PRINTED.items():
        assert {freedom: t_quantile(confidence, freedom) for freedom in row} == pytest.approx(
            row, abs=6e-5
        )
    quantiles = [t_quantile(0.95, 1 + step / 4) for step in range(800)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert quantiles[-1] > 1.96


def test_mean_interval_of_a_worked_example():
    """Mean 12, deviation 2, three values: 4.3027 * 2 / sqrt(3) on either side."""
    interval = mean_t_interval([10.0, 12.0, 14.0])
    assert interval.estimate == 12
    assert interval.high - interval.estimate == pytest.approx(4.9683, abs=1e-4)
    assert interval.estimate - interval.low == pytest.approx(4.9683, abs=1e-4)


def test_the_interval_of_a_speed_never_reaches_below_zero():
    assert mean_t_interval([1.0, 10.0, 100.0]).low < 0
    assert runs_interval([1.0, 10.0, 100.0]).low == 0
    assert runs_interval([10.0, 12.0, 14.0]) == mean_t_interval([10.0, 12.0, 14.0])


def test_too_few_repeats_have_no_interval():
    """Of a level's runs from three on: of 113 and 140 tok/s Student makes -45 to 298, of no use to
    anybody.
    """
    assert (mean_t_interval([]), mean_t_interval([3.0]), runs_interval([113.0, 140.0])) == (
        None,
        None,
        None,
    )
