"""Warm-up: a steady series is let go soon, a rising one is not."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.precision import WarmUpDetector, is_steady


def fed(figures, **options):
    settling = WarmUpDetector(**options)
    for figure in figures:
        settling.feed(figure)
    return settling


def test_noise_around_a_constant_settles_at_the_first_look():
    """2 % noise, five batches: in at least 95 % of 400 seeds."""
    settled = 0
    for seed in range(400):
        rng = Random(seed)
        settled += fed(rng.gauss(100, 2) for _ in range(5)).settled
    assert settled >= 0.95 * 400


@settings(deadline=None)
@given(st.floats(min_value=0.006, max_value=0.5), st.integers(min_value=3, max_value=8), st.booleans())
def test_a_ramp_never_settles(rise, window, falling):
    """Up or down, quick or slow: while each batch brings more, the engine is still warming."""
    figures = [100 * (1 + rise) ** batch for batch in range(20)]
    settling = fed(figures[::-1] if falling else figures, window=window)
    assert settling.gave_up
    assert settling.batches == 20


def test_a_noisy_ramp_is_seldom_taken_for_steady():
    """5 % a batch under 2 % noise, twenty batches: in at most 15 % of 200 seeds."""
    settled = 0
    for seed in range(200):
        rng = Random(seed)
        settled += fed(100 * (1 + 0.05 * batch) * rng.gauss(1, 0.02) for batch in range(20)).settled
    assert settled <= 0.15 * 200


def test_a_warming_engine_settles_once_it_is_warm():
    """Speed that approaches its end as caches do: settled, and only where it is within 5 % of that end."""
    settling = WarmUpDetector()
    for batch in range(20):
        speed = 100 * (1 - 0.6 * math.exp(-batch / 2))
        settling.feed(speed + (0.3 if batch % 2 else 0))
        if settling.settled:
            assert speed > 95
    assert settling.settled
    assert 6 <= settling.batches <= 15


def test_one_cold_batch_does_not_hold_up_the_rest():
    """The first batch compiled; with the fifth steady one after it the warm-up is over."""
    settling = fed([20.0, 100.0, 101.0, 99.5, 100.5])
    assert not settling.done
    settling.feed(100.0)
    assert settling.settled


def test_one_stray_batch_in_the_middle_is_forgiven():
    """A hiccup is no trend."""
    assert fed([100.0, 101.0, 93.0, 99.5, 100.5]).settled


def test_a_batch_without_a_figure_starts_the_look_anew():
    """Failed requests are no evidence of steadiness."""
    settling = fed([100.0, 101.0, 100.0, 101.0, None, 100.0, 101.0, 100.0, 101.0])
    assert not settling.done
    settling.feed(100.0)
    assert settling.settled
    assert settling.batches == 10


def test_what_was_said_is_final():
    """Later batches are not warm-up any more."""
    settling = fed([100.0, 101.0, 100.0, 101.0, 100.0, 500.0, 900.0])
    assert settling.settled
    assert settling.batches == 5
    assert repr(settling) == "<WarmUpDetector settled after 5/20 batches>"


def test_wild_figures_are_given_up():
    """A server that is never steady must not hold the run for ever."""
    settling = fed([100.0, 50.0] * 20, most=12)
    assert settling.gave_up
    assert settling.done
    assert settling.batches == 12


@pytest.mark.parametrize("options", [{"window": 2}, {"window": 6, "most": 5}])
def test_a_look_needs_enough_batches(options):
    """Two batches cannot show a trend."""
    with pytest.raises(ValueError, match="batches"):
        WarmUpDetector(**options)


def test_identical_figures_are_steady():
    """Also at zero, where a tolerance in per cent is nothing."""
    assert is_steady([0.0] * 5)
    assert is_steady([7.0] * 3)
