"""Admission control. Knows limits, queues and leases; knows nothing of HTTP, processes or clocks.

Every request is in exactly one place: waiting in a model's queue, holding a lease on a replica, or ended.
A lease is *active* while its answer is under way. When its client hangs up it becomes *releasing*: engines go on
working for seconds, so the slot returns only when the engine says that it is free, or when a bound has passed.
Invariant: active + releasing leases of a replica never exceed its slots (unless its slots were just lowered).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What the gateway is told of a replica. `confirms`: it can be asked how many of its slots are busy."""

    name: str
    model: str
    url: str
    slots: int
    confirms: bool = False
    engine: str = ""  # name and version, for those who ask what serves
    simulated: bool = False
    release_bound_s: float = 30.0


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    max_queue: int = 256  # per model
    max_wait_s: float = 900.0
    attempts: int = 2  # replicas tried per request while nothing has reached its client


class RejectCode(Enum):
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    UNKNOWN_MODEL = "model_not_found"
    SHUTTING_DOWN = "shutting_down"
    REPLICA_LOST = "replica_lost"


@dataclass(frozen=True, slots=True)
class Forward:
    request_id: str
    replica: ReplicaSpec
    queued_s: float


@dataclass(frozen=True, slots=True)
class Reject:
    request_id: str
    code: RejectCode
    retry_after_s: float | None = None


Action = Forward | Reject


@dataclass(slots=True)
class _Waiting:
    request_id: str
    arrived_at: float
    attempts: int = 0
    avoid: str | None = None


@dataclass(slots=True, eq=False)
class _Lease:
    request_id: str
    home: _Replica
    waiting: _Waiting
    granted_at: float
    answered: bool = False
    releasing_until: float | None = None  # None: active


@dataclass(slots=True, eq=False)
class _Replica:
    spec: ReplicaSpec
    leases: dict[str, _Lease] = field(default_factory=dict)
    last_asked_at: float = -1.0  # when the busy count before the newest one was asked for
    lost_until: float = 0.0

    @property
    def active(self) -> int:
        return sum(lease.releasing_until is None for lease in self.leases.values())

    @property
    def free(self) -> int:
        return self.spec.slots - len(self.leases)


