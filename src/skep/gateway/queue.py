"""The waiting requests of one model: classes that age, and fair shares between flows inside a class.

Also what admission is told and what it answers, as values.

A request's place among the classes is `arrived + class x aging`: an interactive request goes before every batch
request that has not waited twice the aging time longer, and no class starves. Inside a class the flow with the fewest
requests under way is next, of equals the one served longest ago. A queue is bounded by `AdmissionLimits.max_queue`, so
flows and deadlines are searched, not indexed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

import msgspec

from skep.config.gateway_messages import ReplicaSpec
from skep.config.keys import Priority


@dataclass(slots=True)
class Arrival:
    """A request as far as admission cares. Like `Forward` not frozen: one is made for every request."""

    request_id: str
    model: str
    priority: Priority = Priority.NORMAL
    flow: str = ""
    conversation: int | None = None  # a digest of its beginning or of its session; None: any replica will do
    prompt_bytes: int = 0
    max_wait_s: float | None = None  # shorter than the limit, if the client says so
    # Admission's own notes
    arrived_at: float = 0.0
    deadline: float = 0.0
    attempts: int = 0
    avoid: str | None = None  # the replica that failed it last
    avoid_until: float = 0.0  # until then it rather waits for another replica


class RejectCode(Enum):
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    UNKNOWN_MODEL = "model_not_found"
    SHUTTING_DOWN = "shutting_down"
    REPLICA_LOST = "replica_lost"
    LOAD_FAILED = "model_load_failed"


@dataclass(slots=True)
class Forward:
    """Send it there."""

    request_id: str
    replica: ReplicaSpec
    queued_s: float
    attempt: int


class Reject(msgspec.Struct, frozen=True):
    request_id: str
    code: RejectCode
    retry_after_s: float | None = None
    why: str | None = None  # where the code alone does not say it


class Withdraw(msgspec.Struct, frozen=True):
    """The replica shows no sign of life: give the request up there, and say so with `Admission.gave_up`."""

    request_id: str


Action = Forward | Reject | Withdraw


@dataclass(slots=True, eq=False)
class _Flow:
    """The waiting requests of one flow in one class. Never empty: the last entry takes the flow with it."""

    turn: tuple[int, int]  # requests under way, and when it was served last, in the queue's own count
    entries: OrderedDict[str, Arrival] = field(default_factory=OrderedDict)

    @property
    def head(self) -> Arrival:
        return next(iter(self.entries.values()))


_TURN = attrgetter("turn")


class ModelQueue:
    """Requests by class and flow, and all of them by id in the order in which they came."""

    def __init__(self, aging_s: float) -> None:
        self.aging_s = aging_s
        self._classes: dict[Priority, dict[str, _Flow]] = {priority: {} for priority in Priority}
        self.by_id: dict[str, Arrival] = {}  # empty: nobody waits
        self._active: dict[str, int] = {}  # requests under way, by flow
        self._served = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Arrival]:
        return iter(list(self.by_id.values()))

    def waiting(self) -> dict[str, int]:
        """By class."""
        counts = Counter(entry.priority for entry in self.by_id.values())
        return {priority.label: counts[priority] for priority in Priority}

    def only_batch(self) -> bool:
        return not self._classes[Priority.INTERACTIVE] and not self._classes[Priority.NORMAL]

    def put(self, entry: Arrival, *, first: bool = False) -> None:
        """Add a request at the end of its flow, or (`first`) at its head."""
        flows, name = self._classes[entry.priority], entry.flow
        flow = flows.get(name)
        if flow is None:
            flow = flows[name] = _Flow((self._active.get(name, 0), self._served))
        flow.entries[entry.request_id] = entry
        if first:
            flow.entries.move_to_end(entry.request_id, last=False)
        self.by_id[entry.request_id] = entry

    def remove(self, request_id: str) -> Arrival | None:
        entry = self.by_id.pop(request_id, None)
        if entry is None:
            return None
        flows, name = self._classes[entry.priority], entry.flow
        flow = flows[name]
        del flow.entries[request_id]
        self._served += 1
        flow.turn = (flow.turn[0], self._served)
        if not flow.entries:
            del flows[name]
        return entry

    def to_evict(self, arrival: Arrival) -> str | None:
        """Return who leaves a full queue: the newest of the lowest class' longest flow, or None for `arrival`."""
        lowest = max((priority for priority, flows in self._classes.items() if flows), default=None)
        if lowest is None or arrival.priority > lowest:
            return None
        flows = self._classes[lowest]
        longest = max(flows.values(), key=lambda flow: len(flow.entries))
        if arrival.priority == lowest:
            own = flows.get(arrival.flow)
            if (len(own.entries) if own is not None else 0) + 1 >= len(longest.entries):
                return None
        return next(reversed(longest.entries))

    def under_way(self, flow: str, more: int) -> None:
        """Note that so many `more` requests of the flow are with a replica, or fewer."""
        if count := self._active.get(flow, 0) + more:
            self._active[flow] = count
        else:
            del self._active[flow]
        if self.by_id:
            for flows in self._classes.values():
                if waiting := flows.get(flow):
                    waiting.turn = (count, waiting.turn[1])

    def candidates(self) -> Iterator[Arrival]:
        """Yield at most one request per class, the next one first."""
        waiting = [(priority, flows.values()) for priority, flows in self._classes.items() if flows]
        if len(waiting) == 1:
            yield min(waiting[0][1], key=_TURN).head
            return
        heads = []
        for priority, flows in waiting:
            oldest = min((flow.head for flow in flows), key=lambda head: head.arrived_at)
            heads.append((oldest.arrived_at + priority * self.aging_s, priority, oldest, flows))
        heads.sort(key=lambda head: head[:2])
        for place, (_, priority, oldest, flows) in enumerate(heads):
            aged = any(other[1] < priority for other in heads[place:])
            yield oldest if aged else min(flows, key=_TURN).head
