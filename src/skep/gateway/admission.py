"""Admission control. Knows limits, queues and leases; knows nothing of HTTP, processes or clocks.

Every request is in exactly one place: waiting in its model's queue, holding a lease on a replica,
or ended. A lease is *active* while its answer is under way. When its client hangs up it becomes
*releasing*: engines go on working for seconds, so the slot returns only when the engine says that
it is free, or when a bound has passed. Invariant: active + releasing leases of a replica never
exceed its slots (unless its slots were just lowered)."""

from __future__ import annotations

from itertools import count
from math import inf

from skep.config.gateway_messages import AdmissionLimits, ReplicaSpec
from skep.gateway.admission_messages import (
    Action,
    Arrival,
    Event,
    Forward,
    Reject,
    RejectCode,
    Withdraw,
)
from skep.gateway.kept_places import KEPT_S, KeptPlaces, QueuePlace, RequestKey
from skep.gateway.replica_table import (
    SMOOTHING,
    ConversationAffinity,
    GatewayReplica,
    ModelPool,
    SlotLease,
    load,
    process_of,
)

COME_BACK_S = 5.0  # Retry-After of a gateway that shuts down
# A failed request waits so long for another replica, before the same one is tried again.
AVOID_S = 1.0
LONG_AGO = -inf  # when a slot was taken that is found busy: before anybody asked


def key_of(arrival: Arrival) -> RequestKey:
    """Return what a request has in common with its repeat by the same client."""
    return arrival.model, arrival.flow, arrival.fingerprint


