"""Agents in virtual time around the real `Admission`. SIMULATED: no engine, no socket; only its
calls are timed.

A closed loop: an agent thinks, asks, waits for its slot and its answer, and thinks again; after
eight turns it begins another conversation. Each agent is a flow of its own. One answer in a
hundred is left by its client half-way, one in a thousand attempts fails without a byte, so
releases, retries and breakers are part of what is timed."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random

from scaling.service import SLOTS, Service

from skep.config.gateway_messages import AdmissionLimits, ReplicaSpec
from skep.config.keys import Priority
from skep.gateway.admission import Admission
from skep.gateway.admission_messages import Action, Arrival, Forward, Reject

TURNS = 8
MOMENTS = 8  # at which the replicas' loads are compared
LEAVE = 0.01
FAIL = 0.001
TICK_S = (
    0.25  # virtual; as often as the gateway does at rest, but never more than one in 200 events
)
CLASSES = (Priority.INTERACTIVE, *(Priority.NORMAL,) * 7, *(Priority.BATCH,) * 2)
ASK, END, TICK = range(3)


@dataclass(frozen=True, slots=True)
class Shape:
    """`streams` agents on `replicas`; `busy`: the share of the slots they want, above 1 with
    queues and no thinking.
    """

    name: str
    replicas: int
    streams: int
    busy: float
    one_flow: bool = False


@dataclass(slots=True)
class Seen:
    """What one run showed. Times of calls in nanoseconds, waits in virtual seconds."""

    arrive_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    tick_ns: array[int] = field(default_factory=lambda: array("q"))
    waits_s: array[float] = field(default_factory=lambda: array("d"))
    # Of the shares of busy slots, at moments.
    max_over_mean: list[float] = field(default_factory=list)
    jain: list[float] = field(default_factory=list)
    back: int = 0  # turns of a known conversation
    home: int = 0  # of these, where the one before was
    most_queued: int = 0
    rejected: int = 0
    virtual_s: float = 0.0
    whole: bool = True  # False: the time for it was over before all was measured


def table(replicas: int, **more: object) -> tuple[ReplicaSpec, ...]:
    rng = Random(7)
    return tuple(
        ReplicaSpec(f"r{number}", "m", f"http://10.0.0.1:{number}", rng.choice(SLOTS), **more)  # type: ignore[arg-type]
        for number in range(replicas)
    )


class Traffic:
    def __init__(
        self, shape: Shape, seed: int, service: Service, specs: tuple[ReplicaSpec, ...]
    ) -> None:
        self.shape = shape
        self.rng = Random(seed)
        self.service = service
        limits = AdmissionLimits(max_queue=10**9, max_wait_s=10**9)
        self.admission = Admission(limits)
        self.admission.set_replicas(specs, 0.0)
        self.slots = {spec.name: spec.slots for spec in specs}
        # Requests, with all slots busy.
        per_s = sum(spec.slots / service.mean_s(spec.slots) for spec in specs)
        cycle_s = shape.streams / (shape.busy * per_s)  # of an agent, to want so many slots
        self.think_s = max(0.0, cycle_s - sum(self.slots.values()) / per_s)
        self.talks = [self.rng.getrandbits(62) for _ in range(shape.streams)]
        self.turns = array("q", bytes(8 * shape.streams))
        self.homes: list[str | None] = [None] * shape.streams
        self.asked: dict[str, int] = {}  # request -> agent
        self.events: list[tuple[float, int, str | int]] = [
            (self.thinking_s(), ASK, agent) for agent in range(shape.streams)
        ]
        heapify(self.events)
        self.now = 0.0
        self.count = 0
        self.seen = Seen()

    def run(self, skip: int, measure: int, limit_s: float) -> Seen:
        """`skip` requests to fill, then `measure` requests; both at most for so long together."""
        until = time.monotonic() + limit_s
        self._go(skip, until)
        self.seen = Seen()
        began = self.now
        for _ in range(MOMENTS):
            self.seen.whole = self._go(measure // MOMENTS, until)
            self._look()
        self.seen.virtual_s = self.now - began
        return self.seen

    def _go(self, requests: int, until: float) -> bool:
        """False: not all of them in time. The clock is looked at every 64 events."""
        last = self.count + requests
        events = 0
        next_tick = self.now
        while self.count < last:
            self.now, kind, what = heappop(self.events)
            if kind == ASK:
                self._ask(int(what))
            else:
                self._end(str(what))
            events += 1
            if self.now >= next_tick and not events % 200:
                next_tick = self.now + TICK_S
                self._take(self._timed(self.seen.tick_ns, lambda: self.admission.tick(self.now)))
            if not events % 64 and time.monotonic() > until:
                return False
        return True

    def _look(self) -> None:
        shares = [replica.busy / replica.slots for replica in self.admission.table()]
        total = sum(shares)
        if total:
            self.seen.max_over_mean.append(max(shares) * len(shares) / total)
            self.seen.jain.append(
                total * total / (len(shares) * sum(share * share for share in shares))
            )

    def _timed(self, into: array[int], call: Callable[[], list[Action]]) -> list[Action]:
        began = time.thread_time_ns()
        actions = call()
        into.append(time.thread_time_ns() - began)
        return actions

    def _ask(self, agent: int) -> None:
        self.count += 1
        name = f"{agent}-{self.count}"
        if self.turns[agent] >= TURNS:
            self.turns[agent], self.homes[agent], self.talks[agent] = (
                0,
                None,
                self.rng.getrandbits(62),
            )
        size = 400 + 4000 * int(self.turns[agent])
        flow = "" if self.shape.one_flow else str(agent)
        arrival = Arrival(name, "m", CLASSES[agent % 10], flow, self.talks[agent], size)
        self.asked[name] = agent
        admission = self.admission
        now = self.now
        began = time.thread_time_ns()
        actions = admission.arrive(arrival, now)
        self.seen.arrive_ns.append(time.thread_time_ns() - began)
        self._take(actions)
        self.seen.most_queued = max(self.seen.most_queued, admission.queued)

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            agent = self.asked[action.request_id]
            if isinstance(action, Forward):
                self._start(agent, action)
            elif isinstance(action, Reject):
                self.seen.rejected += 1
                self._rest(action.request_id)

    def _start(self, agent: int, action: Forward) -> None:
        seen = self.seen
        where = action.replica.name
        seen.waits_s.append(action.queued_s)
        before = self.homes[agent]
        if before is not None:
            seen.back += 1
            seen.home += before == where
        self.homes[agent] = where
        takes_s = self.service.draw_s(self.rng, self.slots[where], returning=before == where)
        heappush(self.events, (self.now + takes_s, END, action.request_id))

    def _end(self, name: str) -> None:
        chance = self.rng.random()
        admission = self.admission
        now = self.now
        into = self.seen.end_ns
        if chance < FAIL:
            self._take(self._timed(into, lambda: admission.failed(name, now)))
            return  # it is under way again, or rejected, or waits
        if chance < FAIL + LEAVE:
            call = admission.hung_up
        else:
            call = admission.finished
        began = time.thread_time_ns()
        if call == admission.finished:
            admission.answering(name, now)
        actions = call(name, now)
        into.append(time.thread_time_ns() - began)
        self._rest(name)
        self._take(actions)

    def _rest(self, name: str) -> None:
        agent = self.asked.pop(name)
        self.turns[agent] += 1
        heappush(self.events, (self.now + self.thinking_s(), ASK, agent))

    def thinking_s(self) -> float:
        if self.think_s:
            return self.rng.expovariate(1 / self.think_s)
        return 0.0
