"""Which values, or pairs of values, are to blame for dead ends: what every failure has and nothing that ran has.

A crash seldom says which flag it came from. Every pair that a failed configuration has, and that never ran, is a
suspect; those that explain more failures are suspected more. Proves nothing: it only makes one ask for more promise
before something is tried that looks like what failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from skep.tunings import Config, Value

_OTHERWISE = 4.0  # how much speaks for a cause that no pair explains

Suspect = tuple[tuple[str, Value], ...]  # one value, or two


class Suspicion:
    def __init__(self) -> None:
        self._ran: set[Suspect] = set()
        self._failed: dict[Config, None] = {}  # in order
        self._explained: dict[Suspect, int] = {}
        self._known: dict[Config, frozenset[Suspect]] = {}

    def __repr__(self) -> str:
        return f"<Suspicion {len(self._failed)} failures>"

    def ran(self, config: Config) -> None:
        self._ran |= self._suspects(config)

    def failed(self, config: Config) -> None:
        if config not in self._failed:
            self._failed[config] = None
            for suspect in self._suspects(config):
                self._explained[suspect] = self._explained.get(suspect, 0) + 1

    def trust(self, config: Config) -> float:
        """1: nothing of it is under suspicion. Small: it has all that the failures have."""
        mine = self._suspects(config)
        worst = max((self._share(failed, mine) for failed in self._failed), default=0.0)
        return float((1 - worst) ** 2)

    def _share(self, failed: Config, mine: frozenset[Suspect]) -> float:
        """Of what is suspected of that failure, how much this one has as well."""
        whole = shared = 0.0
        for suspect in self._suspects(failed) - self._ran:
            weight = self._explained[suspect] ** 2
            whole += weight
            shared += weight if suspect in mine else 0.0
        return shared / (whole + _OTHERWISE)

    def _suspects(self, config: Config) -> frozenset[Suspect]:
        if config not in self._known:
            self._known[config] = frozenset(_of(config))
        return self._known[config]


def _of(config: Config) -> Iterator[Suspect]:
    for item in config.values:
        yield (item,)
    yield from combinations(config.values, 2)