class Admission:
    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self.limits = limits or AdmissionLimits()
        self._models: dict[str, ModelPool] = {}
        self._replicas: dict[str, GatewayReplica] = {}
        # By process: out of the table, with answers under way.
        self._leaving: dict[tuple[str, str, str], GatewayReplica] = {}
        self._leases: dict[str, SlotLease] = {}  # all, by id, those in release too
        self._affinity = ConversationAffinity()
        self._kept_places = KeptPlaces()
        self._numbers = count(1)  # of placeholder leases
        self.closed = False

    # State

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self._models))

    @property
    def queued(self) -> int:
        return sum(len(pool.queue) for pool in self._models.values())

    @property
    def in_flight(self) -> int:
        """Count the requests whose answer is under way; slots in release are not among them."""
        return sum(lease.releasing_until is None for lease in self._leases.values())

    def knows(self, model: str) -> bool:
        return model in self._models

    def waiting(self, model: str) -> dict[str, int]:
        """Count the waiting requests of a model, by class."""
        return self._models[model].queue.waiting()

    def table(self) -> tuple[GatewayReplica, ...]:
        """Return the replicas that serve."""
        return tuple(self._replicas.values())

    def replicas(self) -> tuple[GatewayReplica, ...]:
        """Return the replicas of the table, and those that left it with answers under way."""
        return (*self._replicas.values(), *self._leaving.values())

    def to_confirm(self) -> tuple[ReplicaSpec, ...]:
        """Return the replicas that should be asked how many slots are busy."""
        return tuple(
            replica.spec
            for replica in self.replicas()
            if replica.spec.confirms and replica.busy > replica.active
        )

    def anywhere(self, model: str, now: float) -> ReplicaSpec | None:
        """Return a replica for a request that takes no slot, such as a count of tokens."""
        if model in self._models:
            replica = min(self._models[model].alive(now), key=load, default=None)
            if replica is not None:
                return replica.spec
        return None

    # Events

    def set_limits(self, limits: AdmissionLimits, now: float) -> list[Action]:
        """Set the limits for requests that come from now on; one that waits keeps the deadline it
        was given.
        """
        self.limits = limits
        for pool in self._models.values():
            pool.queue.aging_s = limits.aging_s
        return self._serve_all(now)

    def set_replicas(
        self, specs: tuple[ReplicaSpec, ...], now: float, *, models: tuple[str, ...] = ()
    ) -> list[Action]:
        """Replace the whole table. `models` may name models that have no replica at the moment:
        their requests wait.

        A replica seen for the first time may still be busy with what an earlier gateway sent it:
        if it can be asked, all its slots count as releasing until it has answered."""
        self._remove_departed(specs)
        for spec in specs:
            current = self._replicas.get(spec.name)
            if current is None:
                self._replicas[spec.name] = self._new_replica(spec, now)
            elif current.spec != spec:
                current.become(spec)
        by_model: dict[str, list[GatewayReplica]] = {
            name: [] for name in {spec.model for spec in specs} | set(models)
        }
        for replica in self._replicas.values():
            by_model[replica.spec.model].append(replica)
        actions: list[Action] = []
        for name in self._models.keys() - by_model.keys():
            waiting = self._models.pop(name).queue
            actions.extend(Reject(entry.request_id, RejectCode.UNKNOWN_MODEL) for entry in waiting)
        for name, replicas in by_model.items():
            self._models.setdefault(name, ModelPool(self.limits.aging_s)).become(replicas)
        return actions + self._serve_all(now)

    def _remove_departed(self, specs: tuple[ReplicaSpec, ...]) -> None:
        """Take the replicas out of the table whose process is not in `specs` any more."""
        processes = {spec.name: process_of(spec) for spec in specs}
        for name, replica in list(self._replicas.items()):
            if processes.get(name) == process_of(replica.spec):
                continue
            del self._replicas[name]
            self._models[replica.spec.model].lose(replica)
            for lease in list(replica.leases.values()):
                if lease.releasing_until is not None:
                    self._end_lease(lease)
            if replica.leases:
                self._leaving[process_of(replica.spec)] = replica

    def arrive(self, arrival: Arrival, now: float, *, may_wait: int = 0) -> list[Action]:
        """Forward, queue or reject a request, by the first of these that holds:

        1. Nothing is admitted any more, or nobody serves the model: rejected.
        2. Nobody waits and a replica has a slot: forwarded.
        3. Its client would give up before its turn: rejected, and its place is kept.
        4. The queue is full: the newest request of the longest flow in the lowest class leaves,
           which may be this one.
        5. It waits.

        `may_wait`: so many requests may wait, even if the limit is lower.
        """
        if self.closed:
            return [Reject(arrival.request_id, RejectCode.SHUTTING_DOWN, COME_BACK_S)]
        pool = self._models.get(arrival.model)
        if pool is None:
            return [Reject(arrival.request_id, RejectCode.UNKNOWN_MODEL)]
        wait_limit_s = self.limits.max_wait_s
        if arrival.max_wait_s is None:
            wait_s = wait_limit_s
        else:
            wait_s = min(wait_limit_s, arrival.max_wait_s)
        arrival.arrived_at = arrival.queued_at = now
        arrival.deadline = now + wait_s
        if not pool.queue.by_id:
            replica = pool.choose(arrival, self._affinity, now)
            if replica is not None:
                return [self._grant(pool, arrival, replica, now)]
        place = self._kept_places.take(key_of(arrival), now)
        if place is not None:
            arrival.arrived_at = place.arrived_at
            arrival.gave_up_slot = place.had_slot
        if pool.is_beyond_patience(arrival, now):
            return [self._refuse_long_wait(pool, arrival, place, now)]
        rejections: list[Action] = []
        if len(pool.queue.by_id) >= max(may_wait, self.limits.max_queue):
            evicted_id = pool.queue.to_evict(arrival)
            rejections.append(
                Reject(
                    evicted_id or arrival.request_id,
                    RejectCode.QUEUE_FULL,
                    pool.expected_wait_s(now),
                )
            )
            if evicted_id is None:
                if place is not None:
                    self._kept_places.keep(key_of(arrival), place)
                return rejections
            pool.queue.remove(evicted_id)
        pool.queue.put(arrival, turn=place.turn if place is not None else None)
        return rejections + self._serve(pool, now)

    def _refuse_long_wait(
        self, pool: ModelPool, arrival: Arrival, place: QueuePlace | None, now: float
    ) -> Reject:
        """Refuse a request whose client would give up while it waits; its place is kept for when
        it comes back.
        """
        wait_s = pool.expected_wait_s(now, arrival.arrived_at)
        turn = place.turn if place is not None else pool.queue.served
        self._kept_places.keep(
            key_of(arrival), QueuePlace(arrival.arrived_at, turn, now + wait_s + KEPT_S)
        )
        return Reject(arrival.request_id, RejectCode.WAIT_TOO_LONG, wait_s)

    def happened(
        self, event: Event, request_id: str, now: float, flag: bool = False
    ) -> list[Action]:
        """Call the event's method.

        `flag`: its parameter `answered`, `complaint` or `counts`, where it has one of them.
        """
        match event:
            case Event.FINISHED:
                return self.finished(request_id, now, flag)
            case Event.ANSWERING:
                self.answering(request_id, now, flag)
                return []
            case Event.TURNED_AWAY:
                return self.turned_away(request_id, now, flag)
            case Event.FAILED:
                return self.failed(request_id, now, flag)
            case Event.HUNG_UP:
                return self.hung_up(request_id, now)
            case Event.GAVE_UP:
                return self.gave_up(request_id, now)
            case Event.NOT_SENT:
                return self.not_sent(request_id, now)

    def answering(self, request_id: str, now: float, complaint: bool = False) -> None:
        """Note that the engine has begun to answer: the request surely holds a slot there.

        `complaint`: the status is 502, 503 or 504.
        """
        lease = self._leases.get(request_id)
        if lease is None:
            return
        lease.answered = True
        if complaint:
            lease.home.breaker.bad_answer(now)
        else:
            lease.home.breaker.answered(now)

    def finished(self, request_id: str, now: float, answered: bool = False) -> list[Action]:
        """Free the slot of a request: its answer is complete, or the connection broke and the
        engine's side is gone. Repeats have no effect.

        `answered`: the answer came whole, without an `answering` before it.
        """
        lease = self._leases.get(request_id)
        if lease is None or lease.releasing_until is not None:
            return []
        home = lease.home
        if answered:
            home.breaker.answered(now)
        self._end_lease(lease)
        pool = self._models.get(home.spec.model)
        if pool is None:
            return []
        seconds = now - lease.granted_at
        if pool.service_s:
            pool.service_s += SMOOTHING * (seconds - pool.service_s)
        else:
            pool.service_s = seconds
        if pool.queue.by_id:
            return self._serve(pool, now)
        return []

    def hung_up(self, request_id: str, now: float) -> list[Action]:
        """Take a request whose client left out of the queue, or put its slot into release.

        Repeats have no effect.
        """
        lease = self._active_lease(request_id)
        if lease is None:
            for pool in self._models.values():
                entry = pool.queue.by_id.get(request_id)
                if entry is not None:
                    self._keep_place(entry, pool.queue.turn_of(entry), now)
                    pool.queue.remove(request_id)
                    return self._serve(pool, now)  # without it, only batch requests may be left
            return []
        home = lease.home
        if not lease.answered and not lease.entry.gave_up_slot:
            # Kept once: a client that gives up each time would keep all others out.
            self._keep_place(lease.entry, 0, now, had_slot=True)
        if not home.listed:
            self._end_lease(lease)
            return []
        home.release(lease, now)
        pool = self._models[home.spec.model]
        pool.queue.under_way(lease.entry.flow, -1)
        return self._serve(pool, now)  # a soft limit counts requests whose clients are there

    def not_sent(self, request_id: str, now: float) -> list[Action]:
        """Free the slot of a request whose client left before the replica was asked.

        Repeats have no effect.
        """
        lease = self._leases.get(request_id)
        if lease is None:
            return []
        self._end_lease(lease)
        pool = self._models.get(lease.home.spec.model)
        if pool is not None:
            return self._serve(pool, now)
        return []

    def may_retry(self, request_id: str, now: float) -> bool:
        """Return whether another replica could be tried, instead of handing on this one's
        answer.
        """
        lease = self._leases.get(request_id)
        if lease is None or self.closed or lease.entry.attempts >= self.limits.attempts:
            return False
        pool = self._models.get(lease.home.spec.model)
        return pool is not None and pool.others(lease.home, now)

    def turned_away(self, request_id: str, now: float, complaint: bool) -> list[Action]:
        """Queue a request again whose replica answered that it cannot take it, or reject it.

        `complaint`: its status was not 429.
        """
        lease = self._active_lease(request_id)
        if lease is None:
            return []
        if complaint:
            lease.home.breaker.bad_answer(now)
        return self._retry(lease, now)

    def failed(self, request_id: str, now: float, counts: bool = True) -> list[Action]:
        """Put a request whose replica sent no byte back to the head of its flow, or reject it.

        `counts`: the engine received the request, so that the attempt counts.
        """
        lease = self._active_lease(request_id)
        if lease is None:
            return []
        if counts:
            lease.home.breaker.dropped(now)
        else:
            lease.home.breaker.failed(now)
            lease.entry.attempts -= 1
        return self._retry(lease, now)

    def gave_up(self, request_id: str, now: float) -> list[Action]:
        """Queue a request again whose silent attempt the gateway broke off, or reject it.

        The engine may still work on the attempt: its slot goes into release.
        """
        lease = self._active_lease(request_id)
        if lease is None:
            return []
        lease.home.breaker.failed(now)
        if lease.home.listed:
            self._placeholder_lease(lease.home, now, changed_at=now)
        return self._retry(lease, now)

    def engine_busy(
        self, spec: ReplicaSpec, busy: int, asked_at: float, now: float
    ) -> list[Action]:
        """Take in that `busy` slots of an engine work. Slots in release beyond that are free."""
        replica = self._replicas.get(spec.name)
        if replica is None or process_of(replica.spec) != process_of(spec):
            return []  # an answer of the process that was there before
        for lease in replica.surely_free(busy, asked_at):
            self._end_lease(lease)
        replica.breaker.heard_at = now
        return self._serve(self._models[replica.spec.model], now)

    def checked(self, spec: ReplicaSpec, ok: bool, now: float) -> list[Action]:
        """Take in the result of a health check. A replica that is silent for too long loses its
        requests.
        """
        replica = self._find(spec)
        if replica is None:
            return []
        replica.breaker.checked(ok, now)
        if ok:
            return self._serve_all(now)
        if now - replica.breaker.heard_at < self.limits.dead_after_s:
            return []
        return [
            Withdraw(lease.id)
            for lease in replica.leases.values()
            if lease.releasing_until is None
        ]

    def heard(self, spec: ReplicaSpec, at: float) -> None:
        """Note that a byte came from the replica, whatever it was part of."""
        replica = self._find(spec)
        if replica is not None and at > replica.breaker.heard_at:
            replica.breaker.heard_at = at

    def tick(self, now: float) -> list[Action]:
        """Do what is due by now: deadlines of the queue, bounds of releases, replicas that may be
        tried again.
        """
        for lease in list(self._leases.values()):
            if lease.releasing_until is not None and lease.releasing_until <= now:
                self._end_lease(lease)
        actions: list[Action] = []
        for pool in self._models.values():
            for entry in [entry for entry in pool.queue if entry.deadline <= now]:
                pool.queue.remove(entry.request_id)
                actions.append(
                    Reject(entry.request_id, RejectCode.QUEUE_TIMEOUT, pool.expected_wait_s(now))
                )
        return actions + self._serve_all(now)

    def load_failed(self, model: str, why: str, retry_after_s: float) -> list[Action]:
        """Reject all that wait for a model that cannot be loaded."""
        pool = self._models.get(model)
        if pool is None or pool.replicas:
            return []
        return [
            Reject(name, RejectCode.LOAD_FAILED, retry_after_s, why) for name in pool.queue.clear()
        ]

    def close(self) -> list[Action]:
        """Admit nothing new and empty the queues; what is under way goes on."""
        self.closed = True
        waiting = [name for pool in self._models.values() for name in pool.queue.clear()]
        return [Reject(name, RejectCode.SHUTTING_DOWN, COME_BACK_S) for name in waiting]

    def _keep_place(
        self, entry: Arrival, turn: int, now: float, *, had_slot: bool = False
    ) -> None:
        place = QueuePlace(entry.arrived_at, turn, now + KEPT_S, had_slot or entry.gave_up_slot)
        self._kept_places.keep(key_of(entry), place)

    def _active_lease(self, request_id: str) -> SlotLease | None:
        """Return the lease of a request, or None if it has ended or is in release: a repeated
        event has no effect.
        """
        lease = self._leases.get(request_id)
        if lease is not None and lease.releasing_until is None:
            return lease
        return None

    def _find(self, spec: ReplicaSpec) -> GatewayReplica | None:
        """Return the replica of this process, also if it has left the table."""
        process = process_of(spec)
        replica = self._replicas.get(spec.name)
        if replica is not None and process_of(replica.spec) == process:
            return replica
        return self._leaving.get(process)

    def _serve_all(self, now: float) -> list[Action]:
        return [
            action for pool in list(self._models.values()) for action in self._serve(pool, now)
        ]

    def _serve(self, pool: ModelPool, now: float) -> list[Action]:
        actions: list[Action] = []
        while pool.queue.by_id:
            assignment = pool.next(self._affinity, now)
            if assignment is None:
                break
            entry, replica = assignment
            pool.queue.remove(entry.request_id)
            actions.append(self._grant(pool, entry, replica, now))
        return actions

    def _grant(
        self, pool: ModelPool, entry: Arrival, replica: GatewayReplica, now: float
    ) -> Forward:
        entry.attempts += 1
        request_id = entry.request_id
        lease = self._leases[request_id] = SlotLease(request_id, replica, entry, now, now)
        replica.take(lease)
        pool.queue.under_way(entry.flow, 1)
        return Forward(request_id, replica.spec, now - entry.queued_at, entry.attempts)

    def _retry(self, lease: SlotLease, now: float) -> list[Action]:
        """Queue a request again after a replica failed it, or reject it."""
        self._end_lease(lease)
        entry = lease.entry
        pool = self._models.get(lease.home.spec.model)
        if pool is None:
            return [Reject(entry.request_id, RejectCode.UNKNOWN_MODEL)]
        entry.avoid = lease.home.name
        entry.avoid_until = now + AVOID_S
        if entry.attempts >= self.limits.attempts or self.closed:
            rejection = Reject(
                entry.request_id, RejectCode.REPLICA_LOST, pool.expected_wait_s(now)
            )
            return [rejection, *self._serve(pool, now)]
        pool.queue.put(entry, first=True)
        return self._serve(pool, now)

    def _end_lease(self, lease: SlotLease) -> None:
        home = lease.home
        del self._leases[lease.id]
        home.give_back(lease)
        if home.listed and lease.releasing_until is None:
            self._models[home.spec.model].queue.under_way(lease.entry.flow, -1)
        elif not home.listed and not home.leases:
            self._leaving.pop(process_of(home.spec), None)

    def _new_replica(self, spec: ReplicaSpec, now: float) -> GatewayReplica:
        """Return a new replica, or the one of the same process with what it still has under
        way.
        """
        replica = self._leaving.pop(process_of(spec), None)
        if replica is None:
            replica = GatewayReplica(spec, now)
        else:
            replica.become(spec)
        if spec.confirms:
            for _ in range(spec.slots - replica.busy):
                self._placeholder_lease(replica, now, changed_at=LONG_AGO)
        return replica

    def _placeholder_lease(
        self, replica: GatewayReplica, now: float, *, changed_at: float
    ) -> None:
        """Put a slot that works for an unknown request into release."""
        entry = Arrival(f"phantom-{next(self._numbers)}", replica.spec.model)
        until = now + replica.spec.release_bound_s
        lease = SlotLease(entry.request_id, replica, entry, now, changed_at, releasing_until=until)
        self._leases[entry.request_id] = lease
        replica.take(lease)
