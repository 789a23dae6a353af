"""The waiting requests of one model: classes that age, and fair shares between flows inside a class.

A request's place among the classes is `arrived + class x aging`: an interactive request goes before every batch
request that has not waited twice the aging time longer, and no class starves. Inside a class the flow with the fewest
requests under way is next, of equals the one served longest ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from skep.gateway.values import Arrival, Priority


@dataclass(slots=True, eq=False)
class Waiting:
    arrival: Arrival
    arrived_at: float
    deadline: float
    attempts: int = 0
    avoid: str | None = None  # the replica that failed it last
    avoid_until: float = 0.0  # so long it rather waits for another one

    @property
    def id(self) -> str:
        return self.arrival.request_id


class _Flow:
    __slots__ = ("entries", "served")

    def __init__(self) -> None:
        self.entries: deque[Waiting] = deque()
        self.served = 0  # when it was served last, in the queue's own count


class ModelQueue:
    def __init__(self, aging_s: float) -> None:
        self.aging_s = aging_s
        self._classes: dict[Priority, dict[str, _Flow]] = {priority: {} for priority in Priority}
        self._by_id: dict[str, Waiting] = {}
        self._count = 0

    def __repr__(self) -> str:
        waiting = {priority.label: self.waiting(priority) for priority in Priority}
        return f"<ModelQueue {waiting}>"

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(list(self._by_id.values()))

    def waiting(self, priority: Priority) -> int:
        return sum(len(flow.entries) for flow in self._classes[priority].values())

    def only_batch(self) -> bool:
        return not self._classes[Priority.INTERACTIVE] and not self._classes[Priority.NORMAL]

    def put(self, entry: Waiting, *, first: bool = False) -> None:
        """At the end of its flow, or (`first`) back at its head."""
        flows = self._classes[entry.arrival.priority]
        flow = flows.get(entry.arrival.flow)
        if flow is None:
            flow = flows[entry.arrival.flow] = _Flow()
            flow.served = self._count
        if first:
            flow.entries.appendleft(entry)
        else:
            flow.entries.append(entry)
        self._by_id[entry.id] = entry

    def remove(self, request_id: str) -> Waiting | None:
        entry = self._by_id.pop(request_id, None)
        if entry is not None:
            flows = self._classes[entry.arrival.priority]
            flow = flows[entry.arrival.flow]
            flow.entries.remove(entry)
            self._count += 1
            flow.served = self._count
            if not flow.entries:
                del flows[entry.arrival.flow]
        return entry

    def candidates(self, active: Callable[[], Mapping[str, int]]) -> Iterator[Waiting]:
        """At most one per class, the next one first. `active` tells how many requests of each flow are under way."""
        heads = []
        for priority, flows in self._classes.items():
            if flows:
                oldest = min((flow.entries[0] for flow in flows.values()), key=lambda entry: entry.arrived_at)
                heads.append((oldest.arrived_at + priority * self.aging_s, priority, oldest))
        heads.sort(key=lambda head: head[:2])
        higher = [priority for _, priority, _ in heads]
        for _, priority, oldest in heads:
            aged = any(other < priority for other in higher[higher.index(priority) :])
            yield oldest if aged else self._fairest(self._classes[priority], active, oldest)

    def _fairest(self, flows: dict[str, _Flow], active: Callable[[], Mapping[str, int]], oldest: Waiting) -> Waiting:
        if len(flows) == 1:
            return oldest
        counts = active()
        name = min(flows, key=lambda name: (counts.get(name, 0), flows[name].served))
        return flows[name].entries[0]
