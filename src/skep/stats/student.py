"""Student's t: how many standard errors an interval must reach when the spread itself is only estimated.

The tail probability is an incomplete beta function, evaluated by its continued fraction; the quantile is found by
Newton's method. Degrees of freedom need not be whole, as Welch's rule gives fractions. Accurate to about ten digits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

STEPS = 100  # far more than needed: three to ten are
_TINY = 1e-300


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, freedom: float) -> float:
    """The t for which -t..t holds `confidence` of the distribution: 2.776 for 0.95 and 4 degrees of freedom."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    if freedom <= 0:
        raise ValueError(f"{freedom} degrees of freedom are too few")
    t = NormalDist().inv_cdf((1 + confidence) / 2)
    for _ in range(STEPS):  # Newton's: the tail is convex, so each step stays below the answer
        x = freedom / (freedom + t * t)
        step = (_beta_share(x, freedom / 2, 0.5) - (1 - confidence)) / (2 * _density(t, freedom))
        t += step
        if abs(step) < 1e-11 * t:
            break
    return t


def _density(t: float, freedom: float) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, from the side where its fraction converges quickly."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    if x < (a + 1) / (a + b + 2):
        return math.exp(front) / a / _fraction(x, a, b)
    return 1 - math.exp(front) / b / _fraction(1 - x, b, a)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)), from the left by the method of Lentz."""
    value, above, below = 1.0, 1.0, 0.0
    for step in range(1, 500):
        half = step // 2
        if step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        below = 1 / ((1 + term * below) or _TINY)
        above = (1 + term / above) or _TINY
        value *= above * below
        if abs(above * below - 1) < 1e-14:
            break
    return value
