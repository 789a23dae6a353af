"""From a few texts that an engine has counted to prompts of any length in its tokens.

The caller has `sample_prompts` counted and gives the counts to `calibrate`: a tokenizer's, of `Prompt.text`, or those
of `usage`, of `Prompt.messages`, whose overhead is the chat template's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, combinations
from random import Random
from typing import Any

import msgspec

from skep.errors import UserError
from skep.workload.filling import CHARS_PER_PIECE, TYPICAL_CHARS_PER_TOKEN, pieces
from skep.workload.prompts import FEWEST_PIECES, Prompt, coding_prompts

_SPREAD = (40, 60, 90, 140, 240, 400, 700, 1200)  # pieces
_AROUND = (0.6, 0.8, 1.0, 1.25)  # of the target
_LONGEST_SAMPLE = 1600
_TELLS_OVERHEAD = 1.5  # longest sample over shortest, at least


class TokenCalibration(msgspec.Struct, frozen=True):
    """tokens = overhead_tokens + characters / chars_per_token, for prompts of this package; both are rounded.

    Short prompts are made of other words than long ones: the overhead may lie a little below zero.
    """

    chars_per_token: float = TYPICAL_CHARS_PER_TOKEN
    overhead_tokens: float = 0.0
    error: float | None = None  # median miss of the samples, as a share of their tokens; None: nothing was measured
    worst: float | None = None  # largest miss
    samples: int = 0

    @property
    def lengths(self) -> dict[str, Any]:
        """As whatever makes prompts takes them."""
        return {"chars_per_token": self.chars_per_token, "overhead_tokens": self.overhead_tokens}

    def tokens(self, text: str) -> float:
        """Return how many an engine would count, as far as this can tell."""
        return self.overhead_tokens + pieces(text) * CHARS_PER_PIECE / self.chars_per_token


def sample_prompts(rng: Random, *, tokens: int | None = None, count: int = 12) -> tuple[Prompt, ...]:
    """To be counted by the engine: around a target if one is given, else of many lengths; none beyond 2000 tokens."""
    lengths: Sequence[int] = _SPREAD
    if tokens is not None:
        target = min(tokens, _LONGEST_SAMPLE / _AROUND[-1])
        lengths = [max(FEWEST_PIECES, round(target * share)) for share in _AROUND]
    streams = [coding_prompts(rng, tokens=length, chars_per_token=CHARS_PER_PIECE) for length in lengths]
    return tuple(next(streams[place % len(streams)]) for place in range(count))


def calibrate(counted: Iterable[tuple[str, int]]) -> TokenCalibration:
    """By medians: a few wrong counts do no harm. Samples of one length do not tell the overhead: it is zero then."""
    pairs = [(pieces(text), tokens) for text, tokens in counted if text and tokens > 0]
    if not pairs:
        raise UserError("no text was counted, so token lengths cannot be calibrated", hint="ask for a `size` instead")
    slope, overhead = _line(pairs)
    chars_per_token = round(CHARS_PER_PIECE / slope, 3)
    overhead = round(overhead, 1)
    misses = sorted(abs(overhead + x * CHARS_PER_PIECE / chars_per_token - y) / y for x, y in pairs)
    return TokenCalibration(chars_per_token, overhead, misses[len(misses) // 2], misses[-1], len(pairs))


def _line(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Slope and offset by Theil and Sen's method; pairs far apart say more of the slope, short texts of the offset."""
    lengths = [x for x, _ in pairs]
    if max(lengths) >= _TELLS_OVERHEAD * min(lengths):
        slopes = [((b - a) / (x2 - x1), abs(x2 - x1)) for (x1, a), (x2, b) in combinations(pairs, 2) if x1 != x2]
        slope = _weighted_median(slopes)
        if slope > 0:
            return slope, _weighted_median([(y - slope * x, 1.0 / x) for x, y in pairs])
    return _weighted_median([(y / x, 1.0) for x, y in pairs]), 0.0


def _weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """Half the weight lies at or below it."""
    ordered = sorted(values)
    below = list(accumulate(weight for _, weight in ordered))
    return ordered[bisect_left(below, below[-1] / 2)][0]
