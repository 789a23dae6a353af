"""All leases by request, and which of them are in release until when. `admission` says what becomes of them."""

from __future__ import annotations

from heapq import heappop, heappush

from skep.gateway.replica import Lease, Replica


class Leases:
    def __init__(self) -> None:
        self.by_id: dict[str, Lease] = {}
        self._releasing: dict[Replica, int] = {}  # how many of a replica's
        self._releases = 0
        self._bounds: list[tuple[float, str, Lease]] = []  # a heap of all releases, also of those that have ended

    def __len__(self) -> int:
        return len(self.by_id)

    @property
    def active(self) -> int:
        return len(self.by_id) - self._releases

    def note_release(self, lease: Lease, until: float) -> None:
        self._releases += 1
        self._releasing[lease.home] = self._releasing.get(lease.home, 0) + 1
        heappush(self._bounds, (until, lease.id, lease))

    def note_end_of_release(self, lease: Lease) -> None:
        self._releases -= 1
        self._releasing[lease.home] -= 1
        if not self._releasing[lease.home]:
            del self._releasing[lease.home]

    def overdue(self, now: float) -> list[Lease]:
        """Those in release whose bound has passed. They are named once: they have to end."""
        found = []
        while self._bounds and self._bounds[0][0] <= now:
            lease = heappop(self._bounds)[2]
            if self.by_id.get(lease.id) is lease:
                found.append(lease)
        return found

    def homes_of_releases(self) -> list[Replica]:
        return sorted(self._releasing, key=lambda replica: replica.order)
