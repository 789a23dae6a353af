"""What the other doors of this hive say, together, as the supervisor was told last. Knows no ledger and no gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from skep.wire.link import Message

HEED_S = 3.0  # until a door has heard that something is drained, has told its gateway, and has said what is left
FRESH_S = 10.0  # what was said longer ago is no reason to call replicas
SILENT_S = 20.0  # unheard for so long, nobody knows what they send: their door to the cluster, or its head, is lost


class OtherDoors:
    """Empty, as at first: there are none, or nothing is known of them. `now` is the clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic, heed_s: float = HEED_S) -> None:
        self.heed_s = heed_s
        self.drained: frozenset[str] = frozenset()  # replicas and nodes
        self._now = now
        self._figures: Mapping[str, Message] = {}
        self._busy: Mapping[str, int] = {}
        self._heard_at = now()

    def __repr__(self) -> str:
        return f"<OtherDoors {sum(self._busy.values())} busy, drained {sorted(self.drained)}>"

    def hear(self, figures: Mapping[str, Message], drained: Collection[str], busy: Mapping[str, int]) -> bool:
        """Whether a gateway has to be told: other replicas are drained, or so many others of their slots are busy."""
        before = self.drained, self._busy
        self._figures, self.drained = figures, frozenset(drained)
        self._busy = {name: count for name, count in busy.items() if count}
        self._heard_at = self._now()
        return before != (self.drained, self._busy)

    @property
    def figures(self) -> Mapping[str, Message]:
        """By model; none that are stale."""
        return self._figures if self._now() - self._heard_at <= FRESH_S else {}

    def busy(self, name: str) -> int:
        """Slots of this replica that are in use there."""
        return self._busy.get(name, 0)

    def now(self) -> float:
        return self._now()

    def may_send(self, since: float) -> bool:
        """Whether some may still send to what was drained at that time: what they say may be from before."""
        return self._there and self._heard_at < since + self.heed_s

    @property
    def silent(self) -> bool:
        """They are there, and what they do is not known any more."""
        return self._there and self._now() - self._heard_at > SILENT_S

    @property
    def _there(self) -> bool:
        return bool(self._figures or self._busy or self.drained)
