"""Places in the queue of clients that hung up while they waited, kept for when they come back.

Agents give up after 120 or 300 seconds and send the same request again. At the queue's end they
would be overtaken for ever by those who never hang up."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

KEPT_S = 120.0
PLACES_KEPT = 4096  # places; the one kept longest is forgotten

RequestKey = tuple[str, str, int]  # model, flow, and the digest of what was asked


class QueuePlace(msgspec.Struct, frozen=True):
    arrived_at: float
    turn: int  # when its flow was served last, in the queue's own count
    until: float
    had_slot: bool = False  # its client gave up while an engine read the prompt


class KeptPlaces:
    def __init__(self, remembered: int = PLACES_KEPT) -> None:
        self._places: OrderedDict[RequestKey, QueuePlace] = OrderedDict()
        self._remembered = remembered

    def __repr__(self) -> str:
        return f"<KeptPlaces {len(self._places)}>"

    def keep(self, key: RequestKey, place: QueuePlace) -> None:
        self._places[key] = place
        self._places.move_to_end(key)
        while len(self._places) > self._remembered:
            self._places.popitem(last=False)

    def take(self, key: RequestKey, now: float) -> QueuePlace | None:
        """Return the place of a request that has come back, once; None: it has none, or came too
        late.
        """
        if not self._places:
            return None
        place = self._places.pop(key, None)
        if place is not None and now <= place.until:
            return place
        return None
