"""Draws from a generator that are the same on every Python: only its `random()` and `getrandbits()` are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TypeVar

_T = TypeVar("_T")


def pick(rng: Random, items: Sequence[_T]) -> _T:
    return items[int(rng.random() * len(items))]


def shuffled(rng: Random, items: Sequence[_T]) -> list[_T]:
    return [item for _, _, item in sorted((rng.random(), place, item) for place, item in enumerate(items))]


def exponential(rng: Random, mean: float) -> float:
    return -math.log(1.0 - rng.random()) * mean


def capped_exponential(rng: Random, mean: float, *, cap: float = 5.0) -> float:
    """Exponential, never above `cap` times its scale; the scale is set so that the mean is as asked for."""
    scale = mean / (1.0 - math.exp(-cap))
    return min(exponential(rng, scale), cap * scale)


def normal(rng: Random) -> float:
    """Mean 0, deviation 1, by Box and Muller's method."""
    radius = math.sqrt(-2.0 * math.log(1.0 - rng.random()))
    return radius * math.cos(2.0 * math.pi * rng.random())


def gamma(rng: Random, shape: float) -> float:
    """Mean and variance `shape`, by Marsaglia and Tsang's method; a shape below 1 by way of the next one above."""
    if shape < 1.0:
        return gamma(rng, shape + 1.0) * math.pow(1.0 - rng.random(), 1.0 / shape)
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = normal(rng)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(1.0 - rng.random()) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v
