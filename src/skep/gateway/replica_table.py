"""The replicas and the queue of one model, and which replica a request goes to. `admission` decides when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from skep.config.key_ring import Priority
from skep.gateway.queue import ModelQueue, QueuedRequest
from skep.gateway.ranking import TournamentTree
from skep.gateway.routing import ConversationAffinity, HashRing, clearly_busier, load, rendezvous, seed_of
from skep.gateway.values import ReplicaSpec

FIRST_OPEN_S = 0.5
LONGEST_OPEN_S = 15.0
BAD_ANSWERS = 3  # in a row (502, 503, 504, or closed without a byte), before a replica is passed over
BAD_CHECKS = 3


class Breaker:
    __slots__ = ("_bad_answers", "_bad_checks", "_open_s", "heard_at", "open_until", "trial")

    def __init__(self, now: float) -> None:
        self.open_until: float | None = None  # None: closed
        self.trial: str | None = None  # the request that decides, while half-open
        self.heard_at = now  # the last sign of life
        self._open_s = 0.0
        self._bad_answers = 0
        self._bad_checks = 0

    def __repr__(self) -> str:
        return "<Breaker closed>" if self.open_until is None else f"<Breaker open until {self.open_until:.1f}>"

    def state(self, now: float) -> str:
        if self.open_until is None:
            return "closed"
        return "open" if now < self.open_until else "half-open"

    def allows(self, now: float) -> bool:
        return self.open_until is None or (self.open_until <= now and self.trial is None)

    def granted(self, request_id: str) -> None:
        """It goes to this replica, which `allows` it. `ended` is called for it, whatever comes."""
        if self.open_until is not None:
            self.trial = request_id

    def answered(self, now: float) -> None:
        """A request got an answer that is no complaint about the server."""
        self.heard_at = now
        self.open_until = self.trial = None
        self._open_s = 0.0
        self._bad_answers = self._bad_checks = 0

    def failed(self, now: float) -> None:
        """Nobody is there: refused, or silent. A trial lasts until it has `ended`, all the same."""
        if self.open_until is not None and now < self.open_until:
            return
        self._open_s = min(LONGEST_OPEN_S, max(FIRST_OPEN_S, 2 * self._open_s))
        self.open_until = now + self._open_s

    def bad_answer(self, now: float) -> None:
        self.heard_at = now
        self.dropped(now)

    def dropped(self, now: float) -> None:
        """A request got nothing: that may be the request's own fault, while others are answered."""
        self._bad_answers += 1
        if self._bad_answers >= BAD_ANSWERS or self.open_until is not None:
            self.failed(now)

    def ended(self, request_id: str) -> None:
        """A request left the replica, with a verdict or without. If it was the trial, the next one is."""
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


ProcessKey = tuple[str, str, str]


def process_of(spec: ReplicaSpec) -> ProcessKey:
    """The same process behind the same name: its slots may change, its address may not."""
    return spec.name, spec.url, spec.model


@dataclass(slots=True, eq=False)
class SlotLease:
    id: str
    home: GatewayReplica
    entry: QueuedRequest
    granted_at: float
    answered: bool = False
    releasing_until: float | None = None  # None: active


class GatewayReplica:
    """`leases` holds active and releasing ones. `order`: its place among all that ever came into the table."""

    __slots__ = (
        "_asked_before", "_under_way", "breaker", "draining", "leases", "listed", "name", "order", "plain",
        "prompt_bytes", "ranked", "seed", "slots", "spec",
    )  # fmt: skip

    def __init__(self, spec: ReplicaSpec, now: float) -> None:
        self.name = spec.name
        self.seed = seed_of(spec.name)
        self.leases: dict[str, SlotLease] = {}
        self.breaker = Breaker(now)
        self.prompt_bytes = 0
        self.order = 0
        self.ranked = 0  # busy slots when its pool ranked it
        self.listed = False  # its model's pool counts with it
        self._asked_before = -1.0  # when the busy count before the newest one was asked for
        self.become(spec)

    def __repr__(self) -> str:
        return f"<GatewayReplica {self.name} {self.busy}/{self.slots} {self.breaker!r}>"

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

    def take(self, lease: SlotLease) -> None:
        self.leases[lease.id] = lease
        self.prompt_bytes += lease.entry.arrival.prompt_bytes
        if not self.plain:
            self._count(lease, 1)
        if self.breaker.open_until is not None and lease.releasing_until is None:
            self.breaker.granted(lease.id)

    def release(self, lease: SlotLease, until: float) -> None:
        self._count(lease, -1)
        lease.releasing_until = until
        self.breaker.ended(lease.id)

    def give_back(self, lease: SlotLease) -> None:
        del self.leases[lease.id]
        self.prompt_bytes -= lease.entry.arrival.prompt_bytes
        if not self.plain:
            self._count(lease, -1)
        if self.breaker.trial is not None:
            self.breaker.ended(lease.id)

    def _count(self, lease: SlotLease, more: int) -> None:
        if lease.releasing_until is None:
            self._under_way[lease.entry.arrival.priority] += more

    def surely_free(self, busy: int, asked_at: float) -> Iterable[SlotLease]:
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


