"""The replicas of a model, and which of them a request goes to. `admission` decides when.

A request goes to the least loaded replica, unless another one holds its conversation and is hardly
busier: the one that served it last. Of equally loaded ones the winner of a rendezvous hash is
taken, so that a gateway that was just started mostly finds again what its predecessor knew."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import msgspec

from skep.config.gateway_messages import ReplicaSpec
from skep.config.keys import Priority
from skep.gateway.admission_messages import Arrival
from skep.gateway.model_queue import ModelQueue

CLEARLY_BUSIER = 0.2  # of the slots; one slot more is never clearly busier
# To read such a prompt again takes longer than to wait among a few more answers.
LONG_PROMPT_BYTES = 16_384
# Conversations: at 1,000 slots, 64 a slot whose agent thinks while others are answered.
AFFINITIES_KEPT = 65_536
_PRIME = (1 << 61) - 1


def rendezvous(conversation: int, replicas: Sequence[GatewayReplica]) -> GatewayReplica:
    return max(replicas, key=lambda replica: pow(conversation + replica.seed, 3, _PRIME))


def load(replica: GatewayReplica) -> tuple[float, int]:
    return replica.busy / replica.slots if replica.slots else inf, replica.prompt_bytes


class ConversationAffinity:
    """Where conversations live. Bounded: the one not heard of longest is forgotten."""

    def __init__(self, remembered: int = AFFINITIES_KEPT) -> None:
        self._affinity: OrderedDict[int, str] = OrderedDict()
        self._remembered = remembered

    def of(self, conversation: int) -> str | None:
        return self._affinity.get(conversation)

    def remember(self, conversation: int, name: str) -> None:
        self._affinity[conversation] = name
        self._affinity.move_to_end(conversation)
        while len(self._affinity) > self._remembered:
            self._affinity.popitem(last=False)


FIRST_OPEN_S = 0.5
LONGEST_OPEN_S = 15.0
# In a row (502, 503, 504, or closed without a byte), before a replica is passed over.
BAD_ANSWERS = 3
BAD_CHECKS = 3


@dataclass(slots=True, eq=False)
class Breaker:
    heard_at: float  # the last sign of life
    open_until: float | None = None  # None: closed
    # The request that decides, while half-open; `ended` is called for it, whatever becomes of it.
    trial: str | None = None
    checked_at: float = -inf
    _open_s: float = 0.0
    _bad_answers: int = 0
    _bad_checks: int = 0

    def state(self, now: float) -> str:
        if self.open_until is None:
            return "closed"
        if now < self.open_until:
            return "open"
        return "half-open"

    def allows(self, now: float) -> bool:
        return self.open_until is None or (self.open_until <= now and self.trial is None)

    def answered(self, now: float) -> None:
        """A request got an answer that is no complaint about the server."""
        self.heard_at = now
        if self._bad_answers or self._bad_checks or self._open_s:
            self.open_until = self.trial = None
            self._open_s = 0.0
            self._bad_answers = self._bad_checks = 0

    def failed(self, now: float) -> None:
        """Nobody is there: refused, or silent.

        A trial lasts until it has `ended`, all the same.
        """
        if self.open_until is not None and now < self.open_until:
            return
        self._open_s = min(LONGEST_OPEN_S, max(FIRST_OPEN_S, 2 * self._open_s))
        self.open_until = now + self._open_s

    def bad_answer(self, now: float) -> None:
        self.heard_at = now
        self.dropped(now)

    def dropped(self, now: float) -> None:
        """A request got no answer, which may be its own fault while others are answered."""
        self._bad_answers += 1
        if self._bad_answers >= BAD_ANSWERS or self.open_until is not None:
            self.failed(now)

    def ended(self, request_id: str) -> None:
        """A request left the replica, with a verdict or without.

        If it was the trial, the next one is.
        """
        if self.trial == request_id:
            self.trial = None

    def checked(self, ok: bool, now: float) -> None:
        """An active health check came back."""
        if ok:
            self.heard_at = now
            self._bad_checks = 0
            if self.open_until is not None and self.open_until <= now:
                self.open_until = self.trial = None
        else:
            self._bad_checks += 1
            if self._bad_checks >= BAD_CHECKS and self.allows(now):
                self.failed(now)


def process_of(spec: ReplicaSpec) -> tuple[str, str, str]:
    """Return what tells one process from another behind the same name: its slots may change, its
    address may not.
    """
    return spec.name, spec.url, spec.model


class SlotLease(msgspec.Struct, eq=False):
    id: str
    home: GatewayReplica
    entry: Arrival
    granted_at: float
    changed_at: float  # granted or given up: its engine hears of that some time later
    answered: bool = False
    releasing_until: float | None = None  # None: active


class GatewayReplica:
    """`leases` holds active and releasing ones."""

    def __init__(self, spec: ReplicaSpec, now: float) -> None:
        self.name = spec.name
        self.seed = zlib.crc32(spec.name.encode())
        self.leases: dict[str, SlotLease] = {}
        self.breaker = Breaker(now)
        self.prompt_bytes = 0
        self.listed = False  # it is in the table
        self._asked_before = -1.0  # when the busy count before the newest one was asked for
        self.become(spec)

    def become(self, spec: ReplicaSpec) -> None:
        self.spec = spec
        self.slots = spec.slots
        self.draining = spec.draining
        self.plain = not spec.reserve and spec.soft_slots is None  # all slots are for all classes
        # Active leases by class; counted only where the class matters.
        self._under_way = [0] * len(Priority)
        for lease in self.leases.values():
            self._count(lease, 1)

    @property
    def busy(self) -> int:
        return len(self.leases)

    @property
    def active(self) -> int:
        return sum(lease.releasing_until is None for lease in self.leases.values())

    def state(self, now: float) -> str:
        """Return the word for people and metrics."""
        if self.draining:
            return "draining"
        state = self.breaker.state(now)
        return "up" if state == "closed" else state

    def usable(self, now: float) -> bool:
        """Return whether it may be tried, full or not."""
        return not self.draining and (self.breaker.open_until is None or self.breaker.allows(now))

    def allows(self, priority: Priority, *, alone: bool) -> bool:
        """Return whether a request of this class may take one of its slots.

        `alone`: nothing but batch waits.
        """
        spec = self.spec
        busy = len(self.leases)
        if busy >= spec.slots:
            return False
        interactive, normal, _ = self._under_way
        if (
            spec.reserve
            and priority is not Priority.INTERACTIVE
            and busy - interactive >= spec.slots - spec.reserve
        ):
            return False
        if spec.soft_slots is None:
            return True
        quick = interactive + normal
        if priority is not Priority.BATCH:
            return quick < spec.soft_slots
        return busy < spec.soft_slots or (quick == 0 and alone)

    def take(self, lease: SlotLease) -> None:
        self.leases[lease.id] = lease
        self.prompt_bytes += lease.entry.prompt_bytes
        if not self.plain:
            self._count(lease, 1)
        if self.breaker.open_until is not None and lease.releasing_until is None:
            self.breaker.trial = lease.id

    def release(self, lease: SlotLease, now: float) -> None:
        self._count(lease, -1)
        lease.changed_at = now
        lease.releasing_until = now + self.spec.release_bound_s
        self.breaker.ended(lease.id)

    def give_back(self, lease: SlotLease) -> None:
        del self.leases[lease.id]
        self.prompt_bytes -= lease.entry.prompt_bytes
        if not self.plain:
            self._count(lease, -1)
        if self.breaker.trial is not None:
            self.breaker.ended(lease.id)

    def _count(self, lease: SlotLease, change: int) -> None:
        if lease.releasing_until is None:
            self._under_way[lease.entry.priority] += change

    def surely_free(self, busy: int, asked_at: float) -> Iterable[SlotLease]:
        """Of the slots in release, those that cannot be among the `busy` ones.

        What was granted or given up after the question before this one, without a byte of an
        answer, may still be on its way to a slot: it is neither counted as busy nor free."""
        before = self._asked_before
        arrived = [
            lease for lease in self.leases.values() if lease.answered or lease.changed_at < before
        ]
        releasing = [lease for lease in arrived if lease.releasing_until is not None]
        settled = len(arrived) - len(releasing)
        self._asked_before = asked_at
        return releasing[: max(0, len(releasing) - max(0, busy - settled))]


SMOOTHING = 0.2  # weight of the newest request in the measured time of a request


class ModelPool:
    """The replicas of one model in the order in which they came, and its queue.

    Every choice looks at all of them.
    """

    def __init__(self, aging_s: float) -> None:
        self.queue = ModelQueue(aging_s)
        self.replicas: list[GatewayReplica] = []
        self._by_name: dict[str, GatewayReplica] = {}
        self.service_s = 0.0  # smoothed duration of a lease; 0: none has ended

    # What happens to its replicas

    def become(self, replicas: list[GatewayReplica]) -> None:
        """Replace the replicas."""
        for replica in replicas:
            if not replica.listed:
                replica.listed = True
                self._count_flows(replica, 1)
        self.replicas = replicas
        self._by_name = {replica.name: replica for replica in replicas}

    def lose(self, replica: GatewayReplica) -> None:
        """Note that a replica left the table. `become` follows."""
        replica.listed = False
        self._count_flows(replica, -1)

    # What stands

    def alive(self, now: float) -> list[GatewayReplica]:
        """Return those that may be tried, full or not."""
        return [replica for replica in self.replicas if replica.usable(now)]

    def others(self, replica: GatewayReplica, now: float) -> bool:
        """Return whether another replica than this may be tried."""
        return any(
            candidate is not replica and candidate.usable(now) for candidate in self.replicas
        )

    def expected_wait_s(self, now: float, arrived_at: float | None = None) -> float:
        """Return how long a new request would wait for a slot, from the measured time of a
        request.

        `arrived_at`: of a request that has come back, which goes before all that came after it.
        """
        slots = sum(replica.slots for replica in self.alive(now))
        drained_per_s = (slots or 1) / (self.service_s or 1.0)
        ahead = len(self.queue)
        if arrived_at is not None:
            ahead = sum(entry.arrived_at <= arrived_at for entry in self.queue.by_id.values())
        return max(1.0, (ahead + 1) / drained_per_s)

    def is_beyond_patience(self, entry: Arrival, now: float) -> bool:
        """Return whether its client would give up before a slot is expected to be free."""
        if entry.patience_s is None or not self.service_s:
            return False
        return self.expected_wait_s(now, entry.arrived_at) > entry.patience_s

    def next(
        self, homes: ConversationAffinity, now: float
    ) -> tuple[Arrival, GatewayReplica] | None:
        """Return the next request that fits: a class that may not have the free slot does not hold
        up one that may.
        """
        if not any(
            len(replica.leases) < replica.slots and replica.usable(now)
            for replica in self.replicas
        ):
            return None
        for entry in self.queue.candidates():
            if (chosen := self.choose(entry, homes, now)) is not None:
                return entry, chosen
        return None

    def choose(
        self, entry: Arrival, homes: ConversationAffinity, now: float
    ) -> GatewayReplica | None:
        """Return where the request may go now, or None if it has to wait."""
        if len(self.replicas) == 1:
            only = self.replicas[0]
            if not only.plain:
                return self._least_loaded(entry, now)
            if len(only.leases) < only.slots and only.usable(now):
                return only
            return None
        least_loaded = self._least_loaded(entry, now)
        if least_loaded is None:
            return None
        avoided = self._by_name.get(entry.avoid) if entry.avoid is not None else None
        if avoided is not None:
            alternative = self._least_loaded(entry, now, avoided)
            if alternative is not None:
                least_loaded = alternative
            elif now < entry.avoid_until and self.others(avoided, now):
                return None
            else:
                avoided = None
        if entry.conversation is None:
            return least_loaded
        preferred = self._preferred(entry, entry.conversation, least_loaded, homes, now)
        if preferred is None:
            return least_loaded
        if preferred is avoided or not self._has_slot(preferred, entry):
            preferred = least_loaded
        self._remember(entry, entry.conversation, preferred, homes)
        return preferred

    def _preferred(
        self,
        entry: Arrival,
        conversation: int,
        least_loaded: GatewayReplica,
        homes: ConversationAffinity,
        now: float,
    ) -> GatewayReplica | None:
        """Return where the request's conversation should go on, whether or not a slot is free
        there; None: only one replica is alive, and there is nothing to choose.
        """
        session = entry.session
        home = self._by_name.get(homes.of(conversation) or "")
        holds_prefix = home is not None and (
            session is not None or entry.prompt_bytes >= LONG_PROMPT_BYTES
        )
        if home is None and session is not None:
            # A sub-agent, or a conversation that was compacted.
            home = self._by_name.get(homes.of(session) or "")
        if home is not None and home.usable(now):
            excess_load = home.busy / home.slots - least_loaded.busy / least_loaded.slots
            is_clearly_busier = excess_load > max(CLEARLY_BUSIER, 1 / home.slots)
            if holds_prefix or home is least_loaded or not is_clearly_busier:
                return home
            return least_loaded
        alive = self.alive(now)
        if len(alive) == 1:
            return None
        winner = rendezvous(conversation, alive)
        if load(winner) == load(least_loaded):
            return winner
        return least_loaded

    def _remember(
        self,
        entry: Arrival,
        conversation: int,
        replica: GatewayReplica,
        homes: ConversationAffinity,
    ) -> None:
        """Note where a conversation goes on, and its session if that lives nowhere yet."""
        homes.remember(conversation, replica.name)
        session = entry.session
        if session is not None and self._by_name.get(homes.of(session) or "") is None:
            homes.remember(session, replica.name)

    def _least_loaded(
        self, entry: Arrival, now: float, avoided: GatewayReplica | None = None
    ) -> GatewayReplica | None:
        """Return the open replica with the smallest share of busy slots, then prompts under way,
        then most free.
        """
        # Written out: `min` with a key costs twice as much, and this runs once or twice a request.
        least_loaded = None
        least_share = inf
        for replica in self.replicas:
            busy = len(replica.leases)
            slots = replica.slots
            if busy >= slots or (share := busy / slots) > least_share or replica is avoided:
                continue
            if least_loaded is not None and share == least_share:
                more_bytes = replica.prompt_bytes - least_loaded.prompt_bytes
                if more_bytes > 0 or (
                    more_bytes == 0 and slots - busy <= least_loaded.slots - least_loaded.busy
                ):
                    continue
            if replica.usable(now) and (replica.plain or self._has_slot(replica, entry)):
                least_loaded = replica
                least_share = share
        return least_loaded

    def _has_slot(self, replica: GatewayReplica, entry: Arrival) -> bool:
        """Return whether the request's class may take a slot of the replica."""
        if replica.plain:
            return len(replica.leases) < replica.slots
        return replica.allows(entry.priority, alone=self.queue.only_batch())

    def _count_flows(self, replica: GatewayReplica, sign: int) -> None:
        for lease in replica.leases.values():
            if lease.releasing_until is None:
                self.queue.under_way(lease.entry.flow, sign)
