"""The waiting requests of one model, and which of them is next. Knows no replicas and no clock.

A request's place among the classes is `arrived + class x aging`: an interactive request goes
before every batch request that has not waited twice the aging time longer, and no class starves.
Inside a class the flow with the fewest requests under way is next, of equals the one served
longest ago. A queue is bounded by `AdmissionLimits.max_queue`, so flows and deadlines are
searched, not indexed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from skep.config.keys import Priority
from skep.gateway.admission_messages import Arrival


@dataclass(slots=True, eq=False)
class _Flow:
    """The waiting requests of one flow in one class. It is never empty: the flow goes with its
    last entry.
    """

    # Requests under way, and when it was served last, in the queue's own count.
    turn: tuple[int, int]
    entries: OrderedDict[str, Arrival] = field(default_factory=OrderedDict)

    @property
    def head(self) -> Arrival:
        return next(iter(self.entries.values()))


def _turn_and_arrival(flow: _Flow) -> tuple[int, int, float]:
    """Return what orders flows: of equal turns, the one whose first request came first is next."""
    return *flow.turn, flow.head.arrived_at


class ModelQueue:
    """Requests by class and flow, and all of them by id in the order in which they came."""

    def __init__(self, aging_s: float) -> None:
        self.aging_s = aging_s
        self._classes: dict[Priority, dict[str, _Flow]] = {priority: {} for priority in Priority}
        self.by_id: dict[str, Arrival] = {}  # empty: nobody waits
        self._active: dict[str, int] = {}  # requests under way, by flow
        self._served = 0

    @property
    def served(self) -> int:
        """Count the requests that have left the queue."""
        return self._served

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Arrival]:
        return iter(list(self.by_id.values()))

    def waiting(self) -> dict[str, int]:
        """Count the waiting requests, by class."""
        counts = Counter(entry.priority for entry in self.by_id.values())
        return {priority.label: counts[priority] for priority in Priority}

    def only_batch(self) -> bool:
        """Return whether nothing but batch waits."""
        interactive = self._classes[Priority.INTERACTIVE]
        normal = self._classes[Priority.NORMAL]
        return not interactive and not normal

    def put(self, entry: Arrival, *, first: bool = False, turn: int | None = None) -> None:
        """Add a request at the end of its flow, or (`first`) at its head.

        `turn`: it has come back to the place of its first arrival; its flow was served last then.
        """
        flows = self._classes[entry.priority]
        name = entry.flow
        flow = flows.get(name)
        if flow is None:
            under_way = self._active.get(name, 0)
            flow = flows[name] = _Flow((under_way, self._served))
        flow.entries[entry.request_id] = entry
        if first:
            flow.entries.move_to_end(entry.request_id, last=False)
        elif turn is not None:
            under_way, served_last = flow.turn
            flow.turn = (under_way, min(served_last, turn))
            later = [
                waiting
                for waiting in flow.entries.values()
                if waiting.arrived_at > entry.arrived_at
            ]
            for later_entry in later:
                flow.entries.move_to_end(later_entry.request_id)
        self.by_id[entry.request_id] = entry

    def turn_of(self, entry: Arrival) -> int:
        """Return when the flow of a waiting request was served last."""
        return self._classes[entry.priority][entry.flow].turn[1]

    def remove(self, request_id: str) -> Arrival | None:
        entry = self.by_id.pop(request_id, None)
        if entry is None:
            return None
        flows = self._classes[entry.priority]
        name = entry.flow
        flow = flows[name]
        del flow.entries[request_id]
        self._served += 1
        under_way, _ = flow.turn
        flow.turn = (under_way, self._served)
        if not flow.entries:
            del flows[name]
        return entry

    def clear(self) -> list[str]:
        """Remove all, and return who waited."""
        waiting = list(self.by_id)
        for request_id in waiting:
            self.remove(request_id)
        return waiting

    def to_evict(self, arrival: Arrival) -> str | None:
        """Return who leaves a full queue: the newest of the lowest class' longest flow, or None
        for `arrival`.
        """
        waiting_classes = [priority for priority, flows in self._classes.items() if flows]
        lowest = max(waiting_classes, default=None)
        if lowest is None or arrival.priority > lowest:
            return None
        flows = self._classes[lowest]
        longest = max(flows.values(), key=lambda flow: len(flow.entries))
        if arrival.priority == lowest:
            own_flow = flows.get(arrival.flow)
            own_length = len(own_flow.entries) if own_flow is not None else 0
            if own_length + 1 >= len(longest.entries):
                return None
        return next(reversed(longest.entries))

    def under_way(self, flow: str, change: int) -> None:
        """Note that `change` more requests of the flow are with a replica, or fewer."""
        count = self._active.get(flow, 0) + change
        if count:
            self._active[flow] = count
        else:
            del self._active[flow]
        if not self.by_id:
            return
        for flows in self._classes.values():
            waiting = flows.get(flow)
            if waiting is not None:
                _, served_last = waiting.turn
                waiting.turn = (count, served_last)

    def candidates(self) -> Iterator[Arrival]:
        """Yield at most one request per class, the next one first."""
        waiting = [
            (priority, flows.values()) for priority, flows in self._classes.items() if flows
        ]
        if len(waiting) == 1:
            _, flows = waiting[0]
            yield min(flows, key=_turn_and_arrival).head
            return
        heads = []
        for priority, flows in waiting:
            oldest = min((flow.head for flow in flows), key=lambda head: head.arrived_at)
            due_at = oldest.arrived_at + priority * self.aging_s
            heads.append((due_at, priority, oldest, flows))
        heads.sort(key=lambda head: head[:2])
        for place, (_, priority, oldest, flows) in enumerate(heads):
            is_aged = any(head[1] < priority for head in heads[place:])
            if is_aged:  # it goes before a class that comes before its own
                yield oldest
            else:
                yield min(flows, key=_turn_and_arrival).head
