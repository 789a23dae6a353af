"""What one child process measures: traffic of one shape, the upkeep of a table, or memory."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

from scaling.service import Service
from scaling.traffic import Shape, Traffic, table

from skep.config.gateway_messages import AdmissionLimits
from skep.gateway.admission import Admission
from skep.gateway.admission_messages import Arrival

ENDLESS = AdmissionLimits(max_queue=10**9, max_wait_s=10**9)
# streams per replica, and the share of the slots that they want
CALM = (100, 0.8)
FULL = (38, 2.0)


def traffic(replicas: int, kind: str, seed: int, most: int, limit_s: float) -> dict[str, Any]:
    each, busy = CALM if kind == "calm" else FULL
    shape = Shape(kind, replicas, each * replicas, busy)
    run = Traffic(shape, seed, Service(), table(replicas))
    seen = run.run(shape.streams, min(most, max(20_000, shape.streams)), limit_s)
    both = sorted((*seen.arrive_ns, *seen.end_ns))
    waits = sorted(seen.waits_s)
    return {
        "replicas": replicas,
        "streams": shape.streams,
        "slots": sum(run.slots.values()),
        "whole": seen.whole,
        "requests": len(seen.arrive_ns),
        "decisions": len(both),
        "virtual_s": seen.virtual_s,
        "arrive_us": _times(seen.arrive_ns),
        "end_us": _times(seen.end_ns),
        "tick_us": _times(seen.tick_ns),
        "decision_us": _times(both),
        "request_us": sum(both) / 1000 / max(1, len(seen.arrive_ns)),
        "wait_s": {"p50": _at(waits, 0.5), "p99": _at(waits, 0.99)},
        "most_queued": seen.most_queued,
        "max_over_mean": statistics.median(seen.max_over_mean),
        "jain": statistics.median(seen.jain),
        "home": seen.home / seen.back if seen.back else None,
        "rejected": seen.rejected,
    }


def upkeep(replicas: int, rounds: int) -> dict[str, Any]:
    """Calls beside those of requests, on a table with three quarters of its slots busy and then on
    a full one.
    """
    specs = table(replicas)
    admission = Admission(ENDLESS)
    admission.set_replicas(specs, 0.0)
    slots = sum(spec.slots for spec in specs)
    rng = Random(3)
    for number in range(slots * 3 // 4):
        admission.arrive(Arrival(f"a{number}", "m", flow=str(number % 999)), 1.0)
    some = [rng.choice(specs) for _ in range(rounds)]
    found = {
        "tick": _each(rounds, lambda _: admission.tick(2.0)),
        "health check": _each(rounds, lambda n: admission.checked(some[n], True, 2.0)),
        "sign of life": _each(rounds, lambda n: admission.heard(some[n], 2.0)),
        "token count": _each(rounds, lambda _: admission.anywhere("m", 2.0)),
        "who is asked": _each(rounds, lambda _: admission.to_confirm()),
        "same table": _each(5, lambda _: admission.set_replicas(specs, 2.0)),
    }
    for number in range(slots + 2 * rounds):
        admission.arrive(Arrival(f"b{number}", "m", flow=str(number)), 3.0)
    last = [f"b{slots + 2 * rounds - 1 - number}" for number in range(rounds)]
    found["leaving the queue"] = _each(rounds, lambda n: admission.hung_up(last[n], 4.0))
    found["tick, long queue"] = _each(rounds, lambda _: admission.tick(4.0))
    return {"replicas": replicas, "us": found}


def memory(replicas: int, streams: int) -> dict[str, Any]:
    """Bytes of Python objects by `tracemalloc`, without the request's own id and texts."""
    specs = table(replicas)
    names = [(f"a{number}", f"f{number}") for number in range(streams)]
    gc.collect()
    tracemalloc.start()
    marks = [tracemalloc.get_traced_memory()[0]]
    admission = Admission(ENDLESS)
    admission.set_replicas(specs, 0.0)
    marks.append(tracemalloc.get_traced_memory()[0])
    slots = sum(spec.slots for spec in specs)
    inside = min(slots, streams // 2)
    for name, flow in names[:inside]:
        admission.arrive(Arrival(name, "m", flow=flow), 1.0)
    marks.append(tracemalloc.get_traced_memory()[0])
    for number in range(slots - inside):
        admission.arrive(Arrival(f"x{number}", "m"), 1.0)
    before = tracemalloc.get_traced_memory()[0]
    for name, flow in names[inside:]:
        admission.arrive(Arrival(name, "m", flow=flow), 1.0)
    waiting = tracemalloc.get_traced_memory()[0] - before
    return {
        "replicas": replicas,
        "replica_bytes": (marks[1] - marks[0]) / replicas,
        "under_way_bytes": (marks[2] - marks[1]) / inside,
        "waiting_bytes": waiting / (streams - inside),
        "conversation_bytes": _conversation_bytes(streams),
    }


def _conversation_bytes(many: int) -> float:
    from skep.gateway.replica_table import ConversationAffinity

    homes = ConversationAffinity(many)
    talks = [Random(5).getrandbits(62) + number for number in range(many)]
    before = tracemalloc.get_traced_memory()[0]
    for talk in talks:
        homes.remember(talk, "r0")
    return (tracemalloc.get_traced_memory()[0] - before) / many


def _each(rounds: int, call: Callable[[int], object]) -> dict[str, float]:
    took = []
    for number in range(rounds):
        began = time.thread_time_ns()
        call(number)
        took.append(time.thread_time_ns() - began)
    return _times(took)


def _times(nanoseconds: Any) -> dict[str, float]:
    ordered = sorted(nanoseconds)
    return {
        name: _at(ordered, share) / 1000
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def _at(ordered: Any, share: float) -> float:
    if ordered:
        return float(ordered[int(share * (len(ordered) - 1))])
    return 0.0
