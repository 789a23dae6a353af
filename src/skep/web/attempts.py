"""Wrong keys by where they come from. Whoever guesses has to wait; who knows the key and mistypes it hardly notices.

Pure: the time is an argument. A network of IPv6 counts as one source, as one machine has all of its addresses.
"""

from __future__ import annotations

from collections import deque

MOST_WRONG = 10  # keys a source may get wrong within `WITHIN_S`
WITHIN_S = 60.0
MOST_SOURCES = 4096


class Attempts:
    """Remembers the last wrong keys of each source, and the sources that were wrong last."""

    def __init__(self) -> None:
        self._wrong: dict[str, deque[float]] = {}

    def __repr__(self) -> str:
        return f"<Attempts of {len(self._wrong)} sources>"

    def wait_s(self, source: str, now: float) -> float:
        """How long the source has to wait before a key of its is looked at; 0.0: not at all."""
        wrong = self._wrong.get(network_of(source))
        if wrong is None or len(wrong) < MOST_WRONG:
            return 0.0
        return max(0.0, wrong[0] + WITHIN_S - now)

    def note_wrong(self, source: str, now: float) -> None:
        name = network_of(source)
        wrong = self._wrong.pop(name, None) or deque(maxlen=MOST_WRONG)
        wrong.append(now)
        self._wrong[name] = wrong  # the newest is the last
        while len(self._wrong) > MOST_SOURCES:
            del self._wrong[next(iter(self._wrong))]


def network_of(source: str) -> str:
    """An address, or of IPv6 the first half of it."""
    if ":" not in source or source.startswith("::"):
        return source
    return ":".join(source.split("%", maxsplit=1)[0].split(":")[:4])
