"""Windows of a series: where it lies, how much it spreads, and a line through it."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.percentiles import percentile
from skep.stats.rolling import line_through, rolling_median, window_stats

values = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


def test_equal_values_have_no_spread_and_no_values_no_statistics():
    found = window_stats([1.0] * 9)
    assert (found.median, found.mad, found.cv, found.low, found.high) == (1.0, 0.0, 0.0, 1.0, 1.0)
    assert window_stats([]) is None


def test_percentiles_of_a_window_lie_in_order():
    found = window_stats(range(101))
    assert (found.low, found.p05, found.p25, found.median, found.p75, found.p95, found.high) == (
        0, 5, 25, 50, 75, 95, 100,
    )  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(min_value=0, max_value=100), values), max_size=40), st.floats(1, 50))
def test_the_rolling_median_is_that_of_the_window_behind_each_point(points, width):
    """The window that is kept sorted while it moves says the same as sorting it anew each time."""
    points = sorted(points)
    found = rolling_median(points, width)
    assert len(found) == len(points)
    for place, (at, middle, low, high) in enumerate(found):
        window = [value for when, value in points[: place + 1] if when > at - width]
        assert middle == percentile(window, 50)
        assert abs(low - percentile(window, 25)) <= 1e-6
        assert abs(high - percentile(window, 75)) <= 1e-6


def test_a_line_is_found_through_noise_and_outliers():
    rng = Random(1)
    points = [(float(x), 100 - 0.05 * x + rng.gauss(0, 1)) for x in range(300)]
    points[::20] = [(x, y / 2) for x, y in points[::20]]
    line = line_through(points)
    assert line.low < -0.05 < line.high
    assert abs(line.slope + 0.05) < 0.005
    assert abs(line.start - 100) < 1


def test_a_long_series_is_gathered_before_a_line_is_laid():
    """720 points have 258,840 slopes; medians of neighbours have the same line."""
    rng = Random(2)
    points = [(float(x), 0.01 * x + rng.gauss(0, 1)) for x in range(2000)]
    line = line_through(points)
    assert line.low < 0.01 < line.high


def test_too_few_moments_have_no_line():
    assert line_through([]) is None
    assert line_through([(0.0, 1.0), (1.0, 2.0)]) is None
    assert line_through([(0.0, 1.0)] * 5) is None
