"""A replica with its leases, as admission counts it. Counts and predicates; `admission` decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from skep.gateway.breaker import Breaker
from skep.gateway.keys import Priority
from skep.gateway.queue import Waiting
from skep.gateway.routing import seed_of
from skep.gateway.values import ReplicaSpec

Process = tuple[str, str, str]


def process_of(spec: ReplicaSpec) -> Process:
    """The same process behind the same name: its slots may change, its address may not."""
    return spec.name, spec.url, spec.model


@dataclass(slots=True, eq=False)
class Lease:
    id: str
    home: Replica
    entry: Waiting
    granted_at: float
    answered: bool = False
    releasing_until: float | None = None  # None: active


class Replica:
    """`leases` holds active and releasing ones. `order`: its place among all that ever came into the table."""

    __slots__ = (
        "_asked_before", "_under_way", "breaker", "draining", "leases", "listed", "name", "order", "plain",
        "prompt_bytes", "ranked", "seed", "slots", "spec",
    )  # fmt: skip

    def __init__(self, spec: ReplicaSpec, now: float) -> None:
        self.name = spec.name
        self.seed = seed_of(spec.name)
        self.leases: dict[str, Lease] = {}
        self.breaker = Breaker(now)
        self.prompt_bytes = 0
        self.order = 0
        self.ranked = 0  # busy slots when its pool ranked it
        self.listed = False  # its model's pool counts with it
        self._asked_before = -1.0  # when the busy count before the newest one was asked for
        self.become(spec)

    def __repr__(self) -> str:
        return f"<Replica {self.name} {self.busy}/{self.slots} {self.breaker!r}>"

    def become(self, spec: ReplicaSpec) -> None:
        self.spec = spec
        self.slots = spec.slots
        self.draining = spec.draining
        self.plain = not spec.reserve and spec.soft_slots is None  # all slots are for all classes
        self._under_way = [0] * len(Priority)  # active leases by class; counted only where the class matters
        for lease in self.leases.values():
            self._count(lease, 1)

    @property
    def busy(self) -> int:
        return len(self.leases)

    @property
    def active(self) -> int:
        return sum(lease.releasing_until is None for lease in self.leases.values())

    def usable(self, now: float) -> bool:
        """It may be tried, full or not."""
        return not self.draining and (self.breaker.open_until is None or self.breaker.allows(now))

    def allows(self, priority: Priority, *, alone: bool) -> bool:
        """Whether a request of this class may take one of its slots. `alone`: nothing but batch waits."""
        spec, busy = self.spec, len(self.leases)
        if busy >= spec.slots:
            return False
        interactive, normal, _ = self._under_way
        if spec.reserve and priority is not Priority.INTERACTIVE and busy - interactive >= spec.slots - spec.reserve:
            return False
        if spec.soft_slots is None:
            return True
        quick = interactive + normal
        if priority is not Priority.BATCH:
            return quick < spec.soft_slots
        return busy < spec.soft_slots or (quick == 0 and alone)

    def take(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        self.prompt_bytes += lease.entry.arrival.prompt_bytes
        if not self.plain:
            self._count(lease, 1)
        if self.breaker.open_until is not None and lease.releasing_until is None:
            self.breaker.granted(lease.id)

    def release(self, lease: Lease, until: float) -> None:
        self._count(lease, -1)
        lease.releasing_until = until
        self.breaker.ended(lease.id)

    def give_back(self, lease: Lease) -> None:
        del self.leases[lease.id]
        self.prompt_bytes -= lease.entry.arrival.prompt_bytes
        if not self.plain:
            self._count(lease, -1)
        if self.breaker.trial is not None:
            self.breaker.ended(lease.id)

    def _count(self, lease: Lease, more: int) -> None:
        if lease.releasing_until is None:
            self._under_way[lease.entry.arrival.priority] += more

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