class Admission:
    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self._limits = limits or AdmissionLimits()
        self._replicas: dict[str, _Replica] = {}
        self._leaving: list[_Replica] = []  # taken from the table while answers are still under way
        self._queues: dict[str, deque[_Waiting]] = {}
        self._leases: dict[str, _Lease] = {}
        self._known_models: set[str] = set()
        self._service_s: dict[str, float] = {}  # smoothed duration of a lease, by model
        self._phantoms = 0
        self._closed = False

    def __repr__(self) -> str:
        slots = sum(replica.spec.slots for replica in self._replicas.values())
        return f"<Admission {len(self._leases)}/{slots} in flight, {self.queued} queued>"

    # What stands

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self._known_models))

    @property
    def queued(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    @property
    def in_flight(self) -> int:
        """Requests whose answer is under way; phantoms and releasing slots are not."""
        return sum(lease.releasing_until is None for lease in self._leases.values())

    def busy(self, replica: str) -> int:
        """Leases on the replica, releasing ones and those of a process that has left the table included."""
        homes = [home for home in (self._replicas.get(replica), *self._leaving) if home and home.spec.name == replica]
        return sum(len(home.leases) for home in homes)

    def releasing(self) -> tuple[ReplicaSpec, ...]:
        """The replicas that should be asked how many slots are busy."""
        return tuple(
            replica.spec
            for replica in self._replicas.values()
            if replica.spec.confirms and replica.active < len(replica.leases)
        )

    def names(self) -> tuple[str, ...]:
        return tuple({*self._replicas, *(home.spec.name for home in self._leaving)})

    def replicas(self) -> tuple[ReplicaSpec, ...]:
        return tuple(replica.spec for replica in self._replicas.values())

    # Events

    def set_replicas(self, specs: tuple[ReplicaSpec, ...], now: float, *, models: tuple[str, ...] = ()) -> list[Action]:
        """The whole table anew. `models` may name models that have no replica at the moment: their requests wait.

        A replica seen for the first time may still be busy with what an earlier gateway sent it: if it can be asked,
        all its slots count as releasing until it has answered.
        """
        wanted = {spec.name: spec for spec in specs}
        for name in [name for name, replica in self._replicas.items() if not _same(replica.spec, wanted.get(name))]:
            gone = self._replicas.pop(name)
            for lease in [lease for lease in gone.leases.values() if lease.releasing_until is not None]:
                self._end(lease)
            if gone.leases:
                self._leaving.append(gone)
        for spec in specs:
            known = self._replicas.get(spec.name)
            if known is None:
                self._replicas[spec.name] = self._newcomer(spec, now)
            else:
                known.spec = spec
        self._known_models = {spec.model for spec in specs} | set(models)
        actions: list[Action] = []
        for model in [model for model in self._queues if model not in self._known_models]:
            waiting = self._queues.pop(model)
            actions.extend(Reject(entry.request_id, RejectCode.UNKNOWN_MODEL) for entry in waiting)
        return actions + self._serve_all(now)

    def arrive(self, request_id: str, model: str, now: float) -> list[Action]:
        if self._closed:
            return [Reject(request_id, RejectCode.SHUTTING_DOWN, 5.0)]
        if model not in self._known_models:
            return [Reject(request_id, RejectCode.UNKNOWN_MODEL)]
        queue = self._queues.setdefault(model, deque())
        queue.append(_Waiting(request_id, now))
        actions = self._serve(model, now)
        if len(queue) > self._limits.max_queue:
            queue.pop()
            actions.append(Reject(request_id, RejectCode.QUEUE_FULL, self._expected_wait_s(model)))
        return actions

    def answering(self, request_id: str) -> None:
        """The engine has begun to answer: it surely holds a slot."""
        lease = self._leases.get(request_id)
        if lease is not None:
            lease.answered = True

    def finished(self, request_id: str, now: float) -> list[Action]:
        """The answer is complete, or its connection broke with the engine's side gone. Repeats have no effect."""
        lease = self._leases.get(request_id)
        if lease is None or lease.releasing_until is not None:
            return []
        model = lease.home.spec.model
        self._note_service(model, now - lease.granted_at)
        self._end(lease)
        return self._serve(model, now)

    def hung_up(self, request_id: str, now: float) -> list[Action]:
        """The client left: out of the queue, or the slot goes into release. Repeats have no effect."""
        for queue in self._queues.values():
            for entry in queue:
                if entry.request_id == request_id:
                    queue.remove(entry)
                    return []
        lease = self._leases.get(request_id)
        if lease is None or lease.releasing_until is not None:
            return []
        if not lease.home.spec.confirms or lease.home in self._leaving:
            return self.finished(request_id, now)
        lease.releasing_until = now + lease.home.spec.release_bound_s
        return []

    def failed(self, request_id: str, now: float, *, counts: bool = True, lost_s: float = 1.0) -> list[Action]:
        """The replica gave no byte of an answer. The request goes back to the head of its queue, or is rejected.

        `counts`: the engine got the request, so this was one of its attempts. The replica is passed over for `lost_s`.
        """
        lease = self._leases.get(request_id)
        if lease is None or lease.releasing_until is not None:
            return []
        replica, model = lease.home, lease.home.spec.model
        replica.lost_until = now + lost_s
        self._end(lease)
        entry = lease.waiting
        entry.avoid = replica.spec.name
        entry.attempts -= not counts
        if entry.attempts >= self._limits.attempts or self._closed:
            rejection = Reject(request_id, RejectCode.REPLICA_LOST, self._expected_wait_s(model))
            return [rejection, *self._serve(model, now)]
        self._queues.setdefault(model, deque()).appendleft(entry)
        return self._serve(model, now)

    def engine_busy(self, name: str, busy: int, asked_at: float, now: float) -> list[Action]:
        """The engine says that `busy` of its slots work. Slots in release beyond that are free.

        A lease granted after the question before this one may not have reached a slot yet; it is not counted as busy,
        so that its silence frees nothing.
        """
        replica = self._replicas.get(name)
        if replica is None:
            return []
        settled = sum(
            lease.releasing_until is None and (lease.answered or lease.granted_at < replica.last_asked_at)
            for lease in replica.leases.values()
        )
        replica.last_asked_at = asked_at
        releasing = [lease for lease in replica.leases.values() if lease.releasing_until is not None]
        freed = max(0, len(releasing) - max(0, busy - settled))
        for lease in releasing[:freed]:
            self._end(lease)
        return self._serve(replica.spec.model, now)

    def tick(self, now: float) -> list[Action]:
        """Time passed: deadlines of the queue, bounds of releases, replicas that may be tried again."""
        for lease in list(self._leases.values()):
            if lease.releasing_until is not None and lease.releasing_until <= now:
                self._end(lease)
        actions: list[Action] = []
        for model, queue in self._queues.items():
            while queue and queue[0].arrived_at + self._limits.max_wait_s <= now:
                entry = queue.popleft()
                actions.append(Reject(entry.request_id, RejectCode.QUEUE_TIMEOUT, self._expected_wait_s(model)))
        return actions + self._serve_all(now)

    def close(self) -> list[Action]:
        """Nothing new is admitted and the queues are emptied; what is under way goes on."""
        self._closed = True
        waiting = [entry for queue in self._queues.values() for entry in queue]
        self._queues.clear()
        return [Reject(entry.request_id, RejectCode.SHUTTING_DOWN, 5.0) for entry in waiting]

    # Inside

    def _serve_all(self, now: float) -> list[Action]:
        return [action for model in list(self._queues) for action in self._serve(model, now)]

    def _serve(self, model: str, now: float) -> list[Action]:
        queue = self._queues.get(model)
        actions: list[Action] = []
        while queue:
            replica = self._choose(model, queue[0], now)
            if replica is None:
                break
            entry = queue.popleft()
            entry.attempts += 1
            self._grant(entry, replica, now)
            actions.append(Forward(entry.request_id, replica.spec, now - entry.arrived_at))
        return actions

    def _choose(self, model: str, entry: _Waiting, now: float) -> _Replica | None:
        """The replica with the largest free share of slots; of equals, the one with more free slots."""
        usable = [r for r in self._replicas.values() if r.spec.model == model and r.free > 0 and r.lost_until <= now]
        preferred = [replica for replica in usable if replica.spec.name != entry.avoid] or usable
        return max(preferred, key=lambda r: (r.free / r.spec.slots, r.free), default=None)

    def _grant(self, entry: _Waiting, replica: _Replica, now: float) -> None:
        lease = _Lease(entry.request_id, replica, entry, now)
        replica.leases[entry.request_id] = lease
        self._leases[entry.request_id] = lease

    def _end(self, lease: _Lease) -> None:
        del self._leases[lease.request_id]
        del lease.home.leases[lease.request_id]
        if not lease.home.leases and lease.home in self._leaving:
            self._leaving.remove(lease.home)

    def _newcomer(self, spec: ReplicaSpec, now: float) -> _Replica:
        replica = _Replica(spec)
        for _ in range(spec.slots if spec.confirms else 0):
            self._phantoms += 1
            entry = _Waiting(f"phantom-{self._phantoms}", now)
            self._grant(entry, replica, now)
            self._leases[entry.request_id].releasing_until = now + spec.release_bound_s
        return replica

    def _note_service(self, model: str, seconds: float) -> None:
        before = self._service_s.get(model)
        self._service_s[model] = seconds if before is None else 0.8 * before + 0.2 * seconds

    def _expected_wait_s(self, model: str) -> float:
        capacity = sum(r.spec.slots for r in self._replicas.values() if r.spec.model == model) or 1
        waiting = len(self._queues.get(model, ())) + 1
        return max(1.0, waiting * self._service_s.get(model, 1.0) / capacity)


def _same(old: ReplicaSpec, new: ReplicaSpec | None) -> bool:
    """The same process behind the same name: its slots may change, its address may not."""
    return new is not None and (old.url, old.model) == (new.url, new.model)
