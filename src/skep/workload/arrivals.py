"""When requests arrive: endless offsets in seconds from the beginning of a load, never falling.

The first of a random process comes after a gap as well: it has no beginning of its own.

The gaps of a gamma process have a coefficient of variation of their own: 1 is Poisson, above it is burstier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate, count
from random import Random

from skep.errors import UserError
from skep.workload.filling import exponential
from skep.workload.filling import gamma as draw_gamma

Arrivals = Callable[[float, Random], Iterator[float]]  # of a rate per second

_HINT = "write `poisson`, `constant` or `gamma:CV`, such as `gamma:2.0`"
_LARGEST_CV = 20.0


def constant(rate: float) -> Iterator[float]:
    """0, 1/rate, 2/rate, ...: not summed up, so that nothing drifts."""
    _check_rate(rate)
    return (place / rate for place in count())


def poisson(rate: float, rng: Random) -> Iterator[float]:
    _check_rate(rate)
    return accumulate(exponential(rng, 1.0 / rate) for _ in count())


def gamma(rate: float, cv: float, rng: Random) -> Iterator[float]:
    """`cv` is the gaps' deviation over their mean; 0 gives constant gaps."""
    _check_rate(rate)
    _check_cv(cv, str(cv))
    if cv == 0:
        return constant(rate)
    shape = 1.0 / (cv * cv)
    return accumulate(draw_gamma(rng, shape) / (shape * rate) for _ in count())


def parse_arrivals(text: str) -> Arrivals:
    """ "poisson", "constant" or "gamma:2.0": what makes offsets of a rate and a generator."""
    name, colon, value = text.strip().lower().partition(":")
    if name == "poisson" and not colon:
        return poisson
    if name == "constant" and not colon:
        return lambda rate, _: constant(rate)
    if name == "gamma" and colon:
        try:
            cv = float(value)
        except ValueError:
            raise UserError(f"arrivals `{text}`: `{value}` is not a number", hint=_HINT) from None
        _check_cv(cv, text)
        return lambda rate, rng: gamma(rate, cv, rng)
    raise UserError(f"arrivals `{text}` are not known", hint=_HINT)


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and rate > 0):
        raise UserError(f"`{rate}` requests per second is not a rate", hint="give a number above zero")


def _check_cv(cv: float, text: str) -> None:
    if not (math.isfinite(cv) and 0 <= cv <= _LARGEST_CV):
        hint = f"give a value between 0 and {_LARGEST_CV:g}; 1 is Poisson"
        raise UserError(f"arrivals `{text}` have an impossible coefficient of variation", hint=hint)
