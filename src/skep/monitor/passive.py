"""What the gateway saw, as series of its own: each hour that is over is summed up once."""

from __future__ import annotations

from skep.series import HOUR_S
from skep.store.series import SeriesStore

GRACE_S = 150.0  # after the hour: the gateway writes its rows in batches


class PassiveHours:
    """Asks the store once an hour. The store itself remembers which hours are closed."""

    def __init__(self) -> None:
        self._closed: float | None = None

    def is_due(self, now: float) -> bool:
        """At the start, then a little after each full hour; also after a clock that was set back."""
        return self._closed != _hour(now)

    def close(self, series: SeriesStore, now: float) -> int:
        """How many hours had requests."""
        closed = series.summarise_gateway(now)
        self._closed = _hour(now)
        return closed


def _hour(now: float) -> float:
    return (now - GRACE_S) // HOUR_S
