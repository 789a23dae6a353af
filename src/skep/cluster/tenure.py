"""Whether a hive is still this door's, to place what it wants and to end what it does not.

A door that was not heard for a while may find that another one has taken the hive over. It then leaves alone what
stands, and has the hive back when nobody has had it for a while. Knows no ledger: only whom it names as the owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from skep.cluster.shares import LEASE_S


class Tenure:
    """`lost_to`: the machine and process of the door that has taken over. A guest never owns a hive."""

    def __init__(self, door: str, *, guest: bool, now: Callable[[], float] = time.monotonic) -> None:
        self.lost_to: str | None = None
        self._door = door
        self._guest = guest
        self._now = now
        self._free_since: float | None = None

    def __repr__(self) -> str:
        return f"<Tenure {'guest' if self._guest else self.lost_to or 'ours'}>"

    @property
    def ours(self) -> bool:
        return not self._guest and self.lost_to is None

    def hear(self, owner: str | None) -> None:
        """By the ledger's word. One that was started anew has to be told first: it names nobody for a moment."""
        if self._guest:
            return
        if owner is None:
            self._free_since = self._now() if self._free_since is None else self._free_since
        else:
            self.lost_to = None if owner == self._door else where_of(owner)
            self._free_since = None

    @property
    def is_free(self) -> bool:
        """It was lost, and who had it has left."""
        free_s = 0.0 if self._free_since is None else self._now() - self._free_since
        return self.lost_to is not None and free_s > LEASE_S


def where_of(door: str) -> str:
    """Its machine and its process, without what makes its name its own."""
    return door.rpartition(":")[0]
