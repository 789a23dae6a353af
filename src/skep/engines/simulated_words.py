"""The text of a simulated answer: words that mean nothing, as many as were asked for, the same for the same prompt.

One word is one token. The first says what it is, so that nobody takes the rest for an answer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

MARK = "[simulated]"
_STORY = """
bees leave the skep at first light and carry word of clover beyond the hedge
a drone waits by the entrance while wax is warmed and drawn into even cells
nectar is passed from mouth to mouth and fanned until the water has gone
the queen walks the comb and leaves an egg in every cell that is clean
smoke drifts over the frames and the keeper lifts them one after the other
"""
_CYCLE = tuple(
    ("\n\n" if place == 0 else " ") + word
    for line in _STORY.strip().splitlines()
    for place, word in enumerate(line.split())
)
_LONGEST_STOP = 500  # tokens that one is looked for beyond its first word
_SHORTEST, _MEAN_MORE = 40, 240  # of an answer that nothing limits: 280 tokens on average, few beyond 1,000


@dataclass(frozen=True, slots=True)
class Script:
    """What will be said: `tokens` words, of which the client sees `shown` characters where a stop string cut them."""

    seed: int
    tokens: int
    finish_reason: str  # stop, length
    shown: int | None = None  # None: all of it

    def text(self, first: int, last: int) -> str:
        """Of the tokens `first` up to and without `last`."""
        return "".join(word(self.seed, place) for place in range(first, last))


def word(seed: int, place: int) -> str:
    return MARK if place == 0 else _CYCLE[(seed + place) % len(_CYCLE)]


def seed_of(prompt: str) -> int:
    return zlib.crc32(prompt.encode("utf-8", "replace"))


def natural_tokens(seed: int) -> int:
    """How long an answer is that may end when it likes: most are short, some are long."""
    share = ((seed >> 8) % 9973 + 0.5) / 9973
    return round(_SHORTEST - _MEAN_MORE * math.log(1.0 - share))


def script(seed: int, limit: int, *, min_tokens: int = 0, ignore_eos: bool = False, stop: Sequence[str] = ()) -> Script:
    """`limit`: tokens that the client or the context leaves."""
    natural = limit if ignore_eos else max(natural_tokens(seed), min_tokens)
    tokens = min(natural, limit)
    finish = "stop" if natural <= limit and not ignore_eos else "length"
    cut = _first_stop(seed, tokens, min_tokens, stop) if stop else None
    if cut is not None:
        return Script(seed, cut[0], "stop", cut[1])
    return Script(seed, tokens, finish)


def _first_stop(seed: int, tokens: int, min_tokens: int, stop: Sequence[str]) -> tuple[int, int] | None:
    """Tokens up to the end of the first stop string, and characters before it. The words repeat: two rounds tell."""
    text, ends = "", []
    for place in range(min(tokens, min_tokens + 2 * len(_CYCLE) + _LONGEST_STOP)):
        text += word(seed, place)
        ends.append(len(text))
    start = ends[min_tokens - 1] if 0 < min_tokens <= len(ends) else 0
    found = [(place, len(one)) for one in stop if one and (place := text.find(one, start)) >= 0]
    if not found:
        return None
    place, length = min(found)
    return next(number for number, end in enumerate(ends, 1) if end >= place + length), place
