"""The replicas and the queue of one model, and which replica a request goes to. `admission` decides when."""

from __future__ import annotations

from collections.abc import Iterator

from skep.gateway.keys import Priority
from skep.gateway.queue import ModelQueue, Waiting
from skep.gateway.replica import Lease, Replica
from skep.gateway.roster import ALONE, SMALL, Roster
from skep.gateway.routing import Homes, clearly_busier, load

SMOOTHING = 0.2  # weight of the newest request in the measured time of a request


class ModelPool:
    def __init__(self, aging_s: float) -> None:
        self.queue = ModelQueue(aging_s)
        self.roster = Roster()
        self._by_name: dict[str, Replica] = {}
        self._counts_flows = False  # in a small pool only while somebody waits: it is quickly counted
        self._service_s: float | None = None  # smoothed duration of a lease

    def __repr__(self) -> str:
        return f"<ModelPool {self.roster!r} {self.queue!r}>"

    @property
    def replicas(self) -> list[Replica]:
        return self.roster.replicas

    def set_aging(self, aging_s: float) -> None:
        self.queue.aging_s = aging_s

    # What happens to its replicas

    def become(self, replicas: list[Replica], changed: set[Replica]) -> None:
        """These, of which some have `changed` what was said of them."""
        for replica in replicas:
            if not replica.listed:
                replica.listed = True
                if self._counts_flows:
                    self._count_flows(replica, 1)
        if replicas != self.replicas:
            self._by_name = {replica.name: replica for replica in replicas}
        self.roster.become(replicas, changed)

    def lose(self, replica: Replica) -> None:
        """It left the table. `become` follows."""
        replica.listed = False
        if self._counts_flows:
            self._count_flows(replica, -1)

    def took(self, lease: Lease) -> None:
        """One of its replicas did."""
        if self.roster.only is None or lease.home.breaker.open_until is not None:
            self.roster.changed(lease.home)
        if self._counts_flows and lease.releasing_until is None:
            self._count_flow(lease, 1)

    def released(self, lease: Lease) -> None:
        self.roster.changed(lease.home)
        if self._counts_flows:
            self._count_flow(lease, -1)

    def got_back(self, lease: Lease) -> None:
        if self.roster.only is None or lease.home.breaker.open_until is not None:
            self.roster.changed(lease.home)
        if self._counts_flows and lease.releasing_until is None:
            self._count_flow(lease, -1)

    def note_service(self, seconds: float) -> None:
        before = self._service_s
        self._service_s = seconds if before is None else (1 - SMOOTHING) * before + SMOOTHING * seconds

    # What stands

    def alive(self, now: float) -> list[Replica]:
        """Those that may be tried, full or not."""
        return [replica for replica in self.replicas if replica.usable(now)]

    def least_busy(self, now: float) -> Replica | None:
        """For a request that takes no slot."""
        if len(self.replicas) > SMALL:
            self._wake(now)
            found = self.roster.least(Priority.INTERACTIVE)
            if found is not None:
                return found
        return min(self.alive(now), key=_share, default=None)

    def others(self, replica: Replica, now: float) -> bool:
        """Whether another one than this may be tried."""
        self._wake(now)
        itself = replica.listed and self.roster.may_be_tried(replica)
        return self.roster.usable > itself

    def expected_wait_s(self, now: float) -> float:
        """Until a request that came now would have a slot, from the measured time of a request."""
        self._wake(now)
        drained_per_s = (self.roster.slots or 1) / (self._service_s or 1.0)
        return max(1.0, (len(self.queue) + 1) / drained_per_s)

    def has_room(self, now: float) -> bool:
        self._wake(now)
        return self.roster.has_room()

    def candidates(self) -> Iterator[Waiting]:
        """Those of the queue who are next, at most one per class, the first one first."""
        if not self._counts_flows:
            self._counts_flows = True
            self.queue.forget_flows()
            for replica in self.replicas:
                self._count_flows(replica, 1)
        return self.queue.candidates()

    def choose(self, entry: Waiting, homes: Homes, now: float) -> Replica | None:
        """Where the request may go now. None: it waits."""
        roster = self.roster
        only = roster.only
        if only is not None and only.plain:
            return only if len(only.leases) < only.slots and only.usable(now) else None
        if roster.wakes_at <= now:
            roster.wake(now)
        audience: int = entry.arrival.priority
        if audience == Priority.BATCH and self.queue.only_batch():
            audience = ALONE
        least = roster.least(audience)
        if least is None:
            return None
        avoided = self._by_name.get(entry.avoid) if entry.avoid is not None else None
        if avoided is not None:
            other = roster.least_but(audience, avoided)
            if other is None and now < entry.avoid_until and self.others(avoided, now):
                return None
            least, avoided = other or least, None if other is None else avoided
        conversation = entry.arrival.conversation
        if conversation is None or roster.only is not None or roster.usable == 1:
            return least
        chosen = self._at_home(conversation, homes, audience, least, avoided)
        homes.remember(conversation, chosen.name)
        return chosen

    def _at_home(
        self, conversation: int, homes: Homes, audience: int, least: Replica, avoided: Replica | None
    ) -> Replica:
        roster, name = self.roster, homes.of(conversation)
        home = self._by_name.get(name) if name is not None else None
        if home is not None and roster.may_be_tried(home):
            if home is least:
                return home
            share = roster.share if len(roster.replicas) > SMALL else least.busy / least.slots
            stays = home is not avoided and roster.is_open(home, audience) and not clearly_busier(home, share)
            return home if stays else least
        winner = roster.meet(conversation)
        if winner is None or winner is avoided or not roster.is_open(winner, audience):
            return least
        return winner if load(winner) == load(least) else least

    def _wake(self, now: float) -> None:
        if self.roster.wakes_at <= now:
            self.roster.wake(now)

    def _count_flow(self, lease: Lease, more: int) -> None:
        self.queue.under_way(lease.entry.arrival.flow, more)
        if not self.queue.by_id and len(self.replicas) <= SMALL:
            self._counts_flows = False

    def _count_flows(self, replica: Replica, sign: int) -> None:
        for lease in replica.leases.values():
            if lease.releasing_until is None:
                self.queue.under_way(lease.entry.arrival.flow, sign)


def _share(replica: Replica) -> float:
    return replica.busy / replica.slots if replica.slots else float("inf")
