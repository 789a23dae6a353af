"""B against A: the interval of a ratio is right, the word follows from it, and equal things are
seldom told apart.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.stats.versus import Judgement, judge, ratio_of_medians, slowness, versus


def draws(rng, level, many, cv=0.04):
    return [level * rng.gauss(1, cv) for _ in range(many)]


@pytest.mark.parametrize(("a", "b"), [(10, 10), (24, 168), (168, 168), (6, 100)])
def test_the_interval_holds_the_truth_in_about_95_of_100(a, b):
    rng = Random(f"{a} {b}")
    held = sum(
        ratio_of_medians(draws(rng, 50, a), draws(rng, 60, b)).contains(1.2) for _ in range(300)
    )
    assert 0.91 * 300 <= held <= 0.995 * 300


def test_slow_noise_widens_the_interval_and_noise_is_that_of_the_less_steady_side():
    rng = Random(1)
    last = 0.0
    values = []
    for _ in range(400):
        last = 0.6 * last + rng.gauss(0, 1)
        values.append(last)
    assert 1.6 < slowness([values]) < 2.4
    assert slowness([[rng.gauss(0, 1) for _ in range(400)]]) < 1.1
    assert 0.2 < versus(draws(rng, 50, 100, 0.01), draws(rng, 50, 100, 0.3)).noise < 0.4


def test_a_level_against_another_knows_which_way_is_up():
    rng = Random(2)
    slow = draws(rng, 50, 50)
    quick = draws(rng, 55, 50)
    assert versus(slow, quick).judgement is Judgement.BETTER
    assert versus(slow, quick, more_is_better=False).judgement is Judgement.WORSE
    assert versus(slow, slow).judgement is Judgement.SAME
    assert versus([1.0] * 5, [0.0] * 5).judgement is Judgement.WORSE
    assert versus([100.0] * 20, [100.4] * 20).judgement is Judgement.SAME
    assert versus([100.0] * 20, [100.6] * 20).judgement is Judgement.BETTER


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([], []),
        ([1.0], [1.0, 2.0]),
        ([0.0] * 5, [1.0] * 5),
        ([1.0] * 5, []),
        ([1.0] * 5, [-1.0] * 5),
    ],
)
def test_too_few_values_or_a_level_of_zero_are_not_comparable(a, b):
    comparison = versus(a, b)
    assert comparison.ratio is None
    assert comparison.judgement is Judgement.UNKNOWN


numbers = st.lists(st.floats(min_value=0, max_value=1e9), max_size=80)


@settings(deadline=None, max_examples=60)
@given(numbers, numbers)
def test_an_interval_lies_around_its_estimate(a, b):
    comparison = versus(a, b)
    if comparison.ratio is not None:
        assert comparison.ratio.low <= comparison.ratio.estimate <= comparison.ratio.high


SLOW = [99.0, 100.0, 101.0, 100.5]
FAST = [119.0, 120.0, 121.0, 120.5]


@pytest.mark.parametrize(
    ("a", "b", "higher", "word"),
    [
        (SLOW, FAST, True, Judgement.BETTER),
        (FAST, SLOW, True, Judgement.WORSE),
        (SLOW, FAST, False, Judgement.WORSE),
        (FAST, SLOW, False, Judgement.BETTER),
        (SLOW, SLOW, True, Judgement.SAME),
    ],
)
def test_the_word_knows_which_way_is_up(a, b, higher, word):
    """More tok/s is better, more milliseconds are not; the ratio is B over A."""
    for paired in (False, True):
        ratio, judgement = judge(a, b, higher_is_better=higher, paired=paired)
        assert judgement is word
        assert ratio.low <= ratio.estimate <= ratio.high
        assert ratio.estimate == pytest.approx(b[0] / a[0], rel=0.01)


def test_a_difference_too_small_to_matter_is_none():
    """Half a per cent, however certain."""
    a = [100.0, 100.001, 99.999]
    b = [100.5, 100.501, 100.499]
    ratio, word = judge(a, b, higher_is_better=True)
    assert not ratio.contains(1.0)
    assert word is Judgement.SAME
    assert judge(a, b, higher_is_better=True, indifferent=0.001)[1] is Judgement.BETTER


@pytest.mark.parametrize(
    ("a", "b"), [([1.0], [1.0, 2.0]), ([1.0, 2.0], [2.0]), ([], []), ([0.0, 1.0], [1.0, 1.0])]
)
def test_too_little_is_not_compared(a, b):
    """One run, or a run that failed, has no ratio; interleaved runs come in twos."""
    assert judge(a, b, higher_is_better=True) == (None, Judgement.UNKNOWN)
    with pytest.raises(ValueError, match="zip"):
        judge([1.0, 2.0], [1.0, 2.0, 3.0], higher_is_better=True, paired=True)


@pytest.mark.parametrize("repeats", [3, 4, 6])
@pytest.mark.parametrize("paired", [False, True])
def test_equal_things_are_seldom_told_apart_and_a_tenth_mostly(repeats, paired):
    """A against A with 3 % noise: 5 % of 600 by the promise, 7 % with allowance for chance."""
    rng = Random(repeats)
    same = 0
    for _ in range(600):
        a, b = (draws(rng, 100, repeats, 0.03) for _ in range(2))
        same += judge(a, b, higher_is_better=True, paired=paired)[1] is Judgement.SAME
    assert same >= 0.93 * 600
    tenth = [[draws(rng, speed, repeats, 0.03) for speed in (100, 110)] for _ in range(100)]
    held = sum(
        judge(*sides, higher_is_better=True, paired=paired)[1] is Judgement.BETTER
        for sides in tenth
    )
    assert held >= {3: 40, 4: 80, 6: 95}[repeats]
