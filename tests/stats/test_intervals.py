"""Bootstrap intervals: bounds, repeatability, and how often they hold the truth."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.percentiles import ratio_of_medians_interval

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


@quick()
@given(positive, positive)
def test_more_confidence_never_narrows_the_interval(above, below):
    """From the same draws, 99 % spans at least what 80 % spans."""
    wide, tight = (
        ratio_of_medians_interval(above, below, rng=rng(), confidence=confidence, resamples=50)
        for confidence in (0.99, 0.8)
    )
    assert wide.low <= tight.low <= tight.high <= wide.high


def test_interval_holds_the_truth_about_as_often_as_it_claims():
    """Of 100 pairs of samples, some 95 intervals contain the ratio; 85 allows for chance and small samples."""
    source = random.Random(5)
    held = 0
    for _ in range(100):
        above, below = ([source.gauss(mean, 10) for _ in range(30)] for mean in (100, 200))
        held += ratio_of_medians_interval(above, below, rng=source, resamples=200).contains(0.5)
    assert held >= 85


def test_ratio_of_a_sample_to_its_double():
    """Half as fast is a ratio of one half, with an interval around it."""
    slow = [9.0, 10.0, 11.0, 10.5, 9.5]
    found = ratio_of_medians_interval(slow, [2 * value for value in slow], rng=rng(), resamples=200)
    assert found is not None
    assert found.estimate == pytest.approx(0.5)
    assert found.low < 0.5 < found.high
    assert not found.contains(1.0)


@quick()
@given(positive, positive)
def test_ratio_lies_between_the_extreme_quotients(above, below):
    """The smallest over the largest, and the largest over the smallest, bound every resample."""
    found = ratio_of_medians_interval(above, below, rng=rng(), resamples=30)
    assert found is not None
    assert min(above) / max(below) * (1 - 1e-9) <= found.low
    assert found.high <= max(above) / min(below) * (1 + 1e-9)


@pytest.mark.parametrize(("above", "below"), [([1.0, 2.0], [1.0]), ([1.0], [1.0, 2.0]), ([1.0, 2.0], [])])
def test_ratio_needs_two_values_on_both_sides(above, below):
    """A single run on either side gives no interval."""
    assert ratio_of_medians_interval(above, below, rng=rng()) is None


def test_ratio_to_zero_is_refused():
    """A speed of zero is a failure to report, not a number to divide by."""
    with pytest.raises(ValueError, match="denominator 0"):
        ratio_of_medians_interval([1.0, 2.0], [0.0, 1.0], rng=rng())


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_confidence_is_a_share(confidence):
    """95 is not 95 %."""
    with pytest.raises(ValueError, match="confidence"):
        ratio_of_medians_interval([1.0, 2.0], [1.0, 2.0], rng=rng(), confidence=confidence)


def test_interval_needs_a_resample():
    """Zero draws have no tails to cut."""
    with pytest.raises(ValueError, match="resamples"):
        ratio_of_medians_interval([1.0, 2.0], [1.0, 2.0], rng=rng(), resamples=0)