ALONE = len(Priority)  # the audience beside the classes: batch, while nothing else waits
_CLASSES = (*Priority, Priority.BATCH)
SMALL = 64  # replicas up to which a new conversation asks all of them


class ReplicaRanking:
    """`aside`: replicas that may not be tried. Those with an open breaker come back in time, by `wake`."""

    def __init__(self) -> None:
        self.replicas: list[GatewayReplica] = []
        self.only: GatewayReplica | None = None  # where there is one: it needs no ranks
        self.wakes_at = inf  # when `wake` has something to do
        self.slots = 0  # of those that may be tried
        self._busy = 0  # leases of all, when they were ranked
        self._all_slots = 0
        self._aside: set[GatewayReplica] = set()
        self._asleep: TournamentTree[GatewayReplica] = TournamentTree()
        self._plain = True
        self._changed: set[GatewayReplica] = set()  # since they were ranked
        self._ranks: tuple[TournamentTree[GatewayReplica], ...] = (
            TournamentTree(),
        )  # by audience; one for all where classes do not matter
        self._ring: HashRing[GatewayReplica] | None = None

    def __repr__(self) -> str:
        return f"<ReplicaRanking {self.usable} of {len(self.replicas)} usable>"

    def become(self, replicas: list[GatewayReplica], changed: set[GatewayReplica]) -> None:
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

    def _start(self, replicas: list[GatewayReplica], *, plain: bool) -> None:
        self.replicas, self._plain = replicas, plain
        self.only = replicas[0] if len(replicas) == 1 else None
        self._aside, self._asleep, self._ring, self.wakes_at = set(), TournamentTree(), None, inf
        self._ranks = (TournamentTree(),) if plain else tuple(TournamentTree() for _ in range(ALONE + 1))
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

    def changed(self, replica: GatewayReplica) -> None:
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

    def least(self, audience: int) -> GatewayReplica | None:
        """By the share of busy slots, then by the prompts under way, then by free slots."""
        if self.only is not None:
            return self.only if self.is_open(self.only, audience) else None
        if self._changed:
            self._settle()
        return self._ranks[0 if self._plain else audience].first

    def least_but(self, audience: int, replica: GatewayReplica) -> GatewayReplica | None:
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

    def is_open(self, replica: GatewayReplica, audience: int) -> bool:
        """Whether it may be tried and has a slot for them."""
        if len(replica.leases) >= replica.slots or (self._aside and replica in self._aside):
            return False
        return replica.plain or replica.allows(_CLASSES[audience], alone=audience == ALONE)

    def may_be_tried(self, replica: GatewayReplica) -> bool:
        return replica not in self._aside

    def hashed_replica(self, conversation: int) -> GatewayReplica | None:
        """The replica that this conversation goes to by itself, of those that may be tried."""
        if len(self.replicas) > SMALL:
            self._ring = self._ring or HashRing(self.replicas)
            return self._ring.next(conversation, self.may_be_tried)
        alive = [replica for replica in self.replicas if replica not in self._aside]
        return rendezvous(conversation, alive) if alive else None

    def _settle(self) -> None:
        for replica in self._changed:
            self._rank(replica)
        self._changed.clear()

    def _rank(self, replica: GatewayReplica) -> None:
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

    def _set_aside(self, replica: GatewayReplica) -> None:
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

    def _take_back(self, replica: GatewayReplica) -> None:
        self._asleep.drop(replica)
        self.wakes_at = self._asleep.first_number
        self._aside.discard(replica)
        self.slots += replica.slots


def _rank_of(replica: GatewayReplica) -> tuple[float, int, int, int, GatewayReplica]:
    busy, slots = len(replica.leases), replica.slots
    return busy / slots, replica.prompt_bytes, busy - slots, replica.order, replica


SMOOTHING = 0.2  # weight of the newest request in the measured time of a request


