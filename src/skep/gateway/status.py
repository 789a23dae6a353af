"""What the gateway shows of itself: the models it serves, its state for `skep ps` and `skep top`, its metrics."""

from __future__ import annotations

from typing import Any

from skep import __version__
from skep.config.keys import Priority
from skep.gateway.admission import Admission
from skep.gateway.metrics import Labels, Metrics
from skep.gateway.proxy import Proxy
from skep.gateway.replica_table import GatewayReplica


def models_document(proxy: Proxy) -> dict[str, Any]:
    data = [model_document(proxy, model) for model in proxy.admission.models]
    return {"object": "list", "data": data}


def model_document(proxy: Proxy, model: str) -> dict[str, Any]:
    admission = proxy.admission
    specs = [replica.spec for replica in admission.table() if replica.spec.model == model]
    serving: dict[str, Any] = {
        "replicas": len(specs),
        "slots": sum(spec.slots for spec in specs),
        "engine": ", ".join(sorted({spec.engine for spec in specs})),
        "simulated": any(spec.simulated for spec in specs),
    }
    if specs and all(spec.context for spec in specs):
        serving["context"] = min(spec.context or 0 for spec in specs)  # what any of them takes
    if (state := proxy.unloaded.states.get(model)) is not None:
        serving["state"] = state
    return {"id": model, "object": "model", "created": 0, "owned_by": "skep", "skep": serving}


def status_document(proxy: Proxy, metrics: Metrics, now: float) -> dict[str, Any]:
    """Answers the supervisor. Counters are since this process began; who asks twice can tell the rates."""
    admission = proxy.admission
    busy: dict[str, int] = {}
    for replica in admission.replicas():
        busy[replica.name] = busy.get(replica.name, 0) + replica.busy
    return {
        "queued": admission.queued,
        "in_flight": admission.in_flight,
        "busy": busy,
        "models": figures(proxy, now),
        "queues": {model: admission.waiting(model) for model in admission.models},
        "replicas": [_replica(replica, now) for replica in admission.table()],
        "tokens": tokens_so_far(proxy, metrics),
        "ended": metrics.requests.by("outcome"),
    }


def tokens_so_far(proxy: Proxy, metrics: Metrics) -> dict[str, float]:
    """By replica, about: of answers that ended their own number, of all others the events that have passed."""
    sums = metrics.output_tokens.by("replica")
    for name, events in metrics.counted_tokens.by("replica").items():
        sums[name] = sums.get(name, 0) + events
    for exchange in proxy.exchanges.values():
        if exchange.granted is not None and exchange.leased:
            name = exchange.granted.replica.name
            sums[name] = sums.get(name, 0) + exchange.events
    return sums


def figures(proxy: Proxy, now: float) -> dict[str, dict[str, Any]]:
    """By model: requests that wait, answers under way, seconds since the last one ended."""
    ended = proxy.accounts.last_ended
    counts: dict[str, dict[str, Any]] = {
        model: {"queued": 0, "busy": 0, "idle_s": now - ended[model] if model in ended else None}
        for model in proxy.admission.models
    }
    for exchange in proxy.exchanges.values():
        if (told := counts.get(exchange.model)) is not None:
            told["busy" if exchange.under_way else "queued"] += 1
    return counts


def _replica(replica: GatewayReplica, now: float) -> dict[str, Any]:
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


def state_of(replica: GatewayReplica, now: float) -> str:
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
