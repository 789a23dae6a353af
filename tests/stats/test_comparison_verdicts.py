"""B against A: the word follows from the interval, and equal things are seldom told apart."""

from __future__ import annotations

from random import Random

import pytest

from skep.stats.versus import Judgement, judge

SLOW, FAST = [99.0, 100.0, 101.0, 100.5], [119.0, 120.0, 121.0, 120.5]


def noisy(rng, count, mean=100.0, noise=0.03):
    return [rng.gauss(mean, noise * mean) for _ in range(count)]


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
    """More tok/s is better, more milliseconds are not."""
    for paired in (False, True):
        ratio, found = judge(a, b, higher_is_better=higher, paired=paired)
        assert found is word
        assert ratio.low <= ratio.estimate <= ratio.high


def test_the_ratio_is_b_over_a():
    """A fifth faster is 1.2."""
    ratio, _ = judge(SLOW, FAST, higher_is_better=True)
    assert ratio.estimate == pytest.approx(1.2, rel=0.01)
    assert ratio.low > 1


def test_a_difference_too_small_to_matter_is_none():
    """Half a per cent, however certain."""
    a, b = [100.0, 100.001, 99.999], [100.5, 100.501, 100.499]
    ratio, word = judge(a, b, higher_is_better=True)
    assert not ratio.contains(1.0)
    assert word is Judgement.SAME
    assert judge(a, b, higher_is_better=True, indifferent=0.001)[1] is Judgement.BETTER


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([1.0, 2.0], [2.0]), ([], []), ([0.0, 1.0], [1.0, 1.0])])
def test_too_little_is_not_compared(a, b):
    """One run, or a run that failed, has no ratio."""
    assert judge(a, b, higher_is_better=True) == (None, Judgement.UNKNOWN)


def test_pairs_must_be_pairs():
    """Interleaved runs come in twos."""
    with pytest.raises(ValueError, match="not pairs"):
        judge([1.0, 2.0], [1.0, 2.0, 3.0], higher_is_better=True, paired=True)


@pytest.mark.parametrize("repeats", [3, 4, 6])
@pytest.mark.parametrize("paired", [False, True])
def test_equal_things_are_seldom_told_apart(repeats, paired):
    """A against A with 3 % noise: 5 % of 600 by the promise, 7 % with allowance for chance."""
    rng = Random(repeats)
    words = [
        judge(noisy(rng, repeats), noisy(rng, repeats), higher_is_better=True, paired=paired)[1] for _ in range(600)
    ]
    assert words.count(Judgement.SAME) >= 0.93 * 600


def test_a_tenth_is_found_with_five_repeats():
    """Of 100 comparisons under 3 % noise nearly all."""
    rng = Random(5)
    words = [judge(noisy(rng, 5), noisy(rng, 5, mean=110), higher_is_better=True)[1] for _ in range(100)]
    assert words.count(Judgement.BETTER) >= 95
