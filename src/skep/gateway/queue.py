"""The waiting requests of one model: classes that age, and fair shares between flows inside a class.

A request's place among the classes is `arrived + class x aging`: an interactive request goes before every batch
request that has not waited twice the aging time longer, and no class starves. Inside a class the flow with the fewest
requests under way is next, of equals the one served longest ago. None of it is searched for: flows and deadlines are
ranked as they change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter

from skep.config.key_ring import Priority
from skep.gateway.ranking import TournamentTree
from skep.gateway.values import Arrival


@dataclass(slots=True, eq=False)
class QueuedRequest:
    arrival: Arrival
    arrived_at: float
    deadline: float
    attempts: int = 0
    avoid: str | None = None  # the replica that failed it last
    avoid_until: float = 0.0  # so long it rather waits for another one
    place: int = 0  # in the order in which they came into the queue

    @property
    def id(self) -> str:
        return self.arrival.request_id


FEW = 4  # flows that are quicker looked at than ranked
_ARRIVED = attrgetter("arrived_at")


class _Flow:
    """Never empty: the last entry takes the flow with it."""

    __slots__ = ("entries", "number", "served")

    def __init__(self, number: int, served: int) -> None:
        self.entries: OrderedDict[str, QueuedRequest] = OrderedDict()
        self.number = number
        self.served = served  # when it was served last, in the queue's own count

    @property
    def head(self) -> QueuedRequest:
        return next(iter(self.entries.values()))


class _PriorityClass:
    """The flows of one class. Ranked only when it is asked who is next, and only where there are several."""

    __slots__ = ("_changed", "_fairest", "_oldest", "flows", "waiting")

    def __init__(self) -> None:
        self.flows: dict[str, _Flow] = {}
        self.waiting = 0
        self._changed: dict[_Flow, str] = {}  # since they were ranked, with their names
        self._oldest: TournamentTree[_Flow] = TournamentTree()  # by the arrival of its head
        self._fairest: TournamentTree[_Flow] = TournamentTree()  # by requests under way, then by when it was served

    def changed(self, name: str, flow: _Flow) -> None:
        self._changed[flow] = name

    def gone(self, name: str, flow: _Flow) -> None:
        del self.flows[name]
        self._changed.pop(flow, None)
        self._oldest.drop(flow)
        self._fairest.drop(flow)

    def next(self, active: dict[str, int]) -> tuple[QueuedRequest, QueuedRequest]:
        """The oldest of its heads, and the head of the flow whose turn it is."""
        if len(self.flows) == 1:
            (flow,) = self.flows.values()
            head = flow.head
            return head, head
        if len(self.flows) <= FEW:
            oldest_head = min((flow.head for flow in self.flows.values()), key=_ARRIVED)
            turn = min(self.flows.items(), key=lambda one: (active.get(one[0], 0), one[1].served))
            return oldest_head, turn[1].head
        for flow, name in self._changed.items():
            self._oldest.put((flow.head.arrived_at, flow.number, flow))
            self._fairest.put((active.get(name, 0), flow.served, flow.number, flow))
        self._changed.clear()
        oldest, fairest = self._oldest.first, self._fairest.first
        assert oldest is not None
        assert fairest is not None
        return oldest.head, fairest.head


class _Deadlines:
    """By the second: what leaves the queue in time, as most does, costs no search."""

    __slots__ = ("_seconds", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, dict[str, QueuedRequest]] = {}
        self._seconds: list[int] = []  # a heap

    def put(self, entry: QueuedRequest) -> None:
        second = int(entry.deadline)
        found = self._waiting.get(second)
        if found is None:
            found = self._waiting[second] = {}
            heappush(self._seconds, second)
        found[entry.id] = entry

    def drop(self, entry: QueuedRequest) -> None:
        found = self._waiting.get(int(entry.deadline))
        if found is not None:
            found.pop(entry.id, None)

    def pop(self, now: float) -> list[QueuedRequest]:
        """Those whose time has come; they are named once."""
        found: list[QueuedRequest] = []
        while self._seconds and self._seconds[0] <= now:
            entries = self._waiting[self._seconds[0]]
            due = [entry for entry in entries.values() if entry.deadline <= now]
            found += due
            if self._seconds[0] + 1 > now:
                for entry in due:
                    del entries[entry.id]
                break
            del self._waiting[heappop(self._seconds)]
        return found


class ModelQueue:
    def __init__(self, aging_s: float) -> None:
        self.aging_s = aging_s
        self._classes: dict[Priority, _PriorityClass] = {priority: _PriorityClass() for priority in Priority}
        self.by_id: dict[str, QueuedRequest] = {}  # empty: nobody waits
        self._deadlines = _Deadlines()
        self._active: dict[str, int] = {}  # requests under way, by flow
        self._served = 0
        self._put = 0

    def __repr__(self) -> str:
        waiting = {priority.label: self.waiting(priority) for priority in Priority}
        return f"<ModelQueue {waiting}>"

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(list(self.by_id.values()))

    def waiting(self, priority: Priority) -> int:
        return self._classes[priority].waiting

    def only_batch(self) -> bool:
        return not self._classes[Priority.INTERACTIVE].flows and not self._classes[Priority.NORMAL].flows

    def put(self, entry: QueuedRequest, *, first: bool = False) -> None:
        """At the end of its flow, or (`first`) back at its head."""
        ranks = self._classes[entry.arrival.priority]
        name = entry.arrival.flow
        flow = ranks.flows.get(name)
        self._put += 1
        entry.place = self._put
        if flow is None:
            flow = ranks.flows[name] = _Flow(self._put, self._served)
            ranks.changed(name, flow)
        flow.entries[entry.id] = entry
        if first:
            flow.entries.move_to_end(entry.id, last=False)
            ranks.changed(name, flow)
        ranks.waiting += 1
        self.by_id[entry.id] = entry
        self._deadlines.put(entry)

    def remove(self, request_id: str) -> QueuedRequest | None:
        entry = self.by_id.pop(request_id, None)
        if entry is None:
            return None
        self._deadlines.drop(entry)
        ranks = self._classes[entry.arrival.priority]
        ranks.waiting -= 1
        name = entry.arrival.flow
        flow = ranks.flows[name]
        del flow.entries[request_id]
        self._served += 1
        flow.served = self._served
        if flow.entries:
            ranks.changed(name, flow)
        else:
            ranks.gone(name, flow)
        return entry

    def to_evict(self, arrival: Arrival) -> str | None:
        """Who leaves a full queue for `arrival`: the newest of the lowest class' longest flow. None: `arrival`."""
        lowest = max((priority for priority, ranks in self._classes.items() if ranks.flows), default=None)
        if lowest is None or arrival.priority > lowest:
            return None
        flows = self._classes[lowest].flows
        longest = max(flows.values(), key=lambda flow: len(flow.entries))
        if arrival.priority == lowest:
            own = flows.get(arrival.flow)
            if (len(own.entries) if own is not None else 0) + 1 >= len(longest.entries):
                return None
        return next(reversed(longest.entries))

    def overdue(self, now: float) -> list[QueuedRequest]:
        """Those whose deadline has come, in the order in which they came. They are named once: they have to go."""
        return sorted(self._deadlines.pop(now), key=lambda entry: entry.place)

    def forget_flows(self) -> None:
        """What is under way is counted anew, by `under_way`."""
        self._active.clear()

    def under_way(self, flow: str, more: int) -> None:
        """So many `more` requests of the flow are with a replica, or fewer."""
        active = self._active
        if count := active.get(flow, 0) + more:
            active[flow] = count
        else:
            del active[flow]
        if self.by_id:
            for ranks in self._classes.values():
                if flow in ranks.flows:
                    ranks.changed(flow, ranks.flows[flow])

    def candidates(self) -> Iterator[QueuedRequest]:
        """At most one per class, the next one first."""
        heads = []
        for priority, ranks in self._classes.items():
            if ranks.flows:
                oldest, fairest = ranks.next(self._active)
                heads.append((oldest.arrived_at + priority * self.aging_s, priority, oldest, fairest))
        if len(heads) == 1:
            yield heads[0][3]
            return
        heads.sort(key=lambda head: head[:2])
        for place, (_, priority, oldest, fairest) in enumerate(heads):
            aged = any(other[1] < priority for other in heads[place:])
            yield oldest if aged else fairest
