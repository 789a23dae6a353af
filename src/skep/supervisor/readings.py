"""The status of a hive over time: rates, queues and slots from its readings, for `skep top` and the dashboard."""

from __future__ import annotations

from collections import deque
from typing import Any

from skep.paths import Paths
from skep.stats.rates import Rate, TokenRates
from skep.supervisor.control import OUTCOMES, ReplicaStatus, Status, ask, replicas_of, socket_of, up_s

HISTORY = 120  # readings


def read_status(paths: Paths, timeout_s: float) -> Status:
    """Return the status of the hive that runs here; blocks until it answers. Raises SkepError."""
    status = ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=timeout_s)
    return {**status, "up_s": up_s(status["pid"])}


class HiveReadings:
    """All readings of one hive so far; another pid is another hive. `status`: the last one, or empty."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"<HiveReadings {len(self.speeds)} readings>"

    def forget(self) -> None:
        self.status: Status = {}
        self.replicas: list[ReplicaStatus] = []
        self._tokens, self._ended = TokenRates(), Rate()
        self.speeds: deque[float | None] = deque(maxlen=HISTORY)
        self.queued: deque[int | None] = deque(maxlen=HISTORY)
        self.queued_of: dict[str, deque[int]] = {}  # by model

    def take(self, status: Status, now: float) -> None:
        """`now` is of a clock that is never set."""
        if self.status.get("pid") not in (None, status["pid"]):
            self.forget()
        self.status, self.replicas = status, replicas_of(status)
        if gateway := self.gateway:
            self._tokens.take(gateway["tokens"], {one.name: one.active or 0 for one in self.replicas}, now)
            self._ended.take(sum(gateway["ended"].values()), now)
            for model, waiting in gateway["queues"].items():
                self.queued_of.setdefault(model, deque(maxlen=HISTORY)).append(sum(waiting.values()))
        self.speeds.append(self.tok_s)
        self.queued.append(gateway.get("queued"))

    @property
    def gateway(self) -> dict[str, Any]:
        """Return the figures of the gateway; empty: it gives none."""
        return self.status.get("gateway") or {}

    @property
    def tok_s(self) -> float | None:
        return self._tokens.total() if self.gateway else None

    @property
    def requests_per_s(self) -> float | None:
        return self._ended.per_s() if self.gateway else None

    @property
    def ended(self) -> dict[str, int | None]:
        """Return how many requests ended, by outcome."""
        return {name: self.gateway["ended"].get(name, 0) if self.gateway else None for name in OUTCOMES}

    def tok_s_of(self, replica: str) -> float | None:
        return self._tokens.of(replica) if self.gateway else None

    def rates(self) -> dict[str, Any]:
        """Return all rates as JSON has them. None: nobody says."""
        replicas = self._tokens.by_replica() if self.gateway else {}
        return {"tok_s": self.tok_s, "requests_per_s": self.requests_per_s, "replicas": replicas}

    def slots(self) -> dict[str, int | None]:
        """Return total, active and releasing slots of all replicas that the gateway knows."""
        known = [one for one in self.replicas if one.active is not None]
        if not known:
            return {"total": sum(one.slots for one in self.replicas), "active": None, "releasing": None}
        return {
            "total": sum(one.slots for one in known),
            "active": sum(one.active or 0 for one in known),
            "releasing": sum(one.releasing for one in known),
        }
