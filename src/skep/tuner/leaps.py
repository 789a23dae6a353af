"""Changes that only go together: a layout that fits only with fewer slots, a type that wants another kernel.

From where one stands such a value is refused, however good it may be. What else must be turned for it is looked for by
drawing configurations around the present one and improving the best of them, all by belief: nothing is measured here.
"""

from __future__ import annotations

from random import Random

from skep.tuner.book import Book
from skep.tunings import Config, Value

_DRAWN = 250  # configurations tried for one value
_KEPT = (0.8, 0.5)  # chances that another knob stays as it is: near ones are drawn as well as far ones
_PASSES = 2
_ALIKE = 0.01  # a change that brings less than this is not made


def leap(book: Book, incumbent: Config, knob: str, value: Value) -> Config | None:
    """The most promising configuration with this value, with as little else turned as that takes."""
    rng = Random(f"{incumbent.key}/{knob}={value}")
    best, best_gain = None, float("-inf")
    for number in range(_DRAWN):
        drawn = _drawn(book, incumbent, rng, _KEPT[number % len(_KEPT)]).turned({knob: value})
        if book.refusal(drawn) is None:
            gain = book.promise(drawn, incumbent)
            if gain > best_gain:
                best, best_gain = drawn, gain
    return None if best is None else _back(book, incumbent, _ascended(book, incumbent, best, knob), knob)


def _drawn(book: Book, incumbent: Config, rng: Random, kept: float) -> Config:
    turned = {one.name: rng.choice(one.values) for one in book.terrain.knobs if rng.random() > kept}
    return incumbent.turned(turned)


def _ascended(book: Book, incumbent: Config, config: Config, pinned: str) -> Config:
    """Knob by knob to its best value, a few times."""
    gain = book.promise(config, incumbent)
    for _ in range(_PASSES):
        before = config
        for knob in book.terrain.knobs:
            if knob.name == pinned:
                continue
            for value in knob.values:
                other = config.turned({knob.name: value})
                if other != config and book.refusal(other) is None:
                    found = book.promise(other, incumbent)
                    if found > gain + _ALIKE:
                        config, gain = other, found
        if config == before:
            break
    return config


def _back(book: Book, incumbent: Config, config: Config, pinned: str) -> Config:
    """What does not matter stays as it was."""
    gain = book.promise(config, incumbent)
    for change in config.changes_from(incumbent):
        if change.knob == pinned:
            continue
        without = config.turned({change.knob: change.before})
        if book.refusal(without) is None and book.promise(without, incumbent) > gain - _ALIKE:
            config = without
    return config
