"""What a hive does right now, from readings of its status. Knows no clock, socket or page.

Counters become rates over the last seconds; what nobody tells is None.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from skep.engines.shown import OUTCOMES, Shown, Status, replicas_of
from skep.stats.rates import Rate, TokenRates
from skep.web.site import Site

HISTORY = 120  # readings


class Pulse:
    """All readings of one hive so far; another pid is another hive."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._tokens, self._ended = TokenRates(), Rate()
        self._speeds: deque[float | None] = deque(maxlen=HISTORY)
        self._queued: deque[float | None] = deque(maxlen=HISTORY)

    def __repr__(self) -> str:
        return f"<Pulse {len(self._speeds)} readings>"

    @property
    def pid(self) -> int | None:
        return None if self._status is None else self._status["pid"]

    def take(self, status: Status, now: float) -> None:
        """`now` is of a clock that is never set."""
        self._status = status
        gateway = status.get("gateway") or {}
        if not gateway:
            self._speeds.append(None)
            self._queued.append(None)
            return
        busy = {replica.name: replica.active or 0 for replica in replicas_of(status)}
        self._tokens.take(gateway["tokens"], busy, now)
        self._ended.take(sum(gateway["ended"].values()), now)
        self._speeds.append(self._tokens.total())
        self._queued.append(gateway.get("queued"))

    def document(self, site: Site) -> dict[str, Any]:
        """Only before the first reading there is none of it. A public one names no address, process or reason."""
        status = self._status
        if status is None:
            return {}
        gateway = status.get("gateway") or {}
        told = bool(gateway)
        replicas = replicas_of(status)
        return {
            "phase": status["phase"],
            "url": None if site.public else status["url"],
            "pid": None if site.public else status["pid"],
            "up_s": status.get("up_s"),
            "gateway": told,
            "in_flight": gateway.get("in_flight"),
            "queued": gateway.get("queued"),
            "tok_s": self._tokens.total() if told else None,
            "requests_per_s": self._ended.per_s() if told else None,
            "ended": {**dict.fromkeys(OUTCOMES, 0), **gateway["ended"]} if told else dict.fromkeys(OUTCOMES),
            "slots": _slots(replicas),
            "replicas": [self._replica(site, replica, number, told=told) for number, replica in enumerate(replicas, 1)],
            "queues": [
                {"model": site.label(model), "waiting": dict(waiting)}
                for model, waiting in (gateway.get("queues") or {}).items()
            ],
            "history": {"tok_s": list(self._speeds), "queued": list(self._queued)},
        }

    def _replica(self, site: Site, shown: Shown, number: int, *, told: bool) -> dict[str, Any]:
        """In public by its number: the name of a server elsewhere is made of its address."""
        return {
            "name": f"replica-{number}" if site.public else shown.name,
            "model": site.label(shown.model or None),
            "state": shown.state,
            "slots": shown.slots,
            "active": shown.active,
            "releasing": shown.releasing if shown.active is not None else None,
            "tok_s": self._tokens.of(shown.name) if told else None,
            "restarts": shown.restarts,
            "simulated": bool(shown.mark),
            "why": None if site.public else shown.why or None,
        }


def _slots(replicas: list[Shown]) -> dict[str, int | None]:
    """Over all replicas that the gateway knows."""
    known = [replica for replica in replicas if replica.active is not None]
    if not known:
        return {"total": sum(replica.slots for replica in replicas), "active": None, "releasing": None}
    return {
        "total": sum(replica.slots for replica in known),
        "active": sum(replica.active or 0 for replica in known),
        "releasing": sum(replica.releasing for replica in known),
    }
