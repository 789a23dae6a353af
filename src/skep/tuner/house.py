"""Where configurations are served while they are measured, as a port: the bench asks, `skep.tryout` houses them.

Knows presets and failures; knows nothing of processes, cards and gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from skep.catalog.presets import Preset
from skep.tunings import Config, Failure


@dataclass(frozen=True, slots=True)
class Served:
    """One configuration that answers. `trouble`: why it no longer does; None while it does."""

    url: str
    model: str
    start_s: float  # from the start of its first process until it answered
    trouble: Callable[[], Failure | None]
    last_words: Callable[[], str | None] = lambda: None  # the last line of its logs that complains


class DidNotStart(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class House(Protocol):
    def together(self, presets: Sequence[Preset]) -> bool:
        """Whether they may be up at the same time without taking memory or cards from each other."""

    def open(self, preset: Preset) -> AbstractAsyncContextManager[Served]:
        """Up until the block ends, on any end. Raises DidNotStart."""


def of_these_knobs(failure: Failure, config: Config) -> Failure:
    """Without remedies that are no knob of this configuration, or that it has already."""
    known = config.as_dict
    mended = tuple((knob, value) for knob, value in failure.mended if knob in known and known[knob] != value)
    return replace(failure, mended=mended)
