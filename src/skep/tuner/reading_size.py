"""How many tasks a reading and a run of the curve are, by how fast a configuration answers. Pure.

A wave is one task of every agent: the least that shows a level at work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

CURVE_RUNS = 2
RUN_S = 6.0  # a run takes at least
LONGEST_RUN_S = 60.0  # of a curve: a level that would take longer is left without a figure
TOO_LONG_S = 40.0  # for a reading, where fewer tasks will do
LEAST_EACH, LEAST = 3, 6  # tasks of an agent, and of all
MOST_DOUBLINGS = 6
MOST_WAVES = 192


def tasks_for(concurrency: int, rates: Sequence[float], least_s: float = RUN_S) -> int:
    """Of a reading that all sides get, from the tasks a second of those that are known.

    Three for each agent, doubled until the fastest is busy for `least_s`; no more than the slowest does in time, down
    to one for each agent.
    """
    choices = (max(LEAST, LEAST_EACH * concurrency), 2 * concurrency, concurrency)
    known = [rate for rate in rates if rate > 0]
    if not known:
        return choices[0]
    slowest, fastest = min(known), max(known)
    count = next((one for one in choices if one / slowest <= TOO_LONG_S), concurrency)
    for _ in range(MOST_DOUBLINGS):
        if count / fastest >= least_s or 2 * count / slowest > TOO_LONG_S:
            break
        count *= 2
    return count


class Waves:
    """How long a wave takes at levels that were measured, and about how long at others.

    More agents make a wave no shorter, and longer by no more than their number.
    """

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<Waves {', '.join(f'{seconds:.1f} s at {level}' for level, seconds in sorted(self._known.items()))}>"

    def took(self, level: int, tasks: int, wall_s: float) -> None:
        if tasks > 0 and wall_s > 0:
            self._known[level] = wall_s * level / tasks

    def seconds(self, level: int) -> float | None:
        """Between what is certain from either side; None: nothing was measured."""
        if not self._known:
            return None
        shares = [(wave_s, wave_s * level / known) for known, wave_s in self._known.items()]
        low, high = max(min(pair) for pair in shares), min(max(pair) for pair in shares)
        return math.sqrt(low * high)


def run_tasks(level: int, wave_s: float | None, least_s: float = RUN_S) -> int | None:
    """Of one run of a level of the curve, in whole waves; None: even one would take too long."""
    if wave_s is None:
        return level
    if wave_s > LONGEST_RUN_S:
        return None
    return level * min(MOST_WAVES, max(1, math.ceil(least_s / wave_s)))
