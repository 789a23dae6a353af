"""Arrivals: rate and variation as asked for, the same for a seed."""

import random
import statistics
from itertools import islice, pairwise

import pytest

from skep.errors import UserError
from skep.workload.traffic import constant, gamma, parse_arrivals, poisson

N = 20_000


def gaps(arrivals, n=N):
    return [b - a for a, b in pairwise([0.0, *islice(arrivals, n)])]


@pytest.mark.parametrize(("rate", "cv"), [(3.0, 0.3), (500.0, 0.7), (0.1, 1.0), (500.0, 1.5), (3.0, 3.0)])
def test_gamma_keeps_rate_and_variation(rate, cv):
    """Within four standard errors of the mean, and a tenth for the variation, which is noisier."""
    drawn = gaps(gamma(rate, cv, random.Random(1)))
    assert statistics.mean(drawn) == pytest.approx(1 / rate, rel=4 * cv / N**0.5)
    assert statistics.stdev(drawn) * rate == pytest.approx(cv, rel=0.1)


def test_poisson_gaps_are_exponential():
    """Mean and deviation alike, and 1 - 1/e of them below the mean."""
    drawn = gaps(poisson(8.0, random.Random(2)))
    assert statistics.mean(drawn) == pytest.approx(1 / 8, rel=0.03)
    assert statistics.stdev(drawn) == pytest.approx(1 / 8, rel=0.03)
    assert sum(gap < 1 / 8 for gap in drawn) / N == pytest.approx(0.632, abs=0.015)


def test_constant_does_not_drift():
    """The hundred thousandth is where it belongs."""
    assert next(islice(constant(3.0), 90_000, None)) == 30_000.0
    assert list(islice(constant(4.0), 3)) == [0.0, 0.25, 0.5]
    assert list(islice(gamma(4.0, 0.0, random.Random(1)), 3)) == [0.0, 0.25, 0.5]


@pytest.mark.parametrize("text", ["poisson", "constant", "gamma:2.0", " Gamma:0.5 "])
def test_parsed_arrivals_never_fall_and_come_from_the_seed(text):
    """Two generators of one seed give the same; the rate holds."""
    make = parse_arrivals(text)
    first = list(islice(make(5.0, random.Random(3)), 4000))
    assert first == list(islice(make(5.0, random.Random(3)), 4000))
    assert first == sorted(first)
    assert 4000 / first[-1] == pytest.approx(5.0, rel=0.15)


def test_gamma_draws_are_the_same_on_every_python():
    """Runs are repeated years later."""
    drawn = list(islice(gamma(1.0, 2.0, random.Random(7)), 3))
    assert drawn == pytest.approx([4.456231949136829, 4.534572342251051, 6.435861168987508])


@pytest.mark.parametrize("text", ["uniform", "gamma", "gamma:x", "gamma:-1", "gamma:nan", "poisson:2", ""])
def test_unknown_arrivals_are_refused(text):
    """With the forms that are known."""
    with pytest.raises(UserError, match="not known") as caught:
        parse_arrivals(text)
    assert "gamma:CV" in caught.value.hint
