"""Replicas with their leases, and the pool that serves one model. Counts and predicates; `admission` decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from skep.gateway.breaker import Breaker
from skep.gateway.queue import ModelQueue, Waiting
from skep.gateway.routing import seed_of
from skep.gateway.values import Priority, ReplicaSpec

SMOOTHING = 0.2  # weight of the newest request in the measured time of a request


@dataclass(slots=True, eq=False)
class Lease:
    id: str
    home: Replica
    entry: Waiting
    granted_at: float
    answered: bool = False
    releasing_until: float | None = None  # None: active


class Replica:
    """One replica as admission counts it. `leases` holds active and releasing ones."""

    __slots__ = ("_asked_before", "breaker", "leases", "name", "plain", "prompt_bytes", "seed", "slots", "spec")

    def __init__(self, spec: ReplicaSpec, now: float) -> None:
        self.name = spec.name
        self.seed = seed_of(spec.name)
        self.leases: dict[str, Lease] = {}
        self.breaker = Breaker(now)
        self.prompt_bytes = 0
        self._asked_before = -1.0  # when the busy count before the newest one was asked for
        self.become(spec)

    def __repr__(self) -> str:
        return f"<Replica {self.name} {self.busy}/{self.slots} {self.breaker!r}>"

    def become(self, spec: ReplicaSpec) -> None:
        self.spec = spec
        self.slots = spec.slots
        self.plain = not spec.reserve and spec.soft_slots is None  # all slots are for all classes

    @property
    def busy(self) -> int:
        return len(self.leases)

    @property
    def active(self) -> int:
        return sum(lease.releasing_until is None for lease in self.leases.values())

    def of_class(self, *wanted: Priority) -> int:
        return sum(
            lease.releasing_until is None and lease.entry.arrival.priority in wanted for lease in self.leases.values()
        )

    def usable(self, now: float) -> bool:
        """It may be tried, full or not."""
        breaker = self.breaker
        return not self.spec.draining and (breaker.open_until is None or breaker.allows(now))

    def has_room(self, now: float) -> bool:
        return len(self.leases) < self.slots and self.usable(now)

    def take(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        self.prompt_bytes += lease.entry.arrival.prompt_bytes
        if self.breaker.open_until is not None and lease.releasing_until is None:
            self.breaker.granted(lease.id)

    def give_back(self, lease: Lease) -> None:
        del self.leases[lease.id]
        self.prompt_bytes -= lease.entry.arrival.prompt_bytes

    def overdue(self, now: float) -> list[Lease]:
        return [
            lease
            for lease in self.leases.values()
            if lease.releasing_until is not None and lease.releasing_until <= now
        ]

    def surely_free(self, busy: int, asked_at: float) -> Iterable[Lease]:
        """Of the slots in release, those that cannot be among the `busy` ones.

        A lease granted after the question before this one may not have reached a slot yet; it is not counted as busy,
        so that its silence frees nothing.
        """
        settled = sum(
            lease.releasing_until is None and (lease.answered or lease.granted_at < self._asked_before)
            for lease in self.leases.values()
        )
        self._asked_before = asked_at
        releasing = [lease for lease in self.leases.values() if lease.releasing_until is not None]
        return releasing[: max(0, len(releasing) - max(0, busy - settled))]


class ModelPool:
    """The replicas and the queue of one model."""

    def __init__(self, aging_s: float) -> None:
        self.queue = ModelQueue(aging_s)
        self.replicas: list[Replica] = []
        self._service_s: float | None = None  # smoothed duration of a lease

    def __repr__(self) -> str:
        return f"<ModelPool {self.replicas!r} {self.queue!r}>"

    def choices(self, priority: Priority, now: float) -> tuple[list[Replica], list[Replica]]:
        """Those with a slot for this class, and all that may be tried."""
        free: list[Replica] = []
        alive: list[Replica] = []
        for replica in self.replicas:
            if not replica.usable(now):
                continue
            alive.append(replica)
            if len(replica.leases) < replica.slots and (replica.plain or self.allows(replica, priority)):
                free.append(replica)
        return free, alive

    def alive(self, now: float) -> list[Replica]:
        """Those that may be tried, full or not."""
        return [replica for replica in self.replicas if replica.usable(now)]

    def allows(self, replica: Replica, priority: Priority) -> bool:
        """Whether a request of this class may take one of the replica's slots now."""
        spec, busy = replica.spec, len(replica.leases)
        if busy >= spec.slots:
            return False
        if spec.reserve and priority is not Priority.INTERACTIVE:
            others = busy - replica.of_class(Priority.INTERACTIVE)
            if others >= spec.slots - spec.reserve:
                return False
        if spec.soft_slots is None:
            return True
        quick = replica.of_class(Priority.INTERACTIVE, Priority.NORMAL)
        if priority is not Priority.BATCH:
            return quick < spec.soft_slots
        return busy < spec.soft_slots or (quick == 0 and self.queue.only_batch())

    def set_aging(self, aging_s: float) -> None:
        self.queue.aging_s = aging_s

    def active_flows(self) -> Counter[str]:
        """Requests under way by flow. Counted when somebody has to wait, and not with every request."""
        return Counter(
            lease.entry.arrival.flow
            for replica in self.replicas
            for lease in replica.leases.values()
            if lease.releasing_until is None
        )

    def note_service(self, seconds: float) -> None:
        before = self._service_s
        self._service_s = seconds if before is None else (1 - SMOOTHING) * before + SMOOTHING * seconds

    def expected_wait_s(self, now: float) -> float:
        """Until a request that came now would have a slot, from the measured time of a request."""
        slots = sum(replica.slots for replica in self.alive(now))
        drained_per_s = (slots or 1) / (self._service_s or 1.0)
        return max(1.0, (len(self.queue) + 1) / drained_per_s)
