"""What each replica of a hive is to be, and what has to be done for it: wishes in, actions out.
Knows no process, no task, no clock.

    SERVE <──────> DRAIN      it has a process; a drained one gets nothing new
      ^              ^
      v              v
    UNLOADED or PAUSED        its process finishes its answers and is ended
    GONE                      likewise, and there is no way back
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from skep.supervisor.lifecycle import Life, ReplicaState


class Wish(Enum):
    """What is wanted of a replica."""

    SERVE = "serve"
    DRAIN = "drain"  # the user wants it to get nothing new
    UNLOADED = "unloaded"  # no process, until its model is loaded
    PAUSED = "paused"  # no process, until the pause ends
    GONE = "gone"  # no process, and no entry once it has ended

    @property
    def has_process(self) -> bool:
        return self in (Wish.SERVE, Wish.DRAIN)

    @property
    def sleeps(self) -> bool:
        return self in (Wish.UNLOADED, Wish.PAUSED)


class ReplicaOrder(Enum):
    BEGIN = "begin"
    END = "end"


class ReplicaAction(msgspec.Struct, frozen=True):
    order: ReplicaOrder
    name: str


class Observed(msgspec.Struct, frozen=True):
    """What the executor sees beside the entries' own lives, by the names of replicas."""

    ended: frozenset[str] = frozenset()  # their processes have ended
    busy: Mapping[str, int] = {}  # slots in use, of those that the gateway was asked for


@dataclass(slots=True, eq=False, kw_only=True)
class ReplicaEntry:
    """One replica. It has a process from its beginning to its end: also while it waits for its
    turn to start, between two starts, and when it was given up.
    """

    name: str
    life: Life
    wish: Wish = Wish.SERVE
    next_wish: Wish = Wish.SERVE  # of the replica that takes the place of one that is GONE
    drained: bool = False  # by the user, until undrained; also over an unload
    has_process: bool = False
    is_ending: bool = False
    end_at: float = math.inf  # it is ended then though it is busy; inf: not even when it is idle
    rests_from: int | None = None  # its count of restarts when a restart was asked for

    @property
    def is_dormant(self) -> bool:
        """Whether it has no process, and gets one only when it is loaded or resumed."""
        return self.lasting_wish.sleeps and not self.has_process

    @property
    def lasting_wish(self) -> Wish:
        """Its wish; of one that is GONE, that of the replica that takes its place."""
        return self.next_wish if self.wish is Wish.GONE else self.wish

    @property
    def gets_nothing(self) -> bool:
        """Whether the gateway sends it no new request."""
        return self.wish is not Wish.SERVE or self.is_ending or self.rests_from is not None

    @property
    def awaits_end(self) -> bool:
        """Whether it has a process that is still to be ended."""
        return self.has_process and not self.wish.has_process and not self.is_ending

    # Wishes

    def load(self) -> None:
        """Let it serve, or have a process and be drained where the user wants that."""
        self._become(Wish.DRAIN if self.drained else Wish.SERVE)

    def unload(self, end_at: float = math.inf) -> None:
        """Send it nothing new, and end it at that time, or before when it is idle. Without a time
        it keeps its process.
        """
        self._leave(Wish.UNLOADED, end_at)

    def pause(self, end_at: float) -> None:
        self._leave(Wish.PAUSED, end_at)

    def remove(self, end_at: float) -> None:
        if self.wish is not Wish.GONE:
            self.next_wish = self.wish
        self._leave(Wish.GONE, end_at)

    def drain(self, *, over: bool) -> None:
        self.drained = not over
        if self.lasting_wish.has_process:
            self.load()

    def rest(self) -> None:
        """Send it nothing new until it has been restarted."""
        self.rests_from = self.life.restarts

    def _leave(self, wish: Wish, end_at: float) -> None:
        """An end that is due stays due."""
        if self.wish.has_process:
            self.end_at = end_at
        else:
            self.end_at = min(self.end_at, end_at)
        self._become(wish)

    def _become(self, wish: Wish) -> None:
        """One that is GONE stays so: the wish is for what takes its place."""
        if self.wish is not Wish.GONE:
            self.wish = wish
        elif wish is not Wish.GONE:
            self.next_wish = wish

    # What was observed

    def observe(self, observed: Observed) -> None:
        if self.is_ending and self.name in observed.ended:
            self.has_process = False
            self.is_ending = False
            self.end_at = math.inf
        # It may have restarted without a report that it was not ready.
        is_ready = self.life.state is ReplicaState.READY
        if not is_ready or self.life.restarts != self.rests_from:
            self.rests_from = None

    def may_end(self, observed: Observed, now: float) -> bool:
        """Return whether its time is up, or it has finished its answers."""
        if now >= self.end_at:
            return True
        return self.end_at < math.inf and observed.busy.get(self.name) == 0


def reconcile(
    entries: Iterable[ReplicaEntry], observed: Observed, now: float
) -> list[ReplicaAction]:
    """Return what has to be done so that the wishes come true.

    The caller carries out every action; asked again in the same state, there is none.
    """
    actions = []
    for entry in entries:
        entry.observe(observed)
        if entry.wish.has_process and not entry.has_process:
            entry.has_process = True
            actions.append(ReplicaAction(ReplicaOrder.BEGIN, entry.name))
        if entry.awaits_end and entry.may_end(observed, now):
            entry.is_ending = True
            actions.append(ReplicaAction(ReplicaOrder.END, entry.name))
    return actions
