"""The replicas of one model as they stand: which may be tried, and the least loaded with a slot for a class.

Kept up with every change of a replica, so that a choice among ten thousand costs about what one among ten does. Counts
and ranks; `pool` says what they are for. Times handed to it never go back.
"""

from __future__ import annotations

from math import inf

from skep.gateway.keys import Priority
from skep.gateway.ranking import Ranking
from skep.gateway.replica import Replica
from skep.gateway.routing import Ring, rendezvous

ALONE = len(Priority)  # the audience beside the classes: batch, while nothing else waits
_CLASSES = (*Priority, Priority.BATCH)
SMALL = 64  # replicas up to which a new conversation asks all of them


class Roster:
    """`aside`: replicas that may not be tried. Those with an open breaker come back in time, by `wake`."""

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.only: Replica | None = None  # where there is one: it needs no ranks
        self.wakes_at = inf  # when `wake` has something to do
        self.slots = 0  # of those that may be tried
        self._busy = 0  # leases of all, when they were ranked
        self._all_slots = 0
        self._aside: set[Replica] = set()
        self._asleep: Ranking[Replica] = Ranking()
        self._plain = True
        self._changed: set[Replica] = set()  # since they were ranked
        self._ranks: tuple[Ranking[Replica], ...] = (Ranking(),)  # by audience; one for all where classes do not matter
        self._ring: Ring[Replica] | None = None

    def __repr__(self) -> str:
        return f"<Roster {self.usable} of {len(self.replicas)} usable>"

    def become(self, replicas: list[Replica], changed: set[Replica]) -> None:
        """A table comes anew with every change of a replica: only what has `changed` is ranked anew, if it may be."""
        plain = all(replica.plain for replica in replicas)
        if replicas == self.replicas and plain == self._plain:
            for replica in replicas:
                if replica in changed:
                    self.changed(replica)
        else:
            self._start(replicas, plain=plain)
        self._all_slots = sum(replica.slots for replica in replicas)
        self.slots = self._all_slots - sum(replica.slots for replica in self._aside)

    def _start(self, replicas: list[Replica], *, plain: bool) -> None:
        self.replicas, self._plain = replicas, plain
        self.only = replicas[0] if len(replicas) == 1 else None
        self._aside, self._asleep, self._ring, self.wakes_at = set(), Ranking(), None, inf
        self._ranks = (Ranking(),) if plain else tuple(Ranking() for _ in range(ALONE + 1))
        self._changed = set()
        self._busy = 0
        for replica in replicas:
            replica.ranked = 0
            self.changed(replica)

    @property
    def usable(self) -> int:
        return len(self.replicas) - len(self._aside)

    @property
    def share(self) -> float:
        """Of all slots that are busy."""
        return self._busy / self._all_slots if self._all_slots else 0.0

    def changed(self, replica: Replica) -> None:
        """Its leases or its breaker are others than before."""
        if replica.draining or replica.breaker.open_until is not None:
            self._set_aside(replica)
            return
        if self._aside and replica in self._aside:
            self._take_back(replica)
        if self.only is None:
            self._changed.add(replica)

    def wake(self, now: float) -> None:
        """When `wakes_at` has come, before anything is asked: those whose breaker lets one request through are back."""
        while self._asleep.first_number <= now:
            replica = self._asleep.first
            assert replica is not None
            self._take_back(replica)
            self._changed.add(replica)

    def least(self, audience: int) -> Replica | None:
        """By the share of busy slots, then by the prompts under way, then by free slots."""
        if self.only is not None:
            return self.only if self.is_open(self.only, audience) else None
        if self._changed:
            self._settle()
        return self._ranks[0 if self._plain else audience].first

    def least_but(self, audience: int, replica: Replica) -> Replica | None:
        found = self.least(audience)
        if found is not replica or self.only is not None:
            return None if found is replica else found
        ranks = self._ranks[0 if self._plain else audience]
        ranks.drop(replica)
        found = ranks.first
        ranks.put(_rank_of(replica))
        return found

    def has_room(self) -> bool:
        """A slot for somebody; not for each class."""
        if self._plain:
            return self.least(0) is not None
        return any(self.least(audience) is not None for audience in range(len(self._ranks)))

    def is_open(self, replica: Replica, audience: int) -> bool:
        """Whether it may be tried and has a slot for them."""
        if len(replica.leases) >= replica.slots or (self._aside and replica in self._aside):
            return False
        return replica.plain or replica.allows(_CLASSES[audience], alone=audience == ALONE)

    def may_be_tried(self, replica: Replica) -> bool:
        return replica not in self._aside

    def meet(self, conversation: int) -> Replica | None:
        """The replica that this conversation goes to by itself, of those that may be tried."""
        if len(self.replicas) > SMALL:
            self._ring = self._ring or Ring(self.replicas)
            return self._ring.next(conversation, self.may_be_tried)
        alive = [replica for replica in self.replicas if replica not in self._aside]
        return rendezvous(conversation, alive) if alive else None

    def _settle(self) -> None:
        for replica in self._changed:
            self._rank(replica)
        self._changed.clear()

    def _rank(self, replica: Replica) -> None:
        self._busy += len(replica.leases) - replica.ranked
        replica.ranked = len(replica.leases)
        if len(replica.leases) >= replica.slots:
            for ranks in self._ranks:
                ranks.drop(replica)
        elif self._plain:
            self._ranks[0].put(_rank_of(replica))
        else:
            rank = _rank_of(replica)
            for audience, ranks in enumerate(self._ranks):
                if replica.allows(_CLASSES[audience], alone=audience == ALONE):
                    ranks.put(rank)
                else:
                    ranks.drop(replica)

    def _set_aside(self, replica: Replica) -> None:
        if replica not in self._aside:
            self._aside.add(replica)
            self._changed.discard(replica)
            self.slots -= replica.slots
            for ranks in self._ranks:
                ranks.drop(replica)
        breaker = replica.breaker
        if breaker.open_until is not None and breaker.trial is None and not replica.draining:
            self._asleep.put((breaker.open_until, replica.order, replica))
        else:
            self._asleep.drop(replica)
        self.wakes_at = self._asleep.first_number

    def _take_back(self, replica: Replica) -> None:
        self._asleep.drop(replica)
        self.wakes_at = self._asleep.first_number
        self._aside.discard(replica)
        self.slots += replica.slots


def _rank_of(replica: Replica) -> tuple[float, int, int, int, Replica]:
    busy, slots = len(replica.leases), replica.slots
    return busy / slots, replica.prompt_bytes, busy - slots, replica.order, replica
