"""What the gateway shows of itself: the models it serves, its state for `skep ps` and `skep top`, its metrics."""

from __future__ import annotations

from typing import Any

from skep import __version__
from skep.gateway.admission import Admission
from skep.gateway.metrics import Labels, Metrics
from skep.gateway.pool import Replica
from skep.gateway.values import Priority


def models_document(admission: Admission) -> dict[str, Any]:
    data = [model_document(admission, model) for model in admission.models]
    return {"object": "list", "data": data}


def model_document(admission: Admission, model: str) -> dict[str, Any]:
    specs = [replica.spec for replica in admission.table() if replica.spec.model == model]
    serving = {
        "replicas": len(specs),
        "slots": sum(spec.slots for spec in specs),
        "engine": ", ".join(sorted({spec.engine for spec in specs})),
        "simulated": any(spec.simulated for spec in specs),
    }
    return {"id": model, "object": "model", "created": 0, "owned_by": "skep", "skep": serving}


def status_document(admission: Admission, metrics: Metrics, now: float) -> dict[str, Any]:
    """Answers the supervisor. Counters are since this process began; who asks twice can tell the rates."""
    busy: dict[str, int] = {}
    for replica in admission.replicas():
        busy[replica.name] = busy.get(replica.name, 0) + replica.busy
    return {
        "queued": admission.queued,
        "in_flight": admission.in_flight,
        "busy": busy,
        "queues": {model: admission.waiting(model) for model in admission.models},
        "replicas": [_replica(replica, now) for replica in admission.table()],
        "tokens": metrics.output_tokens.by("replica"),
        "ended": metrics.requests.by("outcome"),
    }


def _replica(replica: Replica, now: float) -> dict[str, Any]:
    return {
        "name": replica.name,
        "model": replica.spec.model,
        "url": replica.spec.url,
        "engine": replica.spec.engine,
        "simulated": replica.spec.simulated,
        "slots": replica.slots,
        "active": replica.active,
        "releasing": replica.busy - replica.active,
        "state": state_of(replica, now),
    }


def state_of(replica: Replica, now: float) -> str:
    if replica.spec.draining:
        return "draining"
    state = replica.breaker.state(now)
    return "up" if state == "closed" else state


def fill_gauges(metrics: Metrics, admission: Admission, *, connections: int, lost: dict[str, int], now: float) -> None:
    slots: dict[Labels, float] = {}
    busy: dict[Labels, float] = {}
    up: dict[Labels, float] = {}
    for replica in admission.table():
        place = (replica.spec.model, replica.name)
        slots[place] = replica.slots
        state = state_of(replica, now)
        up[*place, state] = state == "up"
    for replica in admission.replicas():  # what has left the table works on for a while
        place, active = (replica.spec.model, replica.name), replica.active
        busy[*place, "active"] = busy.get((*place, "active"), 0) + active
        busy[*place, "releasing"] = busy.get((*place, "releasing"), 0) + replica.busy - active
    metrics.slots.set_all(slots)
    metrics.busy.set_all(busy)
    metrics.up.set_all(up)
    metrics.queued.set_all({
        (model, priority.label): admission.waiting(model)[priority.label]
        for model in admission.models
        for priority in Priority
    })  # fmt: skip
    metrics.connections.set_all({(): connections})
    metrics.lost_rows.set_all({(why,): count for why, count in lost.items()})
    metrics.build.set_all({(__version__,): 1})
