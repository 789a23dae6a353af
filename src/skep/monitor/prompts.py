"""What a probe asks: a prompt that no cache has seen, of a length in the target's own tokens. Pure."""

from __future__ import annotations

import math
from collections import deque
from random import Random

from skep.bench.request import Task
from skep.workload.calibration import Calibration, calibrate
from skep.workload.lengths import CHARS_PER_PIECE
from skep.workload.prompts import FEWEST_PIECES, Prompt, coding_prompts, messages

REMEMBERED = 24  # prompts that were counted
_SANE = (1.0, 12.0)  # characters to a token


class Lengths:
    """How long a target counts prompts to be, learnt from the answers to those that were sent.

    No request is made for it: a count of its own would warm up what is to be found cold.
    """

    def __init__(self) -> None:
        self._counted: deque[tuple[str, int]] = deque(maxlen=REMEMBERED)
        self.calibration = Calibration()

    def learn(self, prompt: Prompt, tokens: int | None) -> None:
        """A count that cannot be is not believed."""
        if not tokens or not _SANE[0] <= len(prompt.text) / tokens <= _SANE[1]:
            return
        self._counted.append((prompt.text, tokens))
        self.calibration = calibrate(self._counted)


class FreshPrompts:
    """Each begins with a tag of its own. `nonce` is another one at each probe."""

    def __init__(self, tokens: int, nonce: str, lengths: Lengths) -> None:
        self._tokens = tokens
        self._rng = Random(nonce)
        self._lengths = lengths

    def next(self) -> Prompt:
        """Of the length asked for, or of the shortest that a prompt can have."""
        known = self._lengths.calibration
        fewest = math.ceil(FEWEST_PIECES * CHARS_PER_PIECE / known.chars_per_token + known.overhead_tokens)
        return next(
            coding_prompts(
                self._rng,
                tokens=max(self._tokens, fewest),
                chars_per_token=known.chars_per_token,
                overhead_tokens=known.overhead_tokens,
            )
        )

    def learn(self, prompt: Prompt, tokens: int | None) -> None:
        self._lengths.learn(prompt, tokens)


def task_of(prompt: Prompt, index: int, max_tokens: int, *, fixed_output: bool) -> Task:
    return Task(1, 0, index, prompt.kind, messages(prompt), max_tokens, fixed_output=fixed_output)