class ModelPool:
    def __init__(self, aging_s: float) -> None:
        self.queue = ModelQueue(aging_s)
        self.ranking = ReplicaRanking()
        self._by_name: dict[str, GatewayReplica] = {}
        self._counts_flows = False  # in a small pool only while somebody waits: it is quickly counted
        self._service_s: float | None = None  # smoothed duration of a lease

    def __repr__(self) -> str:
        return f"<ModelPool {self.ranking!r} {self.queue!r}>"

    @property
    def replicas(self) -> list[GatewayReplica]:
        return self.ranking.replicas

    def set_aging(self, aging_s: float) -> None:
        self.queue.aging_s = aging_s

    # What happens to its replicas

    def become(self, replicas: list[GatewayReplica], changed: set[GatewayReplica]) -> None:
        """These, of which some have `changed` what was said of them."""
        for replica in replicas:
            if not replica.listed:
                replica.listed = True
                if self._counts_flows:
                    self._count_flows(replica, 1)
        if replicas != self.replicas:
            self._by_name = {replica.name: replica for replica in replicas}
        self.ranking.become(replicas, changed)

    def lose(self, replica: GatewayReplica) -> None:
        """It left the table. `become` follows."""
        replica.listed = False
        if self._counts_flows:
            self._count_flows(replica, -1)

    def took(self, lease: SlotLease) -> None:
        """One of its replicas did."""
        if self.ranking.only is None or lease.home.breaker.open_until is not None:
            self.ranking.changed(lease.home)
        if self._counts_flows and lease.releasing_until is None:
            self._count_flow(lease, 1)

    def released(self, lease: SlotLease) -> None:
        self.ranking.changed(lease.home)
        if self._counts_flows:
            self._count_flow(lease, -1)

    def got_back(self, lease: SlotLease) -> None:
        if self.ranking.only is None or lease.home.breaker.open_until is not None:
            self.ranking.changed(lease.home)
        if self._counts_flows and lease.releasing_until is None:
            self._count_flow(lease, -1)

    def note_service(self, seconds: float) -> None:
        before = self._service_s
        self._service_s = seconds if before is None else (1 - SMOOTHING) * before + SMOOTHING * seconds

    # What stands

    def alive(self, now: float) -> list[GatewayReplica]:
        """Those that may be tried, full or not."""
        return [replica for replica in self.replicas if replica.usable(now)]

    def least_busy(self, now: float) -> GatewayReplica | None:
        """For a request that takes no slot."""
        if len(self.replicas) > SMALL:
            self._wake(now)
            found = self.ranking.least(Priority.INTERACTIVE)
            if found is not None:
                return found
        return min(self.alive(now), key=_share, default=None)

    def others(self, replica: GatewayReplica, now: float) -> bool:
        """Whether another one than this may be tried."""
        self._wake(now)
        itself = replica.listed and self.ranking.may_be_tried(replica)
        return self.ranking.usable > itself

    def expected_wait_s(self, now: float) -> float:
        """Until a request that came now would have a slot, from the measured time of a request."""
        self._wake(now)
        drained_per_s = (self.ranking.slots or 1) / (self._service_s or 1.0)
        return max(1.0, (len(self.queue) + 1) / drained_per_s)

    def has_room(self, now: float) -> bool:
        self._wake(now)
        return self.ranking.has_room()

    def candidates(self) -> Iterator[QueuedRequest]:
        """Those of the queue who are next, at most one per class, the first one first."""
        if not self._counts_flows:
            self._counts_flows = True
            self.queue.forget_flows()
            for replica in self.replicas:
                self._count_flows(replica, 1)
        return self.queue.candidates()

    def choose(self, entry: QueuedRequest, homes: ConversationAffinity, now: float) -> GatewayReplica | None:
        """Where the request may go now. None: it waits."""
        roster = self.ranking
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
        self,
        conversation: int,
        homes: ConversationAffinity,
        audience: int,
        least: GatewayReplica,
        avoided: GatewayReplica | None,
    ) -> GatewayReplica:
        roster, name = self.ranking, homes.of(conversation)
        home = self._by_name.get(name) if name is not None else None
        if home is not None and roster.may_be_tried(home):
            if home is least:
                return home
            share = roster.share if len(roster.replicas) > SMALL else least.busy / least.slots
            stays = home is not avoided and roster.is_open(home, audience) and not clearly_busier(home, share)
            return home if stays else least
        winner = roster.hashed_replica(conversation)
        if winner is None or winner is avoided or not roster.is_open(winner, audience):
            return least
        return winner if load(winner) == load(least) else least

    def _wake(self, now: float) -> None:
        if self.ranking.wakes_at <= now:
            self.ranking.wake(now)

    def _count_flow(self, lease: SlotLease, more: int) -> None:
        self.queue.under_way(lease.entry.arrival.flow, more)
        if not self.queue.by_id and len(self.replicas) <= SMALL:
            self._counts_flows = False

    def _count_flows(self, replica: GatewayReplica, sign: int) -> None:
        for lease in replica.leases.values():
            if lease.releasing_until is None:
                self.queue.under_way(lease.entry.arrival.flow, sign)


def _share(replica: GatewayReplica) -> float:
    return replica.busy / replica.slots if replica.slots else float("inf")
